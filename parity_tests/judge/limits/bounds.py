"""A-priori rounding bounds: the golden value and the largest right error.

A `Bounded` is a value in float64 with an absolute error bound; each function
below propagates both through one stage.  Inputs that the candidate returned
have error 0, so that a fault does not spread; inputs that it did not return
have the bound of their own computation.

The model of the arithmetic (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., sections 2.2 and 3.1), with u = 2^-24:

* one float32 operation:  fl(a op b) = (a op b)(1 + d), |d| <= u;
* n of them in any order of summation: relative error gamma_n = n u / (1 - n u)
  of the sum of magnitudes;
* a result below the smallest normal number may be flushed to zero, which
  loses at most that number, 2^-126, for each operation;
* one rounding to storage moves a value by half the spacing of its binade, or
  by half the spacing of the subnormal numbers.  float16 has these where float32
  is normal; flushing them counts as an error.

The golden itself is computed in float64: its own error, gamma_n with
u = 2^-53, is added.  No constant here is tuned.

If a value is certain to overflow, it is an infinity with a finite bound: every
right kernel has it.  If a value, or a partial sum in some order, may overflow,
the bound is infinite: nothing is known of the element.

The worst case is very rare.  So each `Bounded` also has a variance, by the
probabilistic model (Higham and Mary, A New Approach to Probabilistic Rounding
Error Analysis, SIAM J. Sci. Comput. 41, 2019, Model 2.1; on data, Sharper
Probabilistic Backward Error Analysis, the same 42, 2020): rounding errors are
independent and of mean zero.  We also assume that each is uniform within half a
spacing to either side.  A float32 operation with result s then has the variance
(u s)^2 / 3 at most, and errors add up as variances, to first order.  Such a sum
is sub-Gaussian with this variance, so `spread` can limit it.

A sum's variance comes from its partial sums, so it depends on their order.
`sum_variance` covers ascending sums, from the data, and sums in random order;
blocked, interleaved and pairwise sums have smaller variances.

In storage narrower than float32, the variance is not of the error but of the
distance of two right kernels with different orders: they differ if a rounding
edge lies between their float32 values.  For a spacing s and a distance d before
rounding, this has the probability |d| / s, so rounding preserves the mean of
|d| and adds s |d| to the mean of d^2.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import NamedTuple

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

# Roundings of z / (1 + exp(-z)) beside those of its exp: of the sum, and of the
# quotient (or reciprocal and product).
_BESIDE_EXP = 3
# The parts of two operands exceed them by at most this share.
_TWO_PARTS = 2.0**-6
# Variance of one float32 rounding, relative to the square of its result.
_VARIANCE = _U**2 / 3
# The number of prefixes of a long sum, and the terms between two of them.
_PREFIXES, _PREFIX_TERMS = 8, 256
# Elements of weights that are converted at once, and the size from which no
# float64 copy of the weights is stored.
_PANEL, _LARGE = 1 << 15, 1 << 20
# |d silu(z) / dz| <= 1.0999 (its maximum, at z = 2.3994).
_SILU_SLOPE = 1.1


@dataclasses.dataclass(frozen=True)
class Bounded:
  """A value, and a bound on the error of a right kernel.

  Attributes:
    value: `[...]` float64.
    error: `[...]` float64, not negative; None is zero everywhere.
    variance: `[...]` float64 of the error, or in narrow storage of the distance
      of two right kernels; None is zero everywhere.
    apart: `[...]` float64, mean of that distance, if it is less than the root
      of the variance; None is the root.
    crossings: `[...]` float64, for float32 computed from narrower numbers: the
      mean number of these that two right kernels store differently.  In
      float32 storage the variance is then that of all others.  None is zero
      everywhere.
    unlike: `[...]` float64, in narrow storage: the probability that two right
      kernels store this element differently; before it is stored, the mean
      number of its own roundings that differ.  A float32 result of it has these
      among its crossings.  None is zero everywhere.
  """

  value: np.ndarray
  error: np.ndarray | None = None
  variance: np.ndarray | None = None
  apart: np.ndarray | None = None
  crossings: np.ndarray | None = None
  unlike: np.ndarray | None = None

  def __getitem__(self, index) -> 'Bounded':
    return self._map(lambda array: array[index])

  @property
  def T(self) -> 'Bounded':
    return self._map(np.transpose)

  def contiguous(self) -> 'Bounded':
    """Returns a copy in C order."""
    return self._map(np.ascontiguousarray)

  def reshape(self, *shape: int) -> 'Bounded':
    return self._map(lambda array: array.reshape(*shape))

  def among(self, mask: np.ndarray) -> 'Bounded':
    """Returns `[n, ...]`: these rows where `mask` `[n]`, else zeros."""

    def spread(array: np.ndarray) -> np.ndarray:
      full = np.zeros((len(mask), *array.shape[1:]), array.dtype)
      full[mask] = array
      return full

    return self if mask.all() else self._map(spread)

  def _map(self, change) -> 'Bounded':
    return Bounded(*(a if a is None else change(a) for a in self.arrays()))

  def arrays(self) -> tuple[np.ndarray | None, ...]:
    return (
      *(self.value, self.error, self.variance),
      *(self.apart, self.crossings, self.unlike),
    )

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
  """Returns parts joined along the first axis."""
  return _concatenate(parts, 0)


def beside(*parts: Bounded) -> Bounded:
  """Returns parts joined along the last axis."""
  return _concatenate(parts, -1)


def _concatenate(parts: Sequence[Bounded], axis: int) -> Bounded:
  if any(part.apart is not None for part in parts):
    parts = [dataclasses.replace(part, apart=part.distance()) for part in parts]
  joined_arrays = []
  for arrays in zip(*(part.arrays() for part in parts)):
    columns = [
      np.zeros_like(part.value) if a is None else a
      for a, part in zip(arrays, parts)
    ]
    has_values = any(a is not None for a in arrays)
    joined_arrays.append(np.concatenate(columns, axis) if has_values else None)
  return Bounded(*joined_arrays)


def exact(values: np.ndarray, max_error: np.ndarray | None = None) -> Bounded:
  """Returns stored values `[...]` with an error of at most `max_error`."""
  error = None if max_error is None else max_error.astype(np.float64)
  return Bounded(values.astype(np.float64), error)


def gamma(roundings: float, u: float = _U) -> float:
  """Returns the relative error bound of that many roundings.

  Raises:
    ValueError: there are so many roundings that no digit is left.
  """
  if roundings * u >= 1:
    raise ValueError(
      f'roundings: expected fewer than {1 / u:.0f}, got {roundings}'
    )
  return roundings * u / (1 - roundings * u)


def silu_roundings(policy: precision.PrecisionPolicy) -> float:
  """Returns the roundings of silu, or of a sigmoid; a unit is at most 2u."""
  return 2 * policy.activation_ulp


def sigmoid_error(policy: precision.PrecisionPolicy) -> float:
  """Returns the absolute error of a sigmoid, beside its relative error."""
  return policy.sigmoid_ulp * 2 * _U


def exp_roundings(policy: precision.PrecisionPolicy) -> float:
  """Returns the part of `silu_roundings` that may all have one sign."""
  return max(silu_roundings(policy) - _BESIDE_EXP, 0.0)


def _exp_variance(policy: precision.PrecisionPolicy) -> float:
  """Returns the square of that error: all of it counts as variance."""
  return (exp_roundings(policy) * _U) ** 2


def drift(policy: precision.PrecisionPolicy) -> float:
  """Returns the relative error of activations that may all have one sign.

  The absolute error of a sigmoid, or of the CDF of a GELU, counts twice: z s
  exceeds z s^2 by a factor of 2 at most, if half of the gates are negative.
  """
  if policy.activation in ('geglu', 'geglu_tanh'):
    return 2 * curves.share_error(policy)
  if policy.activation not in ('swiglu', 'glu'):
    return 0.0
  drift_of_exp = 2 * exp_roundings(policy) * _U + 2 * sigmoid_error(policy)
  # Likewise z^2 s c on z^2 s^2, by less.
  return drift_of_exp + 2 * _U * (policy.alpha != 1)


def is_narrow(policy: precision.PrecisionPolicy) -> bool:
  """Says whether storage is narrower than the accumulation dtype."""
  return policy.storage != policy.accumulate


def kernels(policy: precision.PrecisionPolicy) -> int:
  """Returns 2 if the variance is of two kernels' distance, 1 if of an error."""
  return 2 if is_narrow(policy) or policy.points else 1


