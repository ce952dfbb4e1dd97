"""Lane exact: integer data, on which candidate and oracle must be equal."""

import dataclasses
import functools

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.explain import stage_explanations
from hpmoe.parity_tests.judge import equality
from hpmoe.parity_tests.judge import lanes
from hpmoe.parity_tests.judge import launch_tasks
from hpmoe.parity_tests.judge import pass_case
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense
from hpmoe.reference.contract import precision

EXACT_HINT = (
  "hint: lane exact sets policy.activation='absolute'; a kernel that does only "
  "swiglu should say so: function.activations = ('swiglu',)"
)
# What has other values where the routing weight multiplies elsewhere.
_PLACED = ('activation', 'expert_out', 'returned', 'd_expert_out')
_EXACT_RULES = dict(exact=equality.ORACLE_RULE, wide=equality.WIDE_RULE)


def judge_exact(
  asked: pass_case.LaneOptions,
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
) -> pass_case.Findings:
  """Integer data on the same routing: candidate and oracle must be equal."""
  which, data = case.which, case.made.data
  rule = _EXACT_RULES[data]
  asked.progress(f'{which.name}, {data}: candidate')
  try:
    answered = case.ask(candidate)
  except candidates.InputsSpoilt:
    raise
  except candidates.CandidateError as error:
    # Only a name of the user's has a colon.
    if ':' not in candidate.name:
      raise
    hint = f'; {EXACT_HINT}' if candidate.can.declares else ''
    raise candidates.CandidateError(
      f'{error} (on {data} data){hint}'
    ) from error
  except candidates.CannotJudge as error:
    return pass_case.Findings([report_no_data(which, data, str(error))], {})
  asked.progress(f'{which.name}, {data}: oracle')
  expected = case.answer()
  asked.progress(f'{which.name}, {data}: compare')
  got = answered.got
  results = [
    equality.compare_equal(name, 'exact', rule, got, expected, case.tiling)
    for name in (*which.plan, *case.stages)
  ]
  results += _compare_dense(case, got)
  if ':' in candidate.name:
    results = [hint_placement(case, got, result) for result in results]
  refuses = lambda name, right: lanes.differs('exact', got[name], right)
  results = stage_explanations.explain_results(
    asked, case, answered, expected, results, refuses, exact=True
  )
  wrong = []
  if answered.sources is not got:
    differs = equality.select_unequal(got, expected, 'exact')
    wrong = launch_tasks.find_wrong_tasks(
      case, candidate, 'exact', results, differs
    )
  return pass_case.Findings(results, got, wrong)


def _compare_dense(
  case: pass_case.PassCase, got: pass_case.Got
) -> pass_case.Results:
  """Compares with a dense MLP, where the layer is one."""
  if not pass_case.is_dense(case):
    return []
  made, backward = case.made, case.which.name != passes.FORWARD.name
  right = dense.rounded(made.policy, made.arrays, backward)
  return [
    equality.compare_equal(name, 'exact', dense.RULE, got, right, case.tiling)
    for name in right
  ]


def report_no_data(which: passes.Pass, data: str, why: str) -> verdicts.Result:
  """Returns the row of lane exact where a pass has no answer."""
  return verdicts.Result(
    which.results[0],
    'exact',
    _EXACT_RULES[data],
    verdict=verdicts.NOT_JUDGED,
    why=why,
  )


def hint_placement(
  case: pass_case.PassCase, got: pass_case.Got, result: verdicts.Result
) -> verdicts.Result:
  """Tells who has a tensor as another `policy.placement` would make it."""
  if result.failure is None or result.stage not in _PLACED:
    return result
  policy, rank = case.made.policy, result.failure.rank

  def made_by(placement: str) -> bool:
    policy = dataclasses.replace(case.made.policy, placement=placement)
    one = case.under(policy)
    if not {*one.unseen(result.stage, got)} <= {
      *case.unseen(result.stage, got)
    }:
      return False
    mine = got[result.stage][rank]
    stage = one.recompute(result.stage, got)[rank]
    return not lanes.differs('exact', mine, stage).any()

  # What merely follows a stage that is wrong is as asked for in itself.
  if made_by(policy.placement):
    return result
  for other in precision.PLACEMENTS:
    if other != policy.placement and made_by(other):
      hint = f'as with placement {other}: is policy.placement read?'
      tell = functools.partial(dataclasses.replace, hint=hint)
      return result.part.but(tell)
  return result
