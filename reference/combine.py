"""Return and combine: a token's rows return to its rank and are summed."""

from collections.abc import Sequence
import functools

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

  Bits are copied.  An unused slot is zero.  A row past the capacity, which
  `check_capacity` refuses, is NaN.
  """
  owner = token_order.owners(config, topk_ids)
  at_row = expert_out.at[owner, plan.row_of_slot]
  rows = at_row.get(mode='fill', fill_value=jnp.nan)
  is_used = (topk_ids != tensors.UNUSED)[..., None]
  return jnp.where(is_used, rows, jnp.zeros_like(rows))


def combine(
  policy: precision.PrecisionPolicy,
  stage: str,
  returned_rows: at.Float[at.Array, 'R T K D'],
  topk_weights: at.Float[at.Array, 'R T K'] | None,
  lasts: Sequence[at.Float[at.Array, 'R T D']] = (),
) -> at.Float[at.Array, 'R T D']:
  """Returns `y` or `dx` `[R, T, D]` in the storage dtype, rounded once.

  Slots are added one after another, in slot order, in the accumulation dtype.
  Each is first multiplied by its weight, if there are weights, and the product
  is rounded to the accumulation dtype.

  Args:
    policy: dtypes and rounding points.
    stage: y or dx.
    returned_rows: `[R, T, K, D]` float.
    topk_weights: `[R, T, K]` accumulate dtype; None: another stage applies
      them.
    lasts: `[R, T, D]` float each, such as `shared_out`, which are added to the
      sum of the slots.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  terms = numerics.widen(policy, returned_rows)
  if topk_weights is not None:
    terms = numerics.at_point(
      policy, 'weighted', weighted(policy, terms, topk_weights)
    )
  return sum_slots(policy, stage, terms, lasts)


def weighted(
  policy: precision.PrecisionPolicy,
  rows: at.Float[at.Array, '*batch D'],
  weights: at.Float[at.Array, '*batch'],
) -> at.Float[at.Array, '*batch D']:
  """Returns rows `[..., D]` times weights `[...]`, in the accumulate dtype.

  The weights already have that dtype, rounded at their rounding point.
  """
  return numerics.rounded(weights[..., None] * numerics.widen(policy, rows))


def sum_slots(
  policy: precision.PrecisionPolicy,
  stage: str,
  terms: at.Float[at.Array, 'R T K D'],
  lasts: Sequence[at.Float[at.Array, 'R T D']],
) -> at.Float[at.Array, 'R T D']:
  """Returns the sum over slots `[R, T, D]` in the storage dtype.

  `stage` is y or dx.  Each partial sum is rounded at the stage's point of
  `precision.RUNNING_SUMS`.  `lasts` are added before the result is rounded to
  storage, to a sum that is rounded at its point of `precision.ROUTED_SUMS`.
  """
  running, routed = precision.RUNNING_SUMS[stage], precision.ROUTED_SUMS[stage]
  rounded = functools.partial(numerics.at_point, policy, running)

  def add(total: at.Array, slot: int) -> at.Array:
    return rounded(total + terms[:, :, slot])

  first = rounded(terms[:, :, 0])
  total = functools.reduce(add, range(1, terms.shape[2]), first)
  if lasts:
    total = numerics.at_point(policy, routed, total)
  for last in lasts:
    total = total + numerics.widen(policy, last)
  return numerics.store(policy, total)


def in_order(
  order_of: str, topk_ids: at.Int32[at.Array, 'R T K'], of_slots: at.Array
) -> at.Array:
  """Returns slots `[R, T, K, ...]` in one of `precision.ROW_ORDERS`."""
  if order_of == 'slot':
    return of_slots
  back = order_of == 'expert_back'
  order = jnp.argsort(topk_ids, axis=-1, descending=back)
  order = order.reshape(*order.shape, *(1,) * (of_slots.ndim - 3))
  return jnp.take_along_axis(of_slots, order, axis=2)
