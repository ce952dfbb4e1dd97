"""The example's gradient is right, and its bug is found where it is."""

import pytest

from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.examples import fused_moe
from hpmoe.parity_tests.examples import fused_moe_grad
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts


def _check(function, lane: str, **kwargs) -> check.Report:
  return check.run(
    check.Request(
      case_lib.Case(
        preset='tiny', ranks=2, tokens=24, routing='zipf', **kwargs
      ),
      user_candidate.Subprocess(
        f'{fused_moe_grad.__name__}:{function.__name__}',
        options=flow_lib.Options(row_block=fused_moe.TILE),
      ),
      judgement.Judgement(lanes=(lane,)),
    )
  )


@pytest.mark.parametrize(
  ('lane', 'dtype', 'placement'),
  [('exact', 'float32', 'before_down'), ('bounded', 'bfloat16', 'combine')],
)
def test_the_right_version_passes_in_both_directions(lane, dtype, placement):
  report = _check(
    fused_moe_grad.moe,
    lane,
    direction='both',
    dtype=dtype,
    placement=placement,
  )

  assert report.verdict == verdicts.PASS
  judged = {r.stage for r in report.results if r.verdict != verdicts.NOT_JUDGED}
  assert {'y', 'dx', 'd_w_down', 'd_w_gate_up', 'd_topk_weights'} <= judged


def test_the_bug_is_found_at_its_stage_and_expert():
  # When a kernel loses the last rows of an expert in its weight gradients,
  report = _check(
    fused_moe_grad.moe_with_a_bug, 'bounded', direction='backward'
  )

  # then the first expert with more than whole tiles is named,
  first = report.first_failure
  assert first is not None
  assert (first.stage, first.rank, first.expert) == ('d_w_down', 0, 2)
  assert first.index[:2] == (0, 2) and first.token is None
  # and only the weight gradients are blamed.
  failing = {r.stage for r in report.results if r.verdict == verdicts.FAIL}
  assert {verdicts.tensor_of(stage) for stage in failing} == {
    'd_w_down',
    'd_w_gate_up',
  }


def test_a_kernel_without_a_gradient_is_asked_for_one():
  request = check.Request(
    case_lib.Case(preset='tiny', ranks=2, direction='both'),
    user_candidate.Subprocess(f'{fused_moe.__name__}:fused_moe'),
    judgement.Judgement(lanes=('bounded',)),
  )

  with pytest.raises(ValueError, match='expected its backward pass as an attr'):
    check.run(request)
