"""`hpmoe check` on the recorded inputs of a model's MoE layer.

A layer is judged on the inputs of its own side, so that earlier errors do not
count against it.
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
class CapturedLayer(candidates.Candidate):
  """A candidate that returns the recorded outputs of a model's layer.

  Attributes:
    outputs: y, and gradients if there are any, by name.
    name: of the candidate in reports.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    stages=False
  )
  outputs: Arrays
  name: str

  def facts(self) -> dict[str, Any]:
    """See `candidates.Candidate`; recorded outputs have no facts."""
    return {}

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    """See `candidates.Candidate`."""
    del config, policy, inputs, oracle_tensors
    return {n: self.outputs[n] for n in layer_pass.results}


def inputs_of(arrays: Arrays) -> dict[str, np.ndarray]:
  """Returns the recorded inputs of a layer, and dy."""
  names = (*tensors.inputs(tensors.EVERY_PART), 'dy')
  return {n: arrays[n] for n in names if n in arrays}


def not_finite(arrays: Arrays) -> str:
  """Returns the first input of a layer that is not finite, or ''."""
  for name, array in inputs_of(arrays).items():
    if not np.isfinite(array.astype(np.float64)).all():
      return name
  return ''


def save(path: str, arrays: Arrays, activation: str) -> case_lib.Case:
  """Writes a layer's inputs for `hpmoe check --input`; returns their case.

  Args:
    path: of the file.
    arrays: the inputs, by name; dy if backward too.
    activation: of the layer, as `precision.activation_of` reads it.
  """
  with atomic_folder.replacing(pathlib.Path(path)) as unfinished:
    input_files.save_safetensors(unfinished, inputs_of(arrays))
  direction = 'both' if 'dy' in arrays else 'forward'
  return case_lib.Case(direction, input=path, activation=activation)


def judge_outputs(
  layer_case: case_lib.Case, arrays: Arrays, name: str, command: tuple[str, ...]
) -> check.Report:
  """Returns a report on a layer from its inputs and outputs alone.

  Its y must pass lane bounded.  The bound of a gradient depends on saved
  tensors of the forward pass, which were not recorded.  So a gradient fails if
  msprobe rejects it against the oracle's on the same inputs; lane bounded then
  shows the wrong elements.

  Args:
    layer_case: the case of the inputs, see `save`.
    arrays: its outputs, by name.
    name: of the side.
    command: that repeats the comparison.
  """
  outputs = {n: a for n, a in arrays.items() if n not in inputs_of(arrays)}
  side = CapturedLayer(outputs, name)
  lanes_ = judgement.Judgement(lanes=('bounded',))
  request = check.Request(layer_case, side, lanes_, command)
  start = time.perf_counter()
  bench = bench_lib.Bench(layer_case, keep=True)
  report = check.run_on_bench(request, bench, start)
  if passes.BACKWARD not in layer_case.passes:
    return report
  case = bench.case(side, passes.BACKWARD, bench.real_inputs)
  expected = case.answer()
  rejected = [
    n
    for n in passes.BACKWARD.of_layer(bench.real_inputs.config).results
    if metrics.compare(n, None, n, outputs[n], expected[n]).result
    == metrics.ERROR
  ]
  results = tuple(
    r
    for r in report.results
    if verdicts.pass_of(r.stage) is passes.FORWARD
    or verdicts.tensor_of(r.stage) in rejected
  )
  return dataclasses.replace(report, results=results)


def _recorded(
  candidate: candidates.Candidate, outputs: dict[str, np.ndarray]
) -> candidates.Candidate:
  """Returns the candidate, which also writes its last results to `outputs`."""
  kind: Any = type(candidate)

  class Recorded(kind):
    def run(
      self,
      config,
      policy,
      inputs,
      layer_pass=passes.FORWARD,
      oracle_tensors=None,
    ):
      outputs_now = super().run(
        config, policy, inputs, layer_pass, oracle_tensors
      )
      outputs.update(
        {n: outputs_now[n] for n in layer_pass.results if n in outputs_now}
      )
      return outputs_now

  recorder = copy.copy(candidate)
  # A subclass, not a copy of fields, which only its kind knows.
  object.__setattr__(recorder, '__class__', Recorded)
  return recorder


def judge_candidate(
  case: case_lib.Case,
  arrays: Arrays,
  candidate: candidates.Candidate,
  flags: Sequence[str],
) -> tuple[check.Report, list[str]]:
  """Returns a check of a candidate on a layer's inputs.

  Args:
    case: of the inputs, see `save`.
    arrays: inputs and outputs of the layer, by name.
    candidate: that computed the layer.
    flags: of `hpmoe check` that name the candidate.

  Returns:
    The report, and the results whose bits differ from the layer's.

  Raises:
    candidates.CandidateError: a launch ended early.
  """
  arguments = [f'--input={case.input}', f'--direction={case.direction}']
  if case.activation != case_lib.Case.activation:
    arguments.append(f'--activation={case.activation}')
  outputs: dict[str, np.ndarray] = {}
  lanes_ = judgement.Judgement(lanes=('bitwise', 'bounded'))
  request = check.Request(
    case,
    _recorded(candidate, outputs),
    lanes_,
    ('check', *arguments, *flags),
  )
  start = time.perf_counter()
  report = check.run_on_bench(request, bench_lib.Bench(case), start)
  other = [n for n, a in outputs.items() if a.tobytes() != arrays[n].tobytes()]
  return report, other
