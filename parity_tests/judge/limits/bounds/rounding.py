"""The model of rounding: errors, variances, and what storage does to both.

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

from collections.abc import Callable
import functools

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage

U = ulp.unit_roundoff('float32')
U64 = ulp.unit_roundoff('float64')
TINY = ulp.smallest_normal('float32')
_LARGEST = float(np.finfo(np.float32).max)
# Variance of one float32 rounding, relative to the square of its result.
VARIANCE = U**2 / 3


def gamma(roundings: float, u: float = U) -> float:
  """Returns the relative error bound of that many roundings.

  Raises:
    ValueError: there are so many roundings that no digit is left.
  """
  if roundings * u >= 1:
    raise ValueError(
      f'roundings: expected fewer than {1 / u:.0f}, got {roundings}'
    )
  return roundings * u / (1 - roundings * u)


def is_narrow(policy: precision.PrecisionPolicy) -> bool:
  """Says whether storage is narrower than the accumulation dtype."""
  return policy.storage != policy.accumulate


def kernels(policy: precision.PrecisionPolicy) -> int:
  """Returns 2 if the variance is of two kernels' distance, 1 if of an error."""
  return 2 if is_narrow(policy) or policy.points else 1


def store(
  policy: precision.PrecisionPolicy,
  bounded: bounded_values.Bounded,
  dtype: str | None = None,
  reach: np.ndarray | None = None,
) -> bounded_values.Bounded:
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
    crossings, unlike = add_counts(crossings, unlike), None
  stored_value, error = overflow(dtype, value, error)
  if reach is not None and not reach.max(initial=0.0) < _LARGEST:
    # If terms of both signs overflow, the sum is NaN.
    against = (reach - np.abs(value)) / 2
    sure = (reach < _LARGEST) | (np.isinf(stored_value) & (against < _LARGEST))
    error = np.where(sure, error, np.inf)
  return bounded_values.Bounded(
    stored_value, error, variance, apart, crossings, unlike
  )


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
  policy: precision.PrecisionPolicy, point: str, bounded: bounded_values.Bounded
) -> bounded_values.Bounded:
  """Returns a value after a rounding point of the policy."""
  return rounded(policy, policy.rounding(point), bounded)


def rounded(
  policy: precision.PrecisionPolicy,
  dtype: str | None,
  bounded: bounded_values.Bounded,
) -> bounded_values.Bounded:
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
    return bounded_values.Bounded(value, error)
  variance, chance = _across(policy, dtype, bounded.value, bounded.distance())
  if is_narrow(policy):
    variance, apart = bounded.variance + variance, bounded.distance()
    unlike = add_counts(bounded.unlike, chance)
    return bounded_values.Bounded(
      value, error, variance, apart, bounded.crossings, unlike
    )
  # Kernels with no edge between them have the same number.
  return bounded_values.Bounded(
    value, error, variance, None, add_counts(bounded.crossings, chance)
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


def add_counts(*crossings: np.ndarray | None) -> np.ndarray | None:
  counts = [count for count in crossings if count is not None]
  return functools.reduce(np.add, counts) if counts else None


def round_partial_sums(
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


def overflow(
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


def finite_magnitudes(value: np.ndarray) -> np.ndarray:
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
  scale = kernels(policy) * VARIANCE
  return scale * of_total, scale * of_terms


def rounding_variance(
  policy, value: np.ndarray, roundings: float, flush: np.ndarray | float
) -> np.ndarray:
  """Returns the variance of a value after some roundings.

  `flush`, the error of flushing, counts in full.
  """
  variance = kernels(policy) * roundings * VARIANCE
  return variance * np.square(value) + np.square(flush)


def propagate(
  own: np.ndarray, *sources: tuple[bounded_values.Bounded, np.ndarray]
):
  """Returns variance, mean distance, `crossings` and `unlike` of a result.

  Variance and distance: its `own`, and those of its sources times factors.
  """
  crossings = add_counts(*(source.crossings for source, _ in sources))
  unlike = add_counts(*(source.unlike for source, _ in sources))
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


def multiply(
  policy: precision.PrecisionPolicy,
  a: bounded_values.Bounded,
  b: bounded_values.Bounded,
  of_b: int = 0,
) -> bounded_values.Bounded:
  """Returns a times b `[...]`: 1 rounding, and `of_b` of b before."""
  value, size_b = a.value * b.value, np.abs(b.value) + b.bound()
  input_error = np.abs(a.value) * b.bound() + a.bound() * size_b
  scale = gamma(1 + of_b) + gamma(1 + of_b, U64)
  error = input_error + scale * (np.abs(value) + input_error) + TINY
  own = rounding_variance(policy, value, 1 + of_b, TINY)
  statistics = propagate(own, (a, b.value), (b, a.value))
  return bounded_values.Bounded(value, error, *statistics)


def count_crossings(source: bounded_values.Bounded) -> np.ndarray | None:
  """Returns the mean number `[...]` of stored differences behind a value."""
  return source.unlike if source.crossings is None else source.crossings


def count_crossings_into(
  policy: precision.PrecisionPolicy,
  source: bounded_values.Bounded,
  dtype: str | None,
) -> np.ndarray | None:
  """Returns `count_crossings` of the source of a result in float32."""
  is_stored = (dtype or policy.storage) != policy.accumulate
  return None if is_stored else count_crossings(source)
