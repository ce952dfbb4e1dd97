"""A-priori rounding bounds: the golden value and how far off is still right.

One mechanism.  A `Bounded` is a value in float64 and an absolute error bound;
each function below carries both through one stage.  Inputs that the candidate
itself captured come in with error 0, so that a fault does not spread; inputs
that it kept to itself come in with the bound they were computed with.

The model of the arithmetic (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., sections 2.2 and 3.1), with u = 2^-24:

* one float32 operation:  fl(a op b) = (a op b)(1 + d), |d| <= u;
* n of them in any order of summation: relative error gamma_n = n u / (1 - n u)
  of the sum of magnitudes;
* a result below the smallest normal number may be flushed to zero, which
  loses at most that number, 2^-126, for each operation;
* one rounding to storage moves a value by half the spacing of its binade, or
  among its subnormal numbers, which float16 has where float32 is normal, by
  half of theirs: to flush those is an error like any other.

The golden itself is computed in float64: its own error, gamma_n with
u = 2^-53, is added.  No number here is chosen by hand.

Where a value is certain to overflow, it is an infinity with a finite bound: so
is everybody's.  Where it may, or a partial sum of it may in some order, the
bound is infinite: nothing is known of it.

The worst case hardly ever happens.  Beside the bound goes a variance, by the
probabilistic model (Higham and Mary, A New Approach to Probabilistic Rounding
Error Analysis, SIAM J. Sci. Comput. 41, 2019, Model 2.1; on data, Sharper
Probabilistic Backward Error Analysis, the same 42, 2020): each rounding error
is independent of those before it, of mean zero and, which they do not need,
spread evenly over half a spacing to either side.  A float32 operation with
result s so has the variance (u s)^2 / 3 at most, and errors add up as variances
do, to first order.  Such a sum is sub-Gaussian with this variance, so `spread`
can say how far it strays.

A sum's variance is that of its partial sums, so it depends on their order.
`sum_variance` counts ascending ones, from the data, and those of an order
drawn at random: a blocked, interleaved or pairwise sum has smaller ones.

In storage narrower than float32 it is not the error that is followed but the
distance of two right kernels, each with an order of its own: they differ where
a rounding edge lies between their float32 values.  At a spacing s and a
distance d before rounding that has the probability |d| / s, so rounding leaves
the mean of |d| as it was and adds s |d| to the mean of d^2.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.judge.limits import curves
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.weights import products
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised as quantised_lib
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import storage

_U = ulp.unit_roundoff('float32')
_U64 = ulp.unit_roundoff('float64')
_TINY = ulp.smallest_normal('float32')
_LARGEST = float(np.finfo(np.float32).max)

# Of z / (1 + exp(-z)) beside its exp, whose error counts in full in the sum: of
# the sum, and the quotient (or reciprocal and product).
_BESIDE_EXP = 3
# Parts of two operands are no larger than they are by more than this, at most.
_TWO_PARTS = 2.0**-6
# Variance of one float32 rounding, relative to the square of its result.
_VARIANCE = _U**2 / 3
# Prefixes of a long sum that are looked at, and terms between two of them.
_PREFIXES, _PREFIX_TERMS = 8, 256
# Elements of weights that are brought to another dtype together; and from how
# many on they are not kept in float64 beside.
_PANEL, _LARGE = 1 << 15, 1 << 20
# |d silu(z) / dz| <= 1.0999 (its maximum, at z = 2.3994).
_SILU_SLOPE = 1.1


@dataclasses.dataclass(frozen=True)
class Bounded:
  """A value and a bound on the error of whoever computed it.

  Attributes:
    value: `[...]` float64.
    error: `[...]` float64, not negative; None is zero everywhere.
    variance: `[...]` float64 of the error, or in narrow storage of the distance
      of two right kernels; None is zero everywhere.
    apart: `[...]` float64, mean of that distance, where it is less than the
      root of the variance; None is the root.
    crossed: `[...]` float64, of float32 made of narrower numbers: how many of
      those two right kernels store differently, in the mean.  The variance is
      then that of the others.  None is zero everywhere.
  """

  value: np.ndarray
  error: np.ndarray | None = None
  variance: np.ndarray | None = None
  apart: np.ndarray | None = None
  crossed: np.ndarray | None = None

  def __getitem__(self, index) -> 'Bounded':
    return self._map(lambda array: array[index])

  @property
  def T(self) -> 'Bounded':
    return self._map(np.transpose)

  def contiguous(self) -> 'Bounded':
    """Returns the same, row after row in memory."""
    return self._map(np.ascontiguousarray)

  def reshape(self, *shape: int) -> 'Bounded':
    return self._map(lambda array: array.reshape(*shape))

  def among(self, taken: np.ndarray) -> 'Bounded':
    """Returns `[n, ...]`: these where `taken` `[n]`, in order, else zeros."""

    def spread(array: np.ndarray) -> np.ndarray:
      made = np.zeros((len(taken), *array.shape[1:]), array.dtype)
      made[taken] = array
      return made

    return self if taken.all() else self._map(spread)

  def _map(self, change) -> 'Bounded':
    return Bounded(*(a if a is None else change(a) for a in self.arrays()))

  def arrays(self) -> tuple[np.ndarray | None, ...]:
    return self.value, self.error, self.variance, self.apart, self.crossed

  def bound(self) -> np.ndarray:
    return np.zeros_like(self.value) if self.error is None else self.error

  def distance(self) -> np.ndarray:
    """Returns the mean of |error| `[...]`, or a bound on it."""
    if self.apart is not None:
      return self.apart
    if self.variance is None:
      return np.zeros_like(self.value)
    return np.sqrt(self.variance)


def join(parts: Sequence[Bounded]) -> Bounded:
  """Returns parts, one after another along the first axis."""
  columns = zip(*(part.arrays() for part in parts))
  return Bounded(
    *(c[0] if c[0] is None else np.concatenate(c) for c in columns)
  )


def exact(stored: np.ndarray, off: np.ndarray | None = None) -> Bounded:
  """Returns stored values `[...]` as they are, at most `off` `[...]` off."""
  error = None if off is None else off.astype(np.float64)
  return Bounded(stored.astype(np.float64), error)


def gamma(roundings: float, u: float = _U) -> float:
  """Returns the relative error bound of that many roundings.

  Raises:
    ValueError: so many roundings that no digit is left.
  """
  if roundings * u >= 1:
    raise ValueError(
      f'roundings: expected fewer than {1 / u:.0f}, got {roundings}'
    )
  return roundings * u / (1 - roundings * u)


def silu_roundings(policy: precision.PrecisionPolicy) -> float:
  """Returns what silu, or a sigmoid, may err by; a unit is at most 2u of it."""
  return 2 * policy.activation_ulp


def sigmoid_error(policy: precision.PrecisionPolicy) -> float:
  """Returns what a sigmoid may be off by beside that, whatever its size."""
  return policy.sigmoid_ulp * 2 * _U


def exp_roundings(policy: precision.PrecisionPolicy) -> float:
  """Returns what of `silu_roundings` may err in one direction throughout."""
  return max(silu_roundings(policy) - _BESIDE_EXP, 0.0)


def _exp_variance(policy: precision.PrecisionPolicy) -> float:
  """Returns it as a variance: all that it may err counts as spread."""
  return (exp_roundings(policy) * _U) ** 2


def drift(policy: precision.PrecisionPolicy) -> float:
  """Returns what activations may be off in one direction, relative to them.

  A sigmoid or the share of a GELU that is off whatever its size counts twice:
  z s leans on z s^2 by 2 at most, where as many gates are negative as not.
  """
  if policy.activation in ('geglu', 'geglu_tanh'):
    return 2 * curves.share_error(policy)
  if policy.activation not in ('swiglu', 'glu'):
    return 0.0
  drift_of_exp = 2 * exp_roundings(policy) * _U + 2 * sigmoid_error(policy)
  # Likewise z^2 s c on z^2 s^2, by less.
  return drift_of_exp + 2 * _U * (policy.alpha != 1)


def is_narrow(policy: precision.PrecisionPolicy) -> bool:
  """Says whether storing rounds: sums have the accumulation dtype already."""
  return policy.storage != policy.accumulate


def kernels(policy: precision.PrecisionPolicy) -> int:
  """Returns how many kernels' errors count: their distance, or one's error."""
  return 2 if is_narrow(policy) or policy.points else 1


def stored(
  policy: precision.PrecisionPolicy,
  given: Bounded,
  dtype: str | None = None,
  reach: np.ndarray | None = None,
) -> Bounded:
  """Returns what is stored of a value with an error and a variance.

  In `dtype`, None: in the policy's storage.  `reach` is the sum of magnitudes.
  """
  value, error, variance, apart, crossed = given.arrays()
  assert error is not None and variance is not None
  dtype = dtype or policy.storage
  # Sums are float32 already: only a narrower storage rounds once more.
  if dtype != policy.accumulate:
    half = ulp.half_spacing(np.abs(value) + error, dtype)
    apart = np.sqrt(variance) if apart is None else apart
    error, variance = error + half, variance + 2 * half * apart
    crossed = _stored_crossing(policy, crossed, apart / (2 * half))
  stored, error = _overflowed(dtype, value, error)
  if reach is not None and not reach.max(initial=0.0) < _LARGEST:
    # Terms of the other sign may overflow too, and then the sum is NaN.
    against = (reach - np.abs(value)) / 2
    sure = (reach < _LARGEST) | (np.isinf(stored) & (against < _LARGEST))
    error = np.where(sure, error, np.inf)
  return Bounded(stored, error, variance, apart, crossed)


def _stored_crossing(
  policy: precision.PrecisionPolicy,
  crossed: np.ndarray | None,
  chance: np.ndarray,
) -> np.ndarray | None:
  """Returns `crossed` after storing, which moves an element by `chance`.

  In narrow storage the variance has all that crosses; elsewhere what crossed
  before may be stored otherwise too.
  """
  if crossed is None or is_narrow(policy):
    return None
  return np.minimum(crossed + chance, 1)


def at(
  policy: precision.PrecisionPolicy, point: str, given: Bounded
) -> Bounded:
  """Returns a value after a rounding point of the policy."""
  return rounded(policy, policy.rounding(point), given)


def rounded(
  policy: precision.PrecisionPolicy, dtype: str | None, given: Bounded
) -> Bounded:
  """Returns a value that a stage rounds and reads again; None: it does not.

  A kernel's value before it lies in an interval, so after it between what the
  ends are rounded to; on either side of an edge the golden itself is rounded.
  """
  if dtype is None:
    return given
  value, off = ulp.rounded(given.value, dtype), given.bound()
  with np.errstate(invalid='ignore'):
    ends = [
      np.abs(ulp.rounded(given.value + end, dtype) - value)
      for end in (off, -off)
    ]
  error = np.where(np.isinf(value), off, np.maximum(*ends))
  if given.variance is None:
    return Bounded(value, error)
  variance, crossed = _across(policy, dtype, given.value, given.distance())
  if crossed is None:
    variance, apart = given.variance + variance, given.distance()
    return Bounded(value, error, variance, apart, given.crossed)
  # Whoever crosses no edge has the very same number.
  return Bounded(value, error, variance, None, _both(given.crossed, crossed))


def _across(
  policy: precision.PrecisionPolicy,
  dtype: str,
  value: np.ndarray,
  apart: np.ndarray,
) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns what edges of `dtype` between two right kernels come to.

  In narrow storage the variance that they add; in float32, where few elements
  cross one, the chance that one does.  An element whose error is larger than
  the spacing, as one that underflows is, moves by that error and no step.
  """
  spacing = 2 * ulp.half_spacing(np.abs(value), dtype)
  if is_narrow(policy):
    return spacing * apart, None
  is_noise = apart >= spacing
  variance = np.where(is_noise, np.square(apart + spacing), 0.0)
  return variance, np.where(is_noise, 0.0, apart / spacing)