def store(
  policy: precision.PrecisionPolicy,
  bounded: Bounded,
  dtype: str | None = None,
  reach: np.ndarray | None = None,
) -> Bounded:
  """Returns a value with its error and variance after storing.

  In `dtype`; None: the policy's storage.  `reach` is the sum of magnitudes.
  """
  value, error, variance, apart, crossings, unlike = bounded.arrays()
  assert error is not None and variance is not None
  dtype = dtype or policy.storage
  # Sums are float32 already: only a narrower storage rounds once more.
  if dtype != policy.accumulate:
    half = ulp.half_spacing(np.abs(value) + error, dtype)
    apart = np.sqrt(variance) if apart is None else apart
    error, variance = error + half, variance + 2 * half * apart
    chance = apart / (2 * half)
    crossings, unlike = _stored_crossing(policy, crossings, chance)
  else:
    crossings, unlike = _add_counts(crossings, unlike), None
  stored_value, error = _overflowed(dtype, value, error)
  if reach is not None and not reach.max(initial=0.0) < _LARGEST:
    # If terms of both signs overflow, the sum is NaN.
    against = (reach - np.abs(value)) / 2
    sure = (reach < _LARGEST) | (np.isinf(stored_value) & (against < _LARGEST))
    error = np.where(sure, error, np.inf)
  return Bounded(stored_value, error, variance, apart, crossings, unlike)


def _stored_crossing(
  policy: precision.PrecisionPolicy,
  crossings: np.ndarray | None,
  chance: np.ndarray,
) -> tuple[np.ndarray | None, np.ndarray | None]:
  """Returns `crossings` and `unlike` after storing.

  Two kernels differ by `chance`, which in narrow storage includes all earlier
  crossings.  Elsewhere an element with one may also be stored differently.
  """
  if is_narrow(policy):
    return None, np.minimum(chance, 1)
  if crossings is None:
    return None, None
  return np.minimum(crossings + chance, 1), None


def round_at(
  policy: precision.PrecisionPolicy, point: str, bounded: Bounded
) -> Bounded:
  """Returns a value after a rounding point of the policy."""
  return rounded(policy, policy.rounding(point), bounded)


def rounded(
  policy: precision.PrecisionPolicy, dtype: str | None, bounded: Bounded
) -> Bounded:
  """Returns a value that a stage rounds to `dtype`; None: it does not round.

  A kernel's value lies in an interval before rounding, and between the rounded
  ends of that interval after it.
  """
  if dtype is None:
    return bounded
  value, bound = ulp.rounded(bounded.value, dtype), bounded.bound()
  with np.errstate(invalid='ignore'):
    ends = [
      np.abs(ulp.rounded(bounded.value + end, dtype) - value)
      for end in (bound, -bound)
    ]
  error = np.where(np.isinf(value), bound, np.maximum(*ends))
  if bounded.variance is None:
    return Bounded(value, error)
  variance, chance = _across(policy, dtype, bounded.value, bounded.distance())
  if is_narrow(policy):
    variance, apart = bounded.variance + variance, bounded.distance()
    unlike = _add_counts(bounded.unlike, chance)
    return Bounded(value, error, variance, apart, bounded.crossings, unlike)
  # Kernels with no edge between them have the same number.
  return Bounded(
    value, error, variance, None, _add_counts(bounded.crossings, chance)
  )


