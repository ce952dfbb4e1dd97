"""A decoder as a pure function over a flat dict of parameters.

Families differ in the parts that `config.family` says (`models/families.toml`).
Source of each: its `modeling_*.py` of transformers 5.23, which the golden files
were made with, and for Pangu its published code; where this differs, the file
that does says so.
"""

import functools

import jax
import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models import decoder_layers
from hpmoe.models import operators
from hpmoe.models import requests
from hpmoe.models import routed as routed_lib
from hpmoe.models import states
from hpmoe.models.jax import attention as attention_lib
from hpmoe.models.jax import cache as cache_lib
from hpmoe.models.jax import moe as moe_lib
from hpmoe.models.jax import ops
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision

OPERATORS = operators.Operators(
  linear=ops.linear,
  rms_norm=ops.rms_norm,
  gated=ops.gated,
  sigmoid=jax.nn.sigmoid,
  softplus=jax.nn.softplus,
  exp=jnp.exp,
  tanh=jnp.tanh,
  softmax=jax.nn.softmax,
  best=ops.best,
  gather=functools.partial(jnp.take_along_axis, axis=-1),
  select=jnp.where,
  constant=lambda value, like: jnp.asarray(value, like.dtype),
  wide=ops.wide,
  matmul=jnp.matmul,
  embed=lambda embeddings, tokens: embeddings[tokens],
  parts=lambda x, width: (x[..., :width], x[..., width:]),
  concat=functools.partial(jnp.concatenate, axis=-1),
  broadcast=jnp.broadcast_to,
  without_last=lambda x: x[:, :-1],
  attend=attention_lib.attend,
  find_positions=attention_lib.find_positions,
  append=cache_lib.append,
  scan=ops.scan,
)


def forward(
  params: ops.Params,
  config: config_lib.ModelConfig,
  tokens: at.Int32[at.Array, 'B S'],
  *,
  moe: str | moe_lib.Layer = 'oracle',
  ranks: int = 1,
  policy: precision.PrecisionPolicy | None = None,
  cache: states.Cache | None = None,
  mtp: bool = False,
  axis: str | None = None,
  between: states.Between = lambda name, x: x,
) -> tuple[at.Float[at.Array, 'B S V'], states.Aux]:
  """Returns the logits `[B, S, V]` of `tokens`, and what else was computed.

  Pure, and jit-able with all but `params`, `tokens` and `cache` static.  The
  model's dtype is that of its embeddings.

  Args:
    params: by the names of `parameters.parameter_shapes`.
    config: sizes and options.
    tokens: `[B, S]` int32, in [0, vocab_size).
    moe: the layer of routed experts, by name (`moe.named`) or itself.
    ranks: R that it is given tokens and experts of; divides B * S and E.
    policy: its policy; None for the model's dtype (`moe.policy_of`).
    cache: of the tokens before; None for none.
    mtp: whether to compute `mtp_logits`.
    axis: name of a mesh axis, inside a `shard_map`: of all arrays these are
      then the shard of one device, which has its own tokens and, in order, its
      part of the experts; everything else is whole.  See `parallel.py`.
    between: what goes on after the embeddings, every layer and the last norm,
      and of an MTP head after `eh_proj` and its layer.

  Raises:
    ValueError: an argument is not as above; names it.
  """
  shards = 1 if axis is None else jax.lax.axis_size(axis)
  requests.check_parameters(params, config, shards)
  integers = jnp.issubdtype(tokens.dtype, jnp.integer)
  capacity = None if cache is None else cache.capacity
  requests.check(config, tokens, integers, ranks, capacity, mtp)
  embeddings = params['model.embed_tokens.weight']
  layer = _moe_layer(moe, axis)
  policy = policy or moe_lib.policy_of(embeddings.dtype)
  policy = routed_lib.policy_of_model(policy, config)
  run = operators.Run(OPERATORS, config, params, layer, policy, ranks, between)
  if cache is not None:
    states.check_room(cache, tokens.shape[1])
  return decoder_layers.forward(run, tokens, cache, mtp)


@jax.jit
def next_token_loss(
  logits: at.Float[at.Array, 'B S V'], tokens: at.Int32[at.Array, 'B S']
) -> at.Float[at.Array, '']:
  """Returns the mean cross-entropy, in nats, of every token after the first.

  `[]` in `ops.wide`; the logits at place i are those of token i + 1.
  """
  wide = logits[:, :-1].astype(ops.wide(logits.dtype))
  shares = jax.nn.log_softmax(wide, axis=-1)
  target_scores = jnp.take_along_axis(shares, tokens[:, 1:, None], axis=-1)
  return -jnp.mean(target_scores)


def _moe_layer(moe: str | moe_lib.Layer, axis: str | None) -> moe_lib.Layer:
  if not isinstance(moe, str):
    return moe
  if axis is None:
    return moe_lib.find_layer(moe)
  if moe != 'oracle':
    raise ValueError(
      f"moe: expected 'oracle' or a function for the axis {axis!r}, got {moe!r}"
    )
  return moe_lib.sharded(axis)
