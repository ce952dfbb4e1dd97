"""Golden rows that a GEMM quantises as they come: codes times scales.

What is rounded to a code, x / s, may be off as far as x and the largest of its
group are, and by the roundings of s and of itself.  So a code may be the next
one where an edge lies as near; and a scale that is a power of two another one
where its own edge does.  All other codes are those of every right kernel.
"""

from collections.abc import Iterator

import numpy as np

from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.quantised import quantise

# Of a scale (or its reciprocal, or both), of x / s, and of x itself.
_OF_SCALES = 4 * ulp.unit_roundoff('float32')
_TINY = ulp.smallest_normal('float32')


def of(
  policy: precision.PrecisionPolicy, rows: bounds.Bounded
) -> bounds.Bounded:
  """Returns rows `[n, x]` as a GEMM of the policy multiplies them."""
  if not policy.rows:
    return rows
  form = quantised.FORMS[policy.rows]
  off = rows.bound() + _OF_SCALES * np.abs(rows.value)
  largest = np.maximum(_of_groups(form, np.abs(rows.value)), form.least)
  rest = _of_groups(form, off) / np.maximum(largest, _TINY)
  off += rest * np.abs(rows.value)
  made = _quantised(form, rows.value)
  codes = np.asarray(quantise.dequantise(form, made, dtype='float64'))
  jump = np.zeros_like(codes)
  for scales in _scales(form, rows.value, made, rest):
    for end in (off, -off):
      other = _rounded(form, (rows.value + end) / scales) * scales
      jump = np.maximum(jump, np.abs(other - codes))
  # A power of two is right or another one.
  near = 0 if form.rule in quantised.POWERS else rest * np.abs(codes)
  return _spread(policy, form, rows, codes, jump, jump + near)


def _spread(policy, form, rows, codes, jump, error) -> bounds.Bounded:
  """Returns codes with the distance of two right kernels' beside the error."""
  if rows.variance is None:
    return bounds.Bounded(codes, error, np.square(jump), jump)
  apart = rows.distance()
  if not bounds.is_narrow(policy):
    # Few codes differ, and these by far more than anything else does.
    variance = rows.variance + np.square(jump)
    return bounds.Bounded(codes, error, variance, apart + jump, rows.crossed)
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
