"""How rows move between the ranks of tokens and the ranks of experts."""

from collections.abc import Callable
import functools
from typing import NamedTuple

from hpmoe.reference import combine
from hpmoe.reference import dispatch
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib


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
