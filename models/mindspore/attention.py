"""Attention: its core, and grouped queries with norms, bias and a window."""

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import rope_numbers
from hpmoe.models import states
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import array_typing as at


def find_positions(
  config: config_lib.ModelConfig,
  length: int,
  count: int,
  capacity: int,
  dtype,
  starts: np.ndarray | None = None,
) -> states.Positions:
  """Returns the positions and masks of `count` tokens after `length` others.

  The arguments are those of `states.place_tokens`; `dtype` is the model's.
  """
  own, masks, padding = states.place_tokens(
    np, config, length, count, capacity, starts
  )
  wide = ops.wide(dtype)

  def rotate(turns: np.ndarray, amplitude: float = 1.0) -> states.Rope:
    angles = ms.Tensor(own, wide).expand_dims(-1) * ms.Tensor(turns, wide)
    factor = ops.constant(amplitude, angles)
    return states.Rope(ms_ops.cos(angles) * factor, ms_ops.sin(angles) * factor)

  turns = rope_numbers.frequencies(config, float(own.max() + 1))
  rope = rotate(turns, rope_numbers.amplitude(config.rope_scaling))
  of_window = rope_numbers.window_frequencies(config)
  near_rope = None if of_window is None else rotate(of_window)
  padding = None if padding is None else ms.Tensor(padding)
  mask, near = map(ms.Tensor, masks)
  return states.Positions(length, rope, mask, near, padding, near_rope)


def attend(
  queries: at.Float[ms.Tensor, 'B S H X'],
  keys: at.Float[ms.Tensor, 'B C G X'],
  values: at.Float[ms.Tensor, 'B C G Y'],
  mask: at.Bool[ms.Tensor, '*B S C'],
  scale: float,
  sinks: at.Float[ms.Tensor, 'H'] | None = None,
) -> at.Float[ms.Tensor, 'B S H*Y']:
  """Returns softmax(scale * queries keys^T) values, `[B, S, H*Y]`.

  Head h reads group h * G / H of keys and values; of its shares a sink, a score
  of its own, takes one that no value gets.  Scores and softmax are in
  `ops.wide`; shares are rounded before they meet the values.
  """
  wide = ops.wide(queries.dtype)
  batch, count, heads, width = queries.shape
  capacity, groups = keys.shape[1:3]
  group_heads = heads // groups
  rows = queries.astype(wide).reshape(batch, count, groups, group_heads, width)
  rows = rows.permute(0, 2, 3, 1, 4).reshape(-1, group_heads * count, width)
  columns = keys.astype(wide).permute(0, 2, 3, 1).reshape(-1, width, capacity)
  scores = ms_ops.bmm(rows, columns).reshape(batch, -1, count, capacity)
  scores = scores * ops.constant(scale, scores)
  lowest = ms_ops.full_like(scores, float('-inf'))
  scores = ms_ops.where(mask.reshape(-1, 1, count, capacity), scores, lowest)
  if sinks is not None:
    column = sinks.astype(wide).reshape(1, heads, 1, 1)
    column = ms_ops.broadcast_to(column, (batch, heads, count, 1))
    scores = ms_ops.cat((scores, column), -1)
  shares = ops.softmax(scores)[..., :capacity]
  shares = shares.astype(values.dtype).astype(wide)
  shares = shares.reshape(-1, group_heads * count, capacity)
  right = (
    values.astype(wide)
    .permute(0, 2, 1, 3)
    .reshape(*shares.shape[:1], capacity, -1)
  )
  out = ms_ops.bmm(shares, right).reshape(batch, groups, group_heads, count, -1)
  out = out.permute(0, 3, 1, 2, 4).reshape(batch, count, -1)
  return out.astype(values.dtype)
