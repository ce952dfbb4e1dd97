"""Keys and values of the tokens that a decoder has seen.

Grouped-query attention keeps rotated keys, and values.  Multi-head latent
attention keeps the compressed vector that both come from, and one rotated key
for all heads: kv_lora_rank + qk_rope_head_dim numbers for a token and layer.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import states
from hpmoe.models.jax import ops
from hpmoe.reference.contract import array_typing as at


def empty(
  config: config_lib.ModelConfig,
  batch: int,
  capacity: int,
  dtype,
  starts: np.ndarray | None = None,
) -> states.Cache:
  """Returns a cache of no tokens, with room for `capacity` of each of `batch`.

  Args:
    config: sizes and options.
    batch: B.
    capacity: most tokens of a sequence.
    dtype: of the model.
    starts: `[B]`, see `states.Cache`.
  """

  def zeros(layer: int) -> states.Entries:
    shapes = states.entry_shapes(config, layer, capacity)
    return {
      name: jnp.zeros(
        (batch, *shape), ops.wide(dtype) if name == states.STATE else dtype
      )
      for name, shape in shapes.items()
    }

  layers = tuple(map(zeros, range(config.num_hidden_layers)))
  first = None if starts is None else jnp.asarray(starts, jnp.int32)
  return states.Cache(jnp.int32(0), layers, first)


def append(
  entries: states.Entries, new: states.Entries, length: at.Int32[at.Array, '']
) -> states.Entries:
  """Returns `entries` with `new` `[B, S, ...]` from token `length` on."""
  return {
    name: jax.lax.dynamic_update_slice_in_dim(
      entries[name], value, length, axis=1
    )
    for name, value in new.items()
  }
