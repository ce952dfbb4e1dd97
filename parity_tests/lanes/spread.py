"""Statistical limits: is a tile's error as spread as rounding would spread it?

The worst case lets a sum of n terms err by n u; rounding errs by about the root
of that.  `bounds` carries the variance V of every element's error, by the
probabilistic model that it names, and a tile is judged by two numbers:

* the root mean square of error / sqrt(V), which is at most about 1;
* the slope of the error against the golden, which is 0: a factor that is
  systematically off hides in the first.

In storage narrower than float32 a right kernel differs from the oracle of the
same policy only where a sum in another order crosses a rounding edge.  There
the tile is judged by how many elements differ.

How the limits follow.  Elements fall into groups, independent of one another;
within one, errors may hang together in any way (rows of y share all that was
computed before; equal rows err alike).  N is the number of elements over those
of the largest group.  Under the model an error is sub-Gaussian with its
variance V, so by Chernoff, and by Jensen inside a group (Boucheron, Lugosi,
Massart, Concentration Inequalities, 2013, sections 2.2 to 2.4):

  P(mean of error^2 / V >= y)  <=  exp(-N (y - 1 - ln y) / 2)
  P(|slope| >= s)              <=  2 exp(-s^2 G / (2 m)),  G = sum g^2 / V

with m elements in a group.  A count of differing elements with the mean M is a
sum of independent parts of at most m each:

  P(count >= x)  <=  exp(-(x ln(x / M) - x + M) / m)

Each limit is where this falls to the test's share of FALSE_ALARM, so a tile of
few elements has a wide one.
"""

import dataclasses

import numpy as np

from hpmoe.parity_tests.lanes import bounds
from hpmoe.parity_tests.lanes import tiles
from hpmoe.parity_tests.lanes import ulp
from hpmoe.reference.contract import precision

# What a tile, or a tensor, is judged by.
_WORDS = dict(
  rms='root mean square of the error',
  slope='slope of the error against the golden',
  differing='elements that differ from the oracle',
)
# That any comparison of a whole run fails by bad luck.
FALSE_ALARM = 1e-9
# Most comparisons that a run has, and numbers that a tile is judged by.
_COMPARISONS, _NUMBERS = 64, 2
# exp of a libm may be off in one direction: in silu, and in its slope.
_SLOPE_OF_EXP = 8 * ulp.unit_roundoff('float32')
_STEPS = 60  # of Newton, from above on a convex function: monotone


def words(number: str) -> str:
  """Returns what a number of `Judge.shares` is called in a report."""
  whole = number.startswith('tensor_')
  of = ' of the tensor' if whole else ' of a tile'
  return _WORDS[number.removeprefix('tensor_')] + of


def log_share(num_tiles: int) -> float:
  """Returns ln(1 / p) of one test's probability to fail by bad luck."""
  tests = _COMPARISONS * _NUMBERS * (num_tiles + 1)  # and the whole tensor
  return float(np.log(tests / FALSE_ALARM))


def mean_square_limit(groups: np.ndarray, log_p: float) -> np.ndarray:
  """Returns y `[...]` with groups (y - 1 - ln y) / 2 = log_p, y >= 1."""
  wanted = 2 * log_p / groups
  y = 1 + np.sqrt(2 * wanted) + wanted
  for _ in range(_STEPS):
    y = y - (y - 1 - np.log(y) - wanted) / (1 - 1 / y)
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
  wanted = alike * log_p / mean
  r = 1 + np.sqrt(2 * wanted) + wanted
  for _ in range(_STEPS):
    r = r - (r * np.log(r) - r + 1 - wanted) / np.log(r)
  return r * mean


@dataclasses.dataclass(frozen=True)
class Independent:
  """Which elements of a tile err independently.

  Attributes:
    rows: those of different rows do.
    columns: those of different columns do.
  """

  rows: bool = True
  columns: bool = True

  def alike(self, cut: tiles.Cut, first: int, golden: np.ndarray) -> np.ndarray:
    """Returns `[b, C]`, elements of a tile that may err as one."""
    height = np.diff(cut.starts)[first:, None]
    rows, columns = cut.most_alike(golden, first)
    height = height[: len(rows)]
    width = np.diff(cut.col_starts)[None]
    by_row, by_column = rows * width, columns * height
    if self.rows and self.columns:
      return np.minimum(by_row, by_column)
    return by_row if self.rows else by_column


