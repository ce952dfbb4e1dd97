"""A candidate of the user: a function, called in this process.

It is what `user_candidate` describes, as an object: one that crashes or hangs
takes the caller along.
"""

from collections.abc import Callable, Mapping
import dataclasses
import time
from typing import ClassVar, Self

import numpy as np

from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import exchange
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import passes


@dataclasses.dataclass(frozen=True)
class Function(candidates.Candidate):
  """The user's function.

  Attributes:
    function: takes inputs, config and policy, and returns tensors by name.
    options: how its tensors are cut into tiles.
  """

  can: ClassVar[candidates.Can] = candidates.Can(
    orders=None, parts=True, repeats=True, declares=True
  )
  function: Callable[..., Mapping]
  options: flow_lib.Options = flow_lib.Options()
  seconds: list[float] = dataclasses.field(
    default_factory=list, init=False, compare=False
  )

  @property
  def name(self) -> str:  # type: ignore[override]
    """`module:function`, as reports call it."""
    named = getattr(self.function, '__qualname__', type(self.function).__name__)
    return f'{getattr(self.function, "__module__", "")}:{named}'

  @property
  def recomputes(self) -> bool:
    """See `Candidate`."""
    backward = getattr(self.function, 'backward', None)
    return bool(getattr(backward, 'recomputes', False))

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    if passes.BACKWARD in case.passes:
      self._of(passes.BACKWARD)
    return dataclasses.replace(self)

  def facts(self) -> dict[str, object]:
    """See `Candidate`."""
    return {}

  def run(
    self, config, policy, inputs, which=passes.FORWARD, given=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`."""
    del given
    function = self._of(which)
    known = getattr(self.function, 'activations', None)
    if known is not None and policy.activation not in known:
      raise candidates.CannotJudge(
        f'{self.name} declares activations {tuple(known)}, which lack '
        f'policy.activation={policy.activation!r}'
      )
    own = {name: array.copy() for name, array in inputs.items()}
    start = time.perf_counter()
    try:
      returned = function(dict(own), config, policy)
    except Exception as error:
      raise candidates.CandidateError(
        f'{self.name}: raised {error!r}'
      ) from error
    self.seconds.append(time.perf_counter() - start)
    if not isinstance(returned, Mapping):
      raise ValueError(
        f'{self.name}: expected a mapping with {which.results[0]!r}, got '
        f'{type(returned).__name__}'
      )
    arrays = {name: self._array(name, a) for name, a in returned.items()}
    if wrong := exchange.spoilt(inputs, own):
      raise candidates.InputsSpoilt(f'{self.name}: {wrong}')
    return user_candidate.check_outputs(
      self.name, config, policy, arrays, which, which.results[:1]
    )

  def _of(self, which: passes.Pass) -> Callable[..., Mapping]:
    """Returns the function of a pass."""
    if which.name == passes.FORWARD.name:
      return self.function
    backward = getattr(self.function, 'backward', None)
    if not callable(backward):
      raise ValueError(
        f'{self.name}: expected its backward pass as an attribute, '
        'backward(inputs, config, policy), got none; without it direction='
        "'forward'"
      )
    return backward

  def _array(self, name: str, value: object) -> np.ndarray:
    try:
      # A copy: the next call may answer in the same memory.
      return exchange.as_array(value).copy()
    except Exception as error:
      raise ValueError(
        f'{self.name}: {name}: expected an array, got '
        f'{type(value).__name__}: {error}'
      ) from error
