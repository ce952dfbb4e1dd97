"""Rounding bounds of a sub-layer's norm and of its gradients.

The model is that of `bounds`.  A row's factor is s = 1 / sqrt(v), with
v = sum(y^2) / D + epsilon.  The sum errs by gamma_D of itself, and twice
sum |y| e for an error e of y; v by two roundings more; and where v may be off
by the share p of itself, s may by (1 - p)^(-1/2) - 1.  A root and a reciprocal
are let be a unit in the last place off, which is 2 u each.  After that each
path from an input to a result passes products and differences, whose roundings
are counted, of any formula that multiplies by s at most three times.

All columns of a row share what s is off: its variance is part of each.
"""

import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import precision

_U64 = ulp.unit_roundoff('float64')
_TINY = ulp.smallest_normal('float32')
_LARGEST = float(np.finfo(np.float32).max)
_U = ulp.unit_roundoff('float32')
# Of a root and a reciprocal, each a unit in the last place off.
_OF_ROOT = 4
# Of a path through the gradient beside its dot and its factors: h, s * s, their
# product, the quotient, y times it, the difference, and s.
_OF_GRADIENT = 8


@dataclasses.dataclass(frozen=True)
class _Scale:
  """Factors of rows `[t, 1]`: value, relative error, relative variance."""

  value: np.ndarray
  off: np.ndarray
  variance: np.ndarray


def norm(
  policy: precision.PrecisionPolicy,
  y: bounds.Bounded,
  gain: np.ndarray,
  dtype: str,
) -> bounds.Bounded:
  """Returns `[t, D]` x of rows y `[t, D]` and a gain `[D]`."""
  scale, gain = _scale(policy, y), gain.astype(np.float64)
  value = y.value * scale.value * gain
  return _stored(
    policy,
    value,
    _grown(scale.off, 1, 2) * np.abs(value)
    + (1 + _grown(scale.off, 1, 2)) * y.bound() * scale.value * np.abs(gain),
    (scale.variance + 2 * _one(policy)) * np.square(value)
    + _variance(y) * np.square(scale.value * gain),
    dtype,
  )


def norm_grad(
  policy: precision.PrecisionPolicy,
  dx: bounds.Bounded,
  y: bounds.Bounded,
  gain: np.ndarray,
  dtype: str,
) -> bounds.Bounded:
  """Returns `[t, D]` dy of dx and y `[t, D]` and a gain `[D]`."""
  scale, gain = _scale(policy, y), gain.astype(np.float64)
  width, s = y.value.shape[-1], scale.value
  h, h_off = dx.value * gain, dx.bound() * np.abs(gain)
  if policy.activation == 'absolute':
    error = h_off + bounds.gamma(1) * (np.abs(h) + h_off)
    variance = _variance(dx) * np.square(gain) + _one(policy) * np.square(h)
    return _stored(policy, h, error, variance, dtype)
  size, reach = np.abs(y.value), np.abs(h * y.value)
  dot = (h * y.value).sum(-1, keepdims=True)
  dot_off = h_off * (size + y.bound()) + np.abs(h) * y.bound()
  dot_off = dot_off.sum(-1, keepdims=True)
  total = reach.sum(-1, keepdims=True) + dot_off
  dot_off += (bounds.gamma(width + 1) + bounds.gamma(width, _U64)) * total
  dot_off += 2 * width * _TINY
  per = np.square(s) / width
  along = dot * per
  grown = _grown(scale.off, 3, _OF_GRADIENT)
  error = grown * (np.abs(h) + size * np.abs(along))
  error += (1 + grown) * (
    h_off
    + (size + y.bound()) * dot_off * per
    + y.bound() * (np.abs(along) + dot_off * per)
  )
  value = (h - y.value * along) * s
  of_total, of_terms = bounds.sum_variance(policy, width)
  of_dot = of_total * np.square(dot) + (
    of_terms * np.square(reach)
    + _variance(dx) * np.square(gain * y.value)
    + _variance(y) * np.square(h)
  ).sum(-1, keepdims=True)
  path = 9 * scale.variance + _OF_GRADIENT * _one(policy)
  variance = path * (np.square(h) + np.square(y.value * along))
  variance += np.square(y.value * per) * of_dot
  variance += _variance(dx) * np.square(gain) + _variance(y) * np.square(along)
  return _stored(policy, value, error * s, variance * np.square(s), dtype)


