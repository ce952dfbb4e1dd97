"""Activations of a gate in float64, and what a kernel's float32 may be off.

`activation_bounds` carries errors through them.  Beside 'swiglu' and
'absolute', which it knows itself, each is a `Curve`.  With u = 2^-24:

* a GELU is z times a share p, (1 + erf(z / sqrt 2)) / 2, or with tanh.  erf is
  off by `activation_ulp` units of at most u; its argument by 2 roundings, which
  move it by 2 u z erf'(z) <= 0.97 u; of tanh by 6, which move it by
  6 u z / cosh^2 z <= 2.7 u; and the sum of 1 to 2 by u.  Half of all that is
  what p is off, however small it is.  erfc, and a sigmoid in place of the tanh,
  are off by less.
* its slope is p and a product, z times the density, or z (1 - tanh^2) / 2 times
  the argument's slope.  1 - tanh^2 is off by 2 errors of tanh and 2 roundings,
  whatever its size; beyond |z| = 5.45, where the argument is over 10, tanh is 1
  in float32.
* a sigmoid is off as silu is; 1 - sigmoid by one rounding of 1 beside.
"""

from collections.abc import Callable
import dataclasses
import math

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import precision

_U = ulp.unit_roundoff('float32')
_ERFC = np.frompyfunc(math.erfc, 1, 1)
# tanh(_SCALE (z + _CUBE z^3)); from where on it is 1.
_SCALE, _CUBE = math.sqrt(2 / math.pi), 0.044715
_SATURATED = 5.45
# What roundings of its argument move erf and tanh by, in units roundoff.
_ERF_MOVES, _TANH_MOVES = 0.97, 2.7
# Largest |act'| and |act''| of a GELU, of either kind, and of a sigmoid.
_GELU_STEEPEST, _GELU_BEND = 1.13, 0.81
_SIGMOID_STEEPEST, _SIGMOID_BEND = 0.25, 0.0963

Real = np.ndarray
Function = Callable[[Real], Real]
ErrorOf = Callable[[precision.PrecisionPolicy, Real, Real], Real]


@dataclasses.dataclass(frozen=True)
class Curve:
  """An activation, all of a gate z `[...]` float64.

  Attributes:
    act: act(z).
    slope: act'(z).
    bend: act''(z).
    act_moved: takes z and e `[...]`; the most that act moves if z does by e.
    slope_moved: likewise of the slope.
    act_roundings: of act, beside `act_off`.
    act_off: takes the policy, z and e; what act is off beside, of a kernel
      whose z is off by e.
    slope_roundings: of the slope, beside `slope_off`.
    slope_off: as `act_off`.
  """

  act: Function
  slope: Function
  bend: Function
  act_moved: Callable[[Real, Real], Real]
  slope_moved: Callable[[Real, Real], Real]
  act_roundings: int = 0
  act_off: ErrorOf | None = None
  slope_roundings: int = 0
  slope_off: ErrorOf | None = None


def share_error(policy: precision.PrecisionPolicy) -> float:
  """Returns what p of a GELU may be off, whatever its size."""
  beside = 2 * policy.sigmoid_ulp * _U
  moves = _TANH_MOVES if policy.activation == 'geglu_tanh' else _ERF_MOVES
  return (policy.activation_ulp + moves + 2) / 2 * _U + beside


def _share_below(z: Real) -> Real:
  return _ERFC(-z * math.sqrt(0.5)).astype(np.float64) / 2


def _density(z: Real) -> Real:
  with np.errstate(under='ignore', over='ignore'):
    return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _sigmoid(z: Real) -> Real:
  with np.errstate(over='ignore'):
    return 1 / (1 + np.exp(-z))


def _argument(z: Real) -> tuple[Real, Real, Real]:
  """Returns twice the argument of the tanh, its slope and its bend."""
  z = np.clip(z, -1e6, 1e6)
  value = 2 * _SCALE * (z + _CUBE * z**3)
  return value, 2 * _SCALE * (1 + 3 * _CUBE * z * z), 12 * _SCALE * _CUBE * z


def _tanh_act(z: Real) -> Real:
  return z * _sigmoid(_argument(z)[0])


def _tanh_slope(z: Real) -> Real:
  value, slope, _ = _argument(z)
  s, c = _sigmoid(value), _sigmoid(-value)
  return s + z * s * c * slope


def _tanh_bend(z: Real) -> Real:
  value, slope, bend = _argument(z)
  s, c = _sigmoid(value), _sigmoid(-value)
  return s * c * (2 * slope + z * ((c - s) * slope**2 + bend))


