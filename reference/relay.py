"""Rows that cross to a rank once: what a relay holds before it copies them.

A token for several experts of one rank is sent there once (UniEP, arXiv
2604.19241), as a row of the lowest of those experts.  Relayed rows are packed
as all rows are: experts ascending, then (source rank, token).
"""

import jax.numpy as jnp

from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import tensors


def plan(
  config: config_lib.MoEConfig, topk_ids: at.Int32[at.Array, 'R T K']
) -> token_order.Plan:
  """Returns the plan of the relayed rows of `topk_ids` `[R, T, K]` int32.

  `counts` and `row_base` `[R, E]` int32 are of relayed rows; `row_of_slot`
  `[R, T, K]` is the row of a slot that is its token's lowest on its rank, -1 of
  the others, which have no row of their own, and of slots that are not used.
  """
  ids = topk_ids.reshape(config.num_ranks, -1, topk_ids.shape[-1])
  owner = ids // config.experts_per_rank
  same = owner[..., :, None] == owner[..., None, :]
  lower = ids[..., None, :] < ids[..., :, None]
  first = ~jnp.any(same & lower, axis=-1) & (ids != tensors.UNUSED)
  sources = jnp.arange(config.num_ranks)[:, None, None]
  counts = jnp.zeros((config.num_ranks, config.num_experts), jnp.int32)
  counts = counts.at[jnp.broadcast_to(sources, ids.shape), ids].add(
    first.astype(jnp.int32)
  )
  base = token_order.row_bases(config, counts)
  # Earlier first slots of the same rank and expert, by their one-hot sums.
  flat = ids.reshape(config.num_ranks, -1)
  taken = first.reshape(flat.shape)
  hot = (flat[..., None] == jnp.arange(config.num_experts)) & taken[..., None]
  before = jnp.cumsum(hot, axis=1, dtype=jnp.int32) - hot.astype(jnp.int32)
  place = jnp.take_along_axis(before, flat[..., None], axis=-1)[..., 0]
  rows = jnp.take_along_axis(base, flat, axis=-1) + place
  rows = jnp.where(taken, rows, jnp.int32(-1))
  return token_order.Plan(counts, base, rows.reshape(topk_ids.shape))


def relayed(
  config: config_lib.MoEConfig,
  topk_ids: at.Int32[at.Array, 'R T K'],
  tokens: at.Num[at.Array, 'R T D'],
) -> at.Num[at.Array, 'R N D']:
  """Returns relayed rows `[R, N, D]` of `tokens` `[R, T, D]`, bits copied.

  `x_relayed` of x, `dy_relayed` of dy, which no weight has multiplied yet; zero
  past the last relayed row.
  """
  rows = plan(config, topk_ids).row_of_slot
  owner = topk_ids // config.experts_per_rank
  token = jnp.arange(tokens.shape[0] * tokens.shape[1], dtype=jnp.int32)
  token = token.reshape(*tokens.shape[:2], 1)
  nobody = jnp.int32(tokens.shape[0] * tokens.shape[1])
  of_row = jnp.full((config.num_ranks, config.num_rows), nobody, jnp.int32)
  # A slot without a row of its own lands past the last one, and is dropped.
  at_row = jnp.where(rows < 0, config.num_rows, rows)
  of_row = of_row.at[owner, at_row].set(
    jnp.broadcast_to(token, rows.shape), mode='drop'
  )
  flat = tokens.reshape(-1, tokens.shape[-1])
  return flat.at[of_row].get(mode='fill', fill_value=0)
