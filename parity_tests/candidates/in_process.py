"""A candidate of the user: a function, called in this process.

It is what `user_candidate` describes, as an object: one that crashes or hangs
takes the caller along.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import time
from typing import ClassVar, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidate_worker
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import torch_device
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.layouts import projects
from hpmoe.reference.contract import granularity


@dataclasses.dataclass(frozen=True)
class Function(candidates.Candidate):
  """The user's function.

  Attributes:
    function: takes inputs, config and policy, and returns tensors by name.
    options: how its tensors are cut into tiles.
    layout: as of `user_candidate.Subprocess`.
    device: where its tensors, torch's, lie; '': as the function's attribute
      `torch` says, or numpy's.
  """

  can: ClassVar[candidates.Can] = candidates.Can(
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
    named = getattr(self.function, '__qualname__', type(self.function).__name__)
    return f'{getattr(self.function, "__module__", "")}:{named}'

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
    user_candidate.refuse_layout(self.layout, case)
    torch_device.refuse_device(self._device)
    if passes.BACKWARD in case.passes:
      with _told():
        candidate_worker.backward_of(self.name, self.function)
    return dataclasses.replace(self)

  def facts(self) -> dict[str, object]:
    """See `Candidate`."""
    fields = dict(layout=self.layout, device=self.device)
    return {name: value for name, value in fields.items() if value}

  def run(
    self, config, policy, inputs, which=passes.FORWARD, given=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`."""
    del given
    name, function, result = self.name, self.function, which.results[0]
    inputs = projects.lay_out(self.layout, inputs, config)

    def timed(*arguments):
      start = time.perf_counter()
      answer = function(*arguments)
      self.seconds.append(time.perf_counter() - start)
      return answer

    with _told():
      candidate_worker.check_activation(name, function, policy.activation)
      if which.name == passes.BACKWARD.name:
        function = candidate_worker.backward_of(name, function)
      function = torch_device.move_inputs(function, self._device)
      returned = candidate_worker.call(
        name, timed, inputs, config, policy, copies=self.copies
      )
      found = candidate_worker.arrays(name, returned, result)
    # Copies: the next call may answer in the same memory.
    found = {n: array.copy() for n, array in found.items()}
    found = user_candidate.restore_outputs(name, self.layout, found, config)
    return user_candidate.check_outputs(
      name, config, policy, found, which, (result,)
    )


@contextlib.contextmanager
def _told() -> Iterator[None]:
  """Raises what a worker would leave word of."""
  try:
    yield
  except candidate_worker.Refused as error:
    raise user_candidate.KINDS[error.kind](str(error)) from error.__cause__
