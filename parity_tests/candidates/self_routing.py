"""A kernel that reads logits in place of experts, or holds some of them."""

from collections.abc import Mapping
import dataclasses
from typing import Any, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import tensors

# What has a row for each token, `[R, T, ...]`.
_BY_TOKEN = ('x', 'x_codes', 'x_scales', 'router_logits', *tensors.ROUTING)


@dataclasses.dataclass(frozen=True)
class SelfRouting(candidates.Candidate):
  """A function of the user that is called with a routing of its own kind.

  Each run is two calls: the first is on the same tokens in another order, or on
  dy of the other sign, so that a kernel that keeps something by shape or
  address answers wrongly.  A backward pass gets the routing too, and may return
  `tensors.ROUTER_GRADS`.

  Attributes:
    function: the candidate that is called.
    router_inputs: router_logits `[R, T, E]`, or router_w `[D, E]` in their
      place, and router_bias `[E]` if the rule has one; or topk_ids
      `[R, T, K]` of all experts; and local_experts `[2]`, the first of those
      that it holds and how many they are.
    routings: of each forward run, those of `tensors.ROUTING` that were
      returned, and router_logits of a kernel that computes them.
  """

  function: candidates.Candidate
  router_inputs: Mapping[str, np.ndarray] = dataclasses.field(repr=False)
  # One list for all copies of the candidate: `ready` makes some.
  routings: list[dict[str, np.ndarray]] = dataclasses.field(
    default_factory=list, compare=False, repr=False
  )

  @property
  def can(self) -> candidates.Can:  # type: ignore[override]
    """That of the function; `run` itself looks for what it keeps."""
    return dataclasses.replace(self.function.can, keeps=False)

  @property
  def name(self) -> str:  # type: ignore[override]
    """The function's."""
    return self.function.name

  @property
  def options(self):  # type: ignore[override]
    """The function's."""
    return self.function.options

  @property
  def checking(self):  # type: ignore[override]
    """The function's."""
    return self.function.checking

  @property
  def recomputes(self) -> bool | None:
    """The function's."""
    return self.function.recomputes

  @property
  def seconds(self):  # type: ignore[override]
    """The function's."""
    return self.function.seconds

  def facts(self) -> dict[str, Any]:
    """See `Candidate`."""
    return self.function.facts()

  def ready(self, case, beside='') -> Self:
    """See `Candidate`.

    Raises:
      ValueError: the candidate cannot be called with logits.
    """
    callable_kinds = (in_process.Function, user_candidate.Subprocess)
    if not isinstance(self.function, callable_kinds):
      raise ValueError(
        'router, local_experts: expected a function that is called here, '
        f'without --python, --command or --outputs, got {self.name}'
      )
    if self.checking.isolate:
      raise ValueError(
        'isolate: expected none beside --router or --local_experts, got isolate'
      )
    function = self.function.ready(case, beside)
    return dataclasses.replace(self, function=function)

  def run(
    self, config, policy, inputs, which=passes.FORWARD, given=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`; what it chose is added to `routings`."""
    del given
    if which.name == passes.BACKWARD.name:
      return self._run_backward(config, policy, inputs, which)
    computes_logits = 'router_w' in self.router_inputs
    routes = computes_logits or 'router_logits' in self.router_inputs
    own = {
      n: a for n, a in inputs.items() if not (routes and n in tensors.ROUTING)
    }
    own |= self.router_inputs
    # Its choice of experts is among its outputs.
    names = ('router_logits',) * computes_logits + tensors.ROUTING
    routed_pass = dataclasses.replace(which, stages=(*names, *which.stages))
    data = [_move_tokens(own), own]
    outputs = self.function.run_in_turn(config, policy, data, routed_pass)[-1]
    self.routings.append({n: outputs[n] for n in names if n in outputs})
    return {n: a for n, a in outputs.items() if n not in names}

  def _run_backward(self, config, policy, inputs, layer_pass):
    own = {**inputs, **self.router_inputs}
    names = tuple(spec.name for spec in tensors.ROUTER_GRADS)
    routed_pass = dataclasses.replace(
      layer_pass, stages=(*layer_pass.stages, *names)
    )
    data = [{**own, 'dy': -own['dy']}, own]
    return self.function.run_in_turn(config, policy, data, routed_pass)[-1]


def _move_tokens(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns inputs whose tokens are the next ones, or with signs exchanged."""
  moved_inputs = dict(inputs)
  for name in _BY_TOKEN:
    array = inputs.get(name)
    if array is not None:
      tokens = array.shape[1]
      moved_inputs[name] = (
        np.roll(array, 1, 1) if tokens > 1 else array[..., ::-1]
      )
  return moved_inputs
