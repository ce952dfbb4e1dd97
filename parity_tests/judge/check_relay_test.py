"""`hpmoe check --relay`: relayed rows are judged, faults in them located."""

import pytest

from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.parity_tests.candidates import host
from hpmoe.parity_tests.candidates import twin_candidate
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts

OPTIONS = flow_lib.Options(
  row_block=16, col_block=32, num_aic=3, num_aiv=5, relay=True
)


def report(direction: str, ours: host.Megakernel) -> check.Report:
  return check.run(
    check.Request(
      case_lib.Case(direction, 'tiny', 2),
      ours,
      judgement.Judgement(lanes=('bitwise',)),
    )
  )


@pytest.mark.parametrize(
  'direction, tensor', [('forward', 'x_relayed'), ('backward', 'dy_relayed')]
)
def test_relayed_rows_are_judged_by_bits(direction, tensor):
  # Given a layer whose tokens cross to a rank once, when a put leaves another
  # token's data in a relayed row, then that tensor is the first that is wrong.
  right = report(direction, host.Megakernel(OPTIONS))
  assert right.verdict == verdicts.PASS
  judged = {r.stage: r.lane for r in right.results if r.stage == tensor}
  assert judged == {tensor: 'bitwise'}
  wrong = report(direction, host.Megakernel(OPTIONS, fault='stale_row'))
  assert wrong.verdict == verdicts.FAIL
  assert wrong.first_failure is not None
  assert wrong.first_failure.stage == tensor


@pytest.mark.parametrize('direction', ['forward', 'backward'])
def test_the_source_of_the_device_relays_too(direction):
  right = report(direction, twin_candidate.Twin(OPTIONS))
  assert right.verdict == verdicts.PASS
