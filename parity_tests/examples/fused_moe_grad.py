"""The backward pass of a fused MoE layer as a user might write it.

`moe` is `fused_moe.fused_moe` with its gradient; `moe_with_a_bug` has a bug in
the weight gradients only.  Neither uses a computation of `reference/`.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from hpmoe.parity_tests.examples import fused_moe
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision


def _mask_rows(first: jax.Array, end: jax.Array, row: jax.Array) -> jax.Array:
  return (row >= first) & (row < end)


def _mask_rows_with_a_bug(
  first: jax.Array, end: jax.Array, row: jax.Array
) -> jax.Array:
  # Whole tiles only: rows in an expert's last, partly filled tile are lost.
  rows = (end - first) // fused_moe.TILE * fused_moe.TILE
  whole = jnp.where(rows > 0, rows, end - first)
  return (row >= first) & (row < first + whole)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _grads(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  mask_rows: Callable[..., jax.Array],
  tensors: dict[str, jax.Array],
) -> fused_moe.Outputs:
  """Returns every gradient, for the rows, experts and tokens of all ranks."""
  store = functools.partial(fused_moe.store, policy)
  early = policy.placement == 'before_down'
  expert, begin, end = _experts(config, tensors['counts'])
  row = _rows_of_slots(config, tensors)  # [S], S slots of all ranks
  slot = jnp.full(config.num_ranks * config.num_rows, row.size)
  slot = slot.at[row].set(jnp.arange(row.size))  # [R N], S where it is empty

  def of_slot(values: jax.Array) -> jax.Array:
    rows = values.at[slot].get(mode='fill', fill_value=0)
    return rows.astype(jnp.float32)

  dy = jnp.repeat(
    tensors['dy'].reshape(-1, config.d_model), config.top_k, axis=0
  )
  weight = of_slot(tensors['topk_weights'].reshape(-1))[:, None]
  d_expert_out = store(of_slot(dy) * (1 if early else weight))

  def back(rows: jax.Array, weights: jax.Array) -> jax.Array:
    flat = weights.reshape(config.num_experts, *weights.shape[2:])
    products = _product('ny,exy->enx', rows, flat)
    own_product = jnp.take_along_axis(products, expert[None, :, None], axis=0)[
      0
    ]
    return store(jnp.where((slot < row.size)[:, None], own_product, 0))

  def weight_grad(rows: jax.Array, grads: jax.Array) -> jax.Array:
    def expert_grad(first: jax.Array, last: jax.Array) -> jax.Array:
      mask = mask_rows(first, last, jnp.arange(len(grads)))[:, None]
      flat = rows.reshape(len(grads), -1)
      left, right = (jnp.where(mask, a, 0) for a in (flat, grads))
      return _product('nx,ny->xy', left, right)

    grads_by_expert = store(
      jax.lax.map(lambda ends: expert_grad(*ends), (begin, end))
    )
    return grads_by_expert.reshape(
      config.num_ranks, -1, *grads_by_expert.shape[1:]
    )

  d_activation = back(d_expert_out, tensors['w_down'])
  gate_up = tensors['gate_up'].astype(jnp.float32).reshape(len(slot), -1)
  gate, up = jnp.split(gate_up, 2, axis=-1)
  d_out = d_activation.astype(jnp.float32)
  act, slope = jnp.abs(gate), jnp.sign(gate)
  if policy.activation == 'swiglu':
    s = jax.nn.sigmoid(gate)
    act, slope = gate * s, s * (1 + gate * (1 - s))
  weighted = d_out * weight if early else d_out
  d_gate_up = store(
    jnp.concatenate([weighted * up * slope, weighted * act], axis=-1)
  )
  d_expert_in = back(d_gate_up, tensors['w_gate_up'])
  d_returned = d_expert_in[row].reshape(*tensors['topk_ids'].shape, -1)
  if early:
    dots = jnp.sum(d_out * act * up, axis=-1)[row]
  else:
    returned_rows = (
      tensors['returned'].astype(jnp.float32).reshape(len(row), -1)
    )
    dots = jnp.sum(dy.astype(jnp.float32) * returned_rows, axis=-1)

  def split_ranks(rows: jax.Array) -> jax.Array:
    return rows.reshape(config.num_ranks, config.num_rows, -1)

  return dict(
    d_expert_out=split_ranks(d_expert_out),
    d_activation=split_ranks(d_activation),
    d_w_down=weight_grad(tensors['activation'], d_expert_out),
    d_gate_up=split_ranks(d_gate_up),
    d_expert_in=split_ranks(d_expert_in),
    d_w_gate_up=weight_grad(tensors['expert_in'], d_gate_up),
    d_returned=d_returned,
    dx=store(jnp.sum(d_returned.astype(jnp.float32), axis=2)),
    d_topk_weights=dots.reshape(tensors['topk_weights'].shape),
  )


def _experts(
  config: config_lib.MoEConfig, counts: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the expert of each row, and the rows of each expert.

  Rows are those of all ranks one after another: `[R N]`, `[E]`, `[E]`.
  """
  rows = counts.sum(axis=0).reshape(config.num_ranks, -1)
  end = jnp.cumsum(rows, axis=1)
  end += config.num_rows * jnp.arange(config.num_ranks)[:, None]
  begin, end = (end - rows).reshape(-1), end.reshape(-1)
  row = jnp.arange(config.num_ranks * config.num_rows)
  expert = jnp.searchsorted(end, row, side='right')
  return jnp.minimum(expert, config.num_experts - 1), begin, end


def _rows_of_slots(
  config: config_lib.MoEConfig, tensors: dict[str, jax.Array]
) -> jax.Array:
  owner = tensors['topk_ids'] // config.experts_per_rank
  return (owner * config.num_rows + tensors['row_of_slot']).reshape(-1)


def _product(axes: str, left: jax.Array, right: jax.Array) -> jax.Array:
  # Products of narrow operands are exact in float32; XLA lacks kernels for some
  # pairs of dtypes.
  return jnp.einsum(axes, left.astype(jnp.float32), right.astype(jnp.float32))


def _moe(mask_rows: Callable[..., jax.Array]):
  """Returns the layer, whose `backward` returns the gradients."""

  def moe(
    inputs: fused_moe.Inputs,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
  ) -> fused_moe.Outputs:
    return fused_moe.fused_moe(inputs, config, policy)

  def backward(
    inputs: fused_moe.Inputs,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
  ) -> fused_moe.Outputs:
    return _grads(config, policy, mask_rows, dict(inputs))

  moe.backward = backward  # type: ignore[attr-defined]
  return moe


moe = _moe(_mask_rows)
moe_with_a_bug = _moe(_mask_rows_with_a_bug)