def gain_grad(
  policy: precision.PrecisionPolicy, dx: bounds.Bounded, y: bounds.Bounded
) -> bounds.Bounded:
  """Returns `[1, D]` d_w_norm: the sum over rows of dx and y `[t, D]`."""
  tokens, crossed = len(y.value), None
  if bounds.is_narrow(policy) and dx.variance is not None:
    # Too rare for a variance in float32; of y, one that crosses moves its row.
    crossed = bounds.crossing(policy, dx)
    if y.variance is not None:
      crossed = crossed + bounds.crossing(policy, y).sum(-1, keepdims=True)
    crossed = crossed.sum(0, keepdims=True)
    dx, y = (dataclasses.replace(one, variance=None) for one in (dx, y))
  scale = _scale(policy, y)
  s = scale.value
  terms = dx.value * y.value * s
  size = np.abs(terms)
  grown = (1 + scale.off) * (1 + bounds.gamma(tokens + 2)) - 1
  off = (dx.bound() * (np.abs(y.value) + y.bound())) * s
  off += np.abs(dx.value) * y.bound() * s
  error = grown * size + (1 + grown) * off + 3 * _TINY
  of_total, of_terms = bounds.sum_variance(policy, tokens)
  value = terms.sum(0, keepdims=True)
  variance = (
    (of_terms + scale.variance + 2 * _one(policy)) * np.square(terms)
    + _variance(dx) * np.square(y.value * s)
    + _variance(y) * np.square(dx.value * s)
  ).sum(0, keepdims=True) + of_total * np.square(value)
  error = error.sum(0, keepdims=True)
  found = _stored(policy, value, error, variance, 'float32')
  return dataclasses.replace(found, crossed=crossed)


def _scale(policy: precision.PrecisionPolicy, y: bounds.Bounded) -> _Scale:
  ones = np.ones((len(y.value), 1))
  if policy.activation == 'absolute':
    return _Scale(ones, 0 * ones, 0 * ones)
  width = y.value.shape[-1]
  squares = np.square(y.value).sum(-1, keepdims=True)
  carried = (y.bound() * (2 * np.abs(y.value) + y.bound())).sum(
    -1, keepdims=True
  )
  epsilon = float(np.float32(policy.epsilon))
  v = squares / width + epsilon
  most = squares + carried
  off = (bounds.gamma(width + 2) * most + carried) / width + 2 * _TINY
  off += bounds.gamma(1) * epsilon
  share = off / v
  sure = (share < 1) & (most * (1 + bounds.gamma(width)) < _LARGEST)
  share = np.where(sure, share, 0.0)
  rooted = (1 - share) ** -0.5 * (1 + bounds.gamma(_OF_ROOT)) - 1
  off = np.where(sure, rooted + bounds.gamma(width, _U64), np.inf)
  of_total, of_terms = bounds.sum_variance(policy, width)
  of_sum = of_total * np.square(squares) + (
    of_terms * np.square(np.square(y.value))
    + _variance(y) * np.square(2 * y.value)
  ).sum(-1, keepdims=True)
  variance = of_sum / np.square(width * v) / 4 + 2 * _OF_ROOT * _one(policy)
  return _Scale(1 / np.sqrt(v), off, variance)


def _grown(off: np.ndarray, factors: int, roundings: int) -> np.ndarray:
  """Returns the relative error of so many factors and roundings."""
  return (1 + off) ** factors * (1 + bounds.gamma(roundings)) - 1


def _one(policy: precision.PrecisionPolicy) -> float:
  """Returns the relative variance of one float32 operation."""
  return bounds.kernels(policy) * _U**2 / 3


def _variance(of: bounds.Bounded) -> np.ndarray | float:
  return 0.0 if of.variance is None else of.variance


def _stored(
  policy: precision.PrecisionPolicy,
  value: np.ndarray,
  error: np.ndarray,
  variance: np.ndarray,
  dtype: str,
) -> bounds.Bounded:
  """Returns what is stored; a result may be flushed at each step."""
  error = error + 4 * _TINY + 4 * _U64 * np.abs(value)
  return bounds.stored(policy, bounds.Bounded(value, error, variance), dtype)
