"""A MindSpore decoder that is asked for one token after another."""

from collections.abc import Mapping

import mindspore as ms
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import states
from hpmoe.models.mindspore import cache as cache_lib
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops


class Stepper:
  """See `generation.Stepper`; as `models/jax/stepper.py`."""

  def __init__(
    self,
    params: Mapping[str, np.ndarray],
    config: config_lib.ModelConfig,
    moe: str = 'host',
  ):
    """As of `models/jax/stepper.py`."""
    self._config, self._layer = config, moe_lib.find_layer(moe)
    self._params = {name: ms.Tensor(value) for name, value in params.items()}

  def empty(self, batch, capacity, starts) -> states.Cache:
    """Returns a cache of no tokens."""
    dtype = self._params['model.embed_tokens.weight'].dtype
    return cache_lib.empty(self._config, batch, capacity, dtype, starts)

  def step(self, tokens, cache):
    """Returns the logits after the last token, and the cache with `tokens`."""
    logits, aux = decoder.forward(
      self._params,
      self._config,
      ms.Tensor(tokens),
      moe=self._layer,
      cache=cache,
    )
    return ops.to_numpy(logits.astype(ms.float32)[:, -1]), aux.cache
