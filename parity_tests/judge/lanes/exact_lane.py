"""Lane exact: integer data, on which candidate and oracle must be equal."""

import dataclasses
import functools

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import launch_tasks
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import stage_explanations
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense
from hpmoe.reference.contract import precision

EXACT_HINT = (
  "hint: lane exact sets policy.activation='absolute'; a kernel that has only "
  "swiglu must declare it: function.activations = ('swiglu',)"
)
# Stages whose values depend on where the routing weight multiplies.
_WEIGHTED_BY_PLACEMENT = (
  'expert_in',
  'activation',
  'expert_out',
  'returned',
  'd_expert_out',
)
_EXACT_RULES = dict(exact=equality.ORACLE_RULE, wide=equality.WIDE_RULE)


def judge_exact(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
) -> pass_case.Findings:
  """Judges a pass on integer data: candidate and oracle must be equal."""
  layer_pass, data = case.layer_pass, case.inputs.data
  rule = _EXACT_RULES[data]
  options.progress(f'{layer_pass.name}, {data}: candidate')
  try:
    answer = case.ask(candidate)
  except candidates.InputsSpoilt:
    raise
  except candidates.CandidateError as error:
    # Only the name of a user's kernel has a colon.
    if ':' not in candidate.name:
      raise
    hint = f'; {EXACT_HINT}' if candidate.capabilities.declares else ''
    raise candidates.CandidateError(
      f'{error} (on {data} data){hint}'
    ) from error
  except candidates.CannotJudge as error:
    return pass_case.Findings(
      [report_no_data(layer_pass, data, str(error))], {}
    )
  options.progress(f'{layer_pass.name}, {data}: oracle')
  expected = case.answer()
  options.progress(f'{layer_pass.name}, {data}: compare')
  outputs = answer.outputs
  results = [
    equality.compare_equal(name, 'exact', rule, outputs, expected, case.tiling)
    for name in (*layer_pass.plan, *case.stages)
  ]
  results += _compare_dense(case, outputs)
  if ':' in candidate.name:
    results = [hint_placement(case, outputs, result) for result in results]
  refuses = lambda name, right: tile_lanes.differs(
    'exact', outputs[name], right
  )
  results = stage_explanations.explain_results(
    options, case, answer, expected, results, refuses, exact=True
  )
  wrong = []
  if answer.is_isolated:
    differs = equality.select_unequal(outputs, expected, 'exact')
    wrong = launch_tasks.find_wrong_tasks(
      case, candidate, 'exact', results, differs
    )
  return pass_case.Findings(results, outputs, wrong)


def _compare_dense(
  case: pass_case.PassCase, outputs: pass_case.Arrays
) -> pass_case.Results:
  """Compares the outputs with a dense MLP if the layer is one."""
  if not pass_case.is_dense(case):
    return []
  inputs, backward = case.inputs, case.layer_pass.name != passes.FORWARD.name
  dense_outputs = dense.rounded(inputs.policy, inputs.arrays, backward)
  return [
    equality.compare_equal(
      name, 'exact', dense.RULE, outputs, dense_outputs, case.tiling
    )
    for name in dense_outputs
  ]


def report_no_data(
  layer_pass: passes.Pass, data: str, reason: str
) -> verdicts.Result:
  """Returns the row of lane exact for a pass that has no such data."""
  return verdicts.Result(
    layer_pass.results[0],
    'exact',
    _EXACT_RULES[data],
    verdict=verdicts.NOT_JUDGED,
    reason=reason,
  )


def hint_placement(
  case: pass_case.PassCase, outputs: pass_case.Arrays, result: verdicts.Result
) -> verdicts.Result:
  """Adds a hint if a tensor is right under another `policy.placement`."""
  if result.failure is None or result.stage not in _WEIGHTED_BY_PLACEMENT:
    return result
  policy, rank = case.inputs.policy, result.failure.rank

  def matches_placement(placement: str) -> bool:
    policy = dataclasses.replace(case.inputs.policy, placement=placement)
    other_case = case.with_policy(policy)
    if not {*other_case.list_unseen(result.stage, outputs)} <= {
      *case.list_unseen(result.stage, outputs)
    }:
      return False
    own_rows = outputs[result.stage][rank]
    stage = other_case.recompute(result.stage, outputs)[rank]
    return not tile_lanes.differs('exact', own_rows, stage).any()

  # A stage that only follows a wrong one matches the requested placement.
  if matches_placement(policy.placement):
    return result
  for other in precision.PLACEMENTS:
    if other != policy.placement and matches_placement(other):
      hint = f'equals placement {other}: does the kernel read policy.placement?'
      tell = functools.partial(dataclasses.replace, hint=hint)
      return result.part.but(tell)
  return result
