"""Rounding bounds of a sub-layer's norm and of its gradients.

The model is that of `rounding`.  A row's factor is s = 1 / sqrt(v), with
v = sum(y^2) / D + epsilon.  The sum has the relative error gamma_D, and twice
sum |y| e for an error e of y; v has two more roundings.  A relative error p of
v gives s the relative error (1 - p)^(-1/2) - 1.  A root and a reciprocal may
each have an error of one unit in the last place, 2 u.  The products and
differences on each path from an input to a result add their roundings, for any
formula that multiplies by s at most three times.

All columns of a row share the error of s, so each has its variance.
"""

import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.reference.contract import precision

_U64 = ulp.unit_roundoff('float64')
_TINY = ulp.smallest_normal('float32')
_LARGEST = float(np.finfo(np.float32).max)
_U = ulp.unit_roundoff('float32')
# Roundings of a root and a reciprocal, each of one unit in the last place.
_OF_ROOT = 4
# Roundings of a path through the gradient beside its dot product and factors:
# h, s * s, their product, the quotient, y times it, the difference, and s.
_OF_GRADIENT = 8


@dataclasses.dataclass(frozen=True)
class _Scale:
  """Factors of rows `[t, 1]`: value, relative error, relative variance."""

  value: np.ndarray
  relative_error: np.ndarray
  variance: np.ndarray


def norm(
  policy: precision.PrecisionPolicy,
  y: bounded_values.Bounded,
  gain: np.ndarray,
  dtype: str,
) -> bounded_values.Bounded:
  """Returns `[t, D]` x of rows y `[t, D]` and a gain `[D]`."""
  scale, gain = _scale(policy, y), gain.astype(np.float64)
  value = y.value * scale.value * gain
  return _store(
    policy,
    value,
    _grow_error(scale.relative_error, 1, 2) * np.abs(value)
    + (1 + _grow_error(scale.relative_error, 1, 2))
    * y.bound()
    * scale.value
    * np.abs(gain),
    (scale.variance + 2 * _operation_variance(policy)) * np.square(value)
    + _variance(y) * np.square(scale.value * gain),
    dtype,
  )


def norm_grad(
  policy: precision.PrecisionPolicy,
  dx: bounded_values.Bounded,
  y: bounded_values.Bounded,
  gain: np.ndarray,
  dtype: str,
) -> bounded_values.Bounded:
  """Returns `[t, D]` dy of dx and y `[t, D]` and a gain `[D]`."""
  scale, gain = _scale(policy, y), gain.astype(np.float64)
  width, s = y.value.shape[-1], scale.value
  h, h_off = dx.value * gain, dx.bound() * np.abs(gain)
  if policy.activation == 'absolute':
    error = h_off + rounding.gamma(1) * (np.abs(h) + h_off)
    variance = _variance(dx) * np.square(gain) + _operation_variance(
      policy
    ) * np.square(h)
    return _store(policy, h, error, variance, dtype)
  size, reach = np.abs(y.value), np.abs(h * y.value)
  dot = (h * y.value).sum(-1, keepdims=True)
  dot_off = h_off * (size + y.bound()) + np.abs(h) * y.bound()
  dot_off = dot_off.sum(-1, keepdims=True)
  total = reach.sum(-1, keepdims=True) + dot_off
  dot_off += (rounding.gamma(width + 1) + rounding.gamma(width, _U64)) * total
  dot_off += 2 * width * _TINY
  per = np.square(s) / width
  along = dot * per
  factor_error = _grow_error(scale.relative_error, 3, _OF_GRADIENT)
  error = factor_error * (np.abs(h) + size * np.abs(along))
  error += (1 + factor_error) * (
    h_off
    + (size + y.bound()) * dot_off * per
    + y.bound() * (np.abs(along) + dot_off * per)
  )
  value = (h - y.value * along) * s
  of_total, of_terms = rounding.sum_variance(policy, width)
  of_dot = of_total * np.square(dot) + (
    of_terms * np.square(reach)
    + _variance(dx) * np.square(gain * y.value)
    + _variance(y) * np.square(h)
  ).sum(-1, keepdims=True)
  path = 9 * scale.variance + _OF_GRADIENT * _operation_variance(policy)
  variance = path * (np.square(h) + np.square(y.value * along))
  variance += np.square(y.value * per) * of_dot
  variance += _variance(dx) * np.square(gain) + _variance(y) * np.square(along)
  return _store(policy, value, error * s, variance * np.square(s), dtype)


