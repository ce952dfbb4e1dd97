"""The oracle as a check uses it: whole layer, or one stage on given inputs."""

from collections.abc import Mapping
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.kept import programs
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def _program(place: str, static: int) -> programs.Program:
  return programs.Program(f'hpmoe.reference.{place}', static)


def _plan_of(plan):
  from hpmoe.reference import token_order

  return token_order.Plan(**plan)


# What these import takes JAX along: only who has no answer pays for it.
def _planned(config, topk_ids):
  from hpmoe.reference import token_order

  return token_order.plan(config, topk_ids)._asdict()


def _dispatched(config, plan, topk_ids, x):
  from hpmoe.reference import dispatch

  return dispatch.dispatch(config, _plan_of(plan), topk_ids, x)


def _weighted_rows(config, plan, topk_ids, topk_weights):
  from hpmoe.reference import dispatch

  return dispatch.row_weight(config, _plan_of(plan), topk_ids, topk_weights)


def _multiplied(config, policy, plan, rows, weights):
  from hpmoe.reference import expert_gemm

  return expert_gemm.expert_gemm(config, policy, _plan_of(plan), rows, weights)


def _returned(config, plan, topk_ids, rows):
  from hpmoe.reference import combine

  return combine.return_rows(config, _plan_of(plan), topk_ids, rows)


def _dispatched_grad(config, policy, plan, topk_ids, topk_weights, dy):
  from hpmoe.reference import dispatch_grad
  from hpmoe.reference import movement

  moves = movement.by_address(config, _plan_of(plan), topk_ids)
  return dispatch_grad.dispatch_grad(policy, moves, topk_weights, dy)


def _grad_of_rows(config, policy, plan, grad, weights):
  from hpmoe.reference import expert_gemm_grad

  return expert_gemm_grad.rows_grad(
    config, policy, _plan_of(plan), grad, weights
  )


def _grad_of_weights(config, policy, plan, rows, grad):
  from hpmoe.reference import expert_gemm_grad

  return expert_gemm_grad.weight_grad(
    config, policy, _plan_of(plan), rows, grad
  )


