"""Keys and values of the tokens that a decoder has seen.

As `models/jax/cache.py`, but for the length, which is a number of Python's:
MindSpore's functions here run eagerly.
"""

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import states
from hpmoe.models.mindspore import ops


def empty(
  config: config_lib.ModelConfig,
  batch: int,
  capacity: int,
  dtype,
  starts: np.ndarray | None = None,
) -> states.Cache:
  """As `models/jax/cache.py`."""

  def zeros(layer: int) -> states.Entries:
    shapes = states.entry_shapes(config, layer, capacity)
    return {
      name: ms_ops.zeros((batch, *shape), ms.float32).astype(
        ops.wide(dtype) if name == states.STATE else dtype
      )
      for name, shape in shapes.items()
    }

  layers = tuple(map(zeros, range(config.num_hidden_layers)))
  return states.Cache(0, layers, starts)


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
