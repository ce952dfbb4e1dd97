"""The smallest errors that limits would have seen, and what they cannot see.

A right element is e off, and wrong if it is more than its limit b off.  So an
error of more than b + e is seen, whatever its sign.  Stored, it is rounded once
more.

Sizes are relative.  An element's own size says little where terms cancel, so
its scale is the larger of it and of the root mean square of its row, which is
what it is added to next.  An element whose limit is as large as that, or is
not finite, is not judged: any number of its size would do.  A row of
zeros, or of subnormal numbers, has no size: there, what the rest of the tensor
would lose in an addition is the scale.  Zeros that are certain are judged.
"""

from collections.abc import Iterable, Mapping
import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp


@dataclasses.dataclass(frozen=True)
class Power:
  """What would have been seen of those elements that are judged.

  Attributes:
    element: error of any one element, over the root mean square of its row.
    row: a factor on all of any one row, less 1.
    whole: a factor on all, less 1.
    elements: how many there are.
    not_judged: how many of them have no limit that says anything.
  """

  element: float = 0.0
  row: float = 0.0
  whole: float = np.inf
  elements: int = 0
  not_judged: int = 0

  @property
  def judged(self) -> int:
    return self.elements - self.not_judged

  def sizes(self) -> dict[str, float]:
    """Returns the three by name; none if nothing is judged."""
    if self.elements and not self.judged:
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


def of(held: np.ndarray, limit: np.ndarray, seen: np.ndarray) -> Power:
  """Returns the power of limits on right elements.

  Args:
    held: `[rows, columns]`, elements as stored.
    limit: `[rows, columns]` float64, b; NaN or an infinity where it is unknown.
    seen: `[rows, columns]` float64, the least error that is seen, stored.
  """
  size = np.abs(held.astype(np.float64))
  with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
    row = np.sqrt(np.mean(np.square(size), axis=1, keepdims=True))
    row = np.where(row < ulp.smallest_normal('float32'), 0.0, row)
    # An infinity that is certain is judged: everybody must hold it.
    lost = ulp.unit_roundoff(str(held.dtype)) * np.sqrt(np.mean(row * row))
    scale = np.maximum(np.maximum(size, row), lost)
    judged = ((limit < scale) | (limit == 0)) & np.isfinite(limit)
    finite = judged & np.isfinite(seen)
    of_row = np.where(finite & (row > 0), seen / row, 0.0)
    factor = np.where(finite & (size > 0), seen / size, np.inf)
  least = factor.min(axis=1, initial=np.inf)
  rows = least[np.isfinite(least) & (row[:, 0] > 0)]
  return Power(
    float(of_row.max(initial=0.0)),
    float(rows.max(initial=0.0)),
    float(rows.min(initial=np.inf)),
    size.size,
    int(size.size - judged.sum()),
  )


def stored(held: np.ndarray, seen: np.ndarray) -> np.ndarray:
  """Returns float64, what is seen though its sum with `held` is rounded."""
  u = ulp.unit_roundoff(str(held.dtype))
  return (seen + u * np.abs(held.astype(np.float64))) * (1 + 2 * u)


def best(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
  """Returns the least of each size that some row of one tensor sees."""
  return _merged(rows, min)


def worst(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
  """Returns the largest of each size, of any tensor."""
  return _merged(rows, max)


def _merged(rows, pick) -> dict[str, float]:
  sizes: dict[str, float] = {}
  for row in rows:
    for name, value in row.items():
      sizes[name] = pick(sizes.get(name, value), value)
  return sizes
