"""The oracle's backward pass: every gradient on all ranks, all returned."""

from collections.abc import Mapping
import functools

import jax
import jax.numpy as jnp

from hpmoe.reference import combine_grad
from hpmoe.reference import dispatch_grad
from hpmoe.reference import expert_gemm_grad
from hpmoe.reference import layer as layer_lib
from hpmoe.reference import movement
from hpmoe.reference import numerics
from hpmoe.reference import swiglu_grad
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def reads(policy: precision.PrecisionPolicy) -> tuple[str, ...]:
  """Returns the names of the forward tensors that `backward` reads."""
  inputs = ('topk_ids', 'topk_weights', 'w_gate_up', 'w_down')
  stages = ('expert_in', 'gate_up', 'activation')
  returned = ('returned',) if policy.placement == 'combine' else ()
  return inputs + tensors.PLAN + stages + returned


def backward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  forward: Mapping[str, at.Array],
  dy: at.Float[at.Array, 'R T D'],
) -> dict[str, at.Array]:
  """Runs the seven backward operators; shapes are those of `tensors.BACKWARD`.

  Pure and jit-able with `config` and `policy` static.  Every stage reads stored
  values, computes in the accumulate dtype and rounds once, to storage, when it
  writes.  `d_expert_out` at placement 'before_down' and `d_returned` are
  copies.  `d_topk_weights` is rounded to the dtype of `topk_weights` instead,
  float32 by contract; a caller that needs it in float64 passes them in float64.

  Args:
    config: sizes.
    policy: dtypes, placement of the weights, activation.
    forward: inputs and outputs of `layer.forward` by name; `reads` lists those
      that are needed.
    dy: `[R, T, D]` storage, or narrower, which is widened exactly.

  Returns:
    Every tensor of `tensors.BACKWARD` by its name, `dy` as stored.

  Raises:
    ValueError: a tensor is missing, `dy` has another shape or would be
      narrowed, or the policy is in float64 and jax_enable_x64 is off.
  """
  _check_arguments(config, policy, forward, dy)
  forward = {name: jnp.asarray(value) for name, value in forward.items()}
  dy = jnp.asarray(dy, numerics.storage_dtype(policy))
  plan = token_order.Plan(*(forward[name] for name in tensors.PLAN))
  moves = movement.by_address(config, plan, forward['topk_ids'])
  return gradients(config, policy, plan, moves, forward, dy)


def gradients(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  plan: token_order.Plan,
  moves: movement.Movement,
  forward: Mapping[str, at.Array],
  dy: at.Float[at.Array, 'R T D'],
) -> dict[str, at.Array]:
  """Returns the tensors of `tensors.BACKWARD` by name, however rows travel.

  Args:
    config: sizes, as the expert GEMMs see them.
    policy: dtypes, placement of the weights, activation.
    plan: says the GEMMs which expert a row belongs to.
    moves: how rows travel.
    forward: the tensors of `reads`, of which routing and plan are not read.
    dy: `[R, T, D]` storage.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  weights = forward['topk_weights']
  d_expert_out = dispatch_grad.dispatch_grad(policy, moves, weights, dy)
  d_activation, d_w_down = _gemm_grads(
    config,
    policy,
    plan,
    forward['activation'],
    forward['w_down'],
    d_expert_out,
  )
  row_weight = None
  if policy.placement == 'before_down':
    row_weight = moves.row_weight(weights)
  d_topk_weights = _weights_grad(policy, moves, forward, dy, d_activation)
  d_gate_up = swiglu_grad.swiglu_grad(
    policy, forward['gate_up'], d_activation, row_weight
  )
  d_expert_in, d_w_gate_up = _gemm_grads(
    config,
    policy,
    plan,
    forward['expert_in'],
    forward['w_gate_up'],
    d_gate_up,
  )
  d_returned = moves.return_rows(d_expert_in)
  return dict(
    dy=dy,
    d_expert_out=d_expert_out,
    d_topk_weights=d_topk_weights,
    d_activation=d_activation,
    d_w_down=d_w_down,
    d_gate_up=d_gate_up,
    d_expert_in=d_expert_in,
    d_w_gate_up=d_w_gate_up,
    d_returned=d_returned,
    dx=combine_grad.combine_grad(policy, d_returned),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def layer(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
) -> at.Float[at.Array, 'R T D']:
  """Returns `y` `[R, T, D]` of `layer.forward`, whose arguments it takes.

  Reverse mode runs `backward`; a gradient comes in the dtype of its argument.
  """
  outputs = layer_lib.forward(
    config, policy, x, topk_ids, topk_weights, w_gate_up, w_down
  )
  return outputs['y']


def _layer_forward(config, policy, *arguments):
  inputs = dict(zip(tensors.INPUTS, arguments, strict=True))
  tensors_of = inputs | layer_lib.forward(config, policy, **inputs)
  kept = {name: tensors_of[name] for name in reads(policy)}
  # Residuals are arrays: an empty one carries the dtype of x.
  return tensors_of['y'], (kept, inputs['x'][:0])


def _layer_backward(config, policy, saved, dy):
  kept, empty_x = saved
  out = backward(config, policy, kept, dy)
  return (
    out['dx'].astype(empty_x.dtype),
    None,
    out['d_topk_weights'],
    out['d_w_gate_up'].astype(kept['w_gate_up'].dtype),
    out['d_w_down'].astype(kept['w_down'].dtype),
  )


layer.defvjp(_layer_forward, _layer_backward)


def _gemm_grads(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  plan: token_order.Plan,
  rows: at.Float[at.Array, 'R N X'],
  weights: at.Float[at.Array, 'R L X Y'],
  d_out: at.Float[at.Array, 'R N Y'],
) -> tuple[at.Float[at.Array, 'R N X'], at.Float[at.Array, 'R L X Y']]:
  return (
    expert_gemm_grad.rows_grad(config, policy, plan, d_out, weights),
    expert_gemm_grad.weight_grad(config, policy, plan, rows, d_out),
  )


def _weights_grad(
  policy: precision.PrecisionPolicy,
  moves: movement.Movement,
  forward: Mapping[str, at.Array],
  dy: at.Float[at.Array, 'R T D'],
  d_activation: at.Float[at.Array, 'R N F'],
) -> at.Float[at.Array, 'R T K']:
  """Returns `d_topk_weights` `[R, T, K]` in the dtype of `topk_weights`."""
  dtype = forward['topk_weights'].dtype
  if policy.placement == 'combine':
    grad = dispatch_grad.combine_weight_grad(policy, dy, forward['returned'])
    return grad.astype(dtype)
  of_row = swiglu_grad.row_weight_grad(policy, forward['gate_up'], d_activation)
  return moves.return_rows(of_row.astype(dtype)[..., None])[..., 0]


def _check_arguments(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  forward: Mapping[str, at.Array],
  dy: at.Array,
) -> None:
  for name in reads(policy):
    if name not in forward:
      raise ValueError(f'forward: expected a tensor {name}, got none')
  dims = (config.num_ranks, config.num_tokens, config.d_model)
  storage = numerics.storage_dtype(policy)
  narrowed = jnp.promote_types(dy.dtype, storage) != storage
  if dy.shape != dims or narrowed:
    raise ValueError(
      f'dy: expected {storage} {list(dims)} or narrower, got {dy.dtype} '
      f'{list(dy.shape)}'
    )
