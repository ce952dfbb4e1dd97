"""A decoder's layers, written once over the operators of a framework.

What is here is the order of operators and the names of parameters; what a sum,
or a rotation is, each framework says in its `Operators`.
Source: the published code of each family.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpmoe.models import attention as attention_lib
from hpmoe.models import config as config_lib
from hpmoe.models import linear_attention
from hpmoe.models import operators
from hpmoe.models import parameters
from hpmoe.models import routed as routed_lib
from hpmoe.models import states
from hpmoe.reference.contract import array_typing as at

Params = operators.Params
Run = operators.Run
Entries = states.Entries


def forward(
  run: Run,
  tokens: at.Int32[Any, 'B S'],
  cache: states.Cache | None,
  mtp: bool,
) -> tuple[at.Float[Any, 'B S V'], states.Aux]:
  """Returns the logits `[B, S, V]` of `tokens`, and what else was computed.

  Args:
    run: of this call.
    tokens: `[B, S]` int32, in [0, vocab_size).
    cache: of the tokens before, with room for these; None for none.
    mtp: whether to compute `mtp_logits`.
  """
  embeddings = run.params['model.embed_tokens.weight']
  hidden = run.scaled(
    run.nn.embed(embeddings, tokens), run.config.embedding_multiplier
  )
  hidden = run.between('model.embed_tokens', hidden)
  count = tokens.shape[1]
  length, capacity, starts = 0, count, None
  cached: Sequence[Entries | None] = (None,) * run.config.num_hidden_layers
  if cache is not None:
    length, capacity, starts = cache.length, cache.capacity, cache.starts
    cached = cache.layers
  positions = run.nn.find_positions(
    run.config, length, count, capacity, hidden.dtype, starts
  )
  hidden_states, entries, routed = stack(run, hidden, positions, cached)
  if cache is not None:
    cache = states.Cache(length + count, tuple(entries), starts)
  last, further = hidden_states[-1], None
  if mtp:
    number = run.config.num_hidden_layers
    further, routed[number] = _mtp(run, tokens, last)
  aux = states.Aux(tuple(hidden_states), routed, cache, further)
  return logits(run, last), aux


def stack(
  run: Run,
  hidden: at.Float[Any, 'B S D'],
  positions: Any,
  cached: Sequence[Entries | None],
) -> tuple[list[at.Float[Any, 'B S D']], list[Entries], dict[int, Any]]:
  """Returns hidden states, cache entries and routing, layer by layer.

  The hidden states `[B, S, D]` are the embeddings and the output of each layer;
  the last one is taken after the norm.

  Args:
    run: of this call.
    hidden: `[B, S, D]`, the embeddings.
    positions: of these tokens.
    cached: of each layer, entries of the tokens before; None for none.
  """
  states, new_entries = [hidden], []
  routed = {}
  for number, entries in enumerate(cached):
    hidden, entries, of_layer = layer(run, number, hidden, positions, entries)
    hidden = run.between(f'model.layers.{number}', hidden)
    states.append(hidden)
    new_entries.append(entries)
    if of_layer is not None:
      routed[number] = of_layer
  normed = run.norm(run.params, 'model.norm', hidden)
  states[-1] = run.between('model.norm', normed)
  return states, new_entries, routed


def layer(
  run: Run,
  number: int,
  hidden: at.Float[Any, 'B S D'],
  positions: Any,
  entries: Entries | None,
) -> tuple[at.Float[Any, 'B S D'], Entries, Any]:
  """Returns a layer's hidden state, cache entries, and routing if any."""
  params = parameters.under(run.params, f'model.layers.{number}')
  attention, block = choose_attention(run.config, number)
  of_attention = parameters.under(params, block)
  x = run.norm(params, 'input_layernorm', hidden)
  if run.config.has_window(number):
    positions = positions.within_window()
  branch, entries = attention(run, of_attention, x, positions, entries)
  if run.config.sandwich_norm:
    hidden = hidden + run.norm(params, 'post_attention_layernorm', branch)
    x = run.norm(params, 'pre_mlp_layernorm', hidden)
    branch, routed = _feed_forward(run, number, params, x, hidden)
    branch = run.norm(params, 'post_mlp_layernorm', branch)
    return _scale(run, params, hidden + branch), entries, routed
  factor = run.config.residual_multiplier
  hidden = hidden + run.scaled(branch, factor)
  x = run.norm(params, 'post_attention_layernorm', hidden)
  branch, routed = _feed_forward(run, number, params, x, hidden)
  return hidden + run.scaled(branch, factor), entries, routed


