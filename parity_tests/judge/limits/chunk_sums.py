"""The sums of a chunk in which nothing is wrong, made in one pass.

numpy passes over a chunk a hundred times, mostly to find where and how it is
wrong.  If every element of candidate and benchmark lies within its bound, only
sums are left to make, and C++ makes them in one pass.  `of` returns None for
every other chunk, and numpy judges it.

The extension module comes with `hyperparallel-moe-ascend`.  Without it numpy
judges every chunk: reports are the same, and take longer.
"""

from collections.abc import Sequence
import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import power as power_lib
from hpmoe.parity_tests.judge.limits import ulp

_chunk_sums: ModuleType | None
try:
  from hpmoe.parity_tests.judge.limits import _chunk_sums
except ImportError:  # The extension module is not installed.
  _chunk_sums = None

# Below the first a value is small; below the second it may cancel.
Thresholds = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Region:
  """Sums over some elements; of the candidate and of the benchmark.

  Attributes:
    count: how many.
    golden_square: square of the golden.
    relative: relative errors.
    square: squares of the errors.
  """

  count: int
  golden_square: float
  relative: tuple[float, float]
  square: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Regions:
  """Sums over all regions of one chunk, or of many.

  Attributes:
    sums: `[1 + 3 pairs, figures]` float64, as C++ made them.
    thresholds: pairs by which elements were told apart.
  """

  sums: np.ndarray
  thresholds: tuple[Thresholds, ...]

  def __add__(self, other: 'Regions') -> 'Regions':
    return Regions(self.sums + other.sums, self.thresholds)

  def of(self, pair: Thresholds, place: int | None) -> Region:
    """Returns the sums of a region.

    Args:
      pair: one of `thresholds`.
      place: 0 for normal elements, 1 for small and 2 for cancelling ones; None
        for all.
    """
    row = 0
    if place is not None:
      row = 1 + 3 * self.thresholds.index(pair) + place
    count, golden, relative, square, beside, beside_square = (
      float(v) for v in self.sums[row]
    )
    return Region(
      int(count), golden, (relative, beside), (square, beside_square)
    )


@dataclasses.dataclass(frozen=True)
class Sums:
  """Sums over a chunk.

  Attributes:
    added: as they were made.
    thresholds: of the records.
    elements: how many there are.
  """

  added: Any
  thresholds: tuple[Thresholds, ...]
  elements: int

  @property
  def regions(self) -> Regions:
    """The sums that records ask for."""
    return Regions(self.added.regions, self.thresholds)

  @property
  def power(self) -> power_lib.Power:
    """What the bounds would have seen, see `limits.power`."""
    seen, elements = self.added.power, self.elements
    return power_lib.Power(
      seen.element, seen.row, seen.whole, elements, elements - seen.judged
    )


def of(
  cut: tiles.Cut,
  first: int,
  actual: np.ndarray,
  golden: bounds.Bounded,
  benchmark: np.ndarray | None,
  spread: bool,
  thresholds: Sequence[Thresholds],
) -> Sums | None:
  """Returns the sums of whole tile rows, or None if numpy must judge them.

  It must if the golden or the bound of an element is not finite, if an error of
  the candidate or the benchmark is not within its bound, or without the
  extension module.

  Args:
    cut: the rank's tiles.
    first: tile row that the arrays start with.
    actual: `[rows, columns]` as stored.
    golden: `[rows, columns]` with its bound.
    benchmark: `[rows, columns]` as stored; None if no record asks.
    spread: whether the sums of tiles are made, in standard deviations.
    thresholds: of the records, each pair once.
  """
  if _chunk_sums is None:
    return None
  last = cut.row_of(first, len(actual))
  pairs = tuple(thresholds)
  added = _chunk_sums.add(
    _stored(actual),
    _plain(golden.value),
    _plain(golden.bound()),
    None if benchmark is None else _stored(benchmark),
    _plain(golden.variance) if spread else None,
    (cut.starts[first : last + 1] - cut.starts[first]).tolist(),
    cut.col_starts.tolist(),
    list(pairs),
    ulp.unit_roundoff(str(actual.dtype)),
  )
  return added if added is None else Sums(added, pairs, actual.size)


def _stored(values: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(values, np.float32)


def _plain(values) -> np.ndarray:
  return np.ascontiguousarray(values, np.float64)


def furthest(one: np.ndarray, other: np.ndarray) -> int:
  """Returns the largest `ulp.distance` of two arrays without NaN."""
  if _chunk_sums is None:
    return int(ulp.distance(one, other).max(initial=0))
  words = np.int16 if one.itemsize == 2 else np.int32
  flat = (np.ascontiguousarray(a).reshape(-1).view(words) for a in (one, other))
  return _chunk_sums.furthest(*flat)
