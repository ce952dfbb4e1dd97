"""Golden rows that a GEMM quantises as they come: codes times scales.

What is rounded to a code, x / s, may be off as far as x and the largest of its
group are, and by the roundings of s and of itself.  So a code may be the next
one where an edge lies as near; and a scale that is a power of two another one
where its own edge does.  All other codes are those of every right kernel.

How far x is off is bounded in the worst case, for the error; the variance takes
what x strays by at most: an error with variance V is sub-Gaussian, and none of
2^31 values is more than REACH deviations off, but once in 10^9 runs.  A code
that no such error moves is the same for all, and has no variance.  One that may
move is off by its step at most, so it is sub-Gaussian with that step for a
deviation (Hoeffding).
"""

from collections.abc import Iterator
import math

import numpy as np

from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.quantised import quantise

# Of a scale (or its reciprocal, or both), of x / s, and of x itself.
_OF_SCALES = 4 * ulp.unit_roundoff('float32')
_TINY = ulp.smallest_normal('float32')
# P(|error| > r sqrt(V)) <= 2 exp(-r^2 / 2), of so many values, so seldom.
REACH = math.sqrt(2 * math.log(2 * 2.0**31 / 1e-9))


def of(
  policy: precision.PrecisionPolicy, rows: bounds.Bounded
) -> bounds.Bounded:
  """Returns rows `[n, x]` as a GEMM of the policy multiplies them."""
  if not policy.rows:
    return rows
  form = quantised.FORMS[policy.rows]
  codes = _quantised(form, rows.value)
  values = np.asarray(quantise.dequantise(form, codes, dtype='float64'))
  jump, rest = _find_jumps(form, rows.value, values, codes, rows.bound())
  # A power of two is right or another one.
  near = 0 if form.rule in quantised.POWERS else rest * np.abs(values)
  if rows.variance is None or bounds.is_narrow(policy):
    return _spread(policy, form, rows, values, jump, jump + near)
  deviation = np.sqrt(rows.variance)
  strays = np.minimum(rows.bound(), REACH * deviation)
  step, _ = _find_jumps(form, rows.value, values, codes, strays)
  by_scale = _relative(form, rows.value, deviation) * np.abs(values)
  variance = np.square(step) + np.square(by_scale)
  return bounds.Bounded(
    values, jump + near, variance, step + by_scale, rows.crossed
  )


def _relative(
  form: quantised.Form, values: np.ndarray, error: np.ndarray
) -> np.ndarray:
  """Returns `[n, x]`, the error of a group over its largest magnitude."""
  largest = np.maximum(_of_groups(form, np.abs(values)), form.least)
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
  off = error + _OF_SCALES * np.abs(values)
  rest = _relative(form, values, off)
  off = off + rest * np.abs(values)
  jump = np.zeros_like(dequantised)
  for scales in _scales(form, values, codes, rest):
    for end in (off, -off):
      other = _rounded(form, (values + end) / scales) * scales
      jump = np.maximum(jump, np.abs(other - dequantised))
  return jump, rest


def _spread(policy, form, rows, codes, jump, error) -> bounds.Bounded:
  """Returns codes with the distance of two right kernels' beside the error."""
  if rows.variance is None:
    return bounds.Bounded(codes, error, np.square(jump), jump)
  apart = rows.distance()
  (scale,) = _scales(form, rows.value, _quantised(form, rows.value))
  element = quantised.ELEMENTS[form.element]
  exponent = np.frexp(np.abs(codes) / scale)[1] - 1
  exponent = np.maximum(exponent, element.min_exponent) - (element.digits - 1)
  step = np.ldexp(scale, exponent)
  # Another scale moves every code of its group by half a step at most.
  variance = rows.variance + step * apart + np.square(step) / 6
  return bounds.Bounded(codes, error, variance, apart + step / 3)


def _quantised(form: quantised.Form, values: np.ndarray) -> quantise.Quantised:
  return quantise.quantise(form, values.astype(np.float32))


def _scales(
  form: quantised.Form,
  values: np.ndarray,
  made: quantise.Quantised,
  rest: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
  """Yields scales `[n, x]` that right kernels may have, none of them 0.

  `rest` `[n, x]` is how far the largest of a group may be off, of itself.
  """
  all_made = [made]
  if rest is not None and form.rule in quantised.POWERS:
    all_made += [_quantised(form, values * (1 + s * rest)) for s in (1, -1)]
  for one in all_made:
    scales = np.asarray(one.scales).astype(np.float64)
    scales = np.where(scales == 0, 1.0, scales)
    yield np.asarray(quantise.spread(form, scales, values.shape))


def _of_groups(form: quantised.Form, values: np.ndarray) -> np.ndarray:
  """Returns the largest of each element's group, `[n, x]`."""
  depth = values.shape[1]
  starts = np.arange(0, depth, form.group[1] or depth)
  largest = np.maximum.reduceat(values, starts, 1)
  return np.asarray(quantise.spread(form, largest, values.shape))


def _rounded(form: quantised.Form, scaled: np.ndarray) -> np.ndarray:
  """Returns codes `[n, x]` float64 of values over their scales."""
  element = quantised.ELEMENTS[form.element]
  found = np.asarray(scaled, np.float32)
  for name, how in form.rounding:
    found = np.asarray(quantise.rounded(quantised.ELEMENTS[name], how, found))
  return np.clip(found, element.lowest, element.highest).astype(np.float64)
