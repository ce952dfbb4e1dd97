"""Text from a decoder, token by token, on the cache of the tokens before."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools

import jax
import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models.jax import cache as cache_lib
from hpmoe.models.jax import decoder
from hpmoe.models.jax import moe as moe_lib
from hpmoe.reference.contract import array_typing as at


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a token is drawn.

  Attributes:
    temperature: divides the logits; 0 takes the best token, always.
    top_k: tokens that are drawn from, the best ones; 0 for all.
    seed: decides every draw.

  Raises:
    ValueError: a number is out of its range; names it.
  """

  temperature: float = 1.0
  top_k: int = 0
  seed: int = 0

  def __post_init__(self):
    if not 0 <= self.temperature < float('inf'):
      raise ValueError(
        f'temperature: expected 0 or more, got {self.temperature}'
      )
    if self.top_k < 0:
      raise ValueError(f'top_k: expected 0 or more, got {self.top_k}')


def generate(
  params: Mapping[str, at.Array],
  config: config_lib.ModelConfig,
  prompt: Sequence[int],
  count: int,
  sampling: Sampling,
  moe: str = 'host',
) -> Iterator[int]:
  """Yields up to `count` tokens that follow `prompt`, each when it is there.

  Ends early, before it yields one of `config.eos_token_id`.

  Args:
    params: by the names of `parameters.parameter_shapes`.
    config: sizes and options.
    prompt: tokens, at least one.
    count: most tokens to draw.
    sampling: how.
    moe: the layer of routed experts, see `moe.named`.

  Raises:
    ValueError: the prompt is empty, has a token that the model lacks, or is too
      long for the model with `count` tokens after it.
  """
  _check(config, prompt, count)
  layer = moe_lib.named(moe)
  params = jax.tree.map(jnp.asarray, dict(params))
  dtype = params['model.embed_tokens.weight'].dtype
  cache = cache_lib.empty(config, 1, len(prompt) + count, dtype)
  cache = jax.tree.map(jnp.copy, cache)  # its layers share what is donated
  # What the step does not depend on would compile it again.
  how = dataclasses.replace(sampling, seed=0)
  model = dataclasses.replace(config, eos_token_id=())
  key = jax.random.key(sampling.seed)
  tokens = jnp.asarray([prompt], jnp.int32)
  for place in range(count):
    of_place = jax.random.fold_in(key, place)
    token, cache = _step(model, how, layer, params, tokens, cache, of_place)
    if int(token) in config.eos_token_id:
      return
    yield int(token)
    tokens = token.reshape(1, 1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=5)
def _step(
  config: config_lib.ModelConfig,
  sampling: Sampling,
  layer: moe_lib.Layer,
  params: Mapping[str, at.Array],
  tokens: at.Int32[at.Array, '1 S'],
  cache: cache_lib.Cache,
  key: at.Array,
) -> tuple[at.Int32[at.Array, ''], cache_lib.Cache | None]:
  """Returns the token after `tokens`, and the cache with them."""
  logits, aux = decoder.forward(params, config, tokens, moe=layer, cache=cache)
  return draw(logits[0, -1].astype(jnp.float32), sampling, key), aux.cache


def draw(
  logits: at.Float[at.Array, ' V'], sampling: Sampling, key: at.Array
) -> at.Int32[at.Array, '']:
  """Returns one token, `[]` int32; of equal logits the lower token is better.

  Args:
    logits: `[V]` float32.
    sampling: how.
    key: of this draw.
  """
  if sampling.temperature == 0:
    return jnp.argmax(logits).astype(jnp.int32)
  if 0 < sampling.top_k < logits.size:
    _, best = jax.lax.top_k(logits, sampling.top_k)
    kept = jnp.zeros(logits.shape, bool).at[best].set(True)
    logits = jnp.where(kept, logits, -jnp.inf)
  scaled = logits / sampling.temperature
  return jax.random.categorical(key, scaled).astype(jnp.int32)


def _check(
  config: config_lib.ModelConfig, prompt: Sequence[int], count: int
) -> None:
  if not prompt:
    raise ValueError('prompt: expected at least one token, got none')
  if count < 1:
    raise ValueError(f'tokens: expected at least 1, got {count}')
  if max(prompt) >= config.vocab_size:
    raise ValueError(
      f'prompt: expected tokens below vocab_size={config.vocab_size}, got '
      f'{max(prompt)}'
    )
  if len(prompt) + count > config.max_position_embeddings:
    raise ValueError(
      f'tokens: expected at most {config.max_position_embeddings}, with those '
      f'of the prompt, got {len(prompt) + count}'
    )
