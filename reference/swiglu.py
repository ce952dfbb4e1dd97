"""Activation between the two expert GEMMs."""

import jax.numpy as jnp

from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


def swiglu(
  policy: precision.PrecisionPolicy,
  gate_up: at.Float[at.Array, '*batch 2*F'],
  row_weight: at.Float[at.Array, '*batch'] | None = None,
) -> at.Float[at.Array, '*batch F']:
  """Returns `activation` `[..., F]` in the storage dtype, rounded once.

  In the accumulation dtype, but for the policy's points: 'swiglu' is
  gate / (1 + exp(-alpha gate)) * up, 'absolute' is |gate| * up, of what `gated`
  makes of both; then times the weight, if it is applied here.

  Args:
    policy: activation, placement and dtypes.
    gate_up: `[..., 2F]` float, gate columns first.
    row_weight: `[...]` float routing weights, or None: not applied here.

  Raises:
    ValueError: the last axis is odd, or the policy is in float64 and
      jax_enable_x64 is off.
  """
  if gate_up.shape[-1] % 2:
    raise ValueError(
      'gate_up: expected gate and up columns, an even number, got '
      f'{gate_up.shape[-1]}'
    )
  activation = unweighted(policy, gate_up)
  if row_weight is not None:
    activation = activation * numerics.widen(policy, row_weight)[..., None]
  return numerics.store(policy, activation)


def unweighted(
  policy: precision.PrecisionPolicy, gate_up: at.Float[at.Array, '*batch 2*F']
) -> at.Float[at.Array, '*batch F']:
  """Returns act(gate) * up `[..., F]` in the accumulation dtype."""
  gate, up = gated(policy, gate_up)
  silu = numerics.at_point(policy, 'silu', act(policy, gate))
  return numerics.at_point(policy, 'product', silu * up)


def gated(
  policy: precision.PrecisionPolicy, gate_up: at.Float[at.Array, '*batch 2*F']
) -> tuple[at.Float[at.Array, '*batch F'], at.Float[at.Array, '*batch F']]:
  """Returns min(gate, limit), and up clamped to [-limit, limit] + offset.

  Each `[..., F]` in the accumulation dtype; without a limit as they are.
  """
  gate, up = jnp.split(numerics.widen(policy, gate_up), 2, axis=-1)
  if policy.limit:
    gate = jnp.minimum(gate, policy.limit)
    up = jnp.clip(up, -policy.limit, policy.limit)
  # A sum with 0 would lose the sign of -0.0.
  return gate, up + policy.offset if policy.offset else up


def act(
  policy: precision.PrecisionPolicy, gate: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns what of an activation up is multiplied with, `[...]`."""
  if policy.activation == 'swiglu':
    return gate / (1 + jnp.exp(-scaled(policy, gate)))
  return jnp.abs(gate)


def scaled(
  policy: precision.PrecisionPolicy, gate: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns alpha times a gate, `[...]`."""
  return gate if policy.alpha == 1 else policy.alpha * gate
