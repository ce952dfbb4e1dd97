"""How rows move between the ranks of tokens and the ranks of experts."""

from collections.abc import Callable
import functools
from typing import NamedTuple

from hpmoe.reference import combine
from hpmoe.reference import dispatch
from hpmoe.reference import numerics
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision


class Movement(NamedTuple):
  """The three movements of rows; bits are copied.

  Attributes:
    dispatch: `[R, T, D]` of tokens -> `[R, N, D]` rows in token order.
    row_weight: `[R, T, K]` of slots -> `[R, N]` in token order.
    return_rows: `[R, N, D]` rows -> `[R, T, K, D]` of slots.
  """

  dispatch: Callable[[at.Array], at.Array]
  row_weight: Callable[[at.Array], at.Array]
  return_rows: Callable[[at.Array], at.Array]


def by_address(
  config: config_lib.MoEConfig,
  plan: token_order.Plan,
  topk_ids: at.Int32[at.Array, 'R T K'],
) -> Movement:
  """Returns the movement of arrays that hold all ranks along an axis."""
  arguments = config, plan, topk_ids
  return Movement(
    functools.partial(dispatch.dispatch, *arguments),
    functools.partial(dispatch.row_weight, *arguments),
    functools.partial(combine.return_rows, *arguments),
  )


def dispatch_weighted(
  policy: precision.PrecisionPolicy,
  moves: Movement,
  topk_weights: at.Float[at.Array, 'R T K'] | None,
  tokens: at.Float[at.Array, 'R T D'],
) -> at.Float[at.Array, 'R N D']:
  """Returns rows `[R, N, D]` of tokens `[R, T, D]`, in token order.

  A row is its weight times its token, in the accumulate dtype, rounded once to
  storage; without weights it is the token, bits copied.  Zero past the last
  valid row.

  Args:
    policy: dtypes.
    moves: how rows travel.
    topk_weights: `[R, T, K]` accumulate dtype; None: another stage applies
      them.
    tokens: `[R, T, D]`, x or dy.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  rows = moves.dispatch(tokens)
  if topk_weights is None:
    return rows
  weight = moves.row_weight(topk_weights)
  return numerics.store(policy, combine.weighted(policy, rows, weight))
