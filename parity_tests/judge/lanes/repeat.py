"""Runs a pass again on the same inputs and reports bits that change."""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.limits import ulp

# A user's kernel is run again by default if its runs took less than this.
CHEAP_S = 5.0

Lane = Callable[..., pass_case.Findings]


def count_runs(
  judgement: judgement_lib.Judgement, candidate: candidates.Candidate
) -> int:
  """Returns how often a pass is run, including the first run."""
  if judgement.repeat is not None:
    return judgement.repeat
  cheap = candidate.can.repeats and sum(candidate.seconds) <= CHEAP_S
  return 2 if cheap or judgement.allow_nondeterministic else 1


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
  for run in range(2, count + 1):
    options.progress(f'{case.layer_pass.name}, real data: candidate, run {run}')
    if judgement.allow_nondeterministic:
      later_findings = judge(options, case, candidate)
      findings = dataclasses.replace(
        findings, results=_worst(findings.results, later_findings.results)
      )
      outputs = later_findings.outputs
    else:
      outputs = case.ask(candidate).outputs
    for change in _changes(case.layer_pass, run, findings.outputs, outputs):
      changes.setdefault(change.tensor, change)
  return dataclasses.replace(findings, changes=[*changes.values()], runs=count)


def _changes(
  layer_pass: passes.Pass,
  run: int,
  first: passes.Tensors,
  later: passes.Tensors,
) -> list[verdicts.Change]:
  changes = []
  for name in (name for name in layer_pass.outputs if name in first):
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
