"""Return and combine: a token's rows come home and are added in slot order."""

import functools
import operator

import jax.numpy as jnp

from hpmoe.reference import numerics
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def return_rows(
  config: config_lib.MoEConfig,
  plan: token_order.Plan,
  topk_ids: at.Int32[at.Array, 'R T K'],
  expert_out: at.Float[at.Array, 'R N D'],
) -> at.Float[at.Array, 'R T K D']:
  """Returns `returned` `[R, T, K, D]`, in the dtype of `expert_out`.

  Bits are copied.  A slot that is not used comes back as zeros; a row past the
  capacity, which `check_capacity` refuses, as NaN.
  """
  owner = token_order.owners(config, topk_ids)
  at_row = expert_out.at[owner, plan.row_of_slot]
  rows = at_row.get(mode='fill', fill_value=jnp.nan)
  used = (topk_ids != tensors.UNUSED)[..., None]
  return jnp.where(used, rows, jnp.zeros_like(rows))


def combine(
  policy: precision.PrecisionPolicy,
  returned: at.Float[at.Array, 'R T K D'],
  topk_weights: at.Float[at.Array, 'R T K'],
  last: at.Float[at.Array, 'R T D'] | None = None,
) -> at.Float[at.Array, 'R T D']:
  """Returns `y` `[R, T, D]` in the storage dtype, rounded once.

  Slots are added one after another, in slot order, in the accumulation dtype.
  At placement 'combine' each is first multiplied by its weight and that product
  is rounded to the accumulation dtype; at 'before_down' weights are not read.

  Args:
    policy: placement and dtypes.
    returned: `[R, T, K, D]` float.
    topk_weights: `[R, T, K]` float32.
    last: `[R, T, D]` float, `shared_out`, added to the sum of the slots; None:
      there is none.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """

  def term(slot: int) -> at.Array:
    row = numerics.widen(policy, returned[:, :, slot])
    if policy.placement == 'before_down':
      return row
    weight = numerics.widen(policy, topk_weights[:, :, slot, None])
    return numerics.rounded(weight * row)

  terms = map(term, range(returned.shape[2]))
  total = functools.reduce(operator.add, terms)
  if last is not None:
    total = total + numerics.widen(policy, last)
  return numerics.store(policy, total)
