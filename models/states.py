"""State of a decoder's call: positions and masks, the cache, and outputs.

Arrays are those of the framework that computes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.reference.contract import array_typing as at

Entries = Mapping[str, Any]
# Takes the name of a module and what it returned, `[B, S, D]`, and returns what
# goes on in its place.
Between = Callable[[str, at.Float[Any, 'B S D']], at.Float[Any, 'B S D']]


class Rope(NamedTuple):
  """Rotations of the positions of some tokens, in `ops.wide` of the model.

  Attributes:
    cos: `[S, X/2]`, for a rotating width X, or of each sequence `[B, S, X/2]`.
    sin: likewise.
  """

  cos: at.Float[Any, '*B S X/2']
  sin: at.Float[Any, '*B S X/2']


class Positions(NamedTuple):
  """The positions of a call's tokens, and the tokens that each attends to.

  Attributes:
    length: number of tokens before them; in JAX `[]` int32.
    rope: their rotations.
    mask: `[S, C]`, true where token s attends to token c of the C in the cache;
      `[B, S, C]` if each sequence begins at its own token.
    near: the mask of layers with a sliding window.
    padding: `[B, S]`, true where a token is none; None for no padding.
    near_rope: rotations in layers with a sliding window; None for `rope`.
  """

  length: Any
  rope: Rope
  mask: at.Bool[Any, '*B S C']
  near: at.Bool[Any, '*B S C']
  padding: at.Bool[Any, 'B S'] | None = None
  near_rope: Rope | None = None

  def within_window(self) -> 'Positions':
    """Returns what a layer with a sliding window reads."""
    return self._replace(mask=self.near, rope=self.near_rope or self.rope)


class Cache(NamedTuple):
  """What `decoder.forward` reads and returns.

  Attributes:
    length: tokens held; in JAX `[]` int32.
    layers: of each layer, arrays by name: `entry_shapes`.
    starts: `[B]` int32, of each sequence its first token that is no padding;
      None for 0.
  """

  length: Any
  layers: tuple[Entries, ...]
  starts: at.Int32[Any, 'B'] | None = None

  @property
  def capacity(self) -> int:
    """Tokens that there is room for."""
    names = ('keys', 'compressed')
    return next(e[n].shape[1] for e in self.layers for n in names if n in e)


# An entry that is of all tokens so far, in `ops.wide` of the model.
STATE = 'state'


def entry_shapes(
  config: config_lib.ModelConfig, layer: int, capacity: int
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of what a layer keeps of a sequence, by name.

  Linear attention keeps a state, and what its convolution reads of the last
  tokens; other layers keep `capacity` tokens, with their keys for an indexer if
  there is one that leaves some of them out.

  Args:
    config: sizes and options.
    layer: counted from 0.
    capacity: most tokens of a sequence.
  """
  if config.is_linear(layer):
    heads, width = config.linear_num_key_heads, config.linear_key_head_dim
    sharing = config.linear_num_value_heads // heads
    channels = parameters.count_channels(config)
    return {
      'convolved': (config.linear_conv_kernel_dim - 1, channels),
      STATE: (heads, sharing, width, config.linear_value_head_dim),
    }
  if config.family.attention == 'mla':
    shapes: dict[str, tuple[int, ...]] = {
      'compressed': (capacity, config.kv_lora_rank),
      'rotated': (capacity, config.qk_rope_head_dim),
    }
    if config.leaves_out(capacity):
      shapes['indexed'] = (capacity, config.index_head_dim)
    return shapes
  shape = (capacity, config.count_key_heads(layer), config.head_width(layer))
  return {'keys': shape, 'values': shape}


def check_room(cache: Cache, count: int) -> None:
  """Checks that a cache has room for `count` more tokens.

  A length that JAX traces cannot be checked; check before compiling a step.

  Raises:
    ValueError: there is too little room.
  """
  traced = isinstance(cache.length, jax.core.Tracer)
  size = count + (0 if traced else int(cache.length))
  if size > cache.capacity:
    raise ValueError(
      f'cache: expected room for {size} tokens, got {cache.capacity}'
    )


class Aux(NamedTuple):
  """What a forward pass computes on its way; unused parts cost nothing in jit.

  Attributes:
    hidden_states: `[B, S, D]` each: the embeddings, then what every layer adds
      up to; the last one after the final norm, as in transformers.
    routed: by layer, the `routed.Routed` that its MoE layer read and returned;
      that of an MTP head comes last.
    cache: with these tokens; None if none was given.
    mtp_logits: `[B, S-1, V]`; at place i the scores of token i + 2.  None if
      not asked for.
  """

  hidden_states: tuple[at.Float[Any, 'B S D'], ...]
  routed: dict[int, Any]
  cache: Cache | None
  mtp_logits: at.Float[Any, 'B S-1 V'] | None


def place_tokens(
  xp: Any,
  config: config_lib.ModelConfig,
  length: Any,
  count: int,
  capacity: int,
  starts: at.Int32[Any, 'B'] | None = None,
) -> tuple[
  at.Int32[Any, '*B S'],
  list[at.Bool[Any, '*B S C']],
  at.Bool[Any, 'B S'] | None,
]:
  """Returns positions of `count` tokens after `length` others, and two masks.

  A token attends to itself and to all tokens before it; in the second mask,
  that of the sliding window, to itself and the `sliding_window` - 1 before it.
  Last comes which tokens are padding; None if none is.

  Args:
    xp: `numpy`, or `jax.numpy`.
    config: sizes and options.
    length: number of tokens before them.
    count: S.
    capacity: C, tokens that the cache holds keys for; the last may be empty.
    starts: `[B]`, the first token of each sequence, at position 0; tokens
      before it are padding and attend only to themselves; None for 0.
  """
  own = length + xp.arange(count, dtype=np.int32)
  all_tokens = xp.arange(capacity, dtype=np.int32)
  back = own[:, None] - all_tokens
  masks = [back >= 0] * 2
  if config.sliding_window is not None:
    masks[1] = masks[1] & (back < config.sliding_window)
  padding = None
  if starts is not None:
    has_begun = all_tokens >= starts[:, None, None]
    masks = [mask & has_begun | (back == 0) for mask in masks]
    padding = own < starts[:, None]
    own = xp.maximum(own - starts[:, None], 0)
  return own, masks, padding
