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

  In the accumulation dtype: 'swiglu' is gate / (1 + exp(-gate)) * up,
  'absolute' is |gate| * up; then times the weight, if it is applied here.

  Args:
    policy: activation, placement and dtypes.
    gate_up: `[..., 2F]` float, gate columns first.
    row_weight: `[...]` float routing weights if placement is 'before_down',
      otherwise None.

  Raises:
    ValueError: `row_weight` and the placement disagree, the last axis is odd,
      or the policy is in float64 and jax_enable_x64 is off.
  """
  _check_arguments(policy, gate_up, row_weight)
  gate, up = jnp.split(numerics.widen(policy, gate_up), 2, axis=-1)
  if policy.activation == 'swiglu':
    gate = gate / (1 + jnp.exp(-gate))
  else:
    gate = jnp.abs(gate)
  activation = gate * up
  if row_weight is not None:
    activation = activation * numerics.widen(policy, row_weight)[..., None]
  return numerics.store(policy, activation)


def _check_arguments(
  policy: precision.PrecisionPolicy,
  gate_up: at.Array,
  row_weight: at.Array | None,
) -> None:
  if gate_up.shape[-1] % 2:
    raise ValueError(
      'gate_up: expected gate and up columns, an even number, got '
      f'{gate_up.shape[-1]}'
    )
  wanted = policy.placement == 'before_down'
  if wanted != (row_weight is not None):
    raise ValueError(
      f'row_weight: expected {"weights" if wanted else "None"} for placement '
      f'{policy.placement!r}, got {"None" if wanted else "weights"}'
    )
