"""Rotary position embedding, plain and YaRN."""

from typing import NamedTuple

import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models import rope_numbers
from hpmoe.models.jax import ops
from hpmoe.reference.contract import array_typing as at


class Rope(NamedTuple):
  """Rotations of the positions of some tokens, in `ops.wide` of the model.

  Attributes:
    cos: `[S, X/2]`, for a rotating width X, or of each sequence `[B, S, X/2]`.
    sin: likewise.
  """

  cos: at.Float[at.Array, '*B S X/2']
  sin: at.Float[at.Array, '*B S X/2']


def rotations(
  config: config_lib.ModelConfig, positions: at.Int[at.Array, '*B S'], dtype
) -> Rope:
  """Returns the rotations of `positions` for a model in `dtype`."""
  wide = ops.wide(dtype)
  turns = jnp.asarray(rope_numbers.frequencies(config), wide)
  angles = positions.astype(wide)[..., None] * turns
  factor = rope_numbers.amplitude(config.rope_scaling)
  return Rope(jnp.cos(angles) * factor, jnp.sin(angles) * factor)


def rotate(
  x: at.Float[at.Array, 'B S H X'], rope: Rope, interleave: bool
) -> at.Float[at.Array, 'B S H X']:
  """Returns `x` `[B, S, H, X]` with each pair of its last axis turned.

  Pairs are neighbours if `interleave`, or half of X apart.  Either way the
  first members of all pairs come out first: queries and keys are permuted
  alike, so their products are the same.
  """
  values = x.astype(rope.cos.dtype)
  if interleave:
    first, second = values[..., 0::2], values[..., 1::2]
  else:
    first, second = jnp.split(values, 2, axis=-1)
  cos, sin = rope.cos[..., None, :], rope.sin[..., None, :]
  turned = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)