# Compiled once for a (config, policy), whatever the values.
_forward = _program('layer:forward', 2)
_plan = programs.Program(_planned, 1)
_dispatch = programs.Program(_dispatched, 1)
_relayed = _program('relay:relayed', 1)
_gemm = programs.Program(_multiplied, 2)
_swiglu = _program('swiglu:swiglu', 1)
_row_weight = programs.Program(_weighted_rows, 1)
_return_rows = programs.Program(_returned, 1)
_combine = _program('combine:combine', 1)
_backward = _program('layer_grad:backward', 2)
_dispatch_grad = programs.Program(_dispatched_grad, 2)
_combine_weight_grad = _program('dispatch_grad:combine_weight_grad', 1)
_rows_grad = programs.Program(_grad_of_rows, 2)
_weight_grad = programs.Program(_grad_of_weights, 2)
_swiglu_grad = _program('swiglu_grad:swiglu_grad', 1)
_row_weight_grad = _program('swiglu_grad:row_weight_grad', 1)
_combine_grad = _program('combine_grad:combine_grad', 1)


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
    # The order of a backend's sums is none of the oracle's: compiled once.
    policy = dataclasses.replace(policy, accumulation_order='ascending')
    self.policy = policy
    self._inputs = inputs
    # Of stages without an activation: compiled once for all activations.
    self._linear = dataclasses.replace(policy, activation='swiglu')

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
    config, policy, inputs = self.config, self._linear, self._inputs
    if name == 'x_relayed':
      out = _relayed(config, inputs['topk_ids'], inputs['x'])
    elif name == 'expert_in':
      out = _dispatch(config, self._plan, inputs['topk_ids'], inputs['x'])
    elif name == 'gate_up':
      weights = inputs['w_gate_up']
      out = _gemm(config, policy, self._plan, captured['expert_in'], weights)
    elif name == 'activation':
      out = _swiglu(self.policy, captured['gate_up'], self._row_weight)
    elif name == 'expert_out':
      weights = inputs['w_down']
      out = _gemm(config, policy, self._plan, captured['activation'], weights)
    elif name == 'returned':
      ids, rows = inputs['topk_ids'], captured['expert_out']
      out = _return_rows(config, self._plan, ids, rows)
    elif name == 'y':
      out = _combine(policy, captured['returned'], inputs['topk_weights'])
    else:
      raise ValueError(f'name: expected one of {tensors.STAGES}, got {name!r}')
    return np.asarray(out)

  def backward(
    self, forward: Mapping[str, np.ndarray], dy: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Returns every tensor of `tensors.GRADS` by name.

    Args:
      forward: tensors of `INPUTS`, `PLAN` and `STAGES` by name; those that
        `layer_grad.reads` names are read.
      dy: `[R, T, D]` storage.

    Raises:
      KeyError: one of those is missing.
    """
    from hpmoe.reference import layer_grad

    read = {name: forward[name] for name in layer_grad.reads(self.policy)}
    grads = _backward(self.config, self.policy, read, dy)
    return {name: np.asarray(grads[name]) for name in tensors.GRADS}

  def stage_grad(
    self,
    name: str,
    saved: Mapping[str, np.ndarray],
    captured: Mapping[str, np.ndarray],
  ) -> np.ndarray:
    """Returns a gradient computed from captured gradients and saved tensors.

    Args:
      name: one of `tensors.GRADS`.
      saved: dy and the forward tensors that `layer_grad.reads` names.
      captured: gradients by name.

    Raises:
      KeyError: a tensor that it is computed from is in neither.
    """
    config, policy, inputs = self.config, self._linear, self._inputs
    if name == 'dy_relayed':
      out = _relayed(config, inputs['topk_ids'], saved['dy'])
    elif name == 'd_expert_out':
      ids, weights = inputs['topk_ids'], inputs['topk_weights']
      out = _dispatch_grad(
        config, policy, self._plan, ids, weights, saved['dy']
      )
    elif name == 'd_topk_weights':
      out = self._topk_weights_grad(saved, captured)
    elif name in tensors.TRANSPOSED_GEMMS:
      grad, of = tensors.TRANSPOSED_GEMMS[name]
      out = _rows_grad(config, policy, self._plan, captured[grad], inputs[of])
    elif name in tensors.WEIGHT_GRADS:
      of, grad = tensors.WEIGHT_GRADS[name]
      out = _weight_grad(config, policy, self._plan, saved[of], captured[grad])
    elif name == 'd_gate_up':
      out = _swiglu_grad(
        self.policy,
        saved['gate_up'],
        captured['d_activation'],
        self._row_weight,
      )
    elif name == 'd_returned':
      ids, rows = inputs['topk_ids'], captured['d_expert_in']
      out = _return_rows(config, self._plan, ids, rows)
    elif name == 'dx':
      out = _combine_grad(policy, captured['d_returned'])
    else:
      raise ValueError(f'name: expected one of {tensors.GRADS}, got {name!r}')
    return np.asarray(out)

  def _topk_weights_grad(self, saved, captured) -> np.ndarray:
    if self.policy.placement == 'combine':
      grad = _combine_weight_grad(self._linear, saved['dy'], saved['returned'])
    else:
      of_row = _row_weight_grad(
        self.policy, saved['gate_up'], captured['d_activation']
      )
      ids = self._inputs['topk_ids']
      rows = np.asarray(of_row)[..., None]
      grad = _return_rows(self.config, self._plan, ids, rows)
      grad = np.asarray(grad)[..., 0]
    return np.asarray(grad).astype(np.float32)

  def plan(self) -> dict[str, np.ndarray]:
    """Returns every tensor of `tensors.PLAN` by name."""
    return {n: np.asarray(self._plan[n]) for n in tensors.PLAN}

  @functools.cached_property
  def _plan(self) -> dict[str, np.ndarray]:
    ids = self._inputs['topk_ids']
    return _plan(self.config, ids)

  @functools.cached_property
  def _row_weight(self) -> np.ndarray | None:
    if self.policy.placement != 'before_down':
      return None
    return _row_weight(
      self.config,
      self._plan,
      self._inputs['topk_ids'],
      self._inputs['topk_weights'],
    )
