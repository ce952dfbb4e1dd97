"""Rows that cross to a rank once: what a relay holds before it copies them.

A token for several experts of one rank is sent there once (UniEP, arXiv
2604.19241), as a row of the lowest of those experts.  Relayed rows are packed
as all rows are: experts ascending, then (source rank, token).
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

  `counts` and `row_base` `[R, E]` int32 are of relayed rows; `row_of_slot`
  `[R, T, K]` is the row of a slot that is its token's lowest on its rank, -1 of
  the others, which have no row of their own, and of slots that are not used.
  """
  return token_order.plan(config, _lowest(config, topk_ids))


def relayed(
  config: config_lib.MoEConfig,
  topk_ids: at.Int32[at.Array, 'R T K'],
  tokens: at.Num[at.Array, 'R T D'],
) -> at.Num[at.Array, 'R N D']:
  """Returns relayed rows `[R, N, D]` of `tokens` `[R, T, D]`, bits copied.

  `x_relayed` of x, `dy_relayed` of dy, which no weight has multiplied yet; zero
  past the last relayed row.
  """
  ids = _lowest(config, topk_ids)
  return dispatch.dispatch(config, token_order.plan(config, ids), ids, tokens)


def _lowest(
  config: config_lib.MoEConfig, ids: at.Int32[at.Array, 'R T K']
) -> at.Int32[at.Array, 'R T K']:
  """Returns ids, those that are not a token's lowest on their rank unused."""
  owner = token_order.owners(config, ids)
  same = owner[..., :, None] == owner[..., None, :]
  lower = ids[..., None, :] < ids[..., :, None]
  return jnp.where(jnp.any(same & lower, axis=-1), tensors.UNUSED, ids)
