"""The forms of wrong conversions of one tensor, in words."""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import itertools

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.parity_tests.compare.weights import weight_orders
from hpmoe.parity_tests.compare.weights import weight_pair

# Kinds of findings, from harmless to a wrong conversion.
EQUAL, ROUNDED, REORDERED, WRONG = 'same', 'rounded', 'same function', 'wrong'
KINDS = (EQUAL, ROUNDED, REORDERED, WRONG)
Pair = weight_pair.Pair


@dataclasses.dataclass(frozen=True)
class Finding:
  """A difference of a tensor, or of a layer's experts, from the left's.

  Attributes:
    kind: one of `KINDS`.
    text: a line that describes it.
    order: of rows, if the finding is an order.
    group: a description of several such findings with different numbers; '':
      `text`.
    is_left_rounded: whether the left is a rounded right.
  """

  kind: str
  text: str
  order: tuple[int, ...] = ()
  group: str = ''
  is_left_rounded: bool = False


def find_form(
  config: config_lib.ModelConfig,
  name: str,
  left: np.ndarray,
  right: np.ndarray,
  *,
  codes: str = '',
  block: tuple[int, int] = (128, 128),
) -> Finding | None:
  """Returns the change from left to right, or None if none is known.

  Args:
    config: of the model.
    name: of the parameter.
    left: the reference.
    right: the candidate.
    codes: see `weight_pair.Pair`.
    block: of elements under one scale.
  """
  if left.shape == right.shape and left.tobytes() == right.tobytes():
    return Finding(EQUAL, '')
  if right.size and not np.any(right):
    return Finding(WRONG, 'zeros in right')
  if left.size and not np.any(left):
    return Finding(WRONG, 'zeros in left')
  for pair in weight_pair.list_pairs(left, right, codes):
    if pair.are_alike():
      return name_rounding(pair)
  forms: list[Callable[[Pair], Finding | None]] = [
    lambda pair: _find_transpose(pair),
    lambda pair: _find_order(config, name, pair),
  ]
  if left.ndim == 1 and 'norm' in name:
    forms.insert(0, _find_one_more)
  for pair in weight_pair.list_pairs(left, right, codes):
    for find in forms:
      if (finding := find(pair)) is not None:
        return _add_rounding(finding, pair)
  return find_scale(weight_pair.list_pairs(left, right, codes), block)


def name_rounding(pair: Pair) -> Finding:
  """Returns the rounding of a tensor, and whether it is right."""
  if pair.codes:
    return Finding(ROUNDED, f'rounded to {pair.codes} by blocks')
  if not pair.rounding:
    return Finding(EQUAL, '')  # in another dtype
  kind = WRONG if 'cut' in pair.rounding else ROUNDED
  is_left = pair.rounding.startswith('left ')
  return Finding(kind, pair.rounding, is_left_rounded=is_left)


def refuse_added_bits(
  findings: Iterable[Finding], dtypes: tuple[str, str]
) -> tuple[Finding, ...]:
  """Returns findings; a left that is a rounded right must be stored as that.

  Args:
    findings: of a tensor.
    dtypes: in which the left and the right store it.
  """
  text = 'right has bits that left lacks'
  return tuple(
    Finding(WRONG, f'{text}: {finding.text}')
    if finding.kind == ROUNDED
    and finding.is_left_rounded
    and dtypes[0] == dtypes[1]
    else finding
    for finding in findings
  )


def _add_rounding(finding: Finding, pair: Pair) -> Finding:
  words = f'in {pair.codes}' if pair.codes else pair.rounding
  if not words:
    return finding
  return dataclasses.replace(finding, text=f'{finding.text}; {words}')


def _find_transpose(pair: Pair) -> Finding | None:
  if pair.left.ndim == 2 and pair.are_alike(pair.left.T):
    return Finding(WRONG, 'transposed')
  return None


def _find_one_more(pair: Pair) -> Finding | None:
  if pair.left.shape != pair.right.shape:
    return None
  for sign, words in ((1, 'plus'), (-1, 'minus')):
    error = np.abs(pair.right - (pair.left + sign))
    if np.all(error <= pair.tolerance * np.maximum(np.abs(pair.right), 0.5)):
      return Finding(WRONG, f"right is left's {words} one")
  return None


def _find_order(
  config: config_lib.ModelConfig, name: str, pair: Pair
) -> Finding | None:
  if pair.left.ndim not in (1, 2) or pair.left.shape != pair.right.shape:
    return None
  rows, heads = len(pair.left), weight_orders.find_heads(config, name)
  if heads is not None:
    for words, rope_order in weight_orders.list_rope_orders(heads, rows):
      if pair.are_alike(pair.left[rope_order]):
        return Finding(WRONG, words, tuple(rope_order))
  if pair.codes:
    return None
  order = weight_orders.match_rows(pair.left, pair.right)
  if order is not None:
    return Finding(WRONG, _describe_rows(heads, order), tuple(order))
  if pair.left.ndim == 1:
    return None
  order = weight_orders.match_rows(pair.left.T, pair.right.T)
  if order is not None:
    return Finding(WRONG, weight_orders.describe_order(order, 'column'))
  return None


