"""Gradient of the activation between the two expert GEMMs."""

from collections.abc import Callable
import math

import jax.numpy as jnp

from hpmoe.reference import inner_product
from hpmoe.reference import numerics
from hpmoe.reference import swiglu
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


def swiglu_grad(
  policy: precision.PrecisionPolicy,
  gate_up: at.Float[at.Array, '*batch 2*F'],
  d_activation: at.Float[at.Array, '*batch F'],
  row_weight: at.Float[at.Array, '*batch'] | None = None,
) -> at.Float[at.Array, '*batch 2*F']:
  """Returns `d_gate_up` `[..., 2F]` in the storage dtype, rounded once.

  With g = d_activation, times the weight if it is applied here: gate columns
  are (g * up) * act'(gate), up columns g * act(gate), in the accumulate dtype,
  with gate and up of `swiglu.gated`; act is gate * sigmoid(alpha gate) for
  'swiglu', the absolute value for 'absolute', whose slope is the sign, 0 at 0.
  Clamped values have the gradient 0; a value equal to the limit is not clamped.

  Args:
    policy: activation, placement and dtypes.
    gate_up: `[..., 2F]` float, gate columns first.
    d_activation: `[..., F]` float.
    row_weight: `[...]` float routing weights; None: not applied here.

  Raises:
    ValueError: a last axis is not as above, or the policy is in float64 and
      jax_enable_x64 is off.
  """
  _check_columns(gate_up, d_activation)
  gate, up = swiglu.gated(policy, gate_up)
  g = numerics.widen(policy, d_activation)
  if row_weight is not None:
    g = g * numerics.widen(policy, row_weight)[..., None]
  d_gate = numerics.at_point(policy, 'd_silu', g * up)
  d_gate = d_gate * _SLOPES[policy.activation](policy, gate)
  d_up = g * numerics.at_point(policy, 'silu', swiglu.act(policy, gate))
  d_gate_up = jnp.concatenate([d_gate, d_up], axis=-1)
  if policy.limit:
    d_gate_up = jnp.where(_clamped(policy, gate_up), 0, d_gate_up)
  return numerics.store(policy, d_gate_up)


def _clamped(
  policy: precision.PrecisionPolicy, gate_up: at.Float[at.Array, '*batch 2*F']
) -> at.Bool[at.Array, '*batch 2*F']:
  gate, up = jnp.split(numerics.widen(policy, gate_up), 2, axis=-1)
  is_clamped = gate > policy.limit, jnp.abs(up) > policy.limit
  return jnp.concatenate(is_clamped, axis=-1)


def row_weight_grad(
  policy: precision.PrecisionPolicy,
  gate_up: at.Float[at.Array, '*batch 2*F'],
  d_activation: at.Float[at.Array, '*batch F'],
) -> at.Float[at.Array, '*batch']:
  """Returns <d_activation, act(gate) * up> `[...]` in the accumulate dtype.

  The gradient of a row's weight at placement 'before_down'.  The unweighted
  activation was not stored: it is recomputed and not rounded to storage, and
  neither is the result.

  Args:
    policy: activation and dtypes; order of the sum as in `inner_product`.
    gate_up: `[..., 2F]` float, gate columns first.
    d_activation: `[..., F]` float.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  unweighted = swiglu.unweighted(policy, gate_up)
  return inner_product.inner_product(
    policy, d_activation, unweighted, 'd_weighted'
  )


def _swish_slope(
  policy: precision.PrecisionPolicy, gate: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns the slope of gate * sigmoid(z), z = alpha gate."""
  z = swiglu.scaled(policy, gate)
  # Not 1 - sigmoid, which cancels for large z.
  sigmoid, complement = 1 / (1 + jnp.exp(-z)), 1 / (1 + jnp.exp(z))
  return sigmoid * (1 + numerics.rounded(z * complement))


def _gelu_slope(policy: precision.PrecisionPolicy, gate: at.Array) -> at.Array:
  """Returns the normal distribution's CDF at gate plus gate times its PDF."""
  del policy
  density = jnp.exp(-gate * gate / 2) / math.sqrt(2 * math.pi)
  return swiglu.share_below(gate) + numerics.rounded(gate * density)


def _gelu_tanh_slope(
  policy: precision.PrecisionPolicy, gate: at.Array
) -> at.Array:
  """Returns the slope of gate * sigmoid(z), z = `swiglu.cubic` of gate."""
  del policy
  z = swiglu.cubic(gate)
  share, rest = 1 / (1 + jnp.exp(-z)), 1 / (1 + jnp.exp(z))
  bent = numerics.rounded(3 * swiglu.TANH_CUBE * gate * gate)
  z_slope = 2 * swiglu.TANH_SCALE * (1 + bent)
  return share * (1 + numerics.rounded(gate * rest * z_slope))


def _sigmoid_slope(
  policy: precision.PrecisionPolicy, gate: at.Array
) -> at.Array:
  del policy
  return 1 / (1 + jnp.exp(-gate)) / (1 + jnp.exp(gate))


_SLOPES: dict[
  str, Callable[[precision.PrecisionPolicy, at.Array], at.Array]
] = {
  'swiglu': _swish_slope,
  'absolute': lambda _, gate: jnp.sign(gate),
  'geglu': _gelu_slope,
  'geglu_tanh': _gelu_tanh_slope,
  'reglu': lambda _, gate: jnp.where(gate > 0, 1, 0).astype(gate.dtype),
  'relu2': lambda _, gate: 2 * jnp.maximum(gate, 0),
  'glu': _sigmoid_slope,
  'bilinear': lambda _, gate: jnp.ones_like(gate),
}


def _check_columns(gate_up: at.Array, d_activation: at.Array) -> None:
  if gate_up.shape[-1] != 2 * d_activation.shape[-1]:
    raise ValueError(
      'gate_up: expected twice the columns of d_activation, '
      f'{2 * d_activation.shape[-1]}, got {gate_up.shape[-1]}'
    )
