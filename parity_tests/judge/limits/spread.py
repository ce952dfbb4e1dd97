"""Statistical limits: do a tile's errors look like rounding errors?

In the worst case a sum of n terms has the error n u; typical rounding errors
are about sqrt(n) u.  `bounds` has the variance V of every element's error in a
probabilistic model, and a tile is judged by two numbers:

* the root mean square of error / sqrt(V), which is at most about 1;
* the slope of the error against the golden, which is about 0: a systematic
  factor is too small to see in the first.

In storage narrower than float32 a right kernel differs from the oracle of the
same policy only where a sum in another order crosses a rounding edge.  There
the number of differing elements is judged.  The same holds for float32 computed
from such numbers: elements differ if their distance exceeds the float32
roundings.

If float32 stages end in a tensor that is stored narrower, such as y in
bfloat16, an error of more than half a spacing was at least as large as the
excess before rounding.  There the tile is judged by the root mean square of the
excess, and each element by its own excess:

  P(|error| >= r sqrt(V))  <=  2 exp(-r^2 / 2)

for the number of elements of a tensor.

Derivation of the limits.  Elements form groups that are independent of each
other; errors within a group may be correlated in any way (rows of y share all
earlier results; equal rows have equal errors).  N is the number of elements
over the size of the largest group.  In the model an error is sub-Gaussian with
its variance V, so by Chernoff, and by Jensen inside a group (Boucheron, Lugosi,
Massart, Concentration Inequalities, 2013, sections 2.2 to 2.4):

  P(mean of error^2 / V >= y)  <=  exp(-N (y - 1 - ln y) / 2)
  P(|slope| >= s)              <=  2 exp(-s^2 G / (2 m)),  G = sum g^2 / V

with m elements in a group.  The number of differing elements, with mean M, is a
sum of independent parts of at most m each:

  P(count >= x)  <=  exp(-(x ln(x / M) - x + M) / m)

If a share c of the variance is common to a whole tile, an error is the sum of
two parts, and the limits of its root mean square and slope add up:

  limit = sqrt(1 - c) limit(N, G) + sqrt(c) limit(1, G / all elements)

Each limit is the value whose probability is the test's share of FALSE_ALARM, so
a tile of few elements has a wide limit.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge.limits import power
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import activation_bounds
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import precision

# The numbers that judge a tile or a tensor, as reports call them.
_WORDS = dict(
  rms='root mean square of the error',
  slope='slope of the error against the golden',
  differing='elements that differ from the oracle',
  peak='largest error of an element',
)
# Elements of a tensor, at most.
_MOST_ELEMENTS = 2.0**31
# Probability that a right kernel fails some comparison of a run.
FALSE_ALARM = 1e-9
# The most tests of a tile: a root mean square and a slope, each of two parts.
_NUMBERS, _PARTS = 2, 2
_STEPS = 60  # of Newton's method, monotone from above on a convex function


def words(number: str) -> str:
  """Returns the name of a number of `Judge.shares` in reports."""
  whole = number.startswith('tensor_')
  suffix = ' of the tensor' if whole else ' of a tile'
  return _WORDS[number.removeprefix('tensor_')] + suffix


def log_share(num_tiles: int, comparisons: int) -> float:
  """Returns ln(1 / p) of a test's probability p to fail a right kernel.

  Args:
    num_tiles: of the tensor.
    comparisons: the number of tensors that a run judges in this way, at most.
  """
  numbers = _NUMBERS * _PARTS
  tests = comparisons * numbers * (num_tiles + 1)  # and the whole tensor
  return float(np.log(tests / FALSE_ALARM))


def mean_square_limit(groups: np.ndarray, log_p: float) -> np.ndarray:
  """Returns y `[...]` with groups (y - 1 - ln y) / 2 = log_p, y >= 1."""
  # Most tiles have the same size.
  sizes, of_tile = np.unique(groups, return_inverse=True)
  limits = _mean_square_limits(sizes.astype(np.float64).tobytes(), log_p)
  return limits[of_tile].reshape(np.shape(groups))


@functools.lru_cache(maxsize=1024)
def _mean_square_limits(groups: bytes, log_p: float) -> np.ndarray:
  target = 2 * log_p / np.frombuffer(groups)
  y = 1 + np.sqrt(2 * target) + target
  for _ in range(_STEPS):
    y = y - (y - 1 - np.log(y) - target) / (1 - 1 / y)
  return y


def slope_limit(
  information: np.ndarray, alike: np.ndarray, log_p: float
) -> np.ndarray:
  """Returns s `[...]` with s^2 information / (2 alike) = log_p + ln 2."""
  with np.errstate(divide='ignore'):
    return np.sqrt(2 * alike * (log_p + np.log(2)) / information)


def count_limit(
  mean: np.ndarray, alike: np.ndarray, log_p: float
) -> np.ndarray:
  """Returns x `[...]` with x ln(x / mean) - x + mean = alike log_p."""
  mean = np.maximum(mean, np.finfo(np.float64).tiny ** 0.25)
  target = alike * log_p / mean
  r = 1 + np.sqrt(2 * target) + target
  for _ in range(_STEPS):
    r = r - (r * np.log(r) - r + 1 - target) / np.log(r)
  return r * mean


@dataclasses.dataclass(frozen=True)
class Independent:
  """Which elements of a tile have independent errors.

  Attributes:
    rows: whether elements of different rows do.
    columns: whether elements of different columns do.
    pairs: whether the errors of two columns are correlated: gate's and up's.
    common: share of the variance that all elements have in common.
  """

  rows: bool = True
  columns: bool = True
  pairs: bool = False
  common: float = 0.0

  def alike(self, cut: tiles.Cut, first: int, lines: tiles.Lines) -> np.ndarray:
    """Returns `[b, C]`, the size of the largest group with correlated errors.

    Args:
      cut: the rank's tiles.
      first: tile row that the sums start with.
      lines: sums of the golden.
    """
    height = np.diff(cut.starts)[first:, None]
    rows, columns = cut.most_alike(lines, first)
    height = height[: len(rows)]
    width = np.diff(cut.col_starts)[None]
    if self.pairs:
      columns = np.minimum(2 * columns, width)
    by_row, by_column = rows * width, columns * height
    if self.rows and self.columns:
      return np.minimum(by_row, by_column)
    return by_row if self.rows else by_column


@dataclasses.dataclass(frozen=True)
class Sums:
  """Sums over the elements of each tile `[b, C]`, or of all tiles.

  Units are standard deviations.

  Attributes:
    elements: number of elements.
    alike: the size of the largest group with correlated errors.
    square: sum of squared errors.
    product: sum of error times golden.
    information: sum of the golden's squares.
    differing: number of elements that differ from the expected ones.
    chance: the mean of `differing`.
    peak: the largest error, if `stored_narrower`.
    is_count: whether differing elements are counted, in place of errors.
    stored_narrower: whether errors are the excess over one last rounding, which
      hides slopes.
  """

  elements: np.ndarray
  alike: np.ndarray
  square: np.ndarray | float = 0.0
  product: np.ndarray | float = 0.0
  information: np.ndarray | float = 0.0
  differing: np.ndarray | float = 0.0
  chance: np.ndarray | float = 0.0
  peak: np.ndarray | float = 0.0
  is_count: bool = False
  stored_narrower: bool = False

  def total(self, alike: int) -> 'Sums':
    """Returns the sums over all tiles."""
    sums = {name: np.sum(getattr(self, name)) for name in _SUM_FIELDS}
    peak = np.max(self.peak, initial=0.0)
    return dataclasses.replace(self, **sums, alike=np.asarray(alike), peak=peak)

  def __add__(self, other: 'Sums') -> 'Sums':
    """Returns the sums of both; a group is the larger one of the two."""
    sums = {
      name: getattr(self, name) + getattr(other, name) for name in _SUM_FIELDS
    }
    alike = np.maximum(self.alike, other.alike)
    peak = np.maximum(self.peak, other.peak)
    return dataclasses.replace(self, **sums, alike=alike, peak=peak)


_SUM_FIELDS = {f.name for f in dataclasses.fields(Sums)} - {
  'alike',
  'peak',
  'is_count',
  'stored_narrower',
}


@dataclasses.dataclass(frozen=True)
class Rows:
  """Sums over rows `[rows, C]` of tiles, from which the power follows.

  Attributes:
    row_square: sum of the golden's squares.
    row_information: the same, in standard deviations.
    row_variance: the largest variance.
    row_largest: `[rows]`, the golden's largest magnitude; None: unknown.
  """

  row_square: np.ndarray
  row_information: np.ndarray
  row_variance: np.ndarray
  row_largest: np.ndarray | None = None

  @classmethod
  def measure(cls, cut: tiles.Cut, golden: bounded_values.Bounded) -> 'Rows':
    """Returns the sums of whole rows `[rows, columns]`."""
    variance = np.maximum(golden.variance, np.finfo(np.float64).tiny)
    square, begin = np.square(golden.value), cut.col_starts[:-1]
    return cls(
      np.add.reduceat(square, begin, axis=1),
      np.add.reduceat(square / variance, begin, axis=1),
      np.maximum.reduceat(variance, begin, axis=1),
      np.abs(golden.value).max(axis=1, initial=0.0),
    )


@dataclasses.dataclass(frozen=True)
class Judge:
  """Judges tiles of one tensor, and all of it.

  Attributes:
    policy: its activation may have an exp.
    dtype: the storage dtype of the tensor.
    independent: which elements have independent errors.
    num_tiles: of the tensor, on all ranks.
    comparisons: the number of tensors that a run judges in this way, at most.
    rounds_last: whether all tensors before it are stored in float32.  A
      crossing in an earlier, narrower tensor would move it by a step.
  """

  policy: precision.PrecisionPolicy
  dtype: str
  independent: Independent
  num_tiles: int
  comparisons: int
  rounds_last: bool = False

  def counts(self, golden: bounded_values.Bounded) -> bool:
    """Says whether differing elements are counted."""
    is_stored = self.dtype != self.policy.accumulate
    return golden.crossings is not None or (
      is_stored and not self.stores_narrower(golden)
    )

  def stores_narrower(self, golden: bounded_values.Bounded) -> bool:
    """Says whether float32 values are rounded only when they are stored."""
    is_stored = self.dtype != self.policy.accumulate
    return is_stored and self.rounds_last and golden.crossings is None

  @property
  def _log_p(self) -> float:
    return log_share(self.num_tiles, self.comparisons)

  def sums(
    self,
    cut: tiles.Cut,
    first: int,
    actual: np.ndarray,
    expected: np.ndarray,
    golden: bounded_values.Bounded,
  ) -> Sums:
    """Returns the sums of whole tile rows.

    Args:
      cut: the rank's tiles.
      first: tile row that the arrays start with.
      actual: `[rows, columns]` float64.
      expected: `[rows, columns]` float64, of the same policy.
      golden: `[rows, columns]`, its value and variance.
    """
    height = np.diff(cut.starts)[first : cut.row_of(first, len(actual))]
    elements = height[:, None] * np.diff(cut.col_starts)
    lines = cut.lines(golden.value, first)
    alike = self.independent.alike(cut, first, lines)
    if self.counts(golden):
      differs, chance = self._differ(actual, expected, golden)
      return Sums(
        elements,
        alike,
        differing=cut.count(differs, first),
        chance=cut.sum(chance, first),
        is_count=True,
      )
    return self._of_errors(cut, first, actual, golden, elements, alike)

  def sums_of(self, cut: tiles.Cut, tile_rows: range, native_sums: Any) -> Sums:
    """Returns the sums of whole tile rows from those of `chunk_sums`."""
    first = tile_rows.start
    height = np.diff(cut.starts)[first : tile_rows.stop]
    lines = tiles.Lines(native_sums.by_row, native_sums.by_column)
    return Sums(
      height[:, None] * np.diff(cut.col_starts),
      self.independent.alike(cut, first, lines),
      square=native_sums.square,
      product=native_sums.product,
      information=native_sums.information,
    )

  def _differ(self, actual, expected, golden) -> tuple[np.ndarray, np.ndarray]:
    """Returns which elements differ, and the probability of each to differ."""
    if golden.crossings is not None:
      alone = mean_square_limit(np.array(1.0), self._log_p)
      near = np.square(actual - expected) <= alone * golden.variance
      return ~near, np.minimum(golden.crossings, 1)
    spacing = 2 * ulp.half_spacing(np.abs(expected), self.dtype)
    return actual != expected, np.minimum(golden.distance() / spacing, 1)

  def _of_errors(self, cut, first, actual, golden, elements, alike) -> Sums:
    # Empty sums have no variance.
    narrower = self.stores_narrower(golden)
    variance = np.square(golden.distance()) if narrower else golden.variance
    variance = np.maximum(variance, np.finfo(np.float64).tiny)
    scale = 1 / np.sqrt(variance)
    # A wrong element may have an infinite error.
    with np.errstate(over='ignore', invalid='ignore'):
      value = golden.value * scale
      if narrower:
        excess = self._excess(actual, golden) * scale
        return Sums(
          elements,
          alike,
          square=cut.sum(np.square(excess), first),
          peak=cut.largest(excess, first),
          information=cut.sum(np.square(value), first),
          stored_narrower=True,
        )
      error = (actual - golden.value) * scale
      return Sums(
        elements,
        alike,
        square=cut.sum(np.square(error), first),
        product=cut.sum(error * value, first),
        information=cut.sum(np.square(value), first),
      )

  def before_storing(
    self, golden: bounded_values.Bounded
  ) -> bounded_values.Bounded:
    """Returns the golden with the variance before the last rounding."""
    if not self.stores_narrower(golden):
      return golden
    return dataclasses.replace(golden, variance=np.square(golden.distance()))

  def _excess(
    self, actual: np.ndarray, golden: bounded_values.Bounded
  ) -> np.ndarray:
    """Returns `[rows, columns]`, errors less half a spacing of storage.

    The spacing is that of the larger value: if the two have a power of two
    between them, one was rounded in the wider binade.
    """
    size = np.maximum(np.abs(actual), np.abs(golden.value))
    size = np.where(np.isfinite(size), size, np.abs(golden.value))
    half = ulp.half_spacing(size, self.dtype)
    error = np.abs(actual - golden.value)
    return np.where(np.isnan(error), np.inf, np.maximum(error - half, 0.0))

  def marked(
    self,
    actual: np.ndarray,
    expected: np.ndarray,
    golden: bounded_values.Bounded,
  ) -> np.ndarray:
    """Returns `[rows, columns]` bool, elements that stand out."""
    if golden.crossings is not None:
      return self._differ(actual, expected, golden)[0]
    if self.counts(golden):  # A right kernel crosses one edge, or none.
      spacing = 2 * ulp.half_spacing(np.abs(expected), self.dtype)
      return ~(np.abs(actual - expected) <= spacing)
    assert golden.variance is not None
    if self.stores_narrower(golden):
      reach = self._peak_limit * golden.distance()
      return self._excess(actual, golden) > reach
    alone = mean_square_limit(np.array(1.0), self._log_p)
    return np.square(actual - golden.value) > alone * golden.variance

  def shares(self, sums: Sums) -> dict[str, np.ndarray]:
    """Returns each number over its limit."""
    if sums.is_count:
      limit = count_limit(sums.chance, sums.alike, self._log_p)
      return dict(differing=sums.differing / limit)
    rms, slope_of = self._limits_of_errors(sums)
    if sums.stored_narrower:
      mean_root = np.sqrt(sums.square / sums.elements)
      return dict(rms=mean_root / rms, peak=sums.peak / self._peak_limit)
    with np.errstate(divide='ignore', invalid='ignore'):
      slope = np.abs(sums.product) / sums.information / slope_of
    slope = np.where(sums.information == 0, 0, slope)
    return dict(rms=np.sqrt(sums.square / sums.elements) / rms, slope=slope)

  def power(
    self,
    sums: Sums,
    cut: tiles.Cut | None = None,
    first: int = 0,
    rows: Any = None,
  ) -> power.Power:
    """Returns the power of tiles, or of a tensor if `cut` is None.

    In standard deviations, a detectable error of a tile is as long as the limit
    of the root mean square plus the right errors, which may have the other
    sign.
    """
    if sums.is_count:
      return power.Power()
    rms, slope_of = self._limits_of_errors(sums)
    length = rms * np.sqrt(sums.elements) + np.sqrt(sums.square)
    with np.errstate(divide='ignore', invalid='ignore'):
      by_slope = slope_of + np.abs(sums.product) / sums.information
      by_size = length / np.sqrt(sums.information)
      if sums.stored_narrower:
        detectable = by_size + self._rounding
      else:
        detectable = np.minimum(by_slope, by_size)
    detectable = np.where(sums.information == 0, np.inf, detectable)
    whole = float(np.min(detectable, initial=np.inf))
    if cut is None or rows is None or not rows.row_square.size:
      return power.Power(whole=whole)
    element, row = self._of_rows(length, cut, first, rows)
    if sums.stored_narrower:
      element = min(element, self._find_peak_power(cut, rows))
      row += self._rounding
    return power.Power(element, row, whole)

  @property
  def _peak_limit(self) -> float:
    """The largest error of a right element, in standard deviations.

    One deviation is for errors of exp, erf or tanh that have one sign.
    """
    log_p = self._log_p + np.log(2 * _MOST_ELEMENTS)
    return float(np.sqrt(2 * log_p)) + bool(
      activation_bounds.drift(self.policy)
    )

  def _find_peak_power(self, cut: tiles.Cut, rows: Any) -> float:
    """Returns the detectable error of a single element, see `Power`."""
    square = rows.row_square.sum(axis=1)
    size = np.sqrt(square / cut.col_starts[-1])
    deviation = np.sqrt(rows.row_variance.max(axis=1))
    peaks = 2 * self._peak_limit * deviation + self._rounding * rows.row_largest
    with np.errstate(divide='ignore', invalid='ignore'):
      return float(np.where(size > 0, peaks / size, 0.0).max(initial=0.0))

  @property
  def _rounding(self) -> float:
    """Relative error of the last rounding, of the right and the wrong value."""
    return 2 * ulp.unit_roundoff(self.dtype)

  def _of_rows(self, length, cut, first, rows) -> tuple[float, float]:
    """Returns the detectable errors of an element and of a row, of tiles."""
    heights = np.diff(cut.starts)[first : first + len(length)]
    length = np.repeat(length, heights, axis=0)
    square = rows.row_square.sum(axis=1, keepdims=True)
    size = np.sqrt(square / cut.col_starts[-1])
    with np.errstate(divide='ignore', invalid='ignore'):
      wide = length * np.sqrt(rows.row_variance)
      element = np.where(size > 0, wide / size, 0.0).max()
      smallest = (length / np.sqrt(rows.row_information)).min(axis=1)
    return float(element), float(
      smallest[np.isfinite(smallest)].max(initial=0.0)
    )

  def _limits_of_errors(self, sums: Sums) -> tuple[np.ndarray, np.ndarray]:
    """Returns the limits of root mean square and slope, both parts."""
    rms, slope_of = self._limits(sums, sums.alike)
    if self.independent.common:
      # The part in common is one group.
      all_rms, all_slope = self._limits(sums, sums.elements)
      common = self.independent.common
      own, of_all = np.sqrt(1 - common), np.sqrt(common)
      rms = own * rms + of_all * all_rms
      slope_of = own * slope_of + of_all * all_slope
    drift = activation_bounds.drift(self.policy)
    if drift:
      # exp may be off in one direction, in silu and in its slope: within its
      # variance, but not random.
      rms, slope_of = np.sqrt(np.square(rms) + 1), slope_of + drift
    return rms, slope_of

  def _limits(self, sums: Sums, alike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the limits of root mean square and slope."""
    mean = mean_square_limit(sums.elements / alike, self._log_p)
    return np.sqrt(mean), slope_limit(sums.information, alike, self._log_p)
