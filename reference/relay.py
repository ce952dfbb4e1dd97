"""Relayed rows: each token crosses to a rank once, and is copied there.

A token for several experts of one rank is sent to it once (UniEP, arXiv
2604.19241), as a row of the lowest of those experts.  Relayed rows are packed
like all rows: experts ascending, then (source rank, token).
"""

import jax.numpy as jnp

from hpmoe.reference import dispatch
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import tensors


def plan(
  config: config_lib.MoEConfig, topk_ids: at.Int32[at.Array, 'R T K']
) -> token_order.Plan:
  """Returns the plan of the relayed rows of `topk_ids` `[R, T, K]` int32.

  `counts` and `row_base` `[R, E]` int32 count relayed rows.  `row_of_slot`
  `[R, T, K]` is the row of a slot whose expert is the token's lowest on that
  rank; other slots, which have no row of their own, and unused slots have -1.
  """
  return token_order.plan(config, _lowest(config, topk_ids))


def relayed(
  config: config_lib.MoEConfig,
  topk_ids: at.Int32[at.Array, 'R T K'],
  tokens: at.Num[at.Array, 'R T D'],
) -> at.Num[at.Array, 'R N D']:
  """Returns relayed rows `[R, N, D]` of `tokens` `[R, T, D]`, bits copied.

  `x_relayed` from x, or `dy_relayed` from dy, not weighted; zero past the last
  relayed row.
  """
  ids = _lowest(config, topk_ids)
  return dispatch.dispatch(config, token_order.plan(config, ids), ids, tokens)


def _lowest(
  config: config_lib.MoEConfig, ids: at.Int32[at.Array, 'R T K']
) -> at.Int32[at.Array, 'R T K']:
  """Returns ids; those that are not a token's lowest on a rank are UNUSED."""
  owner = token_order.owners(config, ids)
  is_same_rank = owner[..., :, None] == owner[..., None, :]
  lower = ids[..., None, :] < ids[..., :, None]
  return jnp.where(jnp.any(is_same_rank & lower, axis=-1), tensors.UNUSED, ids)
