"""What the blocks of a decoder share: read, compute wide, round once.

In bfloat16 every operator here widens what it reads to float32 and rounds its
result once.  Hugging Face's implementations round more often: to bfloat16
between the norm and its weight, between scores and softmax, and after silu.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp

from hpmoe.reference.contract import array_typing as at

Params = Mapping[str, at.Array]


def wide(dtype: jnp.dtype) -> jnp.dtype:
  """Returns the dtype of arithmetic on `dtype`: float32, or float64."""
  return jnp.promote_types(dtype, jnp.float32)


def linear(
  params: Params, name: str, x: at.Float[at.Array, '*batch X']
) -> at.Float[at.Array, '*batch Y']:
  """Returns x times the weight `name`, `[Y, X]`, plus its bias if it has one.

  `[..., Y]` in the dtype of `x`, summed in `wide`.
  """
  return _linear(x, params[f'{name}.weight'], params.get(f'{name}.bias'))


@jax.jit
def _linear(x, weight, bias):
  # Widened first: XLA on CPUs has no product of bfloat16 summed in float32.
  dtype = wide(x.dtype)
  y = jnp.matmul(x.astype(dtype), weight.T.astype(dtype))
  if bias is not None:
    y = y + bias.astype(y.dtype)
  return y.astype(x.dtype)


def rms_norm(
  x: at.Float[at.Array, '*batch X'], weight: at.Float[at.Array, 'X'], eps: float
) -> at.Float[at.Array, '*batch X']:
  """Returns `weight * x / sqrt(mean(x^2) + eps)`, `[..., X]`, as x's dtype."""
  values = x.astype(wide(x.dtype))
  mean = jnp.mean(jnp.square(values), axis=-1, keepdims=True)
  normed = values * jax.lax.rsqrt(mean + eps)
  return (normed * weight.astype(normed.dtype)).astype(x.dtype)


@functools.partial(
  jax.jit, static_argnums=(2, 3, 4), static_argnames='activation'
)
def gated(
  gate: at.Float[at.Array, '*batch F'],
  up: at.Float[at.Array, '*batch F'],
  alpha: float = 1.0,
  limit: float = 0.0,
  offset: float = 0.0,
  *,
  activation: str = 'swiglu',
) -> at.Float[at.Array, '*batch F']:
  """Returns `gate * sigmoid(alpha * gate) * (up + offset)`, `[..., F]`.

  With a limit, of `min(gate, limit)`, and `up` within it on both sides.  With
  the activation 'geglu' it is `gelu(gate) * up`, with 'geglu_tanh' by a tanh.
  """
  if activation != 'swiglu':
    return jax.nn.gelu(gate, approximate=activation == 'geglu_tanh') * up
  if limit:
    # Not jnp.minimum, whose gradient at the limit is a half.
    gate = jnp.where(gate > limit, limit, gate)
    up = jnp.where(jnp.abs(up) > limit, jnp.sign(up) * limit, up)
  return gate * jax.nn.sigmoid(alpha * gate) * (up + offset)


@functools.partial(jax.jit, static_argnums=1)
def best(
  scores: at.Float[at.Array, '*batch E'], count: int
) -> at.Int32[at.Array, '*batch K']:
  """Returns the places of the most, the most first, then the lower place."""
  # Not lax.top_k: it does not promise that -0.0 and 0.0 tie.
  order = jnp.argsort(-scores, axis=-1, stable=True)
  return order[..., :count].astype(jnp.int32)


def scan(
  step: Callable[[Any, tuple[at.Array, ...]], tuple[Any, at.Array]],
  state: at.Array,
  arrays: tuple[at.Array, ...],
) -> tuple[at.Array, at.Array]:
  """Returns the last state, and the result of each token, `[B, S, ...]`.

  Args:
    step: from a state and the arrays of one token the next, and a result.
    state: before the first token.
    arrays: `[B, S, ...]` each.
  """
  by_token = tuple(jnp.moveaxis(array, 1, 0) for array in arrays)
  state, results = jax.lax.scan(step, state, by_token)
  return state, jnp.moveaxis(results, 0, 1)
