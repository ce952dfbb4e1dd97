"""Golden rows that a GEMM quantises on the fly: codes times scales.

The value that is rounded to a code, x / s, has the errors of x, of the largest
value of its group, and of the roundings of s and of the quotient.  So right
kernels may have adjacent codes if a rounding edge lies within that error, and
different scales if these are powers of two and their own edge does.  All other
codes are equal in every right kernel.

The error of x is bounded in the worst case.  For the variance: an error with
variance V is sub-Gaussian, and none of 2^31 values exceeds REACH standard
deviations except once in 10^9 runs.  A code that no such error moves is the
same in all kernels and has no variance.  A code that may move has an error of
at most one step, so it is sub-Gaussian with that step as its standard deviation
(Hoeffding).

Codes and scales that a candidate returns are judged one by one with the same
errors, by `bound_codes` and `bound_scales`.  A GEMM is then judged on exactly
these codes, see `read`.
"""

from collections.abc import Iterator
import dataclasses
import math

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import storage
from hpmoe.reference.quantised import quantise

# Roundings of a scale (or its reciprocal, or both), of x / s, and of x itself.
_OF_SCALES = 4 * ulp.unit_roundoff('float32')
_TINY = ulp.smallest_normal('float32')
_LARGEST = float(np.finfo(np.float32).max)
EXPONENT_BIAS = 127
# Float32 roundings of a scale, and of the value of a code whose scale is known.
_SCALE_ROUNDINGS, _CODE_ROUNDINGS = 3, 4
# From P(|error| > r sqrt(V)) <= 2 exp(-r^2 / 2), for 2^31 values and 1e-9.
REACH = math.sqrt(2 * math.log(2 * 2.0**31 / 1e-9))


def quantise_rows(
  policy: precision.PrecisionPolicy,
  rows: bounded_values.Bounded,
  static_scales: np.ndarray | None = None,
) -> bounded_values.Bounded:
  """Returns rows `[n, x]` as a GEMM of the policy multiplies them.

  Args:
    policy: of the GEMM.
    rows: before they are quantised.
    static_scales: `[n, 1]` float64 that are inputs; None: they are computed.
  """
  if not policy.rows:
    return rows
  form = quantised.FORMS[policy.rows]
  if static_scales is None:
    return requantise(policy, form, rows)
  if form.is_static:
    return _quantise_at(policy, form, rows, static_scales)
  return scale_rows(
    requantise(policy, form, scale_rows(rows, 1 / static_scales)),
    static_scales,
  )


def scale_rows(
  rows: bounded_values.Bounded, factors: np.ndarray
) -> bounded_values.Bounded:
  """Returns rows `[n, x]` times factors `[n, 1]` above 0, in float64."""
  error, variance, apart = rows.error, rows.variance, rows.apart
  return dataclasses.replace(
    rows,
    value=rows.value * factors,
    error=None if error is None else error * factors,
    variance=None if variance is None else variance * np.square(factors),
    apart=None if apart is None else apart * factors,
  )


def requantise(
  policy: precision.PrecisionPolicy,
  form: quantised.Form,
  rows: bounded_values.Bounded,
) -> bounded_values.Bounded:
  """Returns rows `[n, x]` as codes and scales of a form mean them.

  The last axis is the depth.  All rows of a group must be there.
  """
  codes = _quantised(form, rows.value)
  values = np.asarray(quantise.dequantise(form, codes, dtype='float64'))
  jump, rest = _find_jumps(form, rows.value, values, codes, rows.bound())
  # A coarse scale is right or another one.
  near = 0 if form.has_coarse_scales else rest * np.abs(values)
  if rows.variance is None or rounding.is_narrow(policy):
    return _spread(policy, form, rows, values, jump, jump + near, codes)
  deviation = np.sqrt(rows.variance)
  strays = np.minimum(rows.bound(), REACH * deviation)
  step, _ = _find_jumps(form, rows.value, values, codes, strays)
  by_scale = _relative(form, rows.value, deviation) * np.abs(values)
  variance = np.square(step) + np.square(by_scale)
  return bounded_values.Bounded(
    values, jump + near, variance, step + by_scale, rows.crossings
  )