def _both(*crossed: np.ndarray | None) -> np.ndarray | None:
  known = [one for one in crossed if one is not None]
  return functools.reduce(np.add, known) if known else None


def factors(
  policy: precision.PrecisionPolicy, weights: np.ndarray
) -> np.ndarray:
  """Returns routing weights `[...]` float64, as they multiply."""
  return at(policy, 'routing_weight', exact(weights)).value


def _often_rounded(
  policy: precision.PrecisionPolicy,
  point: str,
  times: int,
  reach: np.ndarray,
  apart: Callable[[], np.ndarray],
) -> tuple[np.ndarray | float, np.ndarray | float, np.ndarray | None]:
  """Returns error and, as `_across`, variance of a sum rounded each time.

  `reach` `[...]` is the sum of magnitudes: no partial sum is larger, and where
  it overflows nothing is known.  Two right kernels are `apart()` `[...]`
  before, and round in the same order.
  """
  dtype = policy.rounding(point)
  if dtype is None or not times:
    return 0.0, 0.0, None
  u, row = ulp.unit_roundoff(dtype), storage.ROUNDED[dtype]
  error = gamma(times, u) * reach + times * row.smallest
  error = np.where(reach * (1 + gamma(times, u)) < row.largest, error, np.inf)
  variance, crossed = _across(policy, dtype, reach, apart())
  return error, times * variance, None if crossed is None else times * crossed


