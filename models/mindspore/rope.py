"""Rotary position embedding, plain and YaRN."""

from typing import NamedTuple

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import rope_numbers
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import array_typing as at


class Rope(NamedTuple):
  """Rotations of the positions of some tokens, in `ops.wide` of the model.

  Attributes:
    cos: `[S, X/2]`, for a rotating width X, or of each sequence `[B, S, X/2]`.
    sin: likewise.
  """

  cos: at.Float[ms.Tensor, '*B S X/2']
  sin: at.Float[ms.Tensor, '*B S X/2']


def rotations(
  config: config_lib.ModelConfig, positions: at.Int[np.ndarray, '*B S'], dtype
) -> Rope:
  """Returns the rotations of `positions` for a model in `dtype`."""
  wide = ops.wide(dtype)
  turns = ms.Tensor(rope_numbers.frequencies(config), wide)
  angles = ms.Tensor(positions, wide).expand_dims(-1) * turns
  factor = ops.constant(rope_numbers.amplitude(config.rope_scaling), angles)
  return Rope(ms_ops.cos(angles) * factor, ms_ops.sin(angles) * factor)


def rotate(
  x: at.Float[ms.Tensor, 'B S H X'], rope: Rope, interleave: bool
) -> at.Float[ms.Tensor, 'B S H X']:
  """Returns `x` `[B, S, H, X]` with each pair of its last axis turned.

  Pairs are neighbours if `interleave`, or half of X apart.  Either way the
  first members of all pairs come out first: queries and keys are permuted
  alike, so their products are the same.
  """
  values = x.astype(rope.cos.dtype)
  half = x.shape[-1] // 2
  if interleave:
    pairs = values.reshape(*x.shape[:-1], half, 2)
    first, second = pairs[..., 0], pairs[..., 1]
  else:
    first, second = values[..., :half], values[..., half:]
  cos, sin = rope.cos.expand_dims(-2), rope.sin.expand_dims(-2)
  turned = (first * cos - second * sin, second * cos + first * sin)
  return ms_ops.cat(turned, -1).astype(x.dtype)
