"""The examples are right, and their bugs are found where the page says."""

import dataclasses

import pytest

from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.examples import fused_moe
from hpmoe.parity_tests.examples import fused_moe_grad
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.report import report_text
from hpmoe.reference.contract import granularity

OPTIONS = granularity.Options(row_block=fused_moe.TILE)


def _judge(candidate, lane: str, **kwargs) -> check.Report:
  case = dict(preset='tiny', ranks=2, tokens=24, routing='zipf') | kwargs
  request = judgement.Judgement(lanes=(lane,))
  return check.run(check.Request(case_lib.Case(**case), candidate, request))


def _check(function, lane: str, **kwargs) -> check.Report:
  return _judge(in_process.Function(function, OPTIONS), lane, **kwargs)


def _failing(report: check.Report) -> set[str]:
  return {r.stage for r in report.results if r.verdict == verdicts.FAIL}


def test_the_right_version_passes():
  case = dict(dtype='bfloat16', placement='before_down')
  report = _check(fused_moe.fused_moe, 'bounded', **case)

  assert report.verdict == verdicts.PASS
  stages = {r.stage for r in report.results if r.verdict != verdicts.NOT_JUDGED}
  assert {'expert_in', 'gate_up', 'activation', 'expert_out'} <= stages


def test_the_bug_is_found_at_its_stage_and_tile():
  # When a kernel with the wrong mask returns its intermediates,
  report = _check(fused_moe.fused_moe_with_a_bug, 'bounded')

  # then the first tile with a wrong last row is named, and its row,
  first = report.first_failure
  assert first is not None
  assert (first.stage, first.rank, first.expert) == ('gate_up', 0, 0)
  assert (first.row_block, first.col_block) == (0, 0)
  assert first.index[:2] == (0, 5)
  assert (first.source_rank, first.token, first.slot) == (1, 12, 1)
  assert first.bad_rows == 1
  # and only the stages that multiply are blamed.
  assert _failing(report) == {'gate_up', 'expert_out', 'layer'}


@pytest.mark.slow
def test_isolated_replay_blames_the_stages_that_multiply_alone():
  # Given that the wrong rows run on through the layer in lane exact,
  name = fused_moe.__name__
  alone = [
    function_candidate.Subprocess(
      f'{name}:{function}',
      options=OPTIONS,
      checking=checking.Checking(isolate=True),
    )
    for function in ('fused_moe_with_a_bug', 'fused_moe')
  ]

  # when each stage reads the oracle's tensors,
  report = _judge(alone[0], 'exact')

  # then only the GEMMs are wrong, and the report says so,
  assert _failing(report) == {'gate_up', 'expert_out'}
  assert report.first_failure is not None
  assert report.first_failure.index[:2] == (0, 5) and not report.wrong
  assert report_text.format_modes(report) == (
    "isolated replay, each stage on the oracle's inputs: 2 wrong stages "
    '(gate_up, expert_out)'
  )
  # and nothing is, with the right mask.
  report = _judge(alone[1], 'exact')
  assert report.verdict == verdicts.PASS
  assert report_text.format_modes(report).endswith('inputs: no wrong stages')


@pytest.mark.parametrize('deaf', [True, False])
@pytest.mark.slow
def test_who_does_not_read_the_placement_is_told_so(monkeypatch, deaf):
  # Given a kernel that has the weights after the return, whatever is asked,
  right = pass_case.PassCase.run

  def run(case, function):
    policy = case.inputs.policy
    if deaf:
      policy = dataclasses.replace(policy, placement='combine')
    return right(case.with_policy(policy), function)

  monkeypatch.setattr(pass_case.PassCase, 'run', run)
  kernel = fused_moe.fused_moe if deaf else fused_moe.fused_moe_with_a_bug
  report = _check(kernel, 'exact', placement='before_down')

  # then the hint names the field, and of another fault it does not.
  hints = {
    r.stage: 'equals placement combine: does the kernel read policy.placement?'
    in r.failure.hint
    for r in report.results
    if r.failure is not None
  }
  assert hints.get('activation', False) == deaf
  assert any(hints.values()) == deaf and hints


@pytest.mark.slow
def test_the_right_gradient_passes_in_both_directions():
  case = dict(direction='both', placement='before_down')
  report = _check(fused_moe_grad.moe, 'exact', **case)

  assert report.verdict == verdicts.PASS
  stages = {r.stage for r in report.results if r.verdict != verdicts.NOT_JUDGED}
  assert {'y', 'dx', 'd_w_down', 'd_w_gate_up', 'd_topk_weights'} <= stages


def test_the_bug_of_a_gradient_is_found_at_its_stage_and_expert():
  # When a kernel loses the last rows of an expert in its weight gradients,
  kernel = fused_moe_grad.moe_with_a_bug
  report = _check(kernel, 'bounded', direction='backward')

  # then the first expert with more than whole tiles is named,
  first = report.first_failure
  assert first is not None
  assert (first.stage, first.rank, first.expert) == ('d_w_down', 0, 2)
  assert first.index[:2] == (0, 2) and first.token is None
  # and only the weight gradients are blamed.
  failing = {verdicts.tensor_of(stage) for stage in _failing(report)}
  assert failing == {'d_w_down', 'd_w_gate_up'}
