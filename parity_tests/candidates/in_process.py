"""A candidate that is a function of the user, called in this process.

`function_candidate` describes the function.  If it crashes or hangs, so does
the caller.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import time
from typing import ClassVar, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import function_worker
from hpmoe.parity_tests.candidates import torch_device
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.layouts import project_layouts
from hpmoe.reference.contract import granularity


@dataclasses.dataclass(frozen=True)
class Function(candidates.Candidate):
  """The user's function.

  Attributes:
    function: takes inputs, config and policy, and returns tensors by name.
    options: how its tensors are cut into tiles.
    layout: as of `function_candidate.Subprocess`.
    device: the torch device of its tensors; '': the device that the function's
      attribute `torch` names, or numpy arrays if it has none.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    orders=None,
    parts=True,
    repeats=True,
    keeps=True,
    rounds=True,
    declares=True,
  )
  function: Callable[..., Mapping]
  options: granularity.Options = granularity.Options()
  layout: str = ''
  device: str = ''
  seconds: list[float] = candidates.noted(list)
  copies: dict[str, np.ndarray] = candidates.noted(dict)

  @property
  def name(self) -> str:  # type: ignore[override]
    """`module:function`, as reports call it."""
    function_name = getattr(
      self.function, '__qualname__', type(self.function).__name__
    )
    return f'{getattr(self.function, "__module__", "")}:{function_name}'

  @property
  def _device(self) -> str:
    return self.device or torch_device.find_device(self.function)

  @property
  def recomputes(self) -> bool:
    """See `Candidate`."""
    backward = getattr(self.function, 'backward', None)
    return bool(getattr(backward, 'recomputes', False))

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    project_layouts.read_layouts(self.layout)
    torch_device.refuse_device(self._device)
    if passes.BACKWARD in case.passes:
      with _convert_errors():
        function_worker.find_backward(self.name, self.function)
    return dataclasses.replace(self)

  def facts(self) -> dict[str, object]:
    """See `Candidate`."""
    fields = dict(layout=self.layout, device=self.device)
    return {name: value for name, value in fields.items() if value}

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`."""
    del oracle_tensors
    name, function, result = self.name, self.function, layer_pass.results[0]
    inputs = project_layouts.lay_out(self.layout, inputs, config, policy)

    def call_timed(*arguments):
      start = time.perf_counter()
      answer = function(*arguments)
      self.seconds.append(time.perf_counter() - start)
      return answer

    with _convert_errors():
      function_worker.check_activation(name, function, policy.activation)
      if layer_pass.name == passes.BACKWARD.name:
        function = function_worker.find_backward(name, function)
      function = torch_device.move_inputs(function, self._device)
      answer = function_worker.call(
        name, call_timed, inputs, config, policy, copies=self.copies
      )
      outputs = function_worker.to_arrays(name, answer, result)
    # Copies: the next call may return the same memory.
    outputs = {n: array.copy() for n, array in outputs.items()}
    outputs = function_candidate.restore_outputs(
      name, self.layout, outputs, config, policy
    )
    return function_candidate.check_outputs(
      name, config, policy, outputs, layer_pass, (result,)
    )


@contextlib.contextmanager
def _convert_errors() -> Iterator[None]:
  """Raises a worker's errors as the errors of the parent process."""
  try:
    yield
  except function_worker.WorkerError as error:
    raise function_candidate.KINDS[error.kind](str(error)) from error.__cause__