def _quantise_at(policy, form, rows, scales) -> bounded_values.Bounded:
  """Returns what `of` does, of scales `[n, 1]` that no error moves."""
  codes = bound_codes(form, bounded_values.Bounded(rows.value), scales).expected
  values = codes * scales

  def find_step(strays: np.ndarray) -> np.ndarray:
    right = bound_codes(
      form, bounded_values.Bounded(rows.value, strays), scales
    )
    return scales * np.maximum(right.high - codes, codes - right.low)

  with np.errstate(invalid='ignore'):
    jump = find_step(rows.bound())
  if rows.variance is None or rounding.is_narrow(policy):
    coded = quantise.Quantised(codes, scales)
    return _spread(policy, form, rows, values, jump, jump, coded)
  strays = np.minimum(rows.bound(), REACH * np.sqrt(rows.variance))
  step = find_step(strays)
  return bounded_values.Bounded(
    values, jump, np.square(step), step, rows.crossings
  )


def _relative(
  form: quantised.Form, values: np.ndarray, error: np.ndarray
) -> np.ndarray:
  """Returns `[n, x]`, the error of a group over its largest magnitude."""
  largest = np.maximum(_of_groups(form, np.abs(values)), form.min_magnitude)
  return _of_groups(form, error) / np.maximum(largest, _TINY)


