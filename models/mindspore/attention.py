"""Attention: its core, and grouped queries with norms, bias and a window."""

from typing import NamedTuple

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.mindspore import ops
from hpmoe.models.mindspore import rope as rope_lib
from hpmoe.reference.contract import array_typing as at


class Seen(NamedTuple):
  """Where the tokens of a call stand, and which tokens each of them sees.

  Attributes:
    length: tokens before them.
    rope: their rotations.
    mask: `[S, C]`, true where token s sees token c, of all C that are held; of
      each sequence, `[B, S, C]`, if they begin at tokens of their own.
    near: the same in a layer with a sliding window, if any has.
  """

  length: int
  rope: rope_lib.Rope
  mask: at.Bool[ms.Tensor, '*B S C']
  near: at.Bool[ms.Tensor, '*B S C']


def seen(
  config: config_lib.ModelConfig,
  length: int,
  count: int,
  capacity: int,
  dtype,
  starts: np.ndarray | None = None,
) -> Seen:
  """Returns what `count` tokens after `length` others see.

  A token sees itself and those before it; with a sliding window, itself and
  the `sliding_window` - 1 before it.

  Args:
    config: sizes and options.
    length: tokens before them.
    count: S.
    capacity: C, tokens that keys are held of, of which the last may be empty.
    dtype: of the model.
    starts: `[B]`, the first token of each sequence, whose position is 0 and
      before which none is seen but by itself; None for 0.
  """
  own = length + np.arange(count, dtype=np.int32)
  every = np.arange(capacity, dtype=np.int32)
  back = own[:, None] - every
  masks = [back >= 0] * 2
  if config.sliding_window is not None:
    masks[1] = masks[1] & (back < config.sliding_window)
  if starts is not None:
    begun = every >= starts[:, None, None]
    masks = [mask & begun | (back == 0) for mask in masks]
    own = np.maximum(own - starts[:, None], 0)
  rope = rope_lib.rotations(config, own, dtype)
  return Seen(length, rope, *map(ms.Tensor, masks))


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
  held, groups = keys.shape[1:3]
  each = heads // groups
  rows = queries.astype(wide).reshape(batch, count, groups, each, width)
  rows = rows.permute(0, 2, 3, 1, 4).reshape(-1, each * count, width)
  columns = keys.astype(wide).permute(0, 2, 3, 1).reshape(-1, width, held)
  scores = ms_ops.bmm(rows, columns).reshape(batch, -1, count, held)
  scores = scores * ops.constant(scale, scores)
  lowest = ms_ops.full_like(scores, float('-inf'))
  scores = ms_ops.where(mask.reshape(-1, 1, count, held), scores, lowest)
  if sinks is not None:
    column = sinks.astype(wide).reshape(1, heads, 1, 1)
    column = ms_ops.broadcast_to(column, (batch, heads, count, 1))
    scores = ms_ops.cat((scores, column), -1)
  shares = ops.softmax(scores)[..., :held]
  shares = shares.astype(values.dtype).astype(wide)
  shares = shares.reshape(-1, each * count, held)
  right = (
    values.astype(wide).permute(0, 2, 1, 3).reshape(*shares.shape[:1], held, -1)
  )
  out = ms_ops.bmm(shares, right).reshape(batch, groups, each, count, -1)
  out = out.permute(0, 3, 1, 2, 4).reshape(batch, count, -1)
  return out.astype(values.dtype)
