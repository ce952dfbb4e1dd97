"""The tasks of a candidate's launch: which are wrong, which were left out."""

from collections.abc import Callable

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import pass_case


def find_last_launch(
  case: pass_case.PassCase, candidate: candidates.Candidate
) -> candidates.Launch | None:
  """Returns the candidate's last launch of a pass, or None."""
  launches = reversed(candidate.launches)
  return next(
    (launch for launch in launches if launch.layer_pass is case.layer_pass),
    None,
  )


def find_wrong_tasks(
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
  lane: str,
  results: pass_case.Results,
  bad: Callable[[str], np.ndarray],
) -> list[isolated_replay.WrongTask]:
  """Returns the tasks of an isolated launch that wrote refused elements.

  A candidate that launched nothing has no tasks.

  Args:
    case: the pass.
    candidate: what ran.
    lane: the lane that judged.
    results: the rows of that lane.
    bad: returns `[R, ...]` bool, the refused elements of a stage.
  """
  failed_rows = {r.stage for r in results if r.verdict == verdicts.FAIL}
  stages = [name for name in case.stages if name in failed_rows]
  launch = find_last_launch(case, candidate)
  if launch is None:
    return []
  return launch.find_wrong_tasks(lane, {name: bad(name) for name in stages})


def judge_tasks_as_used(
  case: pass_case.PassCase, candidate: candidates.Candidate
) -> tuple[pass_case.Results, list[isolated_replay.WrongTask]]:
  """Judges each task of the launch that front ends make by itself.

  Returns:
    A row for each tensor of the launch, and the tasks that are wrong.
  """
  assert candidate.alone_as_used is not None
  outputs, whole = case.run(candidate.alone_as_used)
  results = [
    equality.compare_equal(
      name, 'bitwise', equality.USED_RULE, outputs, whole, case.tiling
    )
    for name in case.stages
    if name in outputs
  ]
  differs = equality.select_unequal(outputs, whole)
  return results, find_wrong_tasks(case, candidate, 'bitwise', results, differs)


def fill_left_out(
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
  answer: pass_case.Answer,
) -> pass_case.Answer:
  """Returns an answer in which the oracle recomputes tasks that did not run.

  The launch filled them in with the oracle's answer to the oracle's own
  tensors; no rounding bound relates that to the outputs of tasks that ran.
  """
  launch = find_last_launch(case, candidate)
  assert launch is not None  # Only our own launches leave tasks out.
  left_out = launch.find_left_out(answer.outputs)
  outputs = dict(answer.outputs)
  for name in case.layer_pass.stages:
    if case.sources[name] and left_out[name].any():
      stage = case.recompute(name, outputs)
      outputs[name] = np.where(left_out[name], stage, outputs[name])
  return pass_case.Answer(outputs, outputs, answer.serial)
