"""A fused MoE layer as a user might write it, right and with a bug.

docs/find_a_bug.md explains it.  The layer is one jitted function, and each of
its stages can be called alone.  It uses types of `reference/`, but none of its
computations.
"""

from collections.abc import Callable, Mapping
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

# Rows of one GEMM tile.
TILE = 16

Inputs = Mapping[str, np.ndarray]
Outputs = dict[str, jax.Array]
Mask = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
Tensors = Mapping[str, jax.Array]
Stage = Callable[..., jax.Array]


def fused_moe(
  inputs: Inputs,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
) -> Outputs:
  """Returns y and the intermediates, under the names of `tensors.STAGES`."""
  return _layer(config, policy, _owned, **inputs)


def fused_moe_with_a_bug(
  inputs: Inputs,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
) -> Outputs:
  """As `fused_moe`, but with the wrong mask."""
  return _layer(config, policy, _owned_with_a_bug, **inputs)


def _owned(row: jax.Array, begin: jax.Array, end: jax.Array) -> jax.Array:
  return (row >= begin) & (row < end)


def _owned_with_a_bug(
  row: jax.Array, begin: jax.Array, end: jax.Array
) -> jax.Array:
  # One row too early: also takes the last row of the previous expert if that
  # row is in the same tile.
  return (row >= begin - 1) & (row < end)


def _stages(owned: Mask) -> dict[str, Stage]:
  """Returns the stages of the layer in order, by the tensor each returns."""

  def gemm(
    weights: str, rows: str, tensors: Tensors, config, policy
  ) -> jax.Array:
    _, begin, end, _ = _sort(config, tensors['topk_ids'])
    gemm_of_ranks = jax.vmap(functools.partial(_grouped_gemm, owned))
    return store(
      policy, gemm_of_ranks(tensors[rows], tensors[weights], begin, end)
    )

  stages = dict(
    expert_in=_expert_in,
    gate_up=functools.partial(gemm, 'w_gate_up', 'expert_in'),
    activation=_activation,
    expert_out=functools.partial(gemm, 'w_down', 'activation'),
    returned=_return_rows,
    y=_y,
  )
  return {
    name: jax.jit(stage, static_argnums=(1, 2))
    for name, stage in stages.items()
  }


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _layer(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  owned: Mask,
  **inputs: jax.Array,
) -> Outputs:
  outputs: Outputs = {}
  for name, stage in _stages(owned).items():
    outputs[name] = stage(inputs | outputs, config, policy)
  return outputs


def _expert_in(tensors: Tensors, config, policy) -> jax.Array:
  del policy  # rows move as they are
  slot, _, _, _ = _sort(config, tensors['topk_ids'])
  tokens = tensors['x'].reshape(-1, config.d_model)
  return tokens.at[slot // config.top_k].get(mode='fill', fill_value=0)


def _activation(tensors: Tensors, config, policy) -> jax.Array:
  gate_up = tensors['gate_up'].astype(jnp.float32)
  gate, up = jnp.split(gate_up, 2, axis=-1)
  if policy.activation == 'swiglu':
    gate = jax.nn.silu(gate)
  else:
    gate = jnp.abs(gate)
  hidden = gate * up
  if policy.placement == 'before_down':
    slot, _, _, _ = _sort(config, tensors['topk_ids'])
    weights = tensors['topk_weights'].reshape(-1)
    weights = weights.at[slot].get(mode='fill', fill_value=0)
    hidden = hidden * weights[..., None]
  return store(policy, hidden)


def _return_rows(tensors: Tensors, config, policy) -> jax.Array:
  del policy  # rows move as they are
  _, _, _, home = _sort(config, tensors['topk_ids'])
  return tensors['expert_out'].reshape(-1, config.d_model)[home]


def _y(tensors: Tensors, config, policy) -> jax.Array:
  del config  # the shapes suffice
  terms = tensors['returned'].astype(jnp.float32)
  if policy.placement == 'combine':
    terms = terms * tensors['topk_weights'][..., None]
  return store(policy, jnp.sum(terms, axis=2))


def _sort(
  config: config_lib.MoEConfig, topk_ids: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Sorts all slots by expert, and so by owner.

  Returns:
    `[R, N]` slot of each packed row, one past the last slot if it has none;
    `[R, L]` first row of each expert and the end; `[R, T, K]` row of each slot,
    counted over all ranks' N rows.
  """
  ids = topk_ids.reshape(-1)
  order = jnp.argsort(ids, stable=True)
  counts = jnp.bincount(ids, length=config.num_experts)
  end = jnp.cumsum(counts).reshape(config.num_ranks, -1)
  begin = end - counts.reshape(end.shape)
  first = begin[:, :1]
  row = jnp.arange(config.num_rows)
  slot = order.at[first + row].get(mode='fill', fill_value=ids.size)
  slot = jnp.where(row < end[:, -1:] - first, slot, ids.size)
  owner = ids // config.experts_per_rank
  place = jnp.argsort(order) - first[owner, 0]
  home = (owner * config.num_rows + place).reshape(topk_ids.shape)
  return slot, begin - first, end - first, home


def _grouped_gemm(
  owned: Mask,
  rows: jax.Array,
  weights: jax.Array,
  begin: jax.Array,
  end: jax.Array,
) -> jax.Array:
  """Multiplies `rows` `[N, A]` by their experts' `weights` `[L, A, B]`.

  Each expert visits every tile that has some of its rows, and stores the rows
  that it owns; so several experts may visit a tile.

  Returns:
    `[N, B]` float32, zero where no expert owns the row.
  """
  padded = jnp.pad(rows, ((0, -len(rows) % TILE), (0, 0)))
  first = begin // TILE
  visits = jnp.where(end > begin, (end - 1) // TILE - first + 1, 0)
  visits_end = jnp.cumsum(visits)

  def visit(number: jax.Array, out: jax.Array) -> jax.Array:
    e = jnp.searchsorted(visits_end, number, side='right')
    start = (first[e] + number - visits_end[e] + visits[e]) * TILE
    tile = lax.dynamic_slice_in_dim(padded, start, TILE)
    new = jnp.dot(tile, weights[e], preferred_element_type=jnp.float32)
    old = lax.dynamic_slice_in_dim(out, start, TILE)
    mask = owned(start + jnp.arange(TILE), begin[e], end[e])
    new = jnp.where(mask[:, None], new, old)
    return lax.dynamic_update_slice_in_dim(out, new, start, axis=0)

  out = jnp.zeros((len(padded), weights.shape[-1]), jnp.float32)
  return lax.fori_loop(0, visits_end[-1], visit, out)[: len(rows)]


def store(policy: precision.PrecisionPolicy, a: jax.Array) -> jax.Array:
  """Returns values rounded to the storage dtype."""
  # Inside one jitted function XLA may drop a convert to bfloat16 and back; the
  # next stage would then read values that were not rounded.
  info = jnp.finfo(policy.storage)
  narrow = lax.reduce_precision(a, info.nexp, info.nmant)
  if policy.storage == 'float16':  # whose subnormal numbers that flushes
    smallest = 2.0**-24
    subnormal = jnp.round(a / smallest) * smallest
    narrow = jnp.where(jnp.abs(a) < 2.0**-14, subnormal, narrow)
  return narrow.astype(policy.storage)


# Isolated replay calls these stages one by one.
fused_moe.stages = _stages(_owned)  # type: ignore[attr-defined]
fused_moe_with_a_bug.stages = (  # type: ignore[attr-defined]
  _stages(_owned_with_a_bug)
)
