"""Keys and values of the tokens that a decoder has seen.

Grouped-query attention keeps rotated keys, and values.  Multi-head latent
attention keeps the compressed vector that both come from, and one rotated key
for all heads: kv_lora_rank + qk_rope_head_dim numbers for a token and layer.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models import cache_room
from hpmoe.models import config as config_lib
from hpmoe.reference.contract import array_typing as at

Entries = Mapping[str, at.Array]


class Cache(NamedTuple):
  """What `decoder.forward` reads and returns.

  Attributes:
    length: `[]` int32, tokens held.
    layers: of each layer, arrays `[B, capacity, ...]` by name.
    starts: `[B]` int32, of each sequence its first token that is no padding;
      None for 0.
  """

  length: at.Int32[at.Array, '']
  layers: tuple[Entries, ...]
  starts: at.Int32[at.Array, 'B'] | None = None

  @property
  def capacity(self) -> int:
    """Tokens that there is room for."""
    return next(iter(self.layers[0].values())).shape[1]


def empty(
  config: config_lib.ModelConfig,
  batch: int,
  capacity: int,
  dtype,
  starts: np.ndarray | None = None,
) -> Cache:
  """Returns a cache of no tokens, with room for `capacity` of each of `batch`.

  Args:
    config: sizes and options.
    batch: B.
    capacity: most tokens of a sequence.
    dtype: of the model.
    starts: `[B]`, see `Cache`.
  """
  layer = {
    name: jnp.zeros((batch, capacity, *shape), dtype)
    for name, shape in cache_room.shapes(config).items()
  }
  first = None if starts is None else jnp.asarray(starts, jnp.int32)
  return Cache(jnp.int32(0), (layer,) * config.num_hidden_layers, first)


def append(
  entries: Entries, new: Entries, length: at.Int32[at.Array, '']
) -> Entries:
  """Returns `entries` with `new` `[B, S, ...]` from token `length` on."""
  return {
    name: jax.lax.dynamic_update_slice_in_dim(
      entries[name], value, length, axis=1
    )
    for name, value in new.items()
  }


def check_room(cache: Cache, count: int) -> None:
  """Refuses `count` more tokens than there is room for.

  A traced length cannot be checked: whoever compiles a step checks before.

  Raises:
    ValueError: there is no room; says how much there is.
  """
  if isinstance(cache.length, jax.core.Tracer):
    held = 0
  else:
    held = int(cache.length)
  cache_room.check(held, count, cache.capacity)
