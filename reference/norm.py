"""RMS norm of a sub-layer: rows of y over their root mean square, times a gain.

A stage reads stored values, computes in the accumulate dtype and rounds once.
The gradient of the gain is per rank: if ranks share the gain, the caller adds
their gradients.
"""

import jax.numpy as jnp

from hpmoe.reference import inner_product
from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


def norm(
  policy: precision.PrecisionPolicy,
  y: at.Float[at.Array, 'R T D'],
  w_norm: at.Float[at.Array, 'R D'],
) -> at.Float[at.Array, 'R T D']:
  """Returns `x` `[R, T, D]` in the storage dtype.

  x = y / sqrt(mean(y^2) + epsilon) * w_norm.  A row of zeros stays one, and so
  does a row whose squares overflow.

  Args:
    policy: dtypes, epsilon, activation.
    y: `[R, T, D]` float.
    w_norm: `[R, D]` float, the gain.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  y, gain = (numerics.widen(policy, a) for a in (y, w_norm))
  x = y * _scales(policy, y)[..., None] * gain[:, None]
  return numerics.store(policy, x)


def norm_grad(
  policy: precision.PrecisionPolicy,
  dx: at.Float[at.Array, 'R T D'],
  y: at.Float[at.Array, 'R T D'],
  w_norm: at.Float[at.Array, 'R D'],
) -> at.Float[at.Array, 'R T D']:
  """Returns `dy` `[R, T, D]` in the storage dtype.

  With h = dx * w_norm and s the row's factor,
  dy = (h - y * sum(h * y) * s^2 / D) * s.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  dx, y, gain = (numerics.widen(policy, a) for a in (dx, y, w_norm))
  scales, weighted = _scales(policy, y), dx * gain[:, None]
  if policy.activation != 'absolute':
    dots = inner_product.inner_product(policy, weighted, y)
    along = dots * jnp.square(scales) / y.shape[-1]
    weighted = (weighted - y * along[..., None]) * scales[..., None]
  return numerics.store(policy, weighted)


def gain_grad(
  policy: precision.PrecisionPolicy,
  dx: at.Float[at.Array, 'R T D'],
  y: at.Float[at.Array, 'R T D'],
) -> at.Float[at.Array, 'R D']:
  """Returns `d_w_norm` `[R, D]`, the accumulate dtype: sums over own tokens.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  dx, y = (numerics.widen(policy, a) for a in (dx, y))
  return jnp.sum(dx * (y * _scales(policy, y)[..., None]), axis=1)


def _scales(
  policy: precision.PrecisionPolicy, y: at.Float[at.Array, 'R T D']
) -> at.Float[at.Array, 'R T']:
  """Returns the factor of each row, in the accumulate dtype."""
  if policy.activation == 'absolute':
    return jnp.ones(y.shape[:-1], y.dtype)
  mean = inner_product.inner_product(policy, y, y) / y.shape[-1]
  return 1 / jnp.sqrt(mean + jnp.asarray(policy.epsilon, y.dtype))
