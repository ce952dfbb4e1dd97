"""Which failure of a tensor is explained."""

import dataclasses

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import stage_explanations
from hpmoe.parity_tests.report import reports_testing


def test_a_failure_with_bad_rows_is_explained_before_one_without():
  # given: a limit of the whole of y fails, and then one of its tiles
  of_tile = reports_testing.failure(bad_rows=2)
  of_tensor = dataclasses.replace(of_tile, bad_rows=0)
  results = [
    verdicts.Result('y', 'bounded', 'rule', failure=failure)
    for failure in (of_tensor, of_tile, of_tensor)
  ]
  # when
  failures = stage_explanations._pick_failures(results)
  # then
  assert failures == {'y': of_tile}