def choose_attention(
  config: config_lib.ModelConfig, number: int
) -> tuple[Callable[..., Any], str]:
  """Returns a layer's function of attention, and its block's name."""
  if config.is_linear(number):
    return linear_attention.attend, 'linear_attn'
  latent = config.family.attention == 'mla'
  attend = attention_lib.latent if latent else attention_lib.grouped
  return attend, 'self_attn'


def _scale(
  run: Run, params: Params, hidden: at.Float[Any, 'B S D']
) -> at.Float[Any, 'B S D']:
  """Returns a layer's result times its factor, if it has one."""
  factor = params.get('layer_scalar')
  if factor is None:
    return hidden
  wide = run.nn.wide(hidden.dtype)
  return (hidden.astype(wide) * factor.astype(wide)).astype(hidden.dtype)


def _feed_forward(
  run: Run,
  number: int,
  params: Params,
  x: at.Float[Any, 'B S D'],
  hidden: at.Float[Any, 'B S D'],
) -> tuple[at.Float[Any, 'B S D'], Any]:
  """Returns what a block adds to `hidden`, which is `x` before its norm."""
  if not run.config.has_experts(number):
    return mlp(run, parameters.under(params, 'mlp'), x), None
  block = parameters.under(params, run.config.family.block)
  if run.config.family.separate_norms:
    own = run.norm(block, 'input_norm', hidden)
    y, routed = routed_lib.feed_forward(run, block, own, hidden)
    y = run.norm(block, 'routed_norm', y)
    shared = shared_experts(run, block, x)
    return run.norm(block, 'shared_norm', shared) + y, routed
  y, routed = routed_lib.feed_forward(run, block, x)
  if run.config.shared_width:
    y = y + shared_experts(run, block, x)
  return y, routed


def mlp(
  run: Run, params: Params, x: at.Float[Any, 'B S D']
) -> at.Float[Any, 'B S D']:
  """Returns `down(act(gate(x)) * up(x))`."""
  nn = run.nn
  gate = nn.linear(params, 'gate_proj', x).astype(nn.wide(x.dtype))
  up = nn.linear(params, 'up_proj', x).astype(gate.dtype)
  activation = nn.gated(gate, up, activation=run.config.activation)
  return nn.linear(params, 'down_proj', activation.astype(x.dtype))


def shared_experts(
  run: Run, params: Params, x: at.Float[Any, 'B S D']
) -> at.Float[Any, 'B S D']:
  nn, family = run.nn, run.config.family
  y = mlp(run, parameters.under(params, family.shared), x)
  if not family.shared_gate:
    return y
  wide = x.astype(nn.wide(x.dtype))
  weight = nn.sigmoid(nn.linear(params, family.shared_gate, wide))
  return (weight * y.astype(wide.dtype)).astype(x.dtype)


def logits(run: Run, hidden: at.Float[Any, 'B S D']) -> at.Float[Any, 'B S V']:
  """Returns the scores of the next token."""
  scores = run.scaled(score_words(run, hidden), 1 / run.config.logits_scaling)
  if not (cap := run.config.final_logit_softcapping):
    return scores
  wide = scores.astype(run.nn.wide(scores.dtype))
  bound = run.nn.constant(cap, wide)
  return (run.nn.tanh(wide / bound) * bound).astype(scores.dtype)


def score_words(
  run: Run, hidden: at.Float[Any, 'B S D']
) -> at.Float[Any, 'B S V']:
  """Returns what the head returns, from which logits follow."""
  head = {'head.weight': run.params[parameters.head_name(run.config)]}
  return run.nn.linear(head, 'head', hidden)


def _mtp(
  run: Run,
  tokens: at.Int32[Any, 'B S'],
  hidden: at.Float[Any, 'B S D'],
) -> tuple[at.Float[Any, 'B S-1 V'], Any]:
  """Returns scores of the token after the next: arXiv 2412.19437, section 2.2.

  The paper leaves two things open, read here as in transformers' `MtpLayer`
  and the published weights: `hidden` `[B, S, D]` is taken after the final norm,
  and the embedding stands before it in `eh_proj`.
  """
  nn, (number,) = run.nn, parameters.mtp_layers(run.config)
  params = parameters.under(run.params, f'model.layers.{number}')
  after = nn.embed(run.params['model.embed_tokens.weight'], tokens[:, 1:])
  halves = (
    run.norm(params, 'enorm', after),
    run.norm(params, 'hnorm', nn.without_last(hidden)),
  )
  x = nn.linear(params, 'eh_proj', nn.concat(halves))
  x = run.between(f'model.layers.{number}.eh_proj', x)
  count = x.shape[1]
  x, _, routed = layer(
    run,
    number,
    x,
    nn.find_positions(run.config, 0, count, count, x.dtype),
    None,
  )
  x = run.between(f'model.layers.{number}', x)
  return logits(run, run.norm(params, 'shared_head.norm', x)), routed
