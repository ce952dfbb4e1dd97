"""Gradients of routing weights that the token's own rank applies."""

import jax.numpy as jnp

from hpmoe.reference import inner_product
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


def combine_weight_grad(
  policy: precision.PrecisionPolicy,
  tokens: at.Float[at.Array, 'R T D'],
  returned_rows: at.Float[at.Array, 'R T K D'],
) -> at.Float[at.Array, 'R T K']:
  """Returns <tokens, rows> `[R, T, K]`, accumulate dtype, not rounded again.

  This is `d_topk_weights`, of dy and rows that were returned, not weighted; or
  of x and the gradients of its weighted rows.

  Args:
    policy: dtype of the sum; order as in `inner_product`.
    tokens: `[R, T, D]` float, dy or x.
    returned_rows: `[R, T, K, D]` float.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  slots = range(returned_rows.shape[2])
  sums = [
    inner_product.inner_product(
      policy, tokens, returned_rows[:, :, slot], 'd_weighted'
    )
    for slot in slots
  ]
  return jnp.stack(sums, axis=-1)