def _find_jumps(
  form: quantised.Form,
  values: np.ndarray,
  dequantised: np.ndarray,
  codes: quantise.Quantised,
  error: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns how far codes may move, and how far a group's largest may be off.

  Both `[n, x]`, the second of itself.

  Args:
    form: of the codes.
    values: `[n, x]` float64, before they are quantised.
    dequantised: `[n, x]` float64, what the codes of these mean.
    codes: of these.
    error: `[n, x]` float64 that values may be off.
  """
  max_error = error + _OF_SCALES * np.abs(values)
  rest = _relative(form, values, max_error)
  # Dividing by a power of two rounds nothing: a tie is decided.
  is_power = form.rule in quantised.POWERS
  max_error = error if is_power else max_error + rest * np.abs(values)
  jump = np.zeros_like(dequantised)
  for scales in _scales(form, values, codes, rest):
    for end in (max_error, -max_error):
      other = _rounded(form, (values + end) / scales) * scales
      jump = np.maximum(jump, np.abs(other - dequantised))
  return jump, rest


def _spread(
  policy, form, rows, codes, jump, error, coded
) -> bounded_values.Bounded:
  """Returns codes with the distance of two right kernels' beside the error."""
  if rows.variance is None:
    narrow = rounding.is_narrow(policy)
    unlike = (jump > 0).astype(np.float64) if narrow else None
    return bounded_values.Bounded(
      codes, error, np.square(jump), jump, unlike=unlike
    )
  apart = rows.distance()
  (scale,) = _scales(form, rows.value, coded)
  element = quantised.ELEMENTS[form.element]
  exponent = np.frexp(np.abs(codes) / scale)[1] - 1
  exponent = np.maximum(exponent, element.min_exponent) - (element.digits - 1)
  step = np.ldexp(scale, exponent)
  # Another scale moves every code of its group by half a step at most.
  variance = rows.variance + step * apart + np.square(step) / 6
  apart = apart + step / 3
  unlike = np.minimum(apart / step, 1)  # Codes that differ are a step apart.
  return bounded_values.Bounded(codes, error, variance, apart, unlike=unlike)


def _quantised(form: quantised.Form, values: np.ndarray) -> quantise.Quantised:
  return quantise.quantise(form, values.astype(np.float32))


def _scales(
  form: quantised.Form,
  values: np.ndarray,
  quantised_values: quantise.Quantised,
  rest: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
  """Yields scales `[n, x]` that right kernels may have, none of them 0.

  `rest` `[n, x]` is how far the largest of a group may be off, of itself.
  """
  all_made = [quantised_values]
  if rest is not None and form.has_coarse_scales:
    all_made += [_quantised(form, values * (1 + s * rest)) for s in (1, -1)]
  for quantised_value in all_made:
    scales = np.asarray(quantised_value.scales).astype(np.float64)
    scales = np.where(scales == 0, 1.0, scales)
    yield np.asarray(quantise.spread(form, scales, values.shape))


def _of_groups(form: quantised.Form, values: np.ndarray) -> np.ndarray:
  """Returns the largest of each element's group, `[n, x]`."""
  largest = _reduce_groups(form, values)
  return np.asarray(quantise.spread(form, largest, values.shape))


def _rounded(form: quantised.Form, scaled: np.ndarray) -> np.ndarray:
  """Returns codes `[n, x]` float64 of values over their scales."""
  rounded = np.asarray(scaled, np.float32)
  for name, mode in form.rounding:
    rounded = np.asarray(
      quantise.rounded(quantised.ELEMENTS[name], mode, rounded)
    )
  return np.clip(rounded, *form.limits).astype(np.float64)


def read(
  form: quantised.Form,
  codes: np.ndarray,
  scales: np.ndarray,
  static_scales: np.ndarray | None = None,
) -> bounded_values.Bounded:
  """Returns rows `[n, x]` as codes and scales of a candidate's own mean them.

  Args:
    form: of them.
    codes: `[n, x]` as files have them.
    scales: `[n, g]` likewise.
    static_scales: `[n, 1]` that multiply them; None: 1.
  """
  wide, codes = widen_scales(form, scales), unpack(form, codes)
  if static_scales is not None:
    wide = wide * static_scales
  return bounded_values.Bounded(
    codes.astype(np.float64) * quantise.spread(form, wide, codes.shape)
  )


def unpack(form: quantised.Form, codes: np.ndarray) -> np.ndarray:
  """Returns codes `[n, x]` of those that files have, perhaps two in a byte."""
  return quantise.unpack(form, codes) if form.is_packed else codes


def widen_scales(form: quantised.Form, scales: np.ndarray) -> np.ndarray:
  """Returns scales `[n, g]` float64; a byte 255 of an exponent is NaN."""
  if scales.dtype == np.uint8:
    scales = scales.view(quantise.numpy_dtype(form.scale))
  return scales.astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Range:
  """Codes or scales that right kernels may have, each `[n, c]` float64.

  Attributes:
    expected: those of the oracle's quantiser.
    low, high: of right ones; infinite where nothing is known.
  """

  expected: np.ndarray
  low: np.ndarray
  high: np.ndarray

  def refuses(self, actual: np.ndarray) -> np.ndarray:
    """Returns bool `[n, c]`, where `actual` is no right one; NaN never is."""
    has_limit = np.isfinite(self.low) | np.isfinite(self.high)
    return has_limit & ~((self.low <= actual) & (actual <= self.high))


def bound_scales(form: quantised.Form, rows: bounded_values.Bounded) -> Range:
  """Returns the scales `[n, g]` of rows `[n, x]` that may be off as they say.

  The largest magnitude a of a group lies between the largest of |x| - e and of
  |x| + e.  What is a / top takes three float32 roundings at most: of 1 / a, of
  its product with top, and of one over that; then one to the dtype of scales.
  A power of two below a is found by bits, without any.
  """
  strays = _stray(rows)
  size = np.abs(rows.value)
  smallest, largest = (
    np.maximum(
      _reduce_groups(form, np.maximum(size + e, 0)), form.min_magnitude
    )
    for e in (-strays, strays)
  )
  expected = widen_scales(form, _scales_of(form, rows.value))
  error = 0.0 if form.rule == 'floor' else rounding.gamma(_SCALE_ROUNDINGS)
  low, high = (
    _make_scale(form, a * (1 + s * error))
    for a, s in ((smallest, -1), (largest, 1))
  )
  low, high = np.minimum(low, expected), np.maximum(high, expected)
  # A group of zeros, or that a kernel may flush to them, has any scale.
  is_zero = smallest < _TINY
  low = np.where(is_zero, 0.0, low)
  high = np.where(largest == 0, _LARGEST, high)
  high = np.where(is_zero, np.maximum(high, form.of_zeros), high)
  return _forget(Range(expected, low, high), _reduce_groups(form, size))


def bound_codes(
  form: quantised.Form, rows: bounded_values.Bounded, scales: np.ndarray
) -> Range:
  """Returns the codes `[n, x]` of rows `[n, x]` at scales `[n, g]` float64.

  What is rounded to a code, x / s, is off by what x is, and by four float32
  roundings at most: of two of a factor that is 1 / s but for the rounding of s,
  and of the product.  A product with a power of two has none.
  """
  exact = form.rule in quantised.POWERS
  error = 0.0 if exact else rounding.gamma(_CODE_ROUNDINGS)
  if form.rule == 'reciprocal_apart':  # a factor of a scale before it is stored
    error += storage.ROUNDED[form.scale].unit_roundoff
  scale_of_element = quantise.spread(
    form, np.where(scales == 0, 1.0, scales), rows.value.shape
  )
  strays = _stray(rows) + error * np.abs(rows.value)
  with np.errstate(over='ignore', invalid='ignore'):
    expected, low, high = (
      _rounded(form, (rows.value + e) / scale_of_element)
      for e in (np.zeros_like(strays), -strays, strays)
    )
  return _forget(Range(expected, low, high), rows.value)


def _forget(right: Range, values: np.ndarray) -> Range:
  """Returns a range without limits where values `[n, c]` are not finite."""
  unknown = ~np.isfinite(values)
  if not unknown.any():
    return right
  return Range(
    right.expected,
    np.where(unknown, -np.inf, right.low),
    np.where(unknown, np.inf, right.high),
  )


def _stray(rows: bounded_values.Bounded) -> np.ndarray:
  """Returns `[n, x]`, how far values before they are quantised are off.

  In the worst case; where there is a variance, as far as such errors stray, see
  the module.
  """
  error = rows.bound()
  if rows.variance is None or rows.crossings is not None:
    return error
  return np.minimum(error, REACH * np.sqrt(rows.variance))


def _reduce_groups(form: quantised.Form, values: np.ndarray) -> np.ndarray:
  """Returns the largest of each group, `[n, g]`, or `[m, g]` of blocks."""
  for axis, size in enumerate(form.group):
    if size != 1 and values.size:
      starts = np.arange(0, values.shape[axis], size or values.shape[axis])
      values = np.maximum.reduceat(values, starts, axis)
  return values


def _scales_of(form: quantised.Form, values: np.ndarray) -> np.ndarray:
  with np.errstate(over='ignore', invalid='ignore'):
    return np.asarray(_quantised(form, values).scales)


def _make_scale(form: quantised.Form, largest: np.ndarray) -> np.ndarray:
  """Returns the scale `[n, g]` of a largest magnitude, without roundings.

  But for that to the dtype of scales.
  """
  top = form.top[0]
  if form.rule not in quantised.POWERS:
    scale = largest / top
    if form.has_coarse_scales:
      scale = np.minimum(scale, quantised.ELEMENTS[form.scale].highest)
    with np.errstate(over='ignore'):
      scale = scale.astype(quantise.numpy_dtype(form.scale))
    return scale.astype(np.float64)
  if form.rule == 'floor':
    exponent = np.frexp(largest)[1] - math.frexp(top)[1]
  else:
    fraction, exponent = np.frexp(largest / top)
    exponent = exponent - (fraction == 0.5)
  exponent = np.clip(exponent, -EXPONENT_BIAS, EXPONENT_BIAS)
  scale = np.where(largest == 0, form.of_zeros, np.ldexp(1.0, exponent))
  return np.where(np.isfinite(largest), scale, np.inf)
