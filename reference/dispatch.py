"""Dispatch: every routed row is copied to its address on the expert's owner."""

from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib


def dispatch(
  config: config_lib.MoEConfig,
  plan: token_order.Plan,
  topk_ids: at.Int32[at.Array, 'R T K'],
  x: at.Num[at.Array, 'R T D'],
) -> at.Num[at.Array, 'R N D']:
  """Returns `expert_in` `[R, N, D]`, in the dtype of `x` `[R, T, D]`.

  Rows in token order, zero past the last valid row; bits are copied.
  """
  slots = token_order.slot_of_row(config, plan, topk_ids)
  tokens = x.reshape(-1, x.shape[-1])
  return tokens.at[slots // config.top_k].get(mode='fill', fill_value=0)


def row_weight(
  config: config_lib.MoEConfig,
  plan: token_order.Plan,
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
) -> at.Float[at.Array, 'R N']:
  """Returns `[R, N]` float32 routing weight of each row, zero past the last."""
  slots = token_order.slot_of_row(config, plan, topk_ids)
  return topk_weights.reshape(-1).at[slots].get(mode='fill', fill_value=0)
