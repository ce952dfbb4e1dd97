"""Backward dispatch: dy is sent to the rows of its token, weighted."""

import jax.numpy as jnp

from hpmoe.reference import combine
from hpmoe.reference import inner_product
from hpmoe.reference import movement
from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


def dispatch_grad(
  policy: precision.PrecisionPolicy,
  moves: movement.Movement,
  topk_weights: at.Float[at.Array, 'R T K'] | None,
  dy: at.Float[at.Array, 'R T D'],
) -> at.Float[at.Array, 'R N D']:
  """Returns `d_expert_out` `[R, N, D]` of `dy` `[R, T, D]`, in token order.

  A row is its weight times dy, in the accumulate dtype, rounded once to
  storage; without weights it is dy, bits copied.  Zero past the last valid
  row.

  Args:
    policy: dtypes.
    moves: how rows travel.
    topk_weights: `[R, T, K]` accumulate dtype; None: the expert's rank applies
      them (`tensors.EARLY`).
    dy: `[R, T, D]` storage.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  rows = moves.dispatch(dy)
  if topk_weights is None:
    return rows
  weight = moves.row_weight(topk_weights)
  return numerics.store(policy, combine.weighted(policy, rows, weight))


def combine_weight_grad(
  policy: precision.PrecisionPolicy,
  dy: at.Float[at.Array, 'R T D'],
  returned_rows: at.Float[at.Array, 'R T K D'],
) -> at.Float[at.Array, 'R T K']:
  """Returns <dy, returned> `[R, T, K]`, accumulate dtype, not rounded again.

  This is `d_topk_weights` if the token's own rank applies the weight.

  Args:
    policy: dtype of the sum; order as in `inner_product`.
    dy: `[R, T, D]` float.
    returned_rows: `[R, T, K, D]` float, `returned`, not weighted.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  slots = range(returned_rows.shape[2])
  sums = [
    inner_product.inner_product(
      policy, dy, returned_rows[:, :, slot], 'd_weighted'
    )
    for slot in slots
  ]
  return jnp.stack(sums, axis=-1)
