"""Activation between the two expert GEMMs."""

from collections.abc import Callable
import math

from jax import lax
import jax.numpy as jnp

from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision

# Constants of GELU's tanh form: tanh(TANH_SCALE (z + TANH_CUBE z^3)).
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def swiglu(
  policy: precision.PrecisionPolicy,
  gate_up: at.Float[at.Array, '*batch 2*F'],
  row_weight: at.Float[at.Array, '*batch'] | None = None,
) -> at.Float[at.Array, '*batch F']:
  """Returns `activation` `[..., F]` in the storage dtype, rounded once.

  `gated` clamps and offsets gate and up; the result is `act` of the gate times
  up, times the weight if it is applied here, in the accumulation dtype, rounded
  further at the policy's rounding points.

  Args:
    policy: activation, placement and dtypes.
    gate_up: `[..., 2F]` float, gate columns first.
    row_weight: `[...]` float routing weights; None: not applied here.

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

  Each `[..., F]` in the accumulation dtype; without a limit, not clamped.
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
  """Returns the factor of up that an activation computes from gate, `[...]`.

  'swiglu': gate / (1 + exp(-alpha gate)); 'absolute': |gate|; 'geglu': gate
  times the standard normal CDF at gate; 'geglu_tanh': its approximation with a
  tanh; 'reglu': max(gate, 0); 'relu2': max(gate, 0)^2; 'glu': 1 / (1 +
  exp(-gate)); 'bilinear': gate.
  """
  return _ACTS[policy.activation](policy, gate)


def _swish(policy: precision.PrecisionPolicy, gate: at.Array) -> at.Array:
  return gate / (1 + jnp.exp(-scaled(policy, gate)))


def _gelu(policy: precision.PrecisionPolicy, gate: at.Array) -> at.Array:
  del policy
  return gate * share_below(gate)


def share_below(gate: at.Float[at.Array, '*shape']) -> at.Array:
  """Returns the standard normal CDF at a gate, `[...]`."""
  # Not 1 + erf, which cancels for small results.
  return lax.erfc(-gate * math.sqrt(0.5)) / 2


def _gelu_tanh(policy: precision.PrecisionPolicy, gate: at.Array) -> at.Array:
  del policy
  # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
  return gate / (1 + jnp.exp(-cubic(gate)))


def cubic(gate: at.Float[at.Array, '*shape']) -> at.Array:
  """Returns twice the argument of the tanh of 'geglu_tanh', `[...]`."""
  bent = numerics.rounded(TANH_CUBE * gate * gate)
  return 2 * TANH_SCALE * (gate * (1 + bent))


_ACTS: dict[str, Callable[[precision.PrecisionPolicy, at.Array], at.Array]] = {
  'swiglu': _swish,
  'absolute': lambda _, gate: jnp.abs(gate),
  'geglu': _gelu,
  'geglu_tanh': _gelu_tanh,
  'reglu': lambda _, gate: jnp.maximum(gate, 0),
  'relu2': lambda _, gate: jnp.square(jnp.maximum(gate, 0)),
  'glu': lambda _, gate: 1 / (1 + jnp.exp(-gate)),
  'bilinear': lambda _, gate: gate,
}


def scaled(
  policy: precision.PrecisionPolicy, gate: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns alpha times a gate, `[...]`."""
  return gate if policy.alpha == 1 else policy.alpha * gate
