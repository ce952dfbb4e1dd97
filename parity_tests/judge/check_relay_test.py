"""`hpmoe check --relay`: relayed rows are judged, faults in them located."""

import pytest

from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts

OPTIONS = flow_lib.Options(
  row_block=16, col_block=32, num_aic=3, num_aiv=5, relay=True
)


def report(**asked) -> check.Report:
  return check.run(
    check.Request(
      preset='tiny', ranks=2, lanes=('bitwise',), options=OPTIONS, **asked
    )
  )


@pytest.mark.parametrize(
  'direction, tensor', [('forward', 'x_relayed'), ('backward', 'dy_relayed')]
)
def test_relayed_rows_are_judged_by_bits(direction, tensor):
  # Given a layer whose tokens cross to a rank once, when a put leaves another
  # token's data in a relayed row, then that tensor is the first that is wrong.
  right = report(direction=direction)
  assert right.verdict == verdicts.PASS
  judged = {r.stage: r.lane for r in right.results if r.stage == tensor}
  assert judged == {tensor: 'bitwise'}
  wrong = report(direction=direction, fault='stale_row')
  assert wrong.verdict == verdicts.FAIL
  assert wrong.first_failure is not None
  assert wrong.first_failure.stage == tensor


@pytest.mark.parametrize('direction', ['forward', 'backward'])
def test_the_source_of_the_device_relays_too(direction):
  right = report(direction=direction, backend='ascend_twin')
  assert right.verdict == verdicts.PASS
