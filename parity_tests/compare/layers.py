"""`hpmoe check` on what a MoE layer of a model read.

A layer is judged on the inputs that its own side gave it, so that what went
wrong before it is not held against it.
"""

from collections.abc import Mapping, Sequence
import copy
import dataclasses
import pathlib
import time
from typing import Any, ClassVar

import numpy as np

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.compare import metrics
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import tensors

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Captured(candidates.Candidate):
  """A candidate that answers with what a model's layer returned.

  Attributes:
    outputs: y, and gradients if there are any, by name.
    name: as reports call it.
  """

  can: ClassVar[candidates.Can] = candidates.Can(stages=False)
  outputs: Arrays
  name: str

  def facts(self) -> dict[str, Any]:
    """See `candidates.Candidate`; its answers are no facts of how it ran."""
    return {}

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    """See `candidates.Candidate`."""
    del config, policy, inputs, given
    return {n: self.outputs[n] for n in which.results}


def inputs_of(captured: Arrays) -> dict[str, np.ndarray]:
  """Returns the inputs of a layer and dy, those that are there."""
  known = (*tensors.inputs(tensors.EVERY_PART), 'dy')
  return {n: captured[n] for n in known if n in captured}


def not_finite(captured: Arrays) -> str:
  """Returns the first input of a layer that no check can take, or ''."""
  for name, array in inputs_of(captured).items():
    if not np.isfinite(array.astype(np.float64)).all():
      return name
  return ''


def save(path: str, captured: Arrays, activation: str) -> case_lib.Case:
  """Writes a layer's inputs for `hpmoe check --input`; returns their case.

  Args:
    path: of the file.
    captured: the inputs, by name; dy if backward too.
    activation: of the layer, as `precision.activation_of` reads it.
  """
  with atomic_folder.replacing(pathlib.Path(path)) as made:
    input_files.save_safetensors(made, inputs_of(captured))
  direction = 'both' if 'dy' in captured else 'forward'
  return case_lib.Case(direction, input=path, activation=activation)


def judge_outputs(
  asked: case_lib.Case, captured: Arrays, name: str, command: tuple[str, ...]
) -> check.Report:
  """Returns what is said of a layer of which only its results are known.

  Its y must lie in lane bounded.  The bound of a gradient is that of what the
  forward pass kept, which is not known; so a gradient is refused where msprobe
  refuses it beside the oracle's on the same inputs, and lane bounded then says
  where.

  Args:
    asked: its case, see `save`.
    captured: its outputs, by name.
    name: of the side.
    command: what repeats all this.
  """
  outputs = {n: a for n, a in captured.items() if n not in inputs_of(captured)}
  side = Captured(outputs, name)
  lanes_ = judgement.Judgement(lanes=('bounded',))
  request = check.Request(asked, side, lanes_, command)
  start = time.perf_counter()
  bench = bench_lib.Bench(asked, keep=True)
  report = check.run_on_bench(request, bench, start)
  if passes.BACKWARD not in asked.passes:
    return report
  case = bench.case(side, passes.BACKWARD, bench.real_inputs)
  expected = case.answer()
  refused = [
    n
    for n in passes.BACKWARD.of_layer(bench.real_inputs.config).results
    if metrics.compare(n, None, n, outputs[n], expected[n]).result
    == metrics.ERROR
  ]
  kept = tuple(
    r
    for r in report.results
    if verdicts.pass_of(r.stage) is passes.FORWARD
    or verdicts.tensor_of(r.stage) in refused
  )
  return dataclasses.replace(report, results=kept)


def _recorded(
  candidate: candidates.Candidate, outputs: dict[str, np.ndarray]
) -> candidates.Candidate:
  """Returns the candidate, which notes in `outputs` what it returns last."""
  kind: Any = type(candidate)

  class Recorded(kind):
    def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
      made = super().run(config, policy, inputs, which, given)
      outputs.update({n: made[n] for n in which.results if n in made})
      return made

  made = copy.copy(candidate)
  # Not by its fields: of a kind of candidate only the kind knows them all.
  object.__setattr__(made, '__class__', Recorded)
  return made


def judge_candidate(
  asked: case_lib.Case,
  captured: Arrays,
  candidate: candidates.Candidate,
  flags: Sequence[str],
) -> tuple[check.Report, list[str]]:
  """Returns a check of a candidate on a layer's inputs.

  Args:
    asked: its case, see `save`.
    captured: what it holds, and what the layer returned.
    candidate: what computed it.
    flags: of `hpmoe check`, that ask for the candidate.

  Returns:
    The report, and the results that the layer returned with other bits.

  Raises:
    candidates.CandidateError: a launch ended early.
  """
  arguments = [f'--input={asked.input}', f'--direction={asked.direction}']
  if asked.activation != case_lib.Case.activation:
    arguments.append(f'--activation={asked.activation}')
  outputs: dict[str, np.ndarray] = {}
  lanes_ = judgement.Judgement(lanes=('bitwise', 'bounded'))
  request = check.Request(
    asked,
    _recorded(candidate, outputs),
    lanes_,
    ('check', *arguments, *flags),
  )
  start = time.perf_counter()
  report = check.run_on_bench(request, bench_lib.Bench(asked), start)
  other = [
    n for n, a in outputs.items() if a.tobytes() != captured[n].tobytes()
  ]
  return report, other
