"""Bounds of the epilogue: gate, up and their activation."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import curves
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weighting_bounds
from hpmoe.reference.contract import precision

# Roundings of z / (1 + exp(-z)) beside those of its exp: of the sum, and of the
# quotient (or reciprocal and product).
_BESIDE_EXP = 3
# |d silu(z) / dz| <= 1.0999 (its maximum, at z = 2.3994).
_SILU_SLOPE = 1.1


def silu_roundings(policy: precision.PrecisionPolicy) -> float:
  """Returns the roundings of silu, or of a sigmoid; a unit is at most 2u."""
  return 2 * policy.activation_ulp


def sigmoid_error(policy: precision.PrecisionPolicy) -> float:
  """Returns the absolute error of a sigmoid, beside its relative error."""
  return policy.sigmoid_ulp * 2 * rounding.U


def exp_roundings(policy: precision.PrecisionPolicy) -> float:
  """Returns the part of `silu_roundings` that may all have one sign."""
  return max(silu_roundings(policy) - _BESIDE_EXP, 0.0)


def exp_variance(policy: precision.PrecisionPolicy) -> float:
  """Returns the square of that error: all of it counts as variance."""
  return (exp_roundings(policy) * rounding.U) ** 2


def drift(policy: precision.PrecisionPolicy) -> float:
  """Returns the relative error of activations that may all have one sign.

  The absolute error of a sigmoid, or of the CDF of a GELU, counts twice: z s
  exceeds z s^2 by a factor of 2 at most, if half of the gates are negative.
  """
  if policy.activation in ('geglu', 'geglu_tanh'):
    return 2 * curves.share_error(policy)
  if policy.activation not in ('swiglu', 'glu'):
    return 0.0
  drift_of_exp = 2 * exp_roundings(policy) * rounding.U + 2 * sigmoid_error(
    policy
  )
  # Likewise z^2 s c on z^2 s^2, by less.
  return drift_of_exp + 2 * rounding.U * (policy.alpha != 1)


def activation(
  policy: precision.PrecisionPolicy,
  gate_up: bounded_values.Bounded,
  row_weight: np.ndarray | None,
  dtype: str | None = None,
) -> bounded_values.Bounded:
  """Returns `[n, F]` of gate and up `[n, 2F]`, times `row_weight` `[n]`.

  'absolute': |gate| * up, 1 rounding.  'swiglu': silu(gate), with the policy's
  error, times up; others as in `curves`.  exp(-gate) may overflow and
  1 / (1 + exp(-gate)) may be flushed: both lose at most tiny * |gate|.  alpha
  times gate has the error of `_argument`, a clamp increases no error, and
  up + offset adds one rounding.  The result is stored in `dtype`; None: in the
  policy's storage.
  """
  crossings = rounding.count_crossings_into(policy, gate_up, dtype)
  gate_up = dataclasses.replace(gate_up, crossings=crossings, unlike=None)
  return rounding.store(policy, activate(policy, gate_up, row_weight), dtype)


def activate(policy, gate_up, row_weight) -> bounded_values.Bounded:
  """Returns `[n, F]` before it is rounded to storage."""
  gate, up, _ = split_gate_up(policy, gate_up)
  silu = rounding.round_at(policy, 'silu', bound_act(policy, gate))
  product = rounding.round_at(policy, 'product', multiply_up(policy, silu, up))
  return (
    product
    if row_weight is None
    else weighting_bounds.scale_rows(policy, product, row_weight)
  )


def multiply_up(
  policy, act: bounded_values.Bounded, up: bounded_values.Bounded
) -> bounded_values.Bounded:
  """Returns `[n, F]`: 1 rounding, and another for up + offset."""
  return rounding.multiply(policy, act, up, int(policy.offset != 0))


def split_gate_up(
  policy: precision.PrecisionPolicy, gate_up: bounded_values.Bounded
) -> tuple[
  bounded_values.Bounded,
  bounded_values.Bounded,
  tuple[np.ndarray, np.ndarray] | None,
]:
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
  operand: bounded_values.Bounded, value: np.ndarray, passes: np.ndarray
) -> bounded_values.Bounded:
  clamped = operand.map_arrays(lambda array: np.where(passes, array, 0.0))
  return dataclasses.replace(clamped, value=value)


def _number(policy: precision.PrecisionPolicy, number: float) -> float:
  """Returns a number of the policy, rounded to the accumulation dtype."""
  return float(np.dtype(policy.accumulate).type(number))


def _argument(
  policy: precision.PrecisionPolicy, gate: bounded_values.Bounded
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
  argument_error = np.minimum(
    2 * rounding.U * (np.abs(z) + alpha * gate.bound()), 1.0
  )
  return alpha, z, argument_error * np.exp(argument_error)


def _sigmoid(z: np.ndarray) -> np.ndarray:
  with np.errstate(over='ignore'):
    return 1 / (1 + np.exp(-z))


def bound_act(policy, gate: bounded_values.Bounded) -> bounded_values.Bounded:
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
  scale = rounding.gamma(roundings) + rounding.gamma(roundings, rounding.U64)
  absolute_error = sigmoid_error(policy) * (np.abs(gate.value) + e)
  if argument_error is not None:
    absolute_error = absolute_error + np.abs(value) * np.expm1(
      (1 - s) * argument_error
    )
    absolute_error = absolute_error + _SILU_SLOPE * argument_error * e
  flush = rounding.TINY * (np.abs(gate.value) + e + 1)
  error = (
    input_error + scale * (np.abs(value) + input_error) + absolute_error + flush
  )
  own = rounding.rounding_variance(policy, value, roundings, flush)
  of_exp = exp_variance(policy) * np.square(value) + np.square(absolute_error)
  own = own + rounding.kernels(policy) * of_exp
  bend = s + alpha * value * (1 - s)
  return bounded_values.Bounded(
    value, error, *rounding.propagate(own, (gate, bend))
  )


def bound_slope(policy, gate: bounded_values.Bounded) -> bounded_values.Bounded:
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
    return bounded_values.Bounded(
      np.sign(z), np.where(np.abs(z) <= e, 2.0 * (e > 0), 0.0)
    )
  if policy.activation in curves.CURVES:
    return _curved_slope(policy, gate)
  alpha, z, argument_error = _argument(policy, gate)
  e = alpha * e
  s, c = _sigmoid(z), _sigmoid(-z)
  roundings = 2 * silu_roundings(policy) + exp_roundings(policy) + 3
  scale = rounding.gamma(roundings) + rounding.gamma(roundings, rounding.U64)
  terms = s * (1 + 2 * np.abs(z))
  flush = 4 * rounding.TINY * (1 + 2 * (np.abs(z) + e))
  absolute_error = sigmoid_error(policy) * (1 + 3 * (np.abs(z) + e))
  if argument_error is not None:
    # The slope of this is s c (2 + z (c - s)), and s c is at most e^-|z|; the
    # error of z is below 1, or s c is 0.
    absolute_error = absolute_error + argument_error * (
      np.e * s * c * (2 + np.abs(z)) + e
    )
  error = e / 2 + scale * (terms + 3 * e) + absolute_error + flush
  # An exp in both sigmoids, and the terms that cancel.
  variance = roundings * rounding.VARIANCE + 4 * exp_variance(policy)
  variance = variance * np.square(terms) + np.square(absolute_error)
  variance = rounding.kernels(policy) * variance + np.square(flush)
  if gate.variance is not None:
    bend = alpha * s * c * (2 + z * (c - s))
    variance = variance + np.square(bend) * gate.variance
  return bounded_values.Bounded(s * (1 + z * c), error, variance)


def _curved_act(policy, gate: bounded_values.Bounded) -> bounded_values.Bounded:
  """Returns act(gate) of `curves`, as computed in float32."""
  curve, z, e = curves.CURVES[policy.activation], gate.value, gate.bound()
  value, from_gate = curve.act(z), curve.act_moved(z, e)
  scale = rounding.gamma(curve.act_roundings) + rounding.gamma(
    curve.act_roundings, rounding.U64
  )
  beside_it = np.zeros_like(z)
  if curve.act_off is not None:
    beside_it = curve.act_off(policy, z, e)
  flush = np.where(
    e + beside_it + scale > 0, rounding.TINY * (np.abs(z) + e + 1), 0.0
  )
  error = from_gate + scale * (np.abs(value) + from_gate) + beside_it + flush
  own = rounding.rounding_variance(policy, value, curve.act_roundings, flush)
  own = own + rounding.kernels(policy) * np.square(beside_it)
  return bounded_values.Bounded(
    value, error, *rounding.propagate(own, (gate, curve.slope(z)))
  )


def _curved_slope(
  policy, gate: bounded_values.Bounded
) -> bounded_values.Bounded:
  """Returns act'(gate) of `curves`, as computed in float32."""
  curve, z, e = curves.CURVES[policy.activation], gate.value, gate.bound()
  value, from_gate = curve.slope(z), curve.slope_moved(z, e)
  scale = rounding.gamma(curve.slope_roundings) + rounding.gamma(
    curve.slope_roundings, rounding.U64
  )
  beside_it = np.zeros_like(z)
  if curve.slope_off is not None:
    beside_it = curve.slope_off(policy, z, e)
  flush = np.where(
    beside_it + scale > 0, 4 * rounding.TINY * (1 + np.abs(z) + e), 0.0
  )
  error = from_gate + scale * (np.abs(value) + from_gate) + beside_it + flush
  own = rounding.rounding_variance(policy, value, curve.slope_roundings, flush)
  variance = own + rounding.kernels(policy) * np.square(beside_it)
  if gate.variance is not None:
    variance = variance + np.square(curve.bend(z)) * gate.variance
  return bounded_values.Bounded(value, error, variance)
