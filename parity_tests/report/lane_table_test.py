"""Stage by lane, the worst figure in each cell."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import lane_table
from hpmoe.parity_tests.report import reports_testing
from hpmoe.reference.contract import tensors

Y = verdicts.Result('y', 'bounded', verdicts.BOUND_RULE, tiles=4)
EXACT = verdicts.Result('y', 'exact', 'rule', tiles=4, worst_ulp=3)


def _failing(result, num_failed=1, **values):
  return dataclasses.replace(
    result, verdict=verdicts.FAIL, failed_tiles=num_failed, **values
  )


def _share(value):
  return dataclasses.replace(Y, values={lane_table.SHARE: value})


def _table(*results, lanes=verdicts.LANES, colour=False):
  report = reports_testing.report(*results, lanes=lanes)
  return lane_table.format_table(report, colour).splitlines()


class TestCell:
  def test_the_worst_share_of_all_rules_is_shown(self):
    assert (
      str(lane_table.make_cell([_share(0.1), _share(0.25)]))
      == '✓ 0.25 of bound'
    )

  def test_one_failing_rule_fails_the_cell(self):
    bad = _failing(_share(1.5), num_failed=2)

    assert str(lane_table.make_cell([_share(0.1), bad])) == (
      '✕ 1.5 of bound, 2 of 4 tiles'
    )

  @pytest.mark.parametrize(
    ('share', 'words'),
    [
      (1.69e6, '1.69e+06 of bound'),
      (8.46e37, 'over 1e9 of bound'),
      (np.inf, 'over 1e9 of bound'),
    ],
  )
  def test_a_limit_of_nearly_zero_has_no_ratio(self, share, words):
    assert str(lane_table.make_cell([_share(share)])) == f'✓ {words}'

  def test_nan_is_the_worst(self):
    bad = _failing(EXACT, worst_abs=np.nan)

    assert str(lane_table.make_cell([bad])) == '✕ NaN, 1 of 4 tiles'

  def test_records_are_counted(self):
    good = dataclasses.replace(EXACT, lane='standard')

    # A record that is not meant for a tensor did not fail it.
    elsewhere = dataclasses.replace(good, verdict=verdicts.NOT_JUDGED)

    assert str(lane_table.make_cell([good, good])) == '✓ 2 rules'
    assert (
      str(lane_table.make_cell([good, elsewhere])) == '✓ 1 rule, 1 not judged'
    )
    assert str(lane_table.make_cell([_failing(good), elsewhere])) == (
      '✕ fails 1 of 1 rule, 1 of 4 tiles'
    )
    assert str(lane_table.make_cell([good, _failing(good)])) == (
      '✕ fails 1 of 2 rules, 1 of 4 tiles'
    )

  def test_what_is_not_judged_says_so(self):
    missing = verdicts.not_captured('y', 'exact', 'rule', 'y')

    assert str(lane_table.make_cell([missing])) == '– not judged'
    assert lane_table.make_cell([missing]).aside == 'y not returned'
    assert str(lane_table.make_cell([missing, EXACT])) == '✓ 3 ulp'


class TestTable:
  def test_a_line_for_each_stage_in_dependency_order(self):
    first = dataclasses.replace(EXACT, stage='gate_up')

    assert _table(_share(0.5), first, lanes=('exact', 'bounded')) == [
      'stage    exact    bounded',
      '-------  -------  --------------',
      'gate_up  ✓ 3 ulp',
      'y                 ✓ 0.5 of bound',
    ]

  def test_a_stage_of_which_nothing_was_judged_has_no_line(self):
    missing = verdicts.not_captured('returned', 'exact', 'rule', 'returned')

    assert [line.split()[0] for line in _table(missing, EXACT)[2:]] == ['y']

  def test_a_lane_that_judged_unasked_has_its_column(self):
    heading, _, row = _table(_share(0.5), lanes=('standard',))

    assert heading.split() == ['stage', 'bounded', 'standard']
    assert row.split() == ['y', '✓', '0.5', 'of', 'bound']

  def test_a_failing_line_is_red(self):
    lines = _table(
      dataclasses.replace(EXACT, stage='gate_up'), _failing(Y), colour=True
    )

    assert lines[2].startswith('\x1b[32m') and lines[3].startswith('\x1b[31m')

  def test_both_passes_fit_one_screen(self):
    everything = [
      dataclasses.replace(
        _failing(Y), stage=stage, lane=lane, failed_tiles=3000
      )
      for stage in verdicts.order(tensors.Parts(bias=True))
      for lane in verdicts.LANES
    ]

    lines = _table(*everything)

    assert len(lines) <= 40 and max(map(len, lines)) <= 140
