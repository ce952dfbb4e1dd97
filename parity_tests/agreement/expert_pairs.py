"""The weights of one layer on two sides: what parts them, by name."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.compare.weights import weight_experts
from hpmoe.parity_tests.compare.weights import weight_forms
from hpmoe.parity_tests.compare.weights import weight_orders
from hpmoe.parity_tests.compare.weights import weight_pair
from hpmoe.reference.contract import array_typing as at


@dataclasses.dataclass(frozen=True)
class Difference:
  """What parts the weights of two sides.

  Attributes:
    text: in a line; '': rounding at most.
    order: `[E]` the left's expert that each of the right's is; None: in order.
    rest: what there is beside the order.
  """

  text: str = ''
  order: at.Int[np.ndarray, 'E'] | None = None
  rest: str = ''


def compare_routers(left: np.ndarray, right: np.ndarray) -> Difference:
  """Returns what parts the weights `[E, D]` of two routers."""
  if left.shape != right.shape:
    return Difference(weight_forms.describe_difference(left, right))
  fewest = np.arange(len(left))
  for pair in weight_pair.list_pairs(left, right):
    if pair.are_alike():
      is_cut = 'cut' in pair.rounding
      return Difference(pair.rounding if is_cut else '')
    order = weight_orders.match_rows(pair.left, pair.right)
    if order is not None:
      return Difference(weight_orders.describe_order(order), order)
    rows = np.flatnonzero((pair.left != pair.right).any(-1))
    fewest = min(fewest, rows, key=len)
  if 2 * len(fewest) <= len(left):
    names = weight_experts.name_numbers(fewest.tolist())
    distance = weight_forms.measure_distance(left[fewest], right[fewest])
    return Difference(
      f'rows {names} of {len(left)} differ, relative distance {distance:.2g}'
    )
  scale = weight_forms.find_scale(
    weight_pair.list_pairs(left, right), (128, 128)
  )
  if scale is not None:
    return Difference(scale.text)
  return Difference(weight_forms.describe_difference(left, right))


def compare_experts(left: np.ndarray, right: np.ndarray) -> Difference:
  """Returns what parts matrices `[E, ...]` of two sides."""
  if left.shape != right.shape:
    return Difference(f'shape {list(right.shape)}, left has {list(left.shape)}')
  order = None
  for pair in weight_pair.list_pairs(left[:, 0], right[:, 0]):
    order = weight_orders.match_rows(pair.left, pair.right)
    if order is not None:
      break
  places = np.arange(len(left))
  is_same = order is None or np.array_equal(order, places)
  source = places if order is None else order
  apart = [
    place
    for place, expert in zip(places.tolist(), source.tolist(), strict=True)
    if not _are_alike(left[expert], right[place])
  ]
  texts, rest = [], ''
  if not is_same and order is not None:
    texts.append(weight_orders.describe_order(order, 'expert'))
  if apart:
    place = apart[0]
    words = weight_forms.describe_difference(
      weight_pair.widen(left[source[place]]), weight_pair.widen(right[place])
    )
    suffix = f' and {len(apart) - 1} more' if len(apart) > 1 else ''
    rest = f'expert {place}{suffix}: {words}'
    texts.append(rest)
  return Difference('; '.join(texts), None if is_same else order, rest)


def _are_alike(left: np.ndarray, right: np.ndarray) -> bool:
  """Says whether rounding at most parts two matrices."""
  return any(
    pair.are_alike() and 'cut' not in pair.rounding
    for pair in weight_pair.list_pairs(left, right)
  )