def _gelu_off(policy: precision.PrecisionPolicy, z: Real, e: Real) -> Real:
  return share_error(policy) * (np.abs(z) + e)


def _erf_slope_off(policy: precision.PrecisionPolicy, z: Real, e: Real) -> Real:
  # The density: its argument has 2 roundings, its exp what silu may be off.
  units = np.minimum(z * z, 1e3) + 2 * policy.activation_ulp + 4
  return share_error(policy) + (np.abs(z) * _density(z) + e) * units * _U


def _tanh_slope_off(
  policy: precision.PrecisionPolicy, z: Real, e: Real
) -> Real:
  error, size = share_error(policy), np.abs(z) + e
  value, slope, _ = _argument(np.minimum(size, _SATURATED))
  product = size * slope * _sigmoid(value) * _sigmoid(-value)
  # Of two sigmoids; or of 1 - tanh^2: 2 errors of tanh, each twice that of p,
  # and 2 roundings.
  units = 4 * policy.activation_ulp + 8 + 6 * value
  cancelled = np.where(size < _SATURATED, size * slope / 4, 0.0)
  return error + product * units * _U + cancelled * (4 * error + 2 * _U)


def _sigmoid_off(policy: precision.PrecisionPolicy, z: Real, e: Real) -> Real:
  relative = 2 * policy.activation_ulp * _U * _sigmoid(z + e)
  return relative + 2 * policy.sigmoid_ulp * _U


def _sigmoid_slope_off(
  policy: precision.PrecisionPolicy, z: Real, e: Real
) -> Real:
  # 1 - sigmoid is off by a rounding of 1.
  units = 4 * policy.activation_ulp + 2
  return _sigmoid(z + e) * units * _U + 4 * policy.sigmoid_ulp * _U


def _zeros(z: Real, e: Real) -> Real:
  del z
  return np.zeros_like(e)


def _step(z: Real, e: Real) -> Real:
  """Returns 1 where it is not sure on which side of 0 a gate lies."""
  return np.where((np.abs(z) <= e) & (e > 0), 1.0, 0.0)


CURVES = {
  'geglu': Curve(
    act=lambda z: z * _share_below(z),
    slope=lambda z: _share_below(z) + z * _density(z),
    bend=lambda z: _density(z) * (2 - np.minimum(z * z, 1e6)),
    act_moved=lambda z, e: _GELU_STEEPEST * e,
    slope_moved=lambda z, e: _GELU_BEND * e,
    act_roundings=2,
    act_off=_gelu_off,
    slope_roundings=4,
    slope_off=_erf_slope_off,
  ),
  'geglu_tanh': Curve(
    act=_tanh_act,
    slope=_tanh_slope,
    bend=_tanh_bend,
    act_moved=lambda z, e: _GELU_STEEPEST * e,
    slope_moved=lambda z, e: _GELU_BEND * e,
    act_roundings=2,
    act_off=_gelu_off,
    slope_roundings=8,
    slope_off=_tanh_slope_off,
  ),
  'reglu': Curve(
    act=lambda z: np.maximum(z, 0),
    slope=lambda z: np.where(z > 0, 1.0, 0.0),
    bend=np.zeros_like,
    act_moved=lambda z, e: e,
    slope_moved=_step,
  ),
  'relu2': Curve(
    act=lambda z: np.square(np.maximum(z, 0)),
    slope=lambda z: 2 * np.maximum(z, 0),
    bend=lambda z: np.where(z > 0, 2.0, 0.0),
    act_moved=lambda z, e: (2 * np.maximum(z, 0) + e) * e,
    slope_moved=lambda z, e: 2 * e,
    act_roundings=1,
    slope_roundings=1,
  ),
  'glu': Curve(
    act=_sigmoid,
    slope=lambda z: _sigmoid(z) * _sigmoid(-z),
    bend=lambda z: _sigmoid(z) * _sigmoid(-z) * (_sigmoid(-z) - _sigmoid(z)),
    act_moved=lambda z, e: _SIGMOID_STEEPEST * e,
    slope_moved=lambda z, e: _SIGMOID_BEND * e,
    act_off=_sigmoid_off,
    slope_roundings=1,
    slope_off=_sigmoid_slope_off,
  ),
  'bilinear': Curve(
    act=lambda z: z,
    slope=np.ones_like,
    bend=np.zeros_like,
    act_moved=lambda z, e: e,
    slope_moved=_zeros,
  ),
}
