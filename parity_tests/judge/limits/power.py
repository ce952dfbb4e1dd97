"""The smallest errors that limits would have detected.

A right element has an error e, and fails if its error exceeds its limit b.  So
a further error of more than b + e is detected, whatever its sign.  Storing
rounds it once more.

Errors are relative.  The scale of an element is the larger of its magnitude and
the root mean square of its row, as magnitudes alone say little where terms
cancel.  An element whose limit is as large as its scale, or not finite, is not
judged: any value of its magnitude would pass.  For a row of zeros, or of
subnormal numbers, the scale is the rounding error of the rest of the tensor.
Zeros that are certain are judged.
"""

from collections.abc import Iterable, Mapping
import dataclasses
from typing import Protocol

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp


@dataclasses.dataclass(frozen=True)
class Power:
  """The smallest detectable errors of the judged elements.

  Attributes:
    element: error of a single element, over the root mean square of its row.
    row: relative error of all elements of a single row.
    whole: relative error of all elements.
    elements: the number of elements.
    not_judged: the number of elements without a useful limit.
  """

  element: float = 0.0
  row: float = 0.0
  whole: float = np.inf
  elements: int = 0
  not_judged: int = 0

  @property
  def num_judged(self) -> int:
    return self.elements - self.not_judged

  def sizes(self) -> dict[str, float]:
    """Returns the three errors by name; {} if nothing is judged."""
    if self.elements and not self.num_judged:
      return {}
    return dict(element=self.element, row=self.row, whole=self.whole)

  def __add__(self, other: 'Power') -> 'Power':
    """Returns the power over both."""
    return Power(
      max(self.element, other.element),
      max(self.row, other.row),
      min(self.whole, other.whole),
      self.elements + other.elements,
      self.not_judged + other.not_judged,
    )


def measure(
  values: np.ndarray, limit: np.ndarray, detectable: np.ndarray
) -> Power:
  """Returns the power of limits on right elements.

  Args:
    values: `[rows, columns]`, elements as stored.
    limit: `[rows, columns]` float64, b; NaN or an infinity where it is unknown.
    detectable: `[rows, columns]` float64, the smallest detectable error after
      storing.
  """
  size = np.abs(values.astype(np.float64))
  with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
    row = np.sqrt(np.mean(np.square(size), axis=1, keepdims=True))
    row = np.where(row < ulp.smallest_normal('float32'), 0.0, row)
    # An infinity that is certain is judged: every right kernel has it.
    rounding_floor = ulp.unit_roundoff(str(values.dtype)) * np.sqrt(
      np.mean(row * row)
    )
    scale = np.maximum(np.maximum(size, row), rounding_floor)
    is_judged = ((limit < scale) | (limit == 0)) & np.isfinite(limit)
    finite = is_judged & np.isfinite(detectable)
    of_row = np.where(finite & (row > 0), detectable / row, 0.0)
    factor = np.where(finite & (size > 0), detectable / size, np.inf)
  smallest = factor.min(axis=1, initial=np.inf)
  rows = smallest[np.isfinite(smallest) & (row[:, 0] > 0)]
  return Power(
    float(of_row.max(initial=0.0)),
    float(rows.max(initial=0.0)),
    float(rows.min(initial=np.inf)),
    size.size,
    int(size.size - is_judged.sum()),
  )


def round_detectable(values: np.ndarray, detectable: np.ndarray) -> np.ndarray:
  """Returns float64, errors detectable after rounding their sum with values."""
  u = ulp.unit_roundoff(str(values.dtype))
  return (detectable + u * np.abs(values.astype(np.float64))) * (1 + 2 * u)


class Comparison(Protocol):
  """What a comparison would have detected: a `verdicts.Result`."""

  @property
  def power(self) -> Mapping[str, float]: ...

  @property
  def not_judged(self) -> int: ...


def best(comparisons: Iterable[Comparison]) -> dict[str, float]:
  """Returns the smallest error of each kind over comparisons of one tensor.

  A comparison that judges fewer elements says nothing of the others: each error
  is that of the comparisons that judge the most.
  """
  sizes: dict[str, tuple[int, float]] = {}
  for comparison in comparisons:
    for name, size in comparison.power.items():
      own = comparison.not_judged, size
      sizes[name] = min(sizes.get(name, own), own)
  return {name: size for name, (_, size) in sizes.items()}


def worst(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
  """Returns the largest error of each kind over tensors."""
  sizes: dict[str, float] = {}
  for row in rows:
    for name, value in row.items():
      sizes[name] = max(sizes.get(name, value), value)
  return sizes
