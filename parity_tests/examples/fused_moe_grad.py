"""The backward pass of a fused MoE layer as a user might write it.

`moe` is `fused_moe.fused_moe` with its gradient, `moe_with_a_bug` the same with
a bug in the weight gradients only.  As there, no computation of `reference/` is
used.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from hpmoe.parity_tests.examples import fused_moe
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision


def _summed(first: jax.Array, end: jax.Array, row: jax.Array) -> jax.Array:
  return (row >= first) & (row < end)


def _summed_with_a_bug(
  first: jax.Array, end: jax.Array, row: jax.Array
) -> jax.Array:
  # Whole tiles only: an expert's last rows, where they fill none, are lost.
  rows = (end - first) // fused_moe.TILE * fused_moe.TILE
  whole = jnp.where(rows > 0, rows, end - first)
  return (row >= first) & (row < first + whole)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _grads(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  summed: Callable[..., jax.Array],
  saved: dict[str, jax.Array],
) -> fused_moe.Outputs:
  """Returns every gradient; rows, experts and tokens are of all ranks."""
  store = functools.partial(fused_moe.store, policy)
  early = policy.placement == 'before_down'
  expert, begin, end = _experts(config, saved['counts'])
  row = _rows_of_slots(config, saved)  # [S], S slots of all ranks
  slot = jnp.full(config.num_ranks * config.num_rows, row.size)
  slot = slot.at[row].set(jnp.arange(row.size))  # [R N], S where it is empty

  def of_slot(values: jax.Array) -> jax.Array:
    filled = values.at[slot].get(mode='fill', fill_value=0)
    return filled.astype(jnp.float32)

  dy = jnp.repeat(saved['dy'].reshape(-1, config.d_model), config.top_k, axis=0)
  weight = of_slot(saved['topk_weights'].reshape(-1))[:, None]
  d_expert_out = store(of_slot(dy) * (1 if early else weight))

  def back(rows: jax.Array, weights: jax.Array) -> jax.Array:
    flat = weights.reshape(config.num_experts, *weights.shape[2:])
    each = _product('ny,exy->enx', rows, flat)
    mine = jnp.take_along_axis(each, expert[None, :, None], axis=0)[0]
    return store(jnp.where((slot < row.size)[:, None], mine, 0))

  def weight_grad(rows: jax.Array, grads: jax.Array) -> jax.Array:
    def one(first: jax.Array, last: jax.Array) -> jax.Array:
      mine = summed(first, last, jnp.arange(len(grads)))[:, None]
      flat = rows.reshape(len(grads), -1)
      left, right = (jnp.where(mine, a, 0) for a in (flat, grads))
      return _product('nx,ny->xy', left, right)

    both = store(jax.lax.map(lambda ends: one(*ends), (begin, end)))
    return both.reshape(config.num_ranks, -1, *both.shape[1:])

  d_activation = back(d_expert_out, saved['w_down'])
  gate_up = saved['gate_up'].astype(jnp.float32).reshape(len(slot), -1)
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
  d_expert_in = back(d_gate_up, saved['w_gate_up'])
  d_returned = d_expert_in[row].reshape(*saved['topk_ids'].shape, -1)
  if early:
    dots = jnp.sum(d_out * act * up, axis=-1)[row]
  else:
    sent = saved['returned'].astype(jnp.float32).reshape(len(row), -1)
    dots = jnp.sum(dy.astype(jnp.float32) * sent, axis=-1)

  def packed(rows: jax.Array) -> jax.Array:
    return rows.reshape(config.num_ranks, config.num_rows, -1)

  return dict(
    d_expert_out=packed(d_expert_out),
    d_activation=packed(d_activation),
    d_w_down=weight_grad(saved['activation'], d_expert_out),
    d_gate_up=packed(d_gate_up),
    d_expert_in=packed(d_expert_in),
    d_w_gate_up=weight_grad(saved['expert_in'], d_gate_up),
    d_returned=d_returned,
    dx=store(jnp.sum(d_returned.astype(jnp.float32), axis=2)),
    d_topk_weights=dots.reshape(saved['topk_weights'].shape),
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
  config: config_lib.MoEConfig, saved: dict[str, jax.Array]
) -> jax.Array:
  owner = saved['topk_ids'] // config.experts_per_rank
  return (owner * config.num_rows + saved['row_of_slot']).reshape(-1)


def _product(axes: str, left: jax.Array, right: jax.Array) -> jax.Array:
  # Narrow products are exact in float32; XLA has no kernel for all mixes.
  return jnp.einsum(axes, left.astype(jnp.float32), right.astype(jnp.float32))


def _moe(summed: Callable[..., jax.Array]):
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
    return _grads(config, policy, summed, dict(inputs))

  moe.backward = backward  # type: ignore[attr-defined]
  return moe


moe = _moe(_summed)
moe_with_a_bug = _moe(_summed_with_a_bug)
