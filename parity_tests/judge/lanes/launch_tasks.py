"""The tasks of a candidate's launch: which are wrong, which were left out."""

from collections.abc import Callable

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.judge import isolation
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import pass_case


def find_last_launch(
  case: pass_case.PassCase, candidate: candidates.Candidate
) -> candidates.Launch | None:
  launches = reversed(candidate.launches)
  return next(
    (launch for launch in launches if launch.which is case.layer_pass), None
  )


def find_wrong_tasks(
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
  lane: str,
  results: pass_case.Results,
  bad: Callable[[str], np.ndarray],
) -> list[isolation.WrongTask]:
  """Returns the tasks of an isolated launch that wrote what a lane refuses.

  A candidate that launched nothing has no tasks: its stages say all there is.
  """
  failed_rows = {r.stage for r in results if r.verdict == verdicts.FAIL}
  stages = [name for name in case.stages if name in failed_rows]
  launch = find_last_launch(case, candidate)
  if launch is None:
    return []
  return launch.find_wrong_tasks(lane, {name: bad(name) for name in stages})


def judge_tasks_as_used(
  case: pass_case.PassCase, candidate: candidates.Candidate
) -> tuple[pass_case.Results, list[isolation.WrongTask]]:
  """Judges each task, by itself, of the launch that front ends make.

  Returns:
    A row for each tensor that it makes, and the tasks that are wrong.
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
  """Returns what a part of the tasks gave, continued by the oracle.

  What stood in for a task that did not run was the oracle's answer to the
  oracle's own tensors: no bound of rounding ties it to the tasks that ran.
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
