"""Sums of magnitudes of weights and of their squares, in float32.

They are the limits and variances of a GEMM's sums.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple, TypeVar

import numpy as np

from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.weights import products

# Elements of weights that are converted at once, and the size from which no
# float64 copy of the weights is stored.
_PANEL, LARGE = 1 << 15, 1 << 20

_Product = TypeVar('_Product')


class _SizeSums(NamedTuple):
  """Rows times magnitudes `[n, y]`, computed in float32.

  Attributes:
    sums: float64, of rows over `unit` and of scaled magnitudes.
    unit: `[n, 1]`.
    column_scale: `[y]`.
    depth: the number of terms.
  """

  sums: np.ndarray
  unit: np.ndarray
  column_scale: np.ndarray
  depth: int

  def roughly(self) -> np.ndarray:
    """Returns `[n, y]`, accurate to float32."""
    sums = self.sums * self.unit
    sums *= self.column_scale
    return sums

  def at_most(self) -> np.ndarray:
    """Returns `[n, y]`, an upper bound.

    A term is rounded to float32, in its product, in x - 1 sums, and in float64
    afterwards.  Operands, products and sums may be flushed.
    """
    sums = self.sums * (1 + rounding.gamma(self.depth + 3))
    sums += 4 * self.depth * rounding.TINY
    sums *= self.unit
    sums *= self.column_scale
    if not self.unit.max(initial=0.0) < np.inf:
      sums[~np.isfinite(self.unit[:, 0])] = np.inf
    return sums


def find_product(
  last_products: Sequence[tuple[np.ndarray, _Product]], rows: np.ndarray
) -> _Product | None:
  """Returns the product of equal rows `[n, x]`, or None."""
  for last_rows, product in last_products:
    if np.array_equal(last_rows, rows, equal_nan=True):
      return product
  return None


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Magnitudes of weights, or their squares, for sums in float32.

  Rows and columns may have any magnitude, and its square; they are scaled so
  that the float32 values are of order one.

  Attributes:
    size: `[x, y]` float32, at most one; or the weights as they are stored.
    row_scale: `[x]` powers of two, that magnitudes were divided by.
    column_scale: `[y]` powers of two, that magnitudes were divided by.
    power: 1, or 2 for squares.
    is_stored: whether `size` are the weights, whose panels are scaled when they
      are read.
    last_products: rows of the last call, and their products: two goldens often
      multiply equal rows one after the other.
  """

  size: np.ndarray
  row_scale: np.ndarray
  column_scale: np.ndarray
  power: int = 1
  is_stored: bool = False
  last_products: list[tuple[np.ndarray, np.ndarray]] = dataclasses.field(
    default_factory=list, repr=False, compare=False
  )

  @classmethod
  def with_squares(cls, weights: np.ndarray) -> tuple['Sizes', 'Sizes']:
    """Returns magnitudes of stored weights `[x, y]`, and their squares."""
    if weights.size >= LARGE and products.suits(weights):
      scales = products.measure(weights)
      if scales is not None:
        return (
          cls(weights, *scales, power=1, is_stored=True),
          cls(weights, *scales, power=2, is_stored=True),
        )
    return cls._scale(weights)

  @classmethod
  def _scale(cls, weights: np.ndarray) -> tuple['Sizes', 'Sizes']:
    """Returns `with_squares`, as arrays of their own.

    A few rows at a time, so that temporaries stay in a core's cache.
    """
    size = np.empty_like(weights, np.float32)
    # Of transposed weights, the rows that lie together are columns.
    step = len(size)
    if size.flags.c_contiguous:
      step = max(1, _PANEL // max(1, size.shape[1]))
    panels = [slice(i, i + step) for i in range(0, len(size), step)]
    largest = np.zeros(size.shape[1], np.float32)
    for rows in panels:
      size[rows] = weights[rows]
      np.abs(size[rows], out=size[rows])
      np.maximum(largest, size[rows].max(axis=0, initial=0), out=largest)
    if not largest.max(initial=0.0) < np.inf:
      size = rounding.finite_magnitudes(size)
      largest = size.max(axis=0, initial=0)
    column_scale, squares = _power_above(largest), np.empty_like(size)
    row_scale = np.empty(len(size))
    of_column = (1 / column_scale).astype(np.float32)
    for rows in panels:
      panel = size[rows]
      panel *= of_column
      row_scale[rows] = _power_above(panel.max(axis=1, initial=0))
      panel *= (1 / row_scale[rows]).astype(np.float32)[:, None]
      np.square(panel, out=squares[rows])
    scales = row_scale, column_scale
    return cls(size, *scales), cls(squares, *scales, power=2)

  def multiply(self, *groups: np.ndarray | None) -> list[_SizeSums | None]:
    """Returns each group of rows `[n, x]` times these; None for None."""
    narrow_groups = [g if g is None else self._narrow(g) for g in groups]
    rows = [group[0] for group in narrow_groups if group is not None]
    left = iter(self._multiply_new(rows))
    column_scale = self.column_scale**self.power
    return [
      None
      if group is None
      else _SizeSums(
        next(left).astype(np.float64), group[1], column_scale, len(self.size)
      )
      for group in narrow_groups
    ]

  def _multiply_new(self, groups: list[np.ndarray]) -> list[np.ndarray]:
    """Returns each group `[n, x]` times `size`; equal ones are multiplied once.

    Equal to one of this call or of the last.
    """
    recalled = [find_product(self.last_products, rows) for rows in groups]
    new = [rows for rows, product in zip(groups, recalled) if product is None]
    left = iter(self._multiply_all(new) if new else [])
    products_of_groups = [
      next(left) if product is None else product for product in recalled
    ]
    self.last_products[:] = zip(groups, products_of_groups)
    return products_of_groups

  def _multiply_all(self, groups: list[np.ndarray]) -> list[np.ndarray]:
    if not self.is_stored:
      with np.errstate(invalid='ignore'):
        return [rows @ self.size for rows in groups]
    # As one matrix, so that the weights are read once.
    return np.split(
      products.multiply_magnitudes(
        np.concatenate(groups),
        self.size,
        self.row_scale,
        self.column_scale,
        self.power == 2,
      ),
      np.cumsum([len(rows) for rows in groups])[:-1],
    )

  def _narrow(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows `[n, x]` in float32, over their unit `[n, 1]`."""
    smallest = np.finfo(np.float64).tiny
    rows = rows * self.row_scale**self.power
    unit = np.max(rows, axis=1, keepdims=True, initial=smallest)
    with np.errstate(invalid='ignore'):  # infinite, where the value is
      return (rows / unit).astype(np.float32), unit


def _power_above(largest: np.ndarray) -> np.ndarray:
  """Returns float64 powers of two, above each number that is not zero."""
  # Beyond this range the factor itself is no normal number of float32.
  return 2.0 ** np.clip(np.frexp(largest)[1], -126, 126).astype(np.float64)
