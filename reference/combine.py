"""Return and combine: a token's rows come home and are added in slot order."""

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
  topk_weights: at.Float[at.Array, 'R T K'] | None,
  last: at.Float[at.Array, 'R T D'] | None = None,
) -> at.Float[at.Array, 'R T D']:
  """Returns `y` `[R, T, D]` in the storage dtype, rounded once.

  Slots are added one after another, in the order that they come in, in the
  accumulation dtype.  Each is first multiplied by its weight, if there are any,
  and that product is rounded to the accumulation dtype.

  Args:
    policy: dtypes and points.
    returned: `[R, T, K, D]` float.
    topk_weights: `[R, T, K]` accumulate dtype, or None: they were applied
      before.
    last: `[R, T, D]` float, `shared_out`, added to the sum of the slots; None:
      there is none.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  terms = numerics.widen(policy, returned)
  if topk_weights is not None:
    terms = numerics.at_point(
      policy, 'weighted', weighted(policy, terms, topk_weights)
    )
  return summed(policy, 'running_sum', terms, last)


def weighted(
  policy: precision.PrecisionPolicy,
  rows: at.Float[at.Array, '*batch D'],
  weights: at.Float[at.Array, '*batch'],
) -> at.Float[at.Array, '*batch D']:
  """Returns rows `[..., D]` times weights `[...]`, in the accumulate dtype.

  The weights are in it already, at their rounding point.
  """
  return numerics.rounded(weights[..., None] * numerics.widen(policy, rows))


def summed(
  policy: precision.PrecisionPolicy,
  point: str,
  terms: at.Float[at.Array, 'R T K D'],
  last: at.Float[at.Array, 'R T D'] | None,
) -> at.Float[at.Array, 'R T D']:
  """Returns the sum over slots `[R, T, D]`, at a point after each, in storage.

  `last`, if there is one, is added to it before it is rounded.
  """
  rounded = functools.partial(numerics.at_point, policy, point)

  def add(total: at.Array, slot: int) -> at.Array:
    return rounded(total + terms[:, :, slot])

  first = rounded(terms[:, :, 0])
  total = functools.reduce(add, range(1, terms.shape[2]), first)
  if last is not None:
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


def combine_grad(
  policy: precision.PrecisionPolicy,
  d_returned: at.Float[at.Array, 'R T K D'],
  last: at.Float[at.Array, 'R T D'] | None = None,
) -> at.Float[at.Array, 'R T D']:
  """Returns `dx` `[R, T, D]` in the storage dtype, rounded once.

  Slots are added one after another, in slot order, in the accumulation dtype;
  routing weights have no part in it.

  Args:
    policy: dtypes.
    d_returned: `[R, T, K, D]` float, `d_expert_in` come home
      (`return_rows`).
    last: `[R, T, D]` float, `d_shared_in`, added to the sum of the slots; None:
      there is none.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  terms = numerics.widen(policy, d_returned)
  return summed(policy, 'd_running_sum', terms, last)