def _overflowed(
  dtype: str, value: np.ndarray, error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a value and its bound, infinite where `dtype` cannot hold them."""
  largest = storage.FORMATS[dtype].largest
  size = np.abs(value)
  if (size + error).max(initial=0.0) < largest:
    return value, error
  certain = size - error > largest * (1 + ulp.unit_roundoff(dtype))
  unsure = ~(size + error < largest) & ~certain & np.isfinite(value)
  value = np.where(certain, np.copysign(np.inf, value), value)
  return value, np.where(certain, 0.0, np.where(unsure, np.inf, error))


def _finite(value: np.ndarray) -> np.ndarray:
  """Returns magnitudes `[...]`, 0 of what is not finite and errs by nothing."""
  size = np.abs(value)
  if size.max(initial=0.0) < np.inf:
    return size
  return np.where(np.isfinite(value), size, 0.0)


def sum_variance(
  policy: precision.PrecisionPolicy, terms: int, block: int | None = None
) -> tuple[float, float]:
  """Returns the variance of a sum, as factors of total^2 and sum of terms^2.

  With n terms a and total g, the j-th partial sum of an order drawn at random
  has the mean j g / n and about the variance (j / n) (1 - j / n) sum a^2: n of
  them have squares of n (g^2 / 3 + sum a^2 / 6).  Ascending, with prefixes
  known every `block` terms, the same holds between two of them; the squares of
  the prefixes themselves count in full, the last one, g, by half.  Every
  product is rounded once more.
  """
  block = block or terms
  of_total = terms / 3 + block / 2
  of_terms = terms / 6 + block / 6 + 1
  scale = kernels(policy) * _VARIANCE
  return scale * of_total, scale * of_terms


def gemm(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  weights: 'np.ndarray | Bounded | Weights',
  dtype: str | None = None,
  weight: np.ndarray | None = None,
) -> Bounded:
  """Returns `[n, y]`, rows `[n, x]` times weights `[x, y]`.

  It is multiplied by `weight` `[n]`, if that is given, and stored in `dtype`;
  None: in the policy's storage.

  |c - g| <= sum e|w| + gamma_x sum (|x| + e)|w| + 2 x tiny, in any order: each
  of the x products passes one rounding of its own and at most x - 1 of sums,
  and x products and x - 1 sums may be flushed; so may each operand, times what
  it multiplies.  Weights that have an error f
  add (1 + gamma_x) sum (|x| + e) f.  Of emulated products there are some of
  each pair, and others are left out.  Of codes, a scale multiplies each weight,
  whose product may be rounded, or sums of terms: two roundings more, and as
  many of the scales of rows.
  """
  if not isinstance(weights, Weights):
    weights = Weights.of(policy, weights)
  rows = at(policy, 'operands', rows)
  of_weights, depth = weights.given, len(weights.value)
  block = max(_PREFIX_TERMS, -(-depth // _PREFIXES))
  value, prefixes = _prefix_sums(rows.value, weights.value, block)
  of_total, of_terms = sum_variance(policy, depth, min(block, depth))
  scalings = int(bool(policy.rows or policy.x_form))
  scalings += recipes.count_operands(policy.operand_forms)
  if policy.quantised:
    # A scale of the group, and one of the matrix if the form has it.
    form = quantised_lib.FORMS[policy.quantised]
    scalings += 1 + ('tensor_scales' in form.parts)
  of_total, of_terms = (
    of + scalings * kernels(policy) * _VARIANCE for of in (of_total, of_terms)
  )
  products, left_out = 1, 0.0
  if policy.emulated is not None:
    products, left_out = len(policy.emulated.pairs), policy.emulated.error
    # Small products may be added after all others.
    of_total += (products - 1) * depth * kernels(policy) * _VARIANCE
    of_terms += kernels(policy) * left_out**2
  own = of_terms * np.square(rows.value)
  sizes, square = weights.sizes, weights.squares
  size = _finite(rows.value)
  flush = _TINY * (2 * depth + size.sum(1, keepdims=True) + weights.total)
  flush = products * flush
  of_sum = of_total * np.square(value) + np.square(flush)
  if prefixes is not None:
    of_sum += kernels(policy) * _VARIANCE * block * prefixes
  scale = gamma(products * depth + 2 * scalings) + gamma(depth, _U64)
  # Parts may have either sign: what is left out, and sizes of what is not.
  scale = scale * (1 + _TWO_PARTS * (products > 1)) + left_out
  reach = sizes.at_most(size)
  error = scale * reach + flush
  if rows.error is not None:
    error += (1 + scale) * sizes.at_most(rows.error)
  if of_weights.error is not None:
    # Weights that are no float32: `sizes` rounded them.
    most = (np.abs(rows.value) + rows.bound()) @ of_weights.error
    error = (error + (1 + scale) * most) * (1 + gamma(2))
  blocks = -(-depth // precision.BLOCK_INNER)
  more, of_blocks, crossed = _often_rounded(
    policy,
    'accumulator',
    blocks,
    reach,
    lambda: np.sqrt(of_sum + square.roughly(own)),
  )
  error, of_sum = error + (1 + scale) * more, of_sum + of_blocks
  if rows.variance is None and of_weights.variance is None:
    variance = of_sum + square.roughly(own)
    sums = Bounded(value, error, variance, None, crossed)
    return _stored_sums(policy, weight, sums, reach, dtype)
  carried = 0.0 if rows.variance is None else rows.variance
  variance = of_sum + square.roughly(own + carried)
  if of_weights.variance is not None:
    variance += np.square(rows.value) @ of_weights.variance
  apart = None
  if is_narrow(policy):
    # Many errors add up as variances do, a few as distances.
    few = np.sqrt(of_sum + square.roughly(own))
    few += sizes.roughly(rows.distance())
    if of_weights.variance is not None:
      few += np.abs(rows.value) @ of_weights.distance()
    apart = np.minimum(np.sqrt(variance), few)
  by_row = _crossed_by(policy, rows, dtype)
  if by_row is not None:
    crossed = _both(
      crossed, np.broadcast_to(by_row.sum(-1, keepdims=True), value.shape)
    )
  if of_weights.crossed is not None:
    by_column = of_weights.crossed.sum(0)
    crossed = _both(crossed, np.broadcast_to(by_column, value.shape))
  sums = Bounded(value, error, variance, apart, crossed)
  return _stored_sums(policy, weight, sums, reach, dtype)


def _stored_sums(
  policy: precision.PrecisionPolicy,
  weight: np.ndarray | None,
  sums: Bounded,
  reach: np.ndarray,
  dtype: str | None,
) -> Bounded:
  """Returns what is stored of sums `[n, y]`, weighted `[n]` if asked."""
  if weight is not None:
    size = np.abs(factors(policy, weight))[:, None]
    sums, reach = _scaled(policy, sums, weight), reach * size
  return stored(policy, sums, dtype, reach)


def _scaled(
  policy: precision.PrecisionPolicy, rows: Bounded, weight: np.ndarray
) -> Bounded:
  """Returns `[n, D]`, rows `[n, D]` times routing weights `[n]`: 1 rounding."""
  weight = factors(policy, weight)[:, None]
  value, carried = rows.value * weight, rows.bound() * np.abs(weight)
  scale = gamma(1 + policy.weight_ulp) + gamma(1, _U64)
  flush = _TINY * (1 + np.abs(weight))
  error = carried + scale * (np.abs(value) + carried) + flush
  own = kernels(policy) * _VARIANCE * np.square(_finite(value))
  own += np.square(flush)
  variance, apart = own, None
  if rows.variance is not None:
    variance = own + rows.variance * np.square(weight)
    apart = np.sqrt(own) + rows.distance() * np.abs(weight)
  return Bounded(value, error, variance, apart, rows.crossed)


def beside(*parts: Bounded) -> Bounded:
  """Returns parts side by side, along the last axis."""
  if any(part.apart is not None for part in parts):
    parts = tuple(
      dataclasses.replace(part, apart=part.distance()) for part in parts
    )
  found = []
  for arrays in zip(*(part.arrays() for part in parts)):
    filled = (
      np.zeros_like(part.value) if a is None else a
      for a, part in zip(arrays, parts)
    )
    known = any(a is not None for a in arrays)
    found.append(np.concatenate([*filled], -1) if known else None)
  return Bounded(*found)


def _prefix_sums(
  rows: np.ndarray, weights: np.ndarray, block: int
) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns rows times weights, and the squares of its inner prefixes summed.

  Prefixes end every `block` terms; where there is but one block it is None.
  Weights that are stored narrower are widened block by block.
  """
  if products.suits(weights):
    sums, of_prefixes = products.add_up(rows, weights, block)
    return sums, of_prefixes if block < len(weights) else None

  def multiply(first: int) -> np.ndarray:
    terms = slice(first, first + block)
    return rows[:, terms] @ weights[terms].astype(np.float64, copy=False)

  total, squares = multiply(0), None
  for first in range(block, weights.shape[0], block):
    squares = np.square(total) if squares is None else squares + total * total
    total += multiply(first)
  return total, squares


@dataclasses.dataclass(frozen=True)
class _Sizes:
  """What is not negative of weights, for sums that float32 is enough for.

  Rows and columns may be of any magnitude, and squares of it: what float32
  holds is of order one in each of them.

  Attributes:
    size: `[x, y]` float32, at most one.
    row_scale: `[x]` powers of two, by which rows are too small.
    column_scale: `[y]` likewise, of columns.
  """

  size: np.ndarray
  row_scale: np.ndarray
  column_scale: np.ndarray

  @classmethod
  def of(cls, weights: np.ndarray) -> '_Sizes':
    """Returns magnitudes of stored weights `[x, y]`."""
    return cls.with_squares(weights)[0]

  @classmethod
  def with_squares(cls, weights: np.ndarray) -> tuple['_Sizes', '_Sizes']:
    """Returns magnitudes of stored weights `[x, y]`, and their squares.

    A few rows at a time: what is between lies in a core's cache.
    """
    if weights.size >= _LARGE and products.suits(weights):
      measured = products.measure(weights)
      if measured is not None:
        size, squares, row_scale, column_scale = measured
        return (
          cls(size, row_scale, column_scale),
          cls(squares, row_scale**2, column_scale**2),
        )
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
      size = _finite(size)
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
    return (
      cls(size, row_scale, column_scale),
      cls(squares, row_scale**2, column_scale**2),
    )

  def roughly(self, rows: np.ndarray) -> np.ndarray:
    """Returns `[n, y]`, rows `[n, x]` times these, as a spread needs it."""
    sums, unit = self._sums(rows)
    sums *= unit
    sums *= self.column_scale
    return sums

  def at_most(self, rows: np.ndarray) -> np.ndarray:
    """Returns `[n, y]`, not below rows `[n, x]` times these.

    A term passes its rounding to float32, its product, x - 1 sums and what
    follows in float64.  Operands, products and sums may be flushed.
    """
    sums, unit = self._sums(rows)
    depth = len(self.size)
    sums *= 1 + gamma(depth + 3)
    sums += 4 * depth * _TINY
    sums *= unit
    sums *= self.column_scale
    if not unit.max(initial=0.0) < np.inf:
      sums[~np.isfinite(unit[:, 0])] = np.inf
    return sums

  def _sums(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `[n, y]` float64, made in float32, and its unit `[n, 1]`."""
    least = np.finfo(np.float64).tiny
    rows = rows * self.row_scale
    row = np.max(rows, axis=1, keepdims=True, initial=least)
    with np.errstate(invalid='ignore'):  # infinite, where the value is
      rows = (rows / row).astype(np.float32)
    if self.size.size >= _LARGE and products.suits(self.size):
      return products.multiply(rows, self.size).astype(np.float64), row
    with np.errstate(invalid='ignore'):
      return (rows @ self.size).astype(np.float64), row


def _power_above(largest: np.ndarray) -> np.ndarray:
  """Returns float64 powers of two, above each number that is not zero."""
  # Beyond, the factor itself is none of float32's normal numbers.
  return 2.0 ** np.clip(np.frexp(largest)[1], -126, 126).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights `[x, y]`, made ready to be multiplied more than once.

  Attributes:
    given: they, as they are stored if they have no error.
    value: float64; of many, as they are stored.
    sizes: of them.
    squares: of them.
    total: `[y]` float64, sums of their sizes.
  """

  given: Bounded
  value: np.ndarray
  sizes: _Sizes
  squares: _Sizes
  total: np.ndarray

  @classmethod
  def of(
    cls, policy: precision.PrecisionPolicy, given: np.ndarray | Bounded
  ) -> 'Weights':
    """Returns weights `[x, y]`, as a GEMM of the policy multiplies them."""
    given = given if isinstance(given, Bounded) else Bounded(given)
    if policy.rounding('operands') is not None:
      wide = given.value.astype(np.float64)
      given = at(policy, 'operands', dataclasses.replace(given, value=wide))
    sizes, squares = _Sizes.with_squares(given.value)
    value = given.value
    if value.size < _LARGE:
      value = value.astype(np.float64)
    total = sizes.at_most(np.ones((1, len(value))))[0]
    return cls(given, value, sizes, squares, total)


def activation(
  policy: precision.PrecisionPolicy,
  gate_up: Bounded,
  row_weight: np.ndarray | None,
  dtype: str | None = None,
) -> Bounded:
  """Returns `[n, F]` of gate and up `[n, 2F]`, weighted `[n]` if asked.

  'absolute': |gate| * up, 1 rounding.  'swiglu': silu(gate), which may be off
  as the policy says, and its product with up; others as `curves` has them.
  exp(-gate) may overflow and 1 / (1 + exp(-gate)) may be flushed: both lose at
  most tiny * |gate|.  Of both, alpha times gate may be off as `_argument` says,
  a clamp takes no error larger, and up + offset is one rounding more.  It is
  stored in `dtype`; None: in the policy's storage.
  """
  gate_up = dataclasses.replace(
    gate_up, crossed=_crossed_by(policy, gate_up, dtype)
  )
  return stored(policy, _activation(policy, gate_up, row_weight), dtype)


def _activation(policy, gate_up, row_weight) -> Bounded:
  """Returns `[n, F]` before it is rounded to storage."""
  gate, up, _ = _gated(policy, gate_up)
  silu = at(policy, 'silu', _act(policy, gate))
  made = at(policy, 'product', _product(policy, silu, up))
  return made if row_weight is None else _scaled(policy, made, row_weight)


def _product(policy, act: Bounded, up: Bounded) -> Bounded:
  """Returns `[n, F]`: 1 rounding, and that of up + offset."""
  value = act.value * up.value
  up_size = np.abs(up.value) + up.bound()
  carried = np.abs(act.value) * up.bound() + act.bound() * up_size
  roundings = 1 + (policy.offset != 0)
  scale = gamma(roundings) + gamma(roundings, _U64)
  error = carried + scale * (np.abs(value) + carried) + _TINY
  own = _few_roundings(policy, value, roundings, _TINY)
  more = _carried(own, (act, up.value), (up, act.value))
  return Bounded(value, error, *more)


def _few_roundings(
  policy, value: np.ndarray, roundings: float, flushed: np.ndarray | float
) -> np.ndarray:
  """Returns the variance of a value after some roundings.

  What may be `flushed` counts in full.
  """
  variance = kernels(policy) * roundings * _VARIANCE
  return variance * np.square(value) + np.square(flushed)


def _carried(own: np.ndarray, *sources: tuple[Bounded, np.ndarray]):
  """Returns variance, mean distance and `crossed` of what sources make.

  Variance and distance: `own`, and the sources' times factors.
  """
  crossed = _both(*(source.crossed for source, _ in sources))
  known = [(source, f) for source, f in sources if source.variance is not None]
  if not known:
    return own, None, crossed
  variance, apart = own, np.sqrt(own)
  for source, factor in known:
    variance = variance + np.square(factor) * source.variance
    apart = apart + np.abs(factor) * source.distance()
  return variance, apart, crossed


def _gated(
  policy: precision.PrecisionPolicy, gate_up: Bounded
) -> tuple[Bounded, Bounded, tuple[np.ndarray, np.ndarray] | None]:
  """Returns gate and up `[n, F]` of `[n, 2F]`, clamped, and offset added.

  And `[n, 2F]` which of both pass their clamps, or may, and of which that is
  not sure; None: there are none.  What is beyond for certain has no error.
  """
  half = gate_up.value.shape[-1] // 2
  gate, up = gate_up[..., :half], gate_up[..., half:]
  clamps = None
  limit, offset = _number(policy, policy.limit), _number(policy, policy.offset)
  if limit:
    size = np.concatenate([gate.value, np.abs(up.value)], axis=-1)
    off = gate_up.bound()
    passes = size - off <= limit
    clamps = passes, passes & (size + off > limit)
    gate = _clamped(gate, np.minimum(gate.value, limit), passes[..., :half])
    up = _clamped(up, np.clip(up.value, -limit, limit), passes[..., half:])
  if offset:
    up = dataclasses.replace(up, value=up.value + offset)
  return gate, up, clamps


def _clamped(of: Bounded, value: np.ndarray, passes: np.ndarray) -> Bounded:
  off = of._map(lambda array: np.where(passes, array, 0.0))
  return dataclasses.replace(off, value=value)


def _number(policy: precision.PrecisionPolicy, number: float) -> float:
  """Returns a number of the policy as the accumulation dtype has it."""
  return float(np.dtype(policy.accumulate).type(number))


def _argument(
  policy: precision.PrecisionPolicy, gate: Bounded
) -> tuple[float, np.ndarray, np.ndarray | None]:
  """Returns alpha, z = alpha gate, and what a kernel's z may be off beside.

  None: by nothing.

  Two roundings: one of the product, and one where alpha is a factor of another
  constant, log2(e) say.  Off by d, sigmoid(z) is so by expm1((1 - s) d e^d) of
  it.  Beyond 2^20 it is 0 or 1 for all, so that d needs be no larger than 1.
  """
  alpha = _number(policy, policy.alpha)
  if alpha == 1:
    return alpha, gate.value, None
  z = alpha * gate.value
  off = np.minimum(2 * _U * (np.abs(z) + alpha * gate.bound()), 1.0)
  return alpha, z, off * np.exp(off)


def _sigmoid(z: np.ndarray) -> np.ndarray:
  with np.errstate(over='ignore'):
    return 1 / (1 + np.exp(-z))


def weighted(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  weight: np.ndarray,
  dtype: str | None = None,
) -> Bounded:
  """Returns `[n, D]`, rows `[n, D]` times weights `[n]`: 1 rounding.

  It is stored in `dtype`; None: in the policy's storage.  What a stage reads
  again itself is `weighted_operand`.
  """
  return stored(policy, _scaled(policy, rows, weight), dtype)


def weighted_operand(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  weight: np.ndarray,
  dtype: str,
) -> Bounded:
  """Returns `[n, D]`, rows `[n, D]` times weights `[n]`, rounded on the way."""
  narrow = dtype if dtype != policy.accumulate else None
  return rounded(policy, narrow, _scaled(policy, rows, weight))


def weight_grad(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  d_out: Bounded,
  dtype: str | None = None,
) -> Bounded:
  """Returns `[x, y]`, rows `[n, x]`, transposed, times `[n, y]`.

  A GEMM of depth n.  A chain of float32 sums is one of its orders, and the
  zeros that fill a last block up add nothing.
  """
  return gemm(policy, d_out.T, rows, dtype).T


def inner_product(
  policy: precision.PrecisionPolicy, a: Bounded, b: Bounded
) -> Bounded:
  """Returns `[...]`, sum of a `[..., x]` times b, in float32, as a GEMM."""
  depth = a.value.shape[-1]
  scale = gamma(depth) + gamma(depth, _U64)
  size_a, size_b = np.abs(a.value), np.abs(b.value)
  # |a' b' - a b| <= |a| eb + ea (|b| + eb)
  carried = size_a * b.bound() + a.bound() * (size_b + b.bound())
  error = (carried + scale * (size_a * size_b + carried)).sum(-1)
  value = (a.value * b.value).sum(-1)
  of_total, of_terms = sum_variance(policy, depth)
  variance = of_terms * np.square(a.value * b.value)
  crossed = _both(a.crossed, b.crossed)
  crossed = None if crossed is None else crossed.sum(-1)
  if is_narrow(policy) and a.variance is not None:
    # What crossed an edge in storage is too rare for a variance in float32.
    crossed = crossing(policy, a).sum(-1)
    a = exact(a.value)
  for one, other in ((a, b), (b, a)):
    if one.variance is not None:
      variance = variance + one.variance * np.square(other.value)
  variance = variance.sum(-1) + of_total * np.square(value)
  flushed = 2 * depth * _TINY
  value, error = _overflowed('float32', value, error + flushed)
  return Bounded(value, error, variance + flushed**2, crossed=crossed)


def crossing(policy: precision.PrecisionPolicy, stored: Bounded) -> np.ndarray:
  """Returns the chance `[...]` that two right kernels store two numbers."""
  spacing = 2 * ulp.half_spacing(np.abs(stored.value), policy.storage)
  return np.minimum(stored.distance() / spacing, 1)


def _crossed_by(
  policy: precision.PrecisionPolicy, source: Bounded, dtype: str | None
) -> np.ndarray | None:
  """Returns `crossing`, of narrow numbers that float32 `dtype` is made of."""
  if (dtype or policy.storage) != policy.accumulate:
    return None
  if source.crossed is not None:
    return source.crossed
  narrow = is_narrow(policy) and source.apart is not None
  return crossing(policy, source) if narrow else None


def share_of_operands(policy: precision.PrecisionPolicy, depth: int) -> float:
  """Returns the most that one rounding of operands adds to a sum's variance.

  As a share of it: roundings of the sum of so many terms are the rest.
  """
  block = min(depth, max(_PREFIX_TERMS, -(-depth // _PREFIXES)))
  _, of_terms = sum_variance(policy, depth, block)
  return 1 / (1 + of_terms / (kernels(policy) * _VARIANCE))


def row_weight_grad(
  policy: precision.PrecisionPolicy,
  gate_up: Bounded,
  d_activation: Bounded,
  of_bias: tuple[Bounded, np.ndarray] | None = None,
) -> Bounded:
  """Returns `[n]`, d_activation `[n, F]` times the unweighted activation.

  gate and up are `[n, 2F]`; the activation is never rounded to storage.  At
  placement 'epilogue' it is given instead of them, as it was stored `[n, F]`.
  `of_bias` are d_expert_out `[n, D]` and each row's b_down `[n, D]`, whose
  products are terms of the same sum; None: there is no bias.
  """
  unweighted = gate_up
  if policy.placement != 'epilogue':
    unweighted = _activation(policy, gate_up, None)
  if of_bias is not None:
    d_expert_out, bias = of_bias
    d_activation = beside(d_activation, d_expert_out)
    unweighted = beside(unweighted, exact(bias))
  dots = inner_product(policy, d_activation, unweighted)
  if dots.crossed is None or not drift(policy):
    return dots
  # Each element is judged alone, so a scale that exp is off by counts in it.
  scale = kernels(policy) * _exp_variance(policy)
  of_exp = scale * np.square(dots.value)
  return dataclasses.replace(dots, variance=dots.variance + of_exp)


def activation_grad(
  policy: precision.PrecisionPolicy,
  gate_up: Bounded,
  d_activation: Bounded,
  row_weight: np.ndarray | None,
  dtype: str | None = None,
) -> Bounded:
  """Returns `[n, 2F]` of d_activation `[n, F]`, weighted `[n]` if asked.

  gate and up are `[n, 2F]`.  With g the weighted d_activation, d_gate is
  g * up * act'(gate) and d_up is g * act(gate): two products, in any order.
  It is stored in `dtype`; None: in the policy's storage.
  """
  gate, up, clamps = _gated(policy, gate_up)
  weight = np.ones((len(gate.value), 1))
  if row_weight is not None:
    weight = factors(policy, row_weight)[:, None]
  slope, act = _slope(policy, gate), at(policy, 'silu', _act(policy, gate))
  one = Bounded(np.ones((1, 1)))
  if policy.rounding('d_silu') is None:
    d_gate = _times(policy, weight, d_activation, slope, up)
  else:
    d_silu = _times(policy, weight, d_activation, one, up)
    d_gate = _product(policy, at(policy, 'd_silu', d_silu), slope)
  d_up = _times(policy, weight, d_activation, act, one)
  return stored(policy, _through(beside(d_gate, d_up), clamps), dtype)


def _through(grad: Bounded, clamps: tuple[np.ndarray, ...] | None) -> Bounded:
  """Returns a gradient `[n, 2F]` behind clamps, see `_gated`.

  The slope of what is clamped is 0, at the limit itself 1.  Where it is unsure
  which, both are right.
  """
  if clamps is None:
    return grad
  passes, unsure = clamps
  grad = grad._map(lambda array: np.where(passes, array, 0.0))
  if not unsure.any():
    return grad
  either = np.where(unsure, np.abs(grad.value), 0.0)
  assert grad.variance is not None
  return dataclasses.replace(
    grad,
    error=grad.bound() + either,
    variance=grad.variance + np.square(either),
    apart=None,
  )


def _times(policy, weight, grad: Bounded, act: Bounded, up: Bounded) -> Bounded:
  """Returns `[n, F]`, weight * grad * act * up, before it is stored.

  3 roundings in any order, and that of up + offset.  Each result may be
  flushed, and is multiplied by the factors that are left: 3 tiny times the
  product of 1 + |factor|.
  """
  before, before_error = weight * grad.value, np.abs(weight) * grad.bound()
  up_size = np.abs(up.value) + up.bound()
  right = act.value * up.value
  right_error = act.bound() * up_size + np.abs(act.value) * up.bound()
  value = before * right
  carried = np.abs(before) * right_error + before_error * (
    np.abs(right) + right_error
  )
  roundings = 3 + (policy.offset != 0)
  scale = gamma(roundings) + gamma(roundings, _U64)
  flushed = 3 * _TINY * (1 + np.abs(weight)) * (1 + up_size)
  for factor in (grad, act):
    flushed = flushed * (1 + np.abs(factor.value) + factor.bound())
  error = carried + scale * (np.abs(value) + carried) + flushed
  own = _few_roundings(policy, value, roundings, flushed)
  sources = (grad, weight * right), (act, before * up.value)
  more = _carried(own, *sources, (up, before * act.value))
  return Bounded(value, error, *more)


def _act(policy, gate: Bounded) -> Bounded:
  """Returns act(gate) as computed in float32."""
  z, e = gate.value, gate.bound()
  if policy.activation == 'absolute':
    return dataclasses.replace(gate, value=np.abs(z))
  if policy.activation in curves.CURVES:
    return _curved_act(policy, gate)
  alpha, z, turned = _argument(policy, gate)
  s = _sigmoid(z)
  value, carried = gate.value * s, _SILU_SLOPE * e
  roundings = silu_roundings(policy)
  scale = gamma(roundings) + gamma(roundings, _U64)
  off = sigmoid_error(policy) * (np.abs(gate.value) + e)
  if turned is not None:
    off = off + np.abs(value) * np.expm1((1 - s) * turned)
    off = off + _SILU_SLOPE * turned * e
  flushed = _TINY * (np.abs(gate.value) + e + 1)
  error = carried + scale * (np.abs(value) + carried) + off + flushed
  own = _few_roundings(policy, value, roundings, flushed)
  of_exp = _exp_variance(policy) * np.square(value) + np.square(off)
  own = own + kernels(policy) * of_exp
  bend = s + alpha * value * (1 - s)
  return Bounded(value, error, *_carried(own, (gate, bend)))


def _slope(policy, gate: Bounded) -> Bounded:
  """Returns act'(gate) as computed in float32.

  silu'(z) = s (1 + z c) with z = alpha gate, s = sigmoid(z), c = 1 - s, has a
  zero, so that a relative bound cannot hold.  Formulas in use, and their terms
  before the last sum cancels them:

  * s (1 + z c): s (1 + |z|), even where c was computed as 1 - s and errs by
    roundings of 1;
  * s + silu(z) c: the same;
  * silu(z) + s (1 - silu(z)): s (1 + 2 |z|).

  No term passes more roundings than silu(z) c with c = exp(-z) s: two sigmoids,
  an exp, two products and the sum.  s, silu and c may each be flushed, and are
  multiplied by no more than 1 + 2 |z|; so may the result.  What s and c are off
  by whatever their size, and silu by |z| times that, counts 1 + 3 |z| times.

  A gate that is itself e off moves silu' by e / 2 at most, as |silu''| <= 1/2,
  and those terms by less than 3 e.
  """
  z, e = gate.value, gate.bound()
  if policy.activation == 'absolute':
    return Bounded(np.sign(z), np.where(np.abs(z) <= e, 2.0 * (e > 0), 0.0))
  if policy.activation in curves.CURVES:
    return _curved_slope(policy, gate)
  alpha, z, turned = _argument(policy, gate)
  e = alpha * e
  s, c = _sigmoid(z), _sigmoid(-z)
  roundings = 2 * silu_roundings(policy) + exp_roundings(policy) + 3
  scale = gamma(roundings) + gamma(roundings, _U64)
  terms = s * (1 + 2 * np.abs(z))
  flushed = 4 * _TINY * (1 + 2 * (np.abs(z) + e))
  off = sigmoid_error(policy) * (1 + 3 * (np.abs(z) + e))
  if turned is not None:
    # The slope of this is s c (2 + z (c - s)), and s c no more than e^-|z|;
    # what a kernel's z is off stays below 1, or s c is 0.
    off = off + turned * (np.e * s * c * (2 + np.abs(z)) + e)
  error = e / 2 + scale * (terms + 3 * e) + off + flushed
  # An exp in both sigmoids, and the terms that cancel.
  variance = roundings * _VARIANCE + 4 * _exp_variance(policy)
  variance = variance * np.square(terms) + np.square(off)
  variance = kernels(policy) * variance + np.square(flushed)
  if gate.variance is not None:
    bend = alpha * s * c * (2 + z * (c - s))
    variance = variance + np.square(bend) * gate.variance
  return Bounded(s * (1 + z * c), error, variance)


def _curved_act(policy, gate: Bounded) -> Bounded:
  """Returns act(gate) of `curves`, as computed in float32."""
  curve, z, e = curves.CURVES[policy.activation], gate.value, gate.bound()
  value, from_gate = curve.act(z), curve.act_moved(z, e)
  scale = gamma(curve.act_roundings) + gamma(curve.act_roundings, _U64)
  beside_it = np.zeros_like(z)
  if curve.act_off is not None:
    beside_it = curve.act_off(policy, z, e)
  flush = np.where(e + beside_it + scale > 0, _TINY * (np.abs(z) + e + 1), 0.0)
  error = from_gate + scale * (np.abs(value) + from_gate) + beside_it + flush
  own = _few_roundings(policy, value, curve.act_roundings, flush)
  own = own + kernels(policy) * np.square(beside_it)
  return Bounded(value, error, *_carried(own, (gate, curve.slope(z))))


def _curved_slope(policy, gate: Bounded) -> Bounded:
  """Returns act'(gate) of `curves`, as computed in float32."""
  curve, z, e = curves.CURVES[policy.activation], gate.value, gate.bound()
  value, from_gate = curve.slope(z), curve.slope_moved(z, e)
  scale = gamma(curve.slope_roundings) + gamma(curve.slope_roundings, _U64)
  beside_it = np.zeros_like(z)
  if curve.slope_off is not None:
    beside_it = curve.slope_off(policy, z, e)
  flush = np.where(beside_it + scale > 0, 4 * _TINY * (1 + np.abs(z) + e), 0.0)
  error = from_gate + scale * (np.abs(value) + from_gate) + beside_it + flush
  own = _few_roundings(policy, value, curve.slope_roundings, flush)
  variance = own + kernels(policy) * np.square(beside_it)
  if gate.variance is not None:
    variance = variance + np.square(curve.bend(z)) * gate.variance
  return Bounded(value, error, variance)


def combine(
  policy: precision.PrecisionPolicy,
  stage: str,
  returned: Bounded,
  topk_weights: np.ndarray | None,
  last: Bounded | None = None,
) -> Bounded:
  """Returns `[t, D]`, the sum of `[t, K, D]` over its K slots, as a GEMM.

  Weights are `[t, K]`; None: they are 1.  What is `last`, `[t, D]`, counts as
  one slot more, of weight 1.  See `CombineSums`.
  """
  tokens, slots, columns = returned.value.shape
  terms = slots + (last is not None)
  sums = CombineSums.zeros(policy, stage, terms, tokens, columns)
  for slot in range(slots):
    weight = None if topk_weights is None else topk_weights[:, slot]
    sums.add(np.arange(tokens), returned[:, slot], weight)
  if last is not None:
    sums.add(np.arange(tokens), last, None)
  return sums.total()


# Where the sum over a token's rows may be rounded, by what it is.
_RUNNING = {'y': 'running_sum', 'dx': 'd_running_sum'}


@dataclasses.dataclass(frozen=True)
class CombineSums:
  """A combine under way: rows may come in any order, as owners finish them.

  Attributes:
    policy: precision.
    stage: what the sums are, y or dx.
    slots: rows of a token.
    value: `[t, D]` float64, sum of weight times value.
    error: `[t, D]` float64, sum of |weight| times error bound.
    magnitude: `[t, D]` float64, sum of |weight| times |value|.
    squares: `[t, D]` float64, sum of (weight times value)^2.
    variance: `[t, D]` float64, sum of weight^2 times variance.
    apart: `[t, D]` float64, sum of |weight| times mean distance; narrow only.
    crossed: `[t, D]` float64, sum of those; None: no row of the policy has any.
  """

  policy: precision.PrecisionPolicy
  stage: str
  slots: int
  value: np.ndarray
  error: np.ndarray
  magnitude: np.ndarray
  squares: np.ndarray
  variance: np.ndarray
  apart: np.ndarray
  crossed: np.ndarray | None = None

  @classmethod
  def zeros(
    cls,
    policy: precision.PrecisionPolicy,
    stage: str,
    slots: int,
    tokens: int,
    columns: int,
  ) -> 'CombineSums':
    sums = [np.zeros((tokens, columns)) for _ in range(6)]
    some = policy.points and not is_narrow(policy)
    crossed = np.zeros((tokens, columns)) if some else None
    held = cls(policy, stage, slots, *sums)
    return dataclasses.replace(held, crossed=crossed)

  def __getitem__(self, index) -> 'CombineSums':
    parts = {name: array[index] for name, array in self.arrays().items()}
    return dataclasses.replace(self, **parts)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns the sums by name, `crossed` if it is there."""
    names = [field.name for field in dataclasses.fields(self)[3:]]
    sums = {name: getattr(self, name) for name in names}
    return {name: array for name, array in sums.items() if array is not None}

  def add(
    self, token: np.ndarray, row: Bounded, weight: np.ndarray | None
  ) -> None:
    """Adds rows `[n, D]` times weights `[n]` to n different tokens `[n]`."""
    size: np.ndarray | float = 1.0
    if weight is not None and self.policy.rounding('weighted') is not None:
      row = at(self.policy, 'weighted', _scaled(self.policy, row, weight))
    elif weight is not None:
      factor = factors(self.policy, weight)[:, None]
      size = np.abs(factor)
      row = dataclasses.replace(row, value=row.value * factor)
    self.value[token] += row.value
    self.magnitude[token] += _finite(row.value)
    self.squares[token] += np.square(row.value)
    if row.error is not None:
      self.error[token] += row.error * size
    if row.variance is not None:
      self.variance[token] += row.variance * np.square(size)
    if row.variance is not None and is_narrow(self.policy):
      self.apart[token] += row.distance() * size
    if row.crossed is not None and self.crossed is not None:
      self.crossed[token] += row.crossed

  def total(self) -> Bounded:
    # A kernel's own routing weights bring their roundings along.
    is_weighted = self.stage == 'y' and self.policy.placement == 'combine'
    own_weights = self.policy.weight_ulp if is_weighted else 0.0
    scale = gamma(self.slots + own_weights) + gamma(self.slots, _U64)
    reach = self.magnitude + self.error
    error = self.error + scale * reach
    of_total, of_terms = sum_variance(self.policy, self.slots)
    own = of_total * np.square(self.value) + of_terms * self.squares
    own += np.square(own_weights * _U * _finite(self.magnitude))
    own += (self.slots * _TINY) ** 2
    point = _RUNNING[self.stage]
    more, of_rounding, crossed = _often_rounded(
      self.policy,
      point,
      self.slots,
      reach,
      lambda: np.sqrt(own + self.variance),
    )
    error, own = error + (1 + scale) * more, own + of_rounding
    crossed = _both(self.crossed, crossed)
    variance = own + self.variance
    apart = None
    if is_narrow(self.policy):
      apart = np.minimum(np.sqrt(variance), self.apart + np.sqrt(own))
    error += self.slots * _TINY
    sums = Bounded(self.value, error, variance, apart, crossed)
    dtype = self.policy.dtype(self.stage)
    return stored(self.policy, sums, dtype, self.magnitude)