def gain_grad(
  policy: precision.PrecisionPolicy,
  dx: bounded_values.Bounded,
  y: bounded_values.Bounded,
) -> bounded_values.Bounded:
  """Returns `[1, D]` d_w_norm: the sum over rows of dx and y `[t, D]`."""
  tokens, crossings = len(y.value), None
  if rounding.is_narrow(policy) and dx.variance is not None:
    # Crossings are too rare for a variance in float32; a crossing of y moves
    # its whole row.
    crossings = np.zeros_like(dx.value)
    if (by_element := rounding.count_crossings(dx)) is not None:
      crossings += by_element
    if (by_row := rounding.count_crossings(y)) is not None:
      crossings += by_row.sum(-1, keepdims=True)
    crossings = crossings.sum(0, keepdims=True)
    dx, y = (dataclasses.replace(operand, variance=None) for operand in (dx, y))
  scale = _scale(policy, y)
  s = scale.value
  terms = dx.value * y.value * s
  size = np.abs(terms)
  factor_error = (1 + scale.relative_error) * (
    1 + rounding.gamma(tokens + 2)
  ) - 1
  relative_error = (dx.bound() * (np.abs(y.value) + y.bound())) * s
  relative_error += np.abs(dx.value) * y.bound() * s
  error = factor_error * size + (1 + factor_error) * relative_error + 3 * _TINY
  of_total, of_terms = rounding.sum_variance(policy, tokens)
  value = terms.sum(0, keepdims=True)
  variance = (
    (of_terms + scale.variance + 2 * _operation_variance(policy))
    * np.square(terms)
    + _variance(dx) * np.square(y.value * s)
    + _variance(y) * np.square(dx.value * s)
  ).sum(0, keepdims=True) + of_total * np.square(value)
  error = error.sum(0, keepdims=True)
  bounded = _store(policy, value, error, variance, 'float32')
  return dataclasses.replace(bounded, crossings=crossings)


def _scale(
  policy: precision.PrecisionPolicy, y: bounded_values.Bounded
) -> _Scale:
  unit = np.ones((len(y.value), 1))
  if policy.activation == 'absolute':
    return _Scale(unit, 0 * unit, 0 * unit)
  width = y.value.shape[-1]
  squares = np.square(y.value).sum(-1, keepdims=True)
  input_error = (y.bound() * (2 * np.abs(y.value) + y.bound())).sum(
    -1, keepdims=True
  )
  epsilon = float(np.float32(policy.epsilon))
  v = squares / width + epsilon
  largest = squares + input_error
  relative_error = (
    rounding.gamma(width + 2) * largest + input_error
  ) / width + 2 * _TINY
  relative_error += rounding.gamma(1) * epsilon
  share = relative_error / v
  sure = (share < 1) & (largest * (1 + rounding.gamma(width)) < _LARGEST)
  share = np.where(sure, share, 0.0)
  rooted = (1 - share) ** -0.5 * (1 + rounding.gamma(_OF_ROOT)) - 1
  relative_error = np.where(sure, rooted + rounding.gamma(width, _U64), np.inf)
  of_total, of_terms = rounding.sum_variance(policy, width)
  of_sum = of_total * np.square(squares) + (
    of_terms * np.square(np.square(y.value))
    + _variance(y) * np.square(2 * y.value)
  ).sum(-1, keepdims=True)
  variance = of_sum / np.square(
    width * v
  ) / 4 + 2 * _OF_ROOT * _operation_variance(policy)
  return _Scale(1 / np.sqrt(v), relative_error, variance)


def _grow_error(
  relative_error: np.ndarray, factors: int, roundings: int
) -> np.ndarray:
  """Returns the relative error of a product of factors with roundings."""
  return (1 + relative_error) ** factors * (1 + rounding.gamma(roundings)) - 1


def _operation_variance(policy: precision.PrecisionPolicy) -> float:
  """Returns the relative variance of one float32 operation."""
  return rounding.kernels(policy) * _U**2 / 3


def _variance(bounded: bounded_values.Bounded) -> np.ndarray | float:
  return 0.0 if bounded.variance is None else bounded.variance


def _store(
  policy: precision.PrecisionPolicy,
  value: np.ndarray,
  error: np.ndarray,
  variance: np.ndarray,
  dtype: str,
) -> bounded_values.Bounded:
  """Returns the stored result, which each step may flush."""
  error = error + 4 * _TINY + 4 * _U64 * np.abs(value)
  return rounding.store(
    policy, bounded_values.Bounded(value, error, variance), dtype
  )
