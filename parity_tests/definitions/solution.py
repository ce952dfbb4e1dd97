"""A candidate that is a solution of a benchmark: it routes by itself."""

from collections.abc import Mapping
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Any, ClassVar

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.definitions import definition as definition_lib
from hpmoe.parity_tests.definitions import workload_inputs
from hpmoe.reference.contract import granularity

_WORKER = pathlib.Path(__file__).with_name('solution_worker.py')


@dataclasses.dataclass(frozen=True)
class Solution(candidates.Candidate):
  """A solution, in a process of its own for each run.

  Attributes:
    definition: what it solves.
    solution: its function.
    inputs: of the workload, by name.
    shapes: of outputs, by name.
    token_inputs: names of the inputs that differ between calls.
    python: the interpreter; '': this one.
    device: cpu, or cuda where the interpreter has torch.
    timeout_s: seconds that a run of three calls may take.
    notes: lines for the report.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    directions=('forward',),
    orders=None,
    parts=True,
    repeats=True,
    rounds=True,
    stages=False,
    description='a solution returns the output alone',
  )
  definition: definition_lib.Definition
  solution: definition_lib.Solution
  inputs: Mapping[str, Any] = dataclasses.field(repr=False)
  shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(repr=False)
  token_inputs: tuple[str, ...] = ()
  python: str = ''
  device: str = 'cpu'
  timeout_s: float = 600.0
  notes: tuple[str, ...] = ()
  options: granularity.Options = granularity.Options()
  seconds: list[float] = candidates.noted(list)

  @property
  def name(self) -> str:  # type: ignore[override]
    """What reports call it."""
    return f'solution:{self.solution.name}'

  def facts(self) -> dict[str, Any]:
    """See `Candidate`."""
    return dict(
      definition=self.definition.name,
      solution=self.solution.name,
      python=self.python,
      device=self.device,
      notes=list(self.notes),
    )

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`.

    Raises:
      CandidateError: it failed, or returned what cannot be judged.
    """
    del inputs, oracle_tensors  # as the definition has them, not as the case
    start = time.perf_counter()
    outputs = self.compute()
    self.seconds.append(time.perf_counter() - start)
    (name,) = self.shapes
    return function_candidate.check_outputs(
      self.name, config, policy, {'y': outputs[name][None]}, layer_pass, ('y',)
    )

  def compute(self) -> dict[str, np.ndarray]:
    """Returns the outputs of the last of three calls, by name.

    Raises:
      CandidateError: as `run`.
    """
    with tempfile.TemporaryDirectory(prefix='hpmoe-') as folder:
      job = pathlib.Path(folder)
      self._write_job(job)
      command = [self.python or sys.executable, str(job / _WORKER.name), folder]
      env = processes.make_foreign_environment()
      if not self.python:
        env['PYTHONPATH'] = os.pathsep.join(path for path in sys.path if path)
      try:
        code = processes.call(job, {None: command}, env, self.timeout_s)[None]
      except OSError as error:
        raise ValueError(
          f'python: expected an interpreter that can be run, got {error}'
        ) from error
      if (job / 'refusal').exists():
        text = (job / 'refusal').read_text('utf-8')
        raise candidates.CandidateError(f'{self.name}: {text}')
      if code != 0:
        reason = processes.describe_ending(code, self.timeout_s)
        raise candidates.CandidateError(f'{self.name}: {reason}')
      outputs = read_case.read(str(job / 'outputs.safetensors'))[0]
      return {
        name: np.array(read_case.as_numpy(bits))
        for name, bits in outputs.items()
      }

  def _write_job(self, job: pathlib.Path) -> None:
    for source in (_WORKER, pathlib.Path(read_case.__file__)):
      shutil.copy(source, job / source.name)
    for path, content in self.solution.sources.items():
      target = job / 'sources' / path
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_text(content, encoding='utf-8')
    arrays = {
      name: value
      for name, value in self.inputs.items()
      if isinstance(value, np.ndarray)
    }
    read_case.save(str(job / 'inputs.safetensors'), arrays, {})
    token_inputs = {name: arrays[name] for name in self.token_inputs}
    other = workload_inputs.change_tokens(token_inputs)
    read_case.save(str(job / 'other_inputs.safetensors'), other, {})
    (job / 'request.json').write_text(json.dumps(self._make_request()))

  def _make_request(self) -> dict[str, Any]:
    return dict(
      entry_file=self.solution.entry_file,
      entry_function=self.solution.entry_function,
      is_packaged=bool(self.solution.sources),
      destination_passing=self.solution.destination_passing,
      device=self.device,
      inputs=[
        dict(name=name, is_tensor=True)
        if isinstance(value, np.ndarray)
        else dict(name=name, is_tensor=False, value=value)
        for name, value in self.inputs.items()
      ],
      outputs=[
        dict(name=spec.name, shape=[*self.shapes[spec.name]], dtype=spec.dtype)
        for spec in self.definition.outputs
      ],
    )
