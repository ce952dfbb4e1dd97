"""Attention: its core, and grouped queries with norms, bias and a window."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models.jax import ops
from hpmoe.models.jax import rope as rope_lib
from hpmoe.reference.contract import array_typing as at


class Seen(NamedTuple):
  """Where the tokens of a call stand, and which tokens each of them sees.

  Attributes:
    length: `[]` int32, tokens before them.
    rope: their rotations.
    mask: `[S, C]`, true where token s sees token c, of all C that are held; of
      each sequence, `[B, S, C]`, if they begin at tokens of their own.
    near: the same in a layer with a sliding window, if any has.
  """

  length: at.Int32[at.Array, '']
  rope: rope_lib.Rope
  mask: at.Bool[at.Array, '*B S C']
  near: at.Bool[at.Array, '*B S C']


def seen(
  config: config_lib.ModelConfig,
  length: at.Int32[at.Array, ''],
  count: int,
  capacity: int,
  dtype,
  starts: at.Int32[at.Array, 'B'] | None = None,
) -> Seen:
  """Returns what `count` tokens after `length` others see.

  A token sees itself and those before it; with a sliding window, itself and
  the `sliding_window` - 1 before it.

  Args:
    config: sizes and options.
    length: `[]` int32, tokens before them.
    count: S.
    capacity: C, tokens that keys are held of, of which the last may be empty.
    dtype: of the model.
    starts: `[B]`, the first token of each sequence, whose position is 0 and
      before which none is seen but by itself; None for 0.
  """
  own = length + jnp.arange(count, dtype=jnp.int32)
  every = jnp.arange(capacity, dtype=jnp.int32)
  back = own[:, None] - every
  masks = [back >= 0] * 2
  if config.sliding_window is not None:
    masks[1] = masks[1] & (back < config.sliding_window)
  if starts is not None:
    begun = every >= starts[:, None, None]
    masks = [mask & begun | (back == 0) for mask in masks]
    own = jnp.maximum(own - starts[:, None], 0)
  return Seen(length, rope_lib.rotations(config, own, dtype), *masks)


def attend(
  queries: at.Float[at.Array, 'B S H X'],
  keys: at.Float[at.Array, 'B C G X'],
  values: at.Float[at.Array, 'B C G Y'],
  mask: at.Bool[at.Array, '*B S C'],
  scale: float,
  sinks: at.Float[at.Array, 'H'] | None = None,
) -> at.Float[at.Array, 'B S H*Y']:
  """Returns softmax(scale * queries keys^T) values, `[B, S, H*Y]`.

  Head h reads group h * G / H of keys and values; of its shares a sink, a score
  of its own, takes one that no value gets.  Scores and softmax are in
  `ops.wide`; shares are rounded before they meet the values.
  """
  wide, dtype = ops.wide(queries.dtype), values.dtype
  batch, count, heads, width = queries.shape
  groups = keys.shape[2]
  queries, keys, values = (a.astype(wide) for a in (queries, keys, values))
  queries = queries.reshape(batch, count, groups, heads // groups, width)
  scores = jnp.einsum('bsghx,bcgx->bghsc', queries, keys)
  if mask.ndim == 3:
    mask = mask[:, None, None]
  scores = jnp.where(mask, scores * scale, -jnp.inf)
  if sinks is not None:
    column = sinks.astype(wide).reshape(groups, -1, 1, 1)
    column = jnp.broadcast_to(column, (*scores.shape[:-1], 1))
    scores = jnp.concatenate([scores, column], axis=-1)
  shares = jax.nn.softmax(scores, axis=-1).astype(dtype).astype(wide)
  shares = shares[..., : keys.shape[1]]
  out = jnp.einsum('bghsc,bcgy->bsghy', shares, values)
  return out.astype(dtype).reshape(batch, count, -1)
