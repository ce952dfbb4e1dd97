"""Backward combine: the gradients of a token's rows are added in slot order."""

from hpmoe.reference import combine
from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


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
      (`combine.return_rows`).
    last: `[R, T, D]` float, `d_shared_in`, added to the sum of the slots; None:
      there is none.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  terms = numerics.widen(policy, d_returned)
  return combine.summed(policy, 'd_running_sum', terms, last)
