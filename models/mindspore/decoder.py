"""A decoder as a function over a flat dict of parameters, and as a Cell.

As `models/jax/decoder.py`, file by file and name by name; it runs eagerly
(PYNATIVE).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import mindspore as ms
from mindspore import nn
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import cache_room
from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models import requests
from hpmoe.models.mindspore import attention as attention_lib
from hpmoe.models.mindspore import cache as cache_lib
from hpmoe.models.mindspore import mla
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


class Aux(NamedTuple):
  """What a forward pass computes on its way.

  Attributes:
    hidden_states: `[B, S, D]` each: the embeddings, then what every layer adds
      up to; the last one after the final norm, as in transformers.
    routed: by layer, what its MoE layer read and returned; that of an MTP head
      comes last.
    cache: with these tokens; None if none was given.
    mtp_logits: `[B, S-1, V]`; at place i the scores of token i + 2.  None if
      not asked for.
  """

  hidden_states: tuple[at.Float[ms.Tensor, 'B S D'], ...]
  routed: dict[int, moe_lib.Routed | None]
  cache: cache_lib.Cache | None
  mtp_logits: at.Float[ms.Tensor, 'B S-1 V'] | None


# Takes the name of a module and what it returned, `[B, S, D]`, and returns what
# goes on in its place.
Between = Callable[
  [str, at.Float[ms.Tensor, 'B S D']], at.Float[ms.Tensor, 'B S D']
]


class _Run(NamedTuple):
  """What every layer of one call is given."""

  config: config_lib.ModelConfig
  params: ops.Params
  layer: moe_lib.Layer
  policy: precision.PrecisionPolicy
  ranks: int
  between: Between


def forward(
  params: ops.Params,
  config: config_lib.ModelConfig,
  tokens: at.Int32[ms.Tensor, 'B S'],
  *,
  moe: str | moe_lib.Layer = 'host',
  ranks: int = 1,
  policy: precision.PrecisionPolicy | None = None,
  cache: cache_lib.Cache | None = None,
  mtp: bool = False,
  shards: int = 1,
  between: Between = lambda name, x: x,
) -> tuple[at.Float[ms.Tensor, 'B S V'], Aux]:
  """Returns the logits `[B, S, V]` of `tokens`, and what else was computed.

  The model's dtype is that of its embeddings.

  Args:
    params: by the names of `parameters.parameter_shapes`.
    config: sizes and options.
    tokens: `[B, S]` int32, in [0, vocab_size).
    moe: the layer of routed experts, by name (`moe.named`) or itself.
    ranks: R that it is given tokens and experts of; divides B * S and E.
    policy: its policy; None for the model's dtype (`moe.policy_of`).
    cache: of the tokens before; None for none.
    mtp: whether to compute `mtp_logits`.
    shards: processes of an msrun job that call this at once: the tokens are
      then this process's own, and the experts, in order, its part of them;
      everything else is whole.  See `parallel.py`.
    between: what goes on after the embeddings, every layer and the last norm,
      and of an MTP head after `eh_proj` and its layer.

  Raises:
    ValueError: an argument is not as above; names it.
  """
  requests.check_parameters(params, config, shards)
  integers = tokens.dtype in (ms.int32, ms.int64)
  requests.check(config, tokens, integers, ranks, cache is not None, mtp)
  embeddings = params['model.embed_tokens.weight']
  layer = _moe_layer(moe, shards)
  policy = policy or moe_lib.policy_of(embeddings.dtype)
  run = _Run(config, params, layer, policy, ranks, between)
  hidden = between('model.embed_tokens', _embed(embeddings, tokens))
  count = tokens.shape[1]
  length, capacity = 0, count
  if cache is not None:
    length, capacity = cache.length, cache.capacity
    cache_room.check(length, count, capacity)
  seen = attention_lib.seen(config, length, count, capacity, hidden.dtype)
  states, held = [hidden], []
  routed: dict[int, moe_lib.Routed | None] = {}
  for number in range(config.num_hidden_layers):
    entries = None if cache is None else cache.layers[number]
    hidden, entries, of_layer = _layer(run, number, hidden, seen, entries)
    hidden = between(f'model.layers.{number}', hidden)
    states.append(hidden)
    held.append(entries)
    if of_layer is not None:
      routed[number] = of_layer
  norm = params['model.norm.weight']
  hidden = ops.rms_norm(hidden, norm, config.rms_norm_eps)
  hidden = states[-1] = between('model.norm', hidden)
  if cache is not None:
    cache = cache_lib.Cache(length + count, tuple(held))
  further = None
  if mtp:
    further, routed[config.num_hidden_layers] = _mtp(run, tokens, hidden)
  return _logits(run, hidden), Aux(tuple(states), routed, cache, further)


def next_token_loss(
  logits: at.Float[ms.Tensor, 'B S V'], tokens: at.Int32[ms.Tensor, 'B S']
) -> at.Float[ms.Tensor, '']:
  """Returns the mean cross-entropy, in nats, of every token after the first.

  `[]` in `ops.wide`; the logits at place i are those of token i + 1.
  """
  wide = logits.astype(ops.wide(logits.dtype))[:, :-1]
  shares = ops.log_softmax(wide)
  picked = ms_ops.gather_elements(shares, -1, tokens[:, 1:].expand_dims(-1))
  return -picked.mean()


def _embed(
  embeddings: at.Float[ms.Tensor, 'V D'], tokens: at.Int32[ms.Tensor, 'B S']
) -> at.Float[ms.Tensor, 'B S D']:
  # No bfloat16 gather on a CPU.
  rows = embeddings.astype(ops.wide(embeddings.dtype))
  return ms_ops.gather(rows, tokens, 0).astype(embeddings.dtype)


def _without_last(
  x: at.Float[ms.Tensor, 'B S D'],
) -> at.Float[ms.Tensor, 'B S-1 D']:
  return x.astype(ops.wide(x.dtype))[:, :-1].astype(x.dtype)


def _layer(
  run: _Run,
  number: int,
  hidden: at.Float[ms.Tensor, 'B S D'],
  seen: attention_lib.Seen,
  entries: cache_lib.Entries | None,
) -> tuple[
  at.Float[ms.Tensor, 'B S D'], cache_lib.Entries, moe_lib.Routed | None
]:
  """Returns a layer's sum, what its attention holds, and its routing if any."""
  config = run.config
  params = ops.under(run.params, f'model.layers.{number}')

  def norm(name: str, x):
    return ops.rms_norm(x, params[f'{name}.weight'], config.rms_norm_eps)

  latent = config.family.attention == 'mla'
  attention = mla.attention if latent else attention_lib.attention
  of_attention = ops.under(params, 'self_attn')
  x = norm('input_layernorm', hidden)
  added, entries = attention(config, of_attention, x, seen, entries)
  if config.sandwich_norm:
    hidden = hidden + norm('post_attention_layernorm', added)
    added, routed = _feed_forward(
      run, number, params, norm('pre_mlp_layernorm', hidden)
    )
    return hidden + norm('post_mlp_layernorm', added), entries, routed
  hidden = hidden + added
  added, routed = _feed_forward(
    run, number, params, norm('post_attention_layernorm', hidden)
  )
  return hidden + added, entries, routed