@dataclasses.dataclass(frozen=True)
class Sums:
  """What is added up over the elements of each tile `[b, C]`, or of all.

  Attributes:
    elements: how many.
    alike: of these, how many may err as one.
    square: of the error, in deviations.
    product: of error and golden, in deviations.
    information: square of the golden, in deviations.
    differing: elements that are not what is expected.
    chance: the mean of `differing`.
  """

  elements: np.ndarray
  alike: np.ndarray
  square: np.ndarray | float = 0.0
  product: np.ndarray | float = 0.0
  information: np.ndarray | float = 0.0
  differing: np.ndarray | float = 0.0
  chance: np.ndarray | float = 0.0

  def total(self, alike: int) -> 'Sums':
    """Returns the sums over all tiles."""
    sums = {f.name: np.sum(getattr(self, f.name)) for f in _fields()}
    return Sums(**sums | {'alike': np.asarray(alike)})

  def __add__(self, other: 'Sums') -> 'Sums':
    """Returns the sums of both; what errs as one does so in either."""
    sums = {
      f.name: getattr(self, f.name) + getattr(other, f.name) for f in _fields()
    }
    return Sums(**sums | {'alike': np.maximum(self.alike, other.alike)})


def _fields() -> tuple[dataclasses.Field, ...]:
  return dataclasses.fields(Sums)


@dataclasses.dataclass(frozen=True)
class Judge:
  """Judges tiles of one tensor, and all of it.

  Attributes:
    policy: its activation may have an exp.
    dtype: what the tensor is stored in.
    independent: see there.
    num_tiles: of the tensor, on all ranks.
  """

  policy: precision.PrecisionPolicy
  dtype: str
  independent: Independent
  num_tiles: int

  @property
  def counts(self) -> bool:
    """Whether differing elements are counted."""
    return self.dtype != self.policy.accumulate

  def sums(
    self,
    cut: tiles.Cut,
    first: int,
    got: np.ndarray,
    expected: np.ndarray,
    golden: bounds.Bounded,
  ) -> Sums:
    """Returns the sums of whole tile rows.

    Args:
      cut: the rank's tiles.
      first: tile row that the arrays start with.
      got: `[rows, columns]` float64.
      expected: `[rows, columns]` float64, of the same policy.
      golden: `[rows, columns]`, its value and variance.
    """
    height = np.diff(cut.starts)[first : cut.row_of(first, len(got))]
    elements = height[:, None] * np.diff(cut.col_starts)
    alike = self.independent.alike(cut, first, golden.value)
    if self.counts:
      spacing = 2 * ulp.half_spacing(np.abs(expected), self.dtype)
      chance = np.minimum(golden.distance() / spacing, 1)
      return Sums(
        elements,
        alike,
        differing=cut.count(got != expected, first),
        chance=cut.sum(chance, first),
      )
    return self._of_errors(cut, first, got, golden, elements, alike)

  def _of_errors(self, cut, first, got, golden, elements, alike) -> Sums:
    # Sums of nothing do not err.
    variance = np.maximum(golden.variance, np.finfo(np.float64).tiny)
    scale = 1 / np.sqrt(variance)
    # What is wrong may be infinitely so.
    with np.errstate(over='ignore', invalid='ignore'):
      error, value = (got - golden.value) * scale, golden.value * scale
      return Sums(
        elements,
        alike,
        square=cut.sum(np.square(error), first),
        product=cut.sum(error * value, first),
        information=cut.sum(np.square(value), first),
      )

  def marked(
    self,
    got: np.ndarray,
    expected: np.ndarray,
    golden: bounds.Bounded,
  ) -> np.ndarray:
    """Returns `[rows, columns]` bool, elements that stand out."""
    if self.counts:  # A right kernel crosses one edge, or none.
      spacing = 2 * ulp.half_spacing(np.abs(expected), self.dtype)
      return ~(np.abs(got - expected) <= spacing)
    assert golden.variance is not None
    alone = mean_square_limit(np.array(1.0), log_share(self.num_tiles))
    return np.square(got - golden.value) > alone * golden.variance

  def shares(self, sums: Sums) -> dict[str, np.ndarray]:
    """Returns for each number what its limit is used of."""
    log_p = log_share(self.num_tiles)
    if self.counts:
      limit = count_limit(sums.chance, sums.alike, log_p)
      return dict(differing=sums.differing / limit)
    mean = mean_square_limit(sums.elements / sums.alike, log_p)
    slope_of = slope_limit(sums.information, sums.alike, log_p)
    if self.policy.activation == 'swiglu':
      # exp may be off in one direction: within its variance, but not random.
      mean, slope_of = mean + 1, slope_of + _SLOPE_OF_EXP
    square = sums.square / sums.elements
    with np.errstate(divide='ignore', invalid='ignore'):
      slope = np.abs(sums.product) / sums.information / slope_of
    slope = np.where(sums.information == 0, 0, slope)
    return dict(rms=np.sqrt(square / mean), slope=slope)
