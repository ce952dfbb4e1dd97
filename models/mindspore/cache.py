"""Keys and values of the tokens that a decoder has seen.

As `models/jax/cache.py`, but for the length, which is a number of Python's:
MindSpore's functions here run eagerly.
"""

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import states


def empty(
  config: config_lib.ModelConfig,
  batch: int,
  capacity: int,
  dtype,
  starts: np.ndarray | None = None,
) -> states.Cache:
  """As `models/jax/cache.py`."""
  layer = {
    name: ms_ops.zeros((batch, capacity, *shape), ms.float32).astype(dtype)
    for name, shape in states.entry_shapes(config).items()
  }
  return states.Cache(0, (layer,) * config.num_hidden_layers, starts)


def append(
  entries: states.Entries, new: states.Entries, length: int
) -> states.Entries:
  """Returns `entries` with `new` `[B, S, ...]` from token `length` on."""
  out = {}
  for name, value in new.items():
    previous = entries[name]
    end = length + value.shape[1]
    parts = [previous[:, :length], value, previous[:, end:]]
    out[name] = ms_ops.cat([p for p in parts if p.shape[1]], 1)
  return out
