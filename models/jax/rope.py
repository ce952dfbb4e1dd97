"""Rotary position embedding, plain and YaRN."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.jax import ops
from hpmoe.reference.contract import array_typing as at


class Rope(NamedTuple):
  """Rotations of the positions of some tokens, in `ops.wide` of the model.

  Attributes:
    cos: `[S, X/2]`, for a rotating width X.
    sin: `[S, X/2]`.
  """

  cos: at.Float[at.Array, 'S X/2']
  sin: at.Float[at.Array, 'S X/2']


def rotations(
  config: config_lib.ModelConfig, positions: at.Int[at.Array, 'S'], dtype
) -> Rope:
  """Returns the rotations of `positions` `[S]` for a model in `dtype`."""
  wide = ops.wide(dtype)
  turns = jnp.asarray(frequencies(config), wide)
  angles = positions.astype(wide)[:, None] * turns
  factor = amplitude(config.rope_scaling)
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
  cos, sin = rope.cos[:, None], rope.sin[:, None]
  turned = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def frequencies(config: config_lib.ModelConfig) -> np.ndarray:
  """Returns `[X/2]` float64, radians that a pair turns from token to token.

  YaRN keeps the frequencies that turn more than `beta_fast` times in the
  context of training, divides those that turn less than `beta_slow` times by
  `factor`, and goes from one to the other in a straight line between: arXiv
  2309.00071, section 3.2, with the rounding of the published code.
  """
  width = config.rope_dim
  plain = config.rope_theta ** -(np.arange(0, width, 2) / width)
  scaling = config.rope_scaling
  if scaling is None:
    return plain
  low = _pair_turning(config, scaling.beta_fast)
  high = _pair_turning(config, scaling.beta_slow)
  if scaling.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  span = high - low or 0.001
  divided = np.clip((np.arange(width // 2) - low) / span, 0, 1)
  return plain / scaling.factor * divided + plain * (1 - divided)


def amplitude(scaling: config_lib.RopeScaling | None) -> float:
  """Returns the factor on cosines and sines: YaRN's temperature.

  With `mscale` and `mscale_all_dim` it is a ratio, as in the published code of
  DeepSeek-V3; 1 where they are equal, and the temperature is then applied to
  the softmax alone (`softmax_factor`).
  """
  if scaling is None:
    return 1.0
  if scaling.attention_factor is not None:
    return scaling.attention_factor
  if scaling.mscale and scaling.mscale_all_dim:
    ratio = _temperature(scaling.factor, scaling.mscale)
    return ratio / _temperature(scaling.factor, scaling.mscale_all_dim)
  return _temperature(scaling.factor, 1.0)


def softmax_factor(scaling: config_lib.RopeScaling | None) -> float:
  """Returns the factor on the scores of multi-head latent attention."""
  if scaling is None or not scaling.mscale_all_dim:
    return 1.0
  return _temperature(scaling.factor, scaling.mscale_all_dim) ** 2


def _temperature(factor: float, mscale: float) -> float:
  return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _pair_turning(config: config_lib.ModelConfig, rotations_: float) -> float:
  """Returns the pair that turns so often in the context of training."""
  assert config.rope_scaling is not None
  context = config.rope_scaling.original_max_position_embeddings
  wavelengths = math.log(context / (rotations_ * 2 * math.pi))
  return config.rope_dim * wavelengths / (2 * math.log(config.rope_theta))
