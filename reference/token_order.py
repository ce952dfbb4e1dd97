"""Deterministic token order: the address of every routed row.

Addresses are known before rows are sent.  On the owner of expert e rows are
packed: experts ascending, then (source rank, token, slot), as a serial run over
all ranks' tokens would append them.
"""

from typing import NamedTuple

import jax.numpy as jnp

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import tensors


class Plan(NamedTuple):
  """Where every row goes.

  Attributes:
    counts: `[R, E]` int32, rows that rank r sends to expert e.
    row_base: `[R, E]` int32, the first of those rows on the owner of e.
    row_of_slot: `[R, T, K]` int32, row on the owner of the slot's expert; -1
      for an unused slot.
  """

  counts: at.Int32[at.Array, 'R E']
  row_base: at.Int32[at.Array, 'R E']
  row_of_slot: at.Int32[at.Array, 'R T K']


def plan(
  config: config_lib.MoEConfig, topk_ids: at.Int32[at.Array, 'R T K']
) -> Plan:
  """Returns the plan of `topk_ids` `[R, T, K]` int32, see `checks.check_ids`.

  Rows past the capacity get addresses too: see `checks.check_capacity`.
  """
  counts = slot_counts(config, topk_ids)
  base = row_bases(config, counts)
  return Plan(counts, base, slot_rows(topk_ids, counts, base))


def slot_counts(
  config: config_lib.MoEConfig, topk_ids: at.Int32[at.Array, 'ranks T K']
) -> at.Int32[at.Array, 'ranks E']:
  """Returns `[ranks, E]` int32 rows by expert, of all ranks or of one."""
  ids, ranks = _by_rank(topk_ids, config.num_experts)
  counts = jnp.zeros((len(ids), config.num_experts), jnp.int32)
  return counts.at[ranks, ids].add(1, mode='drop')


def slot_rows(
  topk_ids: at.Int32[at.Array, 'ranks T K'],
  counts: at.Int32[at.Array, 'ranks E'],
  row_base: at.Int32[at.Array, 'ranks E'],
) -> at.Int32[at.Array, 'ranks T K']:
  """Returns `row_of_slot` `[ranks, T, K]` int32 of the same ranks' arrays."""
  ids, ranks = _by_rank(topk_ids, counts.shape[1])
  # In a stable sort by expert, a slot's place less the first place of its
  # expert is the number of earlier slots of that rank and expert.
  order = jnp.argsort(ids, axis=-1, stable=True)
  places = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
  place = jnp.zeros_like(ids).at[ranks, order].set(places)
  offset = place - exclusive_sum(counts, axis=1)[ranks, ids]
  rows = (row_base[ranks, ids] + offset).reshape(topk_ids.shape)
  return jnp.where(topk_ids == tensors.UNUSED, jnp.int32(-1), rows)


def row_bases(
  config: config_lib.MoEConfig, counts: at.Int32[at.Array, 'R E']
) -> at.Int32[at.Array, 'R E']:
  """Returns `row_base` `[R, E]` int32 of `counts` `[R, E]` int32."""
  begin, _ = expert_rows(config, counts)
  return begin.reshape(1, -1) + exclusive_sum(counts, axis=0)


def expert_rows(
  config: config_lib.MoEConfig, counts: at.Int32[at.Array, 'R E']
) -> tuple[at.Int32[at.Array, 'R L'], at.Int32[at.Array, 'R L']]:
  """Returns `[R, L]` int32 begin and end of each expert's rows on its owner."""
  rows = jnp.sum(counts, axis=0, dtype=jnp.int32)
  rows = rows.reshape(config.num_ranks, config.experts_per_rank)
  begin = exclusive_sum(rows, axis=1)
  return begin, begin + rows


def slot_of_row(
  config: config_lib.MoEConfig,
  plan_: Plan,
  topk_ids: at.Int32[at.Array, 'R T K'],
) -> at.Int32[at.Array, 'R N']:
  """Returns `[R, N]` int32 slot of each row; R*T*K for an empty row.

  Slots are numbered (source rank, token, slot), so that R*T*K is one past the
  last; this is the inverse of `row_of_slot`.
  """
  slots = jnp.arange(topk_ids.size, dtype=jnp.int32).reshape(topk_ids.shape)
  nobody = jnp.int32(topk_ids.size)
  empty = jnp.full((config.num_ranks, config.num_rows), nobody, jnp.int32)
  owner = owners(config, topk_ids)
  return empty.at[owner, plan_.row_of_slot].set(slots, mode='drop')


def owners(
  config: config_lib.MoEConfig, topk_ids: at.Int32[at.Array, '*shape']
) -> at.Int32[at.Array, '*shape']:
  """Returns `[...]` int32 rank of each slot's expert, R for an unused slot.

  An index of -1 would mean the last rank.
  """
  owner = topk_ids // config.experts_per_rank
  return jnp.where(
    topk_ids == tensors.UNUSED, jnp.int32(config.num_ranks), owner
  )


def exclusive_sum(
  a: at.Int32[at.Array, '*shape'], axis: int
) -> at.Int32[at.Array, '*shape']:
  """Returns `[...]` int32 exclusive prefix sums along an axis."""
  return jnp.cumsum(a, axis=axis, dtype=jnp.int32) - a


def _by_rank(
  topk_ids: at.Int32[at.Array, 'ranks T K'], num_experts: int
) -> tuple[at.Int32[at.Array, 'ranks T*K'], at.Int32[at.Array, 'ranks 1']]:
  """Returns ids, with E for unused slots, and the rank of each."""
  ids = topk_ids.reshape(topk_ids.shape[0], -1)
  ids = jnp.where(ids == tensors.UNUSED, jnp.int32(num_experts), ids)
  return ids, jnp.arange(len(ids), dtype=jnp.int32)[:, None]
