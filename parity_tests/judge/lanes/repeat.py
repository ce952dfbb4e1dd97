"""Runs a pass again, with other inputs in between, and reports differences.

The other data are those of `mirrored`, whose right answer follows from that of
the first.  A kernel that caches results of an earlier call, by shape or by
address, is wrong there, or wrong when the first data return.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case.values import mirrored
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import tensors

# A user's kernel is run again by default if its runs took less than this.
CHEAP_S = 5.0

Lane = Callable[..., pass_case.Findings]


def count_runs(
  judgement: judgement_lib.Judgement, candidate: candidates.Candidate
) -> int:
  """Returns the number of runs of a pass, including the first."""
  if judgement.repeat is not None:
    return judgement.repeat
  cheap = candidate.capabilities.repeats and not is_expensive(candidate)
  return 2 if cheap or judgement.allow_nondeterministic else 1


def is_expensive(candidate: candidates.Candidate) -> bool:
  """Says whether a user's kernel is too slow to be run again by default."""
  return sum(candidate.seconds) > CHEAP_S


def judge_repeatedly(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
  judge: Lane,
  judgement: judgement_lib.Judgement,
) -> pass_case.Findings:
  """Judges a pass and runs it again.

  If runs may differ, each run is judged, and the worst row of each comparison
  is returned.
  """
  findings = judge(options, case, candidate)
  changes: dict[str, verdicts.Change] = {}
  count = count_runs(judgement, candidate)
  later_outputs: list[passes.Tensors] = []
  if count > 1:
    options.progress(f'{case.layer_pass.name}, real data: candidate, in turn')
    later_outputs, stale = _run_in_turn(case, candidate, findings)
    changes.update((change.tensor, change) for change in stale)
  count = max(count, 1 + len(later_outputs))
  for run in range(2, count + 1):
    options.progress(f'{case.layer_pass.name}, real data: candidate, run {run}')
    if judgement.allow_nondeterministic:
      later_findings = judge(options, case, candidate)
      findings = dataclasses.replace(
        findings, results=_worst(findings.results, later_findings.results)
      )
      outputs: passes.Tensors = later_findings.outputs
    elif later_outputs:
      outputs = later_outputs.pop(0)
    else:
      outputs = case.ask(candidate).outputs
    for change in _changes(case.layer_pass, run, findings.outputs, outputs):
      changes.setdefault(change.tensor, change)
  return dataclasses.replace(findings, changes=[*changes.values()], runs=count)


def _run_in_turn(
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
  findings: pass_case.Findings,
) -> tuple[list[passes.Tensors], list[verdicts.Change]]:
  """Runs a pass on its data, on mirrored data, and on its own data again.

  Args:
    case: the pass.
    candidate: runs the pass.
    findings: of its outputs on the data of the case.

  Returns:
    The last outputs, {} if the pass did not run again; and its errors on the
    mirrored data, if it is right on its own.
  """
  inputs = case.inputs
  mirror = mirrored.build_mirror(
    inputs.config, inputs.policy, inputs.arrays, case.layer_pass
  )
  if (
    mirror is None
    or not candidate.capabilities.keeps
    or candidate.checking.replays
  ):
    return [], []
  arrays = quantised_inputs.replace_values(inputs.policy, inputs.arrays)
  data = arrays, mirror.reflect_inputs(arrays), arrays
  before, other, after = candidate.run_in_turn(
    inputs.config, inputs.policy, data, case.layer_pass
  )
  wrong = {
    verdicts.tensor_of(r.stage)
    for r in findings.results
    if r.verdict == verdicts.FAIL
  }
  right = [n for n in case.layer_pass.results if n in other and n not in wrong]
  own = mirror.reflect({n: other[n] for n in right})
  stale = [
    change
    for name in right
    if (change := _find_stale(case, name, findings.outputs[name], own[name]))
  ]
  return [before, after], stale


def _find_stale(
  case: pass_case.PassCase, name: str, first: np.ndarray, own: np.ndarray
) -> verdicts.Change | None:
  """Returns the errors of a result on mirrored data, in its own coordinates."""
  if np.array_equal(first, own):
    return None
  # Another order of experts may be another order of sums, whose intermediate
  # roundings exceed the spread of the last sum.
  golden = case.golden({})
  bad = tile_lanes.out_of_bound(name, own, golden, with_spread=False)
  bad &= first != own
  if not bad.any():
    return None
  index = tuple(int(i) for i in np.argwhere(bad)[0])
  return verdicts.Change(
    case.layer_pass.name,
    2,
    name,
    int(bad.sum()),
    bad.size,
    int(ulp.distance(first, own)[bad].max()),
    index,
    float(first[index]),
    float(own[index]),
    True,
  )


def _changes(
  layer_pass: passes.Pass,
  run: int,
  first: passes.Tensors,
  later: passes.Tensors,
) -> list[verdicts.Change]:
  changes = []
  beside = (
    *tensors.TOKEN_CODES,
    *tensors.ROW_CODES,
    *tensors.ROUTER_GRADS,
    tensors.ROUTER_BIAS_GRAD,
  )
  names = dict.fromkeys((*layer_pass.outputs, *(s.name for s in beside)))
  for name in (n for n in names if n in first):
    apart = ulp.bits(first[name]) != ulp.bits(later[name])
    if apart.any():
      index = tuple(int(i) for i in np.argwhere(apart)[0])
      changes.append(
        verdicts.Change(
          layer_pass.name,
          run,
          name,
          int(apart.sum()),
          apart.size,
          int(ulp.distance(first[name], later[name]).max()),
          index,
          float(first[name][index]),
          float(later[name][index]),
        )
      )
  return changes


def _worst(
  first: Sequence[verdicts.Result], later: Sequence[verdicts.Result]
) -> list[verdicts.Result]:
  """Returns, for each row, the run that fails or has the larger error."""

  def badness(row: verdicts.Result) -> tuple:
    share = row.values.get('error_of_bound', 0.0)
    return row.verdict == verdicts.FAIL, share, row.worst_ulp

  return [max(pair, key=badness) for pair in zip(first, later, strict=True)]
