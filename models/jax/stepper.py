"""A JAX decoder that is asked for one token after another."""

from collections.abc import Mapping
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import states
from hpmoe.models.jax import cache as cache_lib
from hpmoe.models.jax import decoder
from hpmoe.models.jax import moe as moe_lib
from hpmoe.reference.contract import array_typing as at


class Stepper:
  """See `generation.Stepper`."""

  def __init__(
    self,
    params: Mapping[str, np.ndarray],
    config: config_lib.ModelConfig,
    moe: str = 'host',
  ):
    """Takes a model.

    Args:
      params: by the names of `parameters.parameter_shapes`.
      config: sizes and options.
      moe: the layer of routed experts, see `moe.named`.

    Raises:
      ValueError: there is no such layer.
    """
    # What the step does not depend on would compile it again.
    self._config = dataclasses.replace(config, eos_token_id=())
    self._layer = moe_lib.find_layer(moe)
    self._params = jax.tree.map(jnp.asarray, dict(params))

  def empty(self, batch, capacity, starts) -> states.Cache:
    """Returns a cache of no tokens."""
    dtype = self._params['model.embed_tokens.weight'].dtype
    cache = cache_lib.empty(self._config, batch, capacity, dtype, starts)
    # The layers share the donated buffers.
    return jax.tree.map(jnp.copy, cache)

  def step(self, tokens, cache):
    """Returns the logits after the last token, and the cache with `tokens`."""
    states.check_room(cache, tokens.shape[1])
    logits, cache = _step(
      self._config, self._layer, self._params, jnp.asarray(tokens), cache
    )
    return np.asarray(logits), cache


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=4)
def _step(
  config: config_lib.ModelConfig,
  layer: moe_lib.Layer,
  params: Mapping[str, at.Array],
  tokens: at.Int32[at.Array, 'B S'],
  cache: states.Cache,
) -> tuple[at.Float[at.Array, 'B V'], states.Cache | None]:
  logits, aux = decoder.forward(params, config, tokens, moe=layer, cache=cache)
  return logits[:, -1].astype(jnp.float32), aux.cache
