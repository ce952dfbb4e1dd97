"""A kernel that takes router logits, or holds some of the experts."""

from collections.abc import Mapping
import dataclasses
from typing import Any, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import tensors

# Inputs with a row for each token, `[R, T, ...]`.
_BY_TOKEN = ('x', 'x_codes', 'x_scales', 'router_logits', *tensors.ROUTING)


@dataclasses.dataclass(frozen=True)
class SelfRouting(candidates.Candidate):
  """A function of the user that computes its routing itself.

  Each run is two calls: the first has the tokens in another order, or dy
  negated, so that a kernel that caches by shape or address returns wrong
  results.  A backward pass gets the routing too, and may return
  `tensors.ROUTER_GRADS`.

  Attributes:
    function: the candidate that is called.
    router_inputs: router_logits `[R, T, E]`, or router_w `[D, E]` instead, and
      router_bias `[E]` if the rule has one; or topk_ids `[R, T, K]` of all
      experts; and local_experts `[2]`, the first expert that it holds and
      their number.
    bias_has_grad: whether a backward pass may return
      `tensors.ROUTER_BIAS_GRAD`.
    routings: for each forward run, the tensors of `tensors.ROUTING` that it
      returned, and router_logits if it computes them.
  """

  function: candidates.Candidate
  router_inputs: Mapping[str, np.ndarray] = dataclasses.field(repr=False)
  bias_has_grad: bool = False
  # One list for all copies of the candidate: `ready` makes some.
  routings: list[dict[str, np.ndarray]] = dataclasses.field(
    default_factory=list, compare=False, repr=False
  )

  @property
  def capabilities(self) -> candidates.Capabilities:  # type: ignore[override]
    """The function's; `run` itself looks for state that calls keep."""
    return dataclasses.replace(self.function.capabilities, keeps=False)

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
    callable_kinds = (in_process.Function, function_candidate.Subprocess)
    if not isinstance(self.function, callable_kinds):
      raise ValueError(
        'router, local_experts: expected a function that is called here, '
        f'without --python, --command or --outputs, got {self.name}'
      )
    if self.checking.isolate:
      raise ValueError(
        'isolate: expected none with --router or --local_experts, got isolate'
      )
    function = self.function.ready(case, beside)
    return dataclasses.replace(self, function=function)

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`; adds the function's routing to `routings`."""
    del oracle_tensors
    if layer_pass.name == passes.BACKWARD.name:
      return self._run_backward(config, policy, inputs, layer_pass)
    computes_logits = 'router_w' in self.router_inputs
    routes = computes_logits or 'router_logits' in self.router_inputs
    own = {
      n: a for n, a in inputs.items() if not (routes and n in tensors.ROUTING)
    }
    own |= self.router_inputs
    # Its choice of experts is among its outputs.
    names = ('router_logits',) * computes_logits + tensors.ROUTING
    routed_pass = dataclasses.replace(
      layer_pass, stages=(*names, *layer_pass.stages)
    )
    data = [_move_tokens(own), own]
    outputs = self.function.run_in_turn(config, policy, data, routed_pass)[-1]
    self.routings.append({n: outputs[n] for n in names if n in outputs})
    return {n: a for n, a in outputs.items() if n not in names}

  def _run_backward(self, config, policy, inputs, layer_pass):
    own = {**inputs, **self.router_inputs}
    through_gemm = 'router_w' in self.router_inputs
    grads = (
      [*tensors.ROUTER_GRADS] if through_gemm else [tensors.ROUTER_GRADS[0]]
    )
    grads += [tensors.ROUTER_BIAS_GRAD] * self.bias_has_grad
    stages = dict.fromkeys((*layer_pass.stages, *(s.name for s in grads)))
    routed_pass = dataclasses.replace(layer_pass, stages=(*stages,))
    data = [{**own, 'dy': -own['dy']}, own]
    return self.function.run_in_turn(config, policy, data, routed_pass)[-1]


def _move_tokens(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns inputs with tokens rolled by one; a single token is reversed."""
  moved_inputs = dict(inputs)
  for name in _BY_TOKEN:
    array = inputs.get(name)
    if array is not None:
      tokens = array.shape[1]
      moved_inputs[name] = (
        np.roll(array, 1, 1) if tokens > 1 else array[..., ::-1]
      )
  return moved_inputs
