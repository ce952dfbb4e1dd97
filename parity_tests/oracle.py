"""The oracle as a check uses it: whole layer, or one stage on given inputs."""

from collections.abc import Mapping
import functools

import jax
import numpy as np

from reference import combine
from reference import config as config_lib
from reference import dispatch
from reference import expert_gemm
from reference import layer
from reference import precision
from reference import swiglu
from reference import tensors
from reference import token_order

# Compiled once for a (config, policy), whatever the values.
_forward = jax.jit(layer.forward, static_argnums=(0, 1))
_plan = jax.jit(token_order.plan, static_argnums=0)
_gemm = jax.jit(expert_gemm.expert_gemm, static_argnums=(0, 1))
_swiglu = jax.jit(swiglu.swiglu, static_argnums=0)
_row_weight = jax.jit(dispatch.row_weight, static_argnums=0)
_return_rows = jax.jit(combine.return_rows, static_argnums=0)
_combine = jax.jit(combine.combine, static_argnums=0)


class Oracle:
  """One layer on one set of inputs.

  Attributes:
    config: sizes.
    policy: precision.
  """

  def __init__(
      self,
      config: config_lib.MoEConfig,
      policy: precision.PrecisionPolicy,
      inputs: Mapping[str, np.ndarray],
  ):
    self.config = config
    self.policy = policy
    self._inputs = inputs

  def forward(self) -> dict[str, np.ndarray]:
    """Returns every tensor of `tensors.PLAN` and `STAGES` by name."""
    inputs = (self._inputs[name] for name in tensors.INPUTS)
    outputs = _forward(self.config, self.policy, *inputs)
    return {name: np.asarray(value) for name, value in outputs.items()}

  def stage(self, name: str, captured: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns a stage tensor computed from captured stage tensors.

    Raises:
      KeyError: the stage before it was not captured.
    """
    config, policy, inputs = self.config, self.policy, self._inputs
    if name == 'gate_up':
      weights = inputs['w_gate_up']
      out = _gemm(config, policy, self._plan, captured['expert_in'], weights)
    elif name == 'activation':
      out = _swiglu(policy, captured['gate_up'], self._row_weight)
    elif name == 'expert_out':
      weights = inputs['w_down']
      out = _gemm(config, policy, self._plan, captured['activation'], weights)
    elif name == 'returned':
      ids, rows = inputs['topk_ids'], captured['expert_out']
      out = _return_rows(config, self._plan, ids, rows)
    elif name == 'y':
      out = _combine(policy, captured['returned'], inputs['topk_weights'])
    else:
      raise ValueError(f'name: expected a stage after expert_in, got {name!r}')
    return np.asarray(out)

  @functools.cached_property
  def _plan(self) -> token_order.Plan:
    return _plan(self.config, self._inputs['topk_ids'])

  @functools.cached_property
  def _row_weight(self) -> jax.Array | None:
    if self.policy.placement != 'before_down':
      return None
    return _row_weight(
        self.config,
        self._plan,
        self._inputs['topk_ids'],
        self._inputs['topk_weights'],
    )
