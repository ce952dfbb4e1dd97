"""Attention: its core, and grouped queries with norms, bias and a window."""

import jax
import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models import rope_numbers
from hpmoe.models import states
from hpmoe.models.jax import ops
from hpmoe.reference.contract import array_typing as at


def find_positions(
  config: config_lib.ModelConfig,
  length: at.Int32[at.Array, ''],
  count: int,
  capacity: int,
  dtype,
  starts: at.Int32[at.Array, 'B'] | None = None,
) -> states.Positions:
  """Returns the positions and masks of `count` tokens after `length` others.

  The arguments are those of `states.place_tokens`; `dtype` is the model's.
  """
  own, masks, padding = states.place_tokens(
    jnp, config, length, count, capacity, starts
  )
  wide = ops.wide(dtype)
  places = own.astype(wide)

  def rotate(turns, factor: float = 1.0) -> states.Rope:
    angles = places[..., None] * jnp.asarray(turns, wide)
    return states.Rope(jnp.cos(angles) * factor, jnp.sin(angles) * factor)

  turns = rope_numbers.frequencies(config, places.max() + 1, jnp)
  rope = rotate(turns, rope_numbers.amplitude(config.rope_scaling))
  near = rope_numbers.window_frequencies(config)
  near_rope = None if near is None else rotate(near)
  return states.Positions(length, rope, masks[0], masks[1], padding, near_rope)


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