def _feed_forward(
  run: _Run, number: int, params: ops.Params, x: at.Float[ms.Tensor, 'B S D']
) -> tuple[at.Float[ms.Tensor, 'B S D'], moe_lib.Routed | None]:
  if not run.config.has_experts(number):
    return ops.mlp(ops.under(params, 'mlp'), x), None
  block = ops.under(params, run.config.family.block)
  return moe_lib.feed_forward(
    run.config, block, x, run.layer, run.policy, run.ranks
  )


def _logits(
  run: _Run, hidden: at.Float[ms.Tensor, 'B S D']
) -> at.Float[ms.Tensor, 'B S V']:
  head = {'head.weight': run.params[parameters.head_name(run.config)]}
  return ops.linear(head, 'head', hidden)


def _mtp(
  run: _Run,
  tokens: at.Int32[ms.Tensor, 'B S'],
  hidden: at.Float[ms.Tensor, 'B S D'],
) -> tuple[at.Float[ms.Tensor, 'B S-1 V'], moe_lib.Routed | None]:
  """Returns scores of the token after the next: arXiv 2412.19437, section 2.2.

  The paper leaves two things open, read here as in transformers' `MtpLayer`
  and the published weights: `hidden` `[B, S, D]` is taken after the final norm,
  and the embedding stands before it in `eh_proj`.
  """
  config, (number,) = run.config, parameters.mtp_layers(run.config)
  params = ops.under(run.params, f'model.layers.{number}')

  def norm(name: str, x):
    return ops.rms_norm(x, params[f'{name}.weight'], config.rms_norm_eps)

  embeddings = run.params['model.embed_tokens.weight']
  after = _embed(embeddings, tokens[:, 1:])
  both = [norm('enorm', after), norm('hnorm', _without_last(hidden))]
  x = ops.linear(params, 'eh_proj', ms_ops.cat(both, -1))
  x = run.between(f'model.layers.{number}.eh_proj', x)
  count = x.shape[1]
  seen = attention_lib.seen(config, 0, count, count, x.dtype)
  x, _, routed = _layer(run, number, x, seen, None)
  x = run.between(f'model.layers.{number}', x)
  return _logits(run, norm('shared_head.norm', x)), routed


def _moe_layer(moe: str | moe_lib.Layer, shards: int) -> moe_lib.Layer:
  if not isinstance(moe, str):
    return moe
  if shards == 1:
    return moe_lib.named(moe)
  if moe != 'host':
    raise ValueError(
      f"moe: expected 'host' or a function for {shards} shards, got {moe!r}"
    )
  return moe_lib.sharded(shards)


class Decoder(nn.Cell):
  """The decoder as a Cell: tokens `[B, S]` to logits `[B, S, V]`.

  Its parameters have the names of `parameters.parameter_shapes`; a router's
  bias is not trained by gradients.
  """

  def __init__(
    self,
    config: config_lib.ModelConfig,
    params: Mapping[str, np.ndarray],
    **options,
  ):
    """Takes values for the parameters.

    Args:
      config: sizes and options.
      params: by name, as `init.init` returns them.
      **options: of `forward`.
    """
    super().__init__()
    self.config, self.options = config, options
    self.weights = ms.ParameterTuple(
      ms.Parameter(
        ms.Tensor(value),
        name=name,
        requires_grad=not parameters.is_router_bias(name),
      )
      for name, value in params.items()
    )

  def construct(self, tokens: at.Int32[ms.Tensor, 'B S']):
    """See the class."""
    params = {weight.name: weight for weight in self.weights}
    return forward(params, self.config, tokens, **self.options)[0]