def _across(
  policy: precision.PrecisionPolicy,
  dtype: str,
  value: np.ndarray,
  apart: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the effect of rounding edges between two right kernels.

  The variance that they add, and the probability of a crossing.  In float32,
  edges are rarely crossed and add no variance: but an element whose error
  exceeds the spacing, such as one that underflows, moves by that error instead.
  """
  spacing = 2 * ulp.half_spacing(np.abs(value), dtype)
  if is_narrow(policy):
    return spacing * apart, np.minimum(apart / spacing, 1)
  is_noise = apart >= spacing
  variance = np.where(is_noise, np.square(apart + spacing), 0.0)
  return variance, np.where(is_noise, 0.0, apart / spacing)


def _sort_chance(
  policy: precision.PrecisionPolicy, chance: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
  """Returns `chance` as `crossings` and `unlike` of a value not yet stored."""
  return (None, chance) if is_narrow(policy) else (chance, None)


def _add_counts(*crossings: np.ndarray | None) -> np.ndarray | None:
  counts = [count for count in crossings if count is not None]
  return functools.reduce(np.add, counts) if counts else None


def factors(
  policy: precision.PrecisionPolicy, weights: np.ndarray
) -> np.ndarray:
  """Returns routing weights `[...]` float64, as they multiply."""
  return round_at(policy, 'routing_weight', exact(weights)).value


def _often_rounded(
  policy: precision.PrecisionPolicy,
  point: str,
  times: int,
  reach: np.ndarray,
  apart: Callable[[], np.ndarray],
) -> tuple[np.ndarray | float, np.ndarray | float, tuple]:
  """Returns error, variance and `_sort_chance` of an often rounded sum.

  It is rounded `times` times.
  `reach` `[...]` is the sum of magnitudes, which limits all partial sums; if it
  overflows, the error is infinite.  `apart()` `[...]` is the distance of two
  right kernels before, which round in the same order.
  """
  dtype = policy.rounding(point)
  if dtype is None or not times:
    return 0.0, 0.0, (None, None)
  u, row = ulp.unit_roundoff(dtype), storage.ROUNDED[dtype]
  error = gamma(times, u) * reach + times * row.smallest
  error = np.where(reach * (1 + gamma(times, u)) < row.largest, error, np.inf)
  variance, chance = _across(policy, dtype, reach, apart())
  return error, times * variance, _sort_chance(policy, times * chance)


def _overflowed(
  dtype: str, value: np.ndarray, error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a value and its bound, infinite where `dtype` overflows."""
  largest = storage.FORMATS[dtype].largest
  size = np.abs(value)
  if (size + error).max(initial=0.0) < largest:
    return value, error
  certain = size - error > largest * (1 + ulp.unit_roundoff(dtype))
  unsure = ~(size + error < largest) & ~certain & np.isfinite(value)
  value = np.where(certain, np.copysign(np.inf, value), value)
  return value, np.where(certain, 0.0, np.where(unsure, np.inf, error))


def _finite(value: np.ndarray) -> np.ndarray:
  """Returns magnitudes `[...]`, 0 where the value is not finite."""
  size = np.abs(value)
  if size.max(initial=0.0) < np.inf:
    return size
  return np.where(np.isfinite(value), size, 0.0)


def sum_variance(
  policy: precision.PrecisionPolicy, terms: int, block: int | None = None
) -> tuple[float, float]:
  """Returns the variance of a sum, as factors of total^2 and sum of terms^2.

  With n terms a and total g, the j-th partial sum in random order has the mean
  j g / n and about the variance (j / n) (1 - j / n) sum a^2: the squares of all
  n partial sums add up to n (g^2 / 3 + sum a^2 / 6).  In ascending order, with
  prefixes known every `block` terms, the same holds between two prefixes; the
  squares of the prefixes themselves count in full, that of the last one, g, by
  half.  Every product is rounded once more.
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

  The sums are multiplied by `weight` `[n]`, if any, and stored in `dtype`;
  None: in the policy's storage.

  |c - g| <= sum e|w| + gamma_x sum (|x| + e)|w| + 2 x tiny, in any order: each
  of the x products passes its own rounding and at most x - 1 roundings of sums;
  x products and x - 1 sums may be flushed, and so may each operand.  Weights
  with an error f add (1 + gamma_x) sum (|x| + e) f.  Emulated products are
  several products per pair of operands, without the smallest.  For codes, a
  scale multiplies each weight, whose product may be rounded, or sums of terms:
  this adds two roundings, and the scales of rows add two more.
  """
  if not isinstance(weights, Weights):
    weights = Weights.prepare(policy, weights)
  rows = round_at(policy, 'operands', rows)
  depth = len(weights.value)
  block = max(_PREFIX_TERMS, -(-depth // _PREFIXES))
  value, prefixes = _prefix_sums(rows.value, weights.value, block)
  model = _model_gemm(policy, depth, block)
  own = model.of_terms * np.square(rows.value)
  size = _finite(rows.value)
  sums = _GemmSums.compute(policy, rows, weights, size, own)
  flush = _TINY * (2 * depth + size.sum(1, keepdims=True) + sums.total)
  flush = model.products * flush
  of_sum = model.of_total * np.square(value) + np.square(flush)
  if prefixes is not None:
    of_sum += kernels(policy) * _VARIANCE * block * prefixes
  scale, reach = model.relative_error(depth), sums.reach
  error = scale * reach + flush
  if sums.error is not None:
    error += (1 + scale) * sums.error
  if weights.source.error is not None:
    # Weights that are no float32: `sizes` rounded them.
    magnitudes = np.abs(rows.value) + rows.bound()
    weight_term = magnitudes @ weights.source.error
    error = (error + (1 + scale) * weight_term) * (1 + gamma(2))
  rounding_error, of_blocks, (crossings, unlike) = _often_rounded(
    policy,
    'accumulator',
    -(-depth // precision.BLOCK_INNER),
    reach,
    lambda: np.sqrt(of_sum + sums.own_variance),
  )
  error, of_sum = error + (1 + scale) * rounding_error, of_sum + of_blocks
  variance, apart = _propagate_gemm(policy, rows, weights, sums, of_sum)
  crossings = _sum_crossings(policy, rows, weights, dtype, crossings)
  bounded = Bounded(value, error, variance, apart, crossings, unlike)
  return _stored_sums(policy, weight, bounded, reach, dtype)


@dataclasses.dataclass(frozen=True)
class _GemmSums:
  """Rows times magnitudes of weights, or times their squares, each `[n, y]`.

  Attributes:
    reach: of magnitudes of rows, at least; it limits all partial sums.
    total: `[1, y]`, magnitudes of weights alone, at least.
    error: of the errors of rows, at least; None: rows are exact.
    own_variance: that of the terms' own roundings.
    variance: `own_variance` and that of rows; None: rows have none.
    distance: of the distances of rows; None where `variance` is, or unused.
  """

  reach: np.ndarray
  total: np.ndarray
  error: np.ndarray | None
  own_variance: np.ndarray
  variance: np.ndarray | None
  distance: np.ndarray | None

  @classmethod
  def compute(
    cls,
    policy: precision.PrecisionPolicy,
    rows: Bounded,
    weights: 'Weights',
    size: np.ndarray,
    own: np.ndarray,
  ) -> '_GemmSums':
    """Returns the sums of rows `[n, x]` of magnitudes `size`.

    `own` `[n, x]` is the variance of terms over the square of their weight.
    Each matrix of weights is read once for all its sums.
    """
    variance = distance = None
    if rows.variance is not None:
      variance = own + rows.variance
      if is_narrow(policy):
        distance = rows.distance()
    unit_row = np.ones((1, size.shape[1]))
    reach, total, error, distance_sums = weights.sizes.multiply(
      size, unit_row, rows.error, distance
    )
    own_variance, variances = weights.squares.multiply(own, variance)
    assert reach is not None and total is not None and own_variance is not None
    return cls(
      reach.at_most(),
      total.at_most(),
      None if error is None else error.at_most(),
      own_variance.roughly(),
      None if variances is None else variances.roughly(),
      None if distance_sums is None else distance_sums.roughly(),
    )


class _GemmModel(NamedTuple):
  """The roundings of a GEMM.

  Attributes:
    scalings: roundings of a product or sum by scales.
    products: products of each pair of operands.
    left_out: relative error of the products left out.
    of_total, of_terms: the variance of a sum, see `sum_variance`.
  """

  scalings: int
  products: int
  left_out: float
  of_total: float
  of_terms: float

  def relative_error(self, depth: int) -> float:
    """Returns the error of a sum of `depth` terms, over its magnitudes."""
    scale = gamma(self.products * depth + 2 * self.scalings)
    scale += gamma(depth, _U64)
    # Parts may have either sign: products left out count, and all others.
    return scale * (1 + _TWO_PARTS * (self.products > 1)) + self.left_out


def _model_gemm(
  policy: precision.PrecisionPolicy, depth: int, block: int
) -> _GemmModel:
  """Returns the roundings of a GEMM with prefixes every `block` terms."""
  of_total, of_terms = sum_variance(policy, depth, min(block, depth))
  scalings = int(bool(policy.rows or policy.x_form))
  scalings += recipes.count_operands(policy.operand_forms)
  if policy.quantised:
    # The scale of the group, and the scale of the matrix if the form has one.
    form = quantised_lib.FORMS[policy.quantised]
    scalings += 1 + ('tensor_scales' in form.parts)
  of_total, of_terms = (
    factor + scalings * kernels(policy) * _VARIANCE
    for factor in (of_total, of_terms)
  )
  products, left_out = 1, 0.0
  if policy.emulated is not None:
    products, left_out = len(policy.emulated.pairs), policy.emulated.error
    # Small products may be added after all others.
    of_total += (products - 1) * depth * kernels(policy) * _VARIANCE
    of_terms += kernels(policy) * left_out**2
  return _GemmModel(scalings, products, left_out, of_total, of_terms)


def _propagate_gemm(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  weights: 'Weights',
  sums: _GemmSums,
  of_sum: np.ndarray,
) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns variance and mean distance `[n, y]` of a GEMM's sums.

  `of_sum` `[n, y]` is the variance of the partial sums.
  """
  source = weights.source
  if rows.variance is None and source.variance is None:
    return of_sum + sums.own_variance, None
  terms = sums.own_variance if sums.variance is None else sums.variance
  variance = of_sum + terms
  if source.variance is not None:
    variance += np.square(rows.value) @ source.variance
  if not is_narrow(policy):
    return variance, None
  # Many errors add up as variances do, a few as distances.
  few = np.sqrt(of_sum + sums.own_variance)
  if sums.distance is not None:
    few += sums.distance
  if source.variance is not None:
    few += np.abs(rows.value) @ source.distance()
  return variance, np.minimum(np.sqrt(variance), few)


def _sum_crossings(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  weights: 'Weights',
  dtype: str | None,
  crossings: np.ndarray | None,
) -> np.ndarray | None:
  """Returns `crossings` with those of rows and weights, `[n, y]` or None."""
  if rows.variance is None and weights.source.variance is None:
    return crossings
  shape = len(rows.value), weights.value.shape[1]
  by_row = _crossed_by(policy, rows, dtype)
  if by_row is not None:
    sums = by_row.sum(-1, keepdims=True)
    crossings = _add_counts(crossings, np.broadcast_to(sums, shape))
  by_column = weights.source.crossings
  if by_column is None:
    by_column = _crossed_by(policy, weights.source, dtype)
  if by_column is not None:
    sums = by_column.sum(0)
    crossings = _add_counts(crossings, np.broadcast_to(sums, shape))
  return crossings


def _stored_sums(
  policy: precision.PrecisionPolicy,
  weight: np.ndarray | None,
  sums: Bounded,
  reach: np.ndarray,
  dtype: str | None,
) -> Bounded:
  """Returns sums `[n, y]` after weighting by `weight` `[n]` and storing."""
  if weight is not None:
    size = np.abs(factors(policy, weight))[:, None]
    sums, reach = _scaled(policy, sums, weight), reach * size
  return store(policy, sums, dtype, reach)


def _scaled(
  policy: precision.PrecisionPolicy, rows: Bounded, weight: np.ndarray
) -> Bounded:
  """Returns `[n, D]`, rows `[n, D]` times routing weights `[n]`: 1 rounding."""
  weight = factors(policy, weight)[:, None]
  value, input_error = rows.value * weight, rows.bound() * np.abs(weight)
  scale = gamma(1 + policy.weight_ulp) + gamma(1, _U64)
  flush = _TINY * (1 + np.abs(weight))
  error = input_error + scale * (np.abs(value) + input_error) + flush
  own = kernels(policy) * _VARIANCE * np.square(_finite(value))
  own += np.square(flush)
  variance, apart = own, None
  if rows.variance is not None:
    variance = own + rows.variance * np.square(weight)
    apart = np.sqrt(own) + rows.distance() * np.abs(weight)
  return Bounded(value, error, variance, apart, rows.crossings, rows.unlike)


def _prefix_sums(
  rows: np.ndarray, weights: np.ndarray, block: int
) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns rows times weights, and the sum of squares of its prefixes.

  Prefixes end every `block` terms; the second is None if there is one block.
  Narrow weights are widened block by block.
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
    sums = self.sums * (1 + gamma(self.depth + 3))
    sums += 4 * self.depth * _TINY
    sums *= self.unit
    sums *= self.column_scale
    if not self.unit.max(initial=0.0) < np.inf:
      sums[~np.isfinite(self.unit[:, 0])] = np.inf
    return sums


@dataclasses.dataclass(frozen=True)
class _Sizes:
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
  """

  size: np.ndarray
  row_scale: np.ndarray
  column_scale: np.ndarray
  power: int = 1
  is_stored: bool = False

  @classmethod
  def with_squares(cls, weights: np.ndarray) -> tuple['_Sizes', '_Sizes']:
    """Returns magnitudes of stored weights `[x, y]`, and their squares."""
    if weights.size >= _LARGE and products.suits(weights):
      scales = products.measure(weights)
      if scales is not None:
        return (
          cls(weights, *scales, power=1, is_stored=True),
          cls(weights, *scales, power=2, is_stored=True),
        )
    return cls._scale(weights)

  @classmethod
  def _scale(cls, weights: np.ndarray) -> tuple['_Sizes', '_Sizes']:
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
    scales = row_scale, column_scale
    return cls(size, *scales), cls(squares, *scales, power=2)

  def multiply(self, *groups: np.ndarray | None) -> list[_SizeSums | None]:
    """Returns each group of rows `[n, x]` times these; None for None."""
    narrow_groups = [g if g is None else self._narrow(g) for g in groups]
    rows = [group[0] for group in narrow_groups if group is not None]
    if self.is_stored:
      # As one matrix, so that the weights are read once.
      products_of_rows = np.split(
        products.multiply_magnitudes(
          np.concatenate(rows),
          self.size,
          self.row_scale,
          self.column_scale,
          self.power == 2,
        ),
        np.cumsum([len(r) for r in rows])[:-1],
      )
    else:
      with np.errstate(invalid='ignore'):
        products_of_rows = [r @ self.size for r in rows]
    left, column_scale = iter(products_of_rows), self.column_scale**self.power
    return [
      None
      if group is None
      else _SizeSums(
        next(left).astype(np.float64), group[1], column_scale, len(self.size)
      )
      for group in narrow_groups
    ]

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


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights `[x, y]`, prepared for several multiplications.

  Attributes:
    source: the weights, as stored if they have no error.
    value: float64, or as stored if there are many.
    sizes: their magnitudes.
    squares: their squares.
  """

  source: Bounded
  value: np.ndarray
  sizes: _Sizes
  squares: _Sizes

  @classmethod
  def prepare(
    cls, policy: precision.PrecisionPolicy, weights: np.ndarray | Bounded
  ) -> 'Weights':
    """Returns weights `[x, y]`, as a GEMM of the policy multiplies them."""
    weights = weights if isinstance(weights, Bounded) else Bounded(weights)
    if policy.rounding('operands') is not None:
      wide = weights.value.astype(np.float64)
      weights = round_at(
        policy, 'operands', dataclasses.replace(weights, value=wide)
      )
    sizes, squares = _Sizes.with_squares(weights.value)
    value = weights.value
    if value.size < _LARGE:
      value = value.astype(np.float64)
    return cls(weights, value, sizes, squares)


def activation(
  policy: precision.PrecisionPolicy,
  gate_up: Bounded,
  row_weight: np.ndarray | None,
  dtype: str | None = None,
) -> Bounded:
  """Returns `[n, F]` of gate and up `[n, 2F]`, times `row_weight` `[n]`.

  'absolute': |gate| * up, 1 rounding.  'swiglu': silu(gate), with the policy's
  error, times up; others as in `curves`.  exp(-gate) may overflow and
  1 / (1 + exp(-gate)) may be flushed: both lose at most tiny * |gate|.  alpha
  times gate has the error of `_argument`, a clamp increases no error, and
  up + offset adds one rounding.  The result is stored in `dtype`; None: in the
  policy's storage.
  """
  crossings = _crossed_by(policy, gate_up, dtype)
  gate_up = dataclasses.replace(gate_up, crossings=crossings, unlike=None)
  return store(policy, _activation(policy, gate_up, row_weight), dtype)


def _activation(policy, gate_up, row_weight) -> Bounded:
  """Returns `[n, F]` before it is rounded to storage."""
  gate, up, _ = _gated(policy, gate_up)
  silu = round_at(policy, 'silu', _act(policy, gate))
  product = round_at(policy, 'product', _product(policy, silu, up))
  return product if row_weight is None else _scaled(policy, product, row_weight)


def _product(policy, act: Bounded, up: Bounded) -> Bounded:
  """Returns `[n, F]`: 1 rounding, and another for up + offset."""
  value = act.value * up.value
  up_size = np.abs(up.value) + up.bound()
  input_error = np.abs(act.value) * up.bound() + act.bound() * up_size
  roundings = 1 + (policy.offset != 0)
  scale = gamma(roundings) + gamma(roundings, _U64)
  error = input_error + scale * (np.abs(value) + input_error) + _TINY
  own = _few_roundings(policy, value, roundings, _TINY)
  statistics = _propagate(own, (act, up.value), (up, act.value))
  return Bounded(value, error, *statistics)


def _few_roundings(
  policy, value: np.ndarray, roundings: float, flush: np.ndarray | float
) -> np.ndarray:
  """Returns the variance of a value after some roundings.

  `flush`, the error of flushing, counts in full.
  """
  variance = kernels(policy) * roundings * _VARIANCE
  return variance * np.square(value) + np.square(flush)


def _propagate(own: np.ndarray, *sources: tuple[Bounded, np.ndarray]):
  """Returns variance, mean distance, `crossings` and `unlike` of a result.

  Variance and distance: its `own`, and those of its sources times factors.
  """
  crossings = _add_counts(*(source.crossings for source, _ in sources))
  unlike = _add_counts(*(source.unlike for source, _ in sources))
  random_sources = [
    (source, f) for source, f in sources if source.variance is not None
  ]
  if not random_sources:
    return own, None, crossings, unlike
  variance, apart = own, np.sqrt(own)
  for source, factor in random_sources:
    variance = variance + np.square(factor) * source.variance
    apart = apart + np.abs(factor) * source.distance()
  return variance, apart, crossings, unlike


def _gated(
  policy: precision.PrecisionPolicy, gate_up: Bounded
) -> tuple[Bounded, Bounded, tuple[np.ndarray, np.ndarray] | None]:
  """Returns gate and up `[n, F]` of `[n, 2F]`, clamped, with the offset.

  The third result is None without a limit, or two masks `[n, 2F]`: elements
  that certainly or possibly pass their clamps, and elements where this is
  unsure.  An element that is certainly clamped has no error.
  """
  half = gate_up.value.shape[-1] // 2
  gate, up = gate_up[..., :half], gate_up[..., half:]
  clamps = None
  limit, offset = _number(policy, policy.limit), _number(policy, policy.offset)
  if limit:
    size = np.concatenate([gate.value, np.abs(up.value)], axis=-1)
    bound = gate_up.bound()
    passes = size - bound <= limit
    clamps = passes, passes & (size + bound > limit)
    gate = _clamped(gate, np.minimum(gate.value, limit), passes[..., :half])
    up = _clamped(up, np.clip(up.value, -limit, limit), passes[..., half:])
  if offset:
    up = dataclasses.replace(up, value=up.value + offset)
  return gate, up, clamps


def _clamped(
  operand: Bounded, value: np.ndarray, passes: np.ndarray
) -> Bounded:
  clamped = operand._map(lambda array: np.where(passes, array, 0.0))
  return dataclasses.replace(clamped, value=value)


def _number(policy: precision.PrecisionPolicy, number: float) -> float:
  """Returns a number of the policy, rounded to the accumulation dtype."""
  return float(np.dtype(policy.accumulate).type(number))


def _argument(
  policy: precision.PrecisionPolicy, gate: Bounded
) -> tuple[float, np.ndarray, np.ndarray | None]:
  """Returns alpha, z = alpha gate, and the error of a kernel's z, or None.

  Two roundings: of the product, and of a constant that includes alpha, such as
  alpha * log2(e).  An error d of z changes sigmoid(z) by the relative error
  expm1((1 - s) d e^d).  Beyond 2^20 the sigmoid is 0 or 1 in every kernel, so d
  is limited to 1.
  """
  alpha = _number(policy, policy.alpha)
  if alpha == 1:
    return alpha, gate.value, None
  z = alpha * gate.value
  argument_error = np.minimum(2 * _U * (np.abs(z) + alpha * gate.bound()), 1.0)
  return alpha, z, argument_error * np.exp(argument_error)


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

  The result is stored in `dtype`; None: in the policy's storage.  For rows that
  the stage itself reads again, see `weighted_operand`.
  """
  return store(policy, _scaled(policy, rows, weight), dtype)


def weighted_operand(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  weight: np.ndarray,
  dtype: str,
) -> Bounded:
  """Returns `[n, D]`, rows `[n, D]` times weights `[n]`, rounded to `dtype`."""
  narrow = dtype if dtype != policy.accumulate else None
  return rounded(policy, narrow, _scaled(policy, rows, weight))


def weight_grad(
  policy: precision.PrecisionPolicy,
  rows: Bounded,
  d_out: Bounded,
  dtype: str | None = None,
) -> Bounded:
  """Returns `[x, y]`, rows `[n, x]`, transposed, times `[n, y]`.

  A GEMM of depth n.  A chain of float32 sums is one of its orders, and zeros
  that pad the last block add no error.
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
  input_error = size_a * b.bound() + a.bound() * (size_b + b.bound())
  error = (input_error + scale * (size_a * size_b + input_error)).sum(-1)
  value = (a.value * b.value).sum(-1)
  of_total, of_terms = sum_variance(policy, depth)
  variance = of_terms * np.square(a.value * b.value)
  crossings = _add_counts(*map(count_crossings, (a, b)))
  crossings = None if crossings is None else crossings.sum(-1)
  if is_narrow(policy) and a.variance is not None:
    # Crossings in storage are too rare to count as a variance in float32.
    a = exact(a.value)
  for operand, other in ((a, b), (b, a)):
    if operand.variance is not None:
      variance = variance + operand.variance * np.square(other.value)
  variance = variance.sum(-1) + of_total * np.square(value)
  flush = 2 * depth * _TINY
  value, error = _overflowed('float32', value, error + flush)
  return Bounded(value, error, variance + flush**2, crossings=crossings)


def count_crossings(source: Bounded) -> np.ndarray | None:
  """Returns the mean number `[...]` of stored differences behind a value."""
  return source.unlike if source.crossings is None else source.crossings


def _crossed_by(
  policy: precision.PrecisionPolicy, source: Bounded, dtype: str | None
) -> np.ndarray | None:
  """Returns `count_crossings` of the source of a result in float32."""
  is_stored = (dtype or policy.storage) != policy.accumulate
  return None if is_stored else count_crossings(source)


def share_of_operands(policy: precision.PrecisionPolicy, depth: int) -> float:
  """Returns the largest share of a sum's variance from rounding its operands.

  The rest comes from the sum itself, of `depth` terms.
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
  placement 'epilogue', `gate_up` is the stored activation `[n, F]` instead.
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
  if dots.crossings is None or not drift(policy):
    return dots
  # Each element is judged alone: its variance includes a common error of exp.
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
  """Returns `[n, 2F]` of d_activation `[n, F]`, times `row_weight` `[n]`.

  gate and up are `[n, 2F]`.  With g the weighted d_activation, d_gate is
  g * up * act'(gate) and d_up is g * act(gate): two products, in any order.
  The result is stored in `dtype`; None: in the policy's storage.
  """
  gate, up, clamps = _gated(policy, gate_up)
  weight = np.ones((len(gate.value), 1))
  if row_weight is not None:
    weight = factors(policy, row_weight)[:, None]
  slope, act = (
    _slope(policy, gate),
    round_at(policy, 'silu', _act(policy, gate)),
  )
  unit = Bounded(np.ones((1, 1)))
  if policy.rounding('d_silu') is None:
    d_gate = _times(policy, weight, d_activation, slope, up)
  else:
    d_silu = _times(policy, weight, d_activation, unit, up)
    d_gate = _product(policy, round_at(policy, 'd_silu', d_silu), slope)
  d_up = _times(policy, weight, d_activation, act, unit)
  return store(policy, _through(beside(d_gate, d_up), clamps), dtype)


def _through(grad: Bounded, clamps: tuple[np.ndarray, ...] | None) -> Bounded:
  """Returns a gradient `[n, 2F]` after clamps, see `_gated`.

  The slope of a clamped element is 0, at the limit itself 1.  If it is unsure
  whether an element is clamped, both are right.
  """
  if clamps is None:
    return grad
  passes, unsure = clamps
  grad = grad._map(lambda array: np.where(passes, array, 0.0))
  if not unsure.any():
    return grad
  ambiguity = np.where(unsure, np.abs(grad.value), 0.0)
  assert grad.variance is not None
  return dataclasses.replace(
    grad,
    error=grad.bound() + ambiguity,
    variance=grad.variance + np.square(ambiguity),
    apart=None,
  )


def _times(policy, weight, grad: Bounded, act: Bounded, up: Bounded) -> Bounded:
  """Returns `[n, F]`, weight * grad * act * up, before it is stored.

  3 roundings in any order, and one of up + offset.  Each result may be flushed,
  and is multiplied by the remaining factors: 3 tiny times the product of
  1 + |factor|.
  """
  before, before_error = weight * grad.value, np.abs(weight) * grad.bound()
  up_size = np.abs(up.value) + up.bound()
  right = act.value * up.value
  right_error = act.bound() * up_size + np.abs(act.value) * up.bound()
  value = before * right
  input_error = np.abs(before) * right_error + before_error * (
    np.abs(right) + right_error
  )
  roundings = 3 + (policy.offset != 0)
  scale = gamma(roundings) + gamma(roundings, _U64)
  flush = 3 * _TINY * (1 + np.abs(weight)) * (1 + up_size)
  for factor in (grad, act):
    flush = flush * (1 + np.abs(factor.value) + factor.bound())
  error = input_error + scale * (np.abs(value) + input_error) + flush
  own = _few_roundings(policy, value, roundings, flush)
  sources = (grad, weight * right), (act, before * up.value)
  statistics = _propagate(own, *sources, (up, before * act.value))
  return Bounded(value, error, *statistics)


def _act(policy, gate: Bounded) -> Bounded:
  """Returns act(gate) as computed in float32."""
  z, e = gate.value, gate.bound()
  if policy.activation == 'absolute':
    return dataclasses.replace(gate, value=np.abs(z))
  if policy.activation in curves.CURVES:
    return _curved_act(policy, gate)
  alpha, z, argument_error = _argument(policy, gate)
  s = _sigmoid(z)
  value, input_error = gate.value * s, _SILU_SLOPE * e
  roundings = silu_roundings(policy)
  scale = gamma(roundings) + gamma(roundings, _U64)
  absolute_error = sigmoid_error(policy) * (np.abs(gate.value) + e)
  if argument_error is not None:
    absolute_error = absolute_error + np.abs(value) * np.expm1(
      (1 - s) * argument_error
    )
    absolute_error = absolute_error + _SILU_SLOPE * argument_error * e
  flush = _TINY * (np.abs(gate.value) + e + 1)
  error = (
    input_error + scale * (np.abs(value) + input_error) + absolute_error + flush
  )
  own = _few_roundings(policy, value, roundings, flush)
  of_exp = _exp_variance(policy) * np.square(value) + np.square(absolute_error)
  own = own + kernels(policy) * of_exp
  bend = s + alpha * value * (1 - s)
  return Bounded(value, error, *_propagate(own, (gate, bend)))


def _slope(policy, gate: Bounded) -> Bounded:
  """Returns act'(gate) as computed in float32.

  silu'(z) = s (1 + z c) with z = alpha gate, s = sigmoid(z), c = 1 - s, has a
  zero, so no relative bound holds.  Usual formulas, and the magnitudes of their
  terms before the last sum cancels them:

  * s (1 + z c): s (1 + |z|), even if c was computed as 1 - s with an absolute
    rounding error of 1;
  * s + silu(z) c: the same;
  * silu(z) + s (1 - silu(z)): s (1 + 2 |z|).

  No term has more roundings than silu(z) c with c = exp(-z) s: two sigmoids, an
  exp, two products and the sum.  s, silu and c may each be flushed, and have
  factors of at most 1 + 2 |z|; so may the result.  The absolute error of s and
  c, and |z| times that of silu, counts 1 + 3 |z| times.

  An error e of the gate moves silu' by e / 2 at most, as |silu''| <= 1/2, and
  those terms by less than 3 e.
  """
  z, e = gate.value, gate.bound()
  if policy.activation == 'absolute':
    return Bounded(np.sign(z), np.where(np.abs(z) <= e, 2.0 * (e > 0), 0.0))
  if policy.activation in curves.CURVES:
    return _curved_slope(policy, gate)
  alpha, z, argument_error = _argument(policy, gate)
  e = alpha * e
  s, c = _sigmoid(z), _sigmoid(-z)
  roundings = 2 * silu_roundings(policy) + exp_roundings(policy) + 3
  scale = gamma(roundings) + gamma(roundings, _U64)
  terms = s * (1 + 2 * np.abs(z))
  flush = 4 * _TINY * (1 + 2 * (np.abs(z) + e))
  absolute_error = sigmoid_error(policy) * (1 + 3 * (np.abs(z) + e))
  if argument_error is not None:
    # The slope of this is s c (2 + z (c - s)), and s c is at most e^-|z|; the
    # error of z is below 1, or s c is 0.
    absolute_error = absolute_error + argument_error * (
      np.e * s * c * (2 + np.abs(z)) + e
    )
  error = e / 2 + scale * (terms + 3 * e) + absolute_error + flush
  # An exp in both sigmoids, and the terms that cancel.
  variance = roundings * _VARIANCE + 4 * _exp_variance(policy)
  variance = variance * np.square(terms) + np.square(absolute_error)
  variance = kernels(policy) * variance + np.square(flush)
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
  return Bounded(value, error, *_propagate(own, (gate, curve.slope(z))))


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
  slot_rows: Bounded,
  topk_weights: np.ndarray | None,
  lasts: Sequence[Bounded] = (),
) -> Bounded:
  """Returns `[t, D]`, the sum of `[t, K, D]` over its K slots, as a GEMM.

  Weights are `[t, K]`; None: they are 1.  `lasts`, `[t, D]` each, are added to
  the sum.  See `CombineSums`.
  """
  tokens, slots, columns = slot_rows.value.shape
  sums = CombineSums.zeros(policy, stage, slots, tokens, columns)
  for slot in range(slots):
    weight = None if topk_weights is None else topk_weights[:, slot]
    sums.add(np.arange(tokens), slot_rows[:, slot], weight)
  return sums.total(*lasts)


@dataclasses.dataclass(frozen=True)
class CombineSums:
  """Partial sums of a combine: rows may be added in any order.

  Attributes:
    policy: precision.
    stage: y or dx.
    slots: rows of a token.
    value: `[t, D]` float64, sum of weight times value.
    error: `[t, D]` float64, sum of |weight| times error bound.
    magnitude: `[t, D]` float64, sum of |weight| times |value|.
    squares: `[t, D]` float64, sum of (weight times value)^2.
    variance: `[t, D]` float64, sum of weight^2 times variance.
    apart: `[t, D]` float64, sum of |weight| times mean distance; narrow only.
    crossings: `[t, D]` float64, their sum; None: rows of the policy have none.
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
  crossings: np.ndarray | None = None

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
    # Of narrow rows, a sum that is stored narrower counts them anew.
    in_float32 = policy.dtype(stage) == policy.accumulate
    has_crossings = in_float32 if is_narrow(policy) else policy.points
    crossings = np.zeros((tokens, columns)) if has_crossings else None
    combine_sums = cls(policy, stage, slots, *sums)
    return dataclasses.replace(combine_sums, crossings=crossings)

  def __getitem__(self, index) -> 'CombineSums':
    parts = {name: array[index] for name, array in self.arrays().items()}
    return dataclasses.replace(self, **parts)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns the sums by name, `crossings` unless it is None."""
    names = [field.name for field in dataclasses.fields(self)[3:]]
    sums = {name: getattr(self, name) for name in names}
    return {name: array for name, array in sums.items() if array is not None}

  def add(
    self, token: np.ndarray, row: Bounded, weight: np.ndarray | None
  ) -> None:
    """Adds rows `[n, D]` times weights `[n]` to n different tokens `[n]`."""
    size: np.ndarray | float = 1.0
    if weight is not None and self.policy.rounding('weighted') is not None:
      row = round_at(self.policy, 'weighted', _scaled(self.policy, row, weight))
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
    crossings = count_crossings(row)
    if crossings is not None and self.crossings is not None:
      self.crossings[token] += crossings

  def total(self, *lasts: Bounded) -> Bounded:
    """Returns the sums `[t, D]` as stored, with `lasts` `[t, D]` added.

    Each is one more row, in any order: but if the policy rounds the sum of all
    others before, that is the first row.
    """
    routed_point = precision.ROUTED_SUMS[self.stage]
    if not lasts:
      return self._store_sum(self._sum_of_rows())
    tokens, columns = self.value.shape
    if self.policy.rounding(routed_point) is None:
      copies = {name: array.copy() for name, array in self.arrays().items()}
      slots = self.slots + len(lasts)
      sums = dataclasses.replace(self, slots=slots, **copies)
      for last in lasts:
        sums.add(np.arange(tokens), last, None)
      return sums.total()
    routed_sum = round_at(self.policy, routed_point, self._sum_of_rows())
    terms = (routed_sum, *lasts)
    sums = CombineSums.zeros(
      self.policy, self.stage, len(terms), tokens, columns
    )
    for term in terms:
      sums.add(np.arange(tokens), term, None)
    return sums._store_sum(sums._add_up())

  def _sum_of_rows(self) -> Bounded:
    # Routing weights that the kernel computes have roundings of their own.
    is_weighted = self.stage == 'y' and self.policy.placement == 'combine'
    own_weights = self.policy.weight_ulp if is_weighted else 0.0
    return self._add_up(own_weights, precision.RUNNING_SUMS[self.stage])

  def _store_sum(self, total: Bounded) -> Bounded:
    dtype = self.policy.dtype(self.stage)
    return store(self.policy, total, dtype, self.magnitude)

  def _add_up(self, own_weights: float = 0.0, point: str = '') -> Bounded:
    """Returns the sums before storing.

    Weights have an error of `own_weights` units roundoff, and each partial sum
    is rounded at `point`; '': at none.
    """
    scale = gamma(self.slots + own_weights) + gamma(self.slots, _U64)
    reach = self.magnitude + self.error
    error = self.error + scale * reach
    of_total, of_terms = sum_variance(self.policy, self.slots)
    own = of_total * np.square(self.value) + of_terms * self.squares
    own += np.square(own_weights * _U * _finite(self.magnitude))
    own += (self.slots * _TINY) ** 2
    rounding_error, of_rounding, (crossings, unlike) = _often_rounded(
      self.policy,
      point,
      self.slots,
      reach,
      lambda: np.sqrt(own + self.variance),
    )
    error, own = error + (1 + scale) * rounding_error, own + of_rounding
    crossings = _add_counts(self.crossings, crossings)
    variance = own + self.variance
    apart = None
    if is_narrow(self.policy):
      apart = np.minimum(np.sqrt(variance), self.apart + np.sqrt(own))
    error += self.slots * _TINY
    return Bounded(self.value, error, variance, apart, crossings, unlike)
