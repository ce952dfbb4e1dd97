"""The sums of a right chunk, computed in one pass.

numpy passes over a chunk a hundred times, mostly to find where and how it is
wrong.  If every element of candidate and benchmark is within its bound, only
sums remain, and C++ computes them in one pass.  `add_chunk` returns None for
every other chunk, which numpy then judges.

The extension module comes with `hyperparallel-moe-ascend`.  Without it numpy
judges every chunk: reports are the same, and take longer.
"""

from collections.abc import Sequence
import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge.limits import power as power_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values

_chunk_sums: ModuleType | None
try:
  from hpmoe.parity_tests.judge.limits import _chunk_sums
except ImportError:  # The extension module is not installed.
  _chunk_sums = None

# Below the first a value is small; below the second it may cancel.
Thresholds = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Region:
  """Sums over some elements; pairs are of the candidate and the benchmark.

  Attributes:
    count: number of elements.
    golden_square: sum of the golden's squares.
    relative: sums of relative errors.
    square: sums of squared errors.
  """

  count: int
  golden_square: float
  relative: tuple[float, float]
  square: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Regions:
  """Sums over all regions of one chunk, or of many.

  Attributes:
    sums: `[1 + 3 pairs, figures]` float64, as C++ returns them.
    thresholds: pairs that divide elements into regions.
  """

  sums: np.ndarray
  thresholds: tuple[Thresholds, ...]

  def __add__(self, other: 'Regions') -> 'Regions':
    return Regions(self.sums + other.sums, self.thresholds)

  def select(self, pair: Thresholds, place: int | None) -> Region:
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
    native_sums: the sums that C++ returned.
    thresholds: of the records.
    elements: the number of elements.
  """

  native_sums: Any
  thresholds: tuple[Thresholds, ...]
  elements: int

  @property
  def regions(self) -> Regions:
    """The sums that records need."""
    return Regions(self.native_sums.regions, self.thresholds)

  @property
  def power(self) -> power_lib.Power:
    """The smallest detectable errors, see `limits.power`."""
    detectable, elements = self.native_sums.power, self.elements
    return power_lib.Power(
      detectable.element,
      detectable.row,
      detectable.whole,
      elements,
      elements - detectable.judged,
    )


def add_chunk(
  cut: tiles.Cut,
  first: int,
  actual: np.ndarray,
  golden: bounded_values.Bounded,
  benchmark: np.ndarray | None,
  spread: bool,
  thresholds: Sequence[Thresholds],
) -> Sums | None:
  """Returns the sums of whole tile rows, or None if numpy must judge them.

  numpy must judge them if the golden or a bound is not finite, if an error of
  the candidate or the benchmark exceeds its bound, or if the extension module
  is missing.

  Args:
    cut: the rank's tiles.
    first: tile row that the arrays start with.
    actual: `[rows, columns]` as stored.
    golden: `[rows, columns]` with its bound.
    benchmark: `[rows, columns]` as stored; None if no record needs it.
    spread: whether to compute sums of tiles, in standard deviations.
    thresholds: of the records, each pair once.
  """
  if _chunk_sums is None:
    return None
  last = cut.row_of(first, len(actual))
  pairs = tuple(thresholds)
  native_sums = _chunk_sums.add(
    _to_float32(actual),
    _plain(golden.value),
    _plain(golden.bound()),
    None if benchmark is None else _to_float32(benchmark),
    _plain(golden.variance) if spread else None,
    (cut.starts[first : last + 1] - cut.starts[first]).tolist(),
    cut.col_starts.tolist(),
    list(pairs),
    ulp.unit_roundoff(str(actual.dtype)),
  )
  return (
    native_sums
    if native_sums is None
    else Sums(native_sums, pairs, actual.size)
  )


def _to_float32(values: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(values, np.float32)


def _plain(values) -> np.ndarray:
  return np.ascontiguousarray(values, np.float64)