def _describe_rows(heads: weight_orders.Heads | None, order) -> str:
  """Describes an order of rows, or of whole heads if it is one."""
  if len(order) % 2 == 0 and np.array_equal(
    order, np.roll(np.arange(len(order)), len(order) // 2)
  ):
    return 'the first and the second half of the rows are exchanged'
  if heads is not None and len(order) % heads.width == 0:
    by_head = np.asarray(order).reshape(-1, heads.width)
    inside = by_head - by_head[:, :1]
    whole = np.all(inside == np.arange(heads.width))
    if whole and np.all(by_head[:, 0] % heads.width == 0):
      heads_order = by_head[:, 0] // heads.width
      return weight_orders.describe_order(heads_order, 'head')
  return weight_orders.describe_order(order)


def find_scale(pairs: Iterator[Pair], block: tuple[int, int]) -> Finding | None:
  """Returns a few factors that turn the left into the right, if they exist.

  Args:
    pairs: both sides unchanged, then rounded.
    block: of elements under one scale.
  """
  wide = next(pairs)
  if wide.left.shape != wide.right.shape or wide.left.size < 2:
    return None
  tolerances = {2.0**-9, wide.tolerance, *(pair.tolerance for pair in pairs)}
  cuts = list(_list_cuts(wide.left.shape, block))
  for tolerance, (words, cut) in itertools.product(sorted(tolerances), cuts):
    factors = _fit_factors(wide, cut, tolerance)
    if factors is None or np.all(np.abs(factors - 1) <= tolerance):
      continue
    if factors.size == 1:
      digits = 3 if max(tolerances) > 2.0**-8 else 4
      factor = f'{float(factors[0, 0]):.{digits}g}'
      return Finding(
        WRONG,
        f'right is {factor} times left: a scale misread',
        group='right is left times a factor of its own: scales misread',
      )
    unequal = np.flatnonzero(np.abs(factors.reshape(-1) - 1) > tolerance)
    if unequal.size == 1 and 1 in cut:
      (place,) = unequal
      return Finding(
        WRONG,
        f'{words} {place} of right is {factors.reshape(-1)[place]:.4g} times '
        "left's, the others are equal",
      )
    if unequal.size < factors.size:
      words = f'{unequal.size} of {factors.size} {words}s'
      return Finding(
        WRONG, f'{words} of right are left times a factor of their own'
      )
    text = f'each {words} of right is left times a factor of its own'
    return Finding(WRONG, f'{text}: scales misread')
  return None


def _list_cuts(
  shape: tuple[int, ...], block: tuple[int, int]
) -> Iterator[tuple[str, tuple[int, int]]]:
  """Yields the shapes of parts that may each have a scale, by name."""
  rows, columns = (1, *shape)[-2:]
  yield 'tensor', (rows, columns)
  if len(shape) != 2:
    return
  sizes = min(block[0], rows), min(block[1], columns)
  if sizes[0] * sizes[1] >= 8 and sizes != (rows, columns):
    yield f'block of {block[0]} x {block[1]}', sizes
  if columns >= 8:
    yield 'row', (1, columns)
  if rows >= 8:
    yield 'column', (rows, 1)


def _fit_factors(
  pair: Pair, cut: tuple[int, int], tolerance: float
) -> np.ndarray | None:
  """Returns the factor of each part, if they explain every element."""
  left, right = (
    np.atleast_2d(a).astype(np.float64) for a in (pair.left, pair.right)
  )
  begins = [np.arange(0, n, size) for n, size in zip(left.shape, cut)]

  def add_up(values: np.ndarray) -> np.ndarray:
    rows = np.add.reduceat(values, begins[0], axis=0)
    return np.add.reduceat(rows, begins[1], axis=1)

  squares = add_up(left * left)
  if not np.all(squares > 0):
    return None
  factors = add_up(left * right) / squares
  spread = np.repeat(factors, cut[0], axis=0)[: left.shape[0]]
  spread = np.repeat(spread, cut[1], axis=1)[:, : left.shape[1]]
  product = spread * left
  # A factor is fitted to roundings, so that it is a part of one off.
  limit = 1.25 * tolerance
  floor = limit * np.sqrt(np.mean(product**2)) * 2.0**-4
  fits = np.abs(right - product) <= limit * np.abs(product) + floor
  return factors if np.all(fits) else None


def describe_difference(left: np.ndarray, right: np.ndarray) -> str:
  """Describes the distance of two sides without a known relation."""
  if left.shape != right.shape:
    return f'shape {list(right.shape)}, left has {list(left.shape)}'
  wide, other = (a.astype(np.float64) for a in (left, right))
  if not np.all(np.isfinite(other)):
    count = int(np.sum(~np.isfinite(other)))
    return f'{count} of {other.size} elements are not finite'
  unequal = wide != other
  rows = np.flatnonzero(unequal.reshape(len(unequal), -1).any(axis=1))
  text = f'{int(unequal.sum())} of {unequal.size} elements differ'
  distance = measure_distance(left, right)
  if 0 < rows.size <= len(unequal) // 4:
    text += f', in rows {rows[0]} to {rows[-1]}'
  return f'{text}, relative distance {distance:.2g}'


def measure_distance(left: np.ndarray, right: np.ndarray) -> float:
  """Returns the norm of the difference over the norm of the left."""
  if left.shape != right.shape:
    return float('nan')
  wide, other = (a.astype(np.float64) for a in (left, right))
  size = float(np.linalg.norm(wide))
  return float(np.linalg.norm(other - wide)) / (size or 1.0)
