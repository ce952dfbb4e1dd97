"""A decoder's layers, written once over the operators of a framework.

What is here is the order of operators and the names of parameters; what a sum,
or a rotation is, each framework says in its `Operators`.
Sources: arXiv 2412.19437, section 2.1.1, for compressed keys and values, and
the published code of each family.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpmoe.models import config as config_lib
from hpmoe.models import linear_attention
from hpmoe.models import operators
from hpmoe.models import parameters
from hpmoe.models import rope_numbers
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
    positions = positions._replace(mask=positions.near)
  branch, entries = attention(run, of_attention, x, positions, entries)
  if run.config.sandwich_norm:
    hidden = hidden + run.norm(params, 'post_attention_layernorm', branch)
    x = run.norm(params, 'pre_mlp_layernorm', hidden)
    branch, routed = _feed_forward(run, number, params, x)
    branch = run.norm(params, 'post_mlp_layernorm', branch)
    return hidden + branch, entries, routed
  factor = run.config.residual_multiplier
  hidden = hidden + run.scaled(branch, factor)
  x = run.norm(params, 'post_attention_layernorm', hidden)
  branch, routed = _feed_forward(run, number, params, x)
  return hidden + run.scaled(branch, factor), entries, routed


def choose_attention(
  config: config_lib.ModelConfig, number: int
) -> tuple[Callable[..., Any], str]:
  """Returns a layer's function of attention, and its block's name."""
  if config.is_linear(number):
    return linear_attention.attend, 'linear_attn'
  latent = config.family.attention == 'mla'
  return latent_attention if latent else grouped_attention, 'self_attn'


def _feed_forward(
  run: Run, number: int, params: Params, x: at.Float[Any, 'B S D']
) -> tuple[at.Float[Any, 'B S D'], Any]:
  if not run.config.has_experts(number):
    return mlp(run, parameters.under(params, 'mlp'), x), None
  block = parameters.under(params, run.config.family.block)
  y, routed = routed_lib.feed_forward(run, block, x)
  if run.config.shared_width:
    y = y + shared_experts(run, block, x)
  return y, routed


def mlp(
  run: Run, params: Params, x: at.Float[Any, 'B S D']
) -> at.Float[Any, 'B S D']:
  """Returns `down(silu(gate(x)) * up(x))`."""
  nn = run.nn
  gate = nn.linear(params, 'gate_proj', x).astype(nn.wide(x.dtype))
  up = nn.linear(params, 'up_proj', x).astype(gate.dtype)
  return nn.linear(params, 'down_proj', nn.gated(gate, up).astype(x.dtype))


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
  return run.scaled(score_words(run, hidden), 1 / run.config.logits_scaling)


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


def grouped_attention(
  run: Run,
  params: Params,
  x: at.Float[Any, 'B S D'],
  positions: Any,
  entries: Entries | None,
) -> tuple[at.Float[Any, 'B S D'], Entries]:
  """Returns `[B, S, D]` and the layer's keys and values, these tokens' too.

  Args:
    run: of this call.
    params: those of `self_attn`.
    x: `[B, S, D]`, normalised.
    positions: of these tokens.
    entries: of the tokens before; None for none.
  """
  nn, config = run.nn, run.config
  projected = [nn.linear(params, f'{name}_proj', x) for name in 'qkv']
  projected[0], gate = split_gate(run, projected[0])
  queries, keys, values = (
    _heads(run, params, name, y) for name, y in zip('qkv', projected)
  )
  queries, keys = (_rotate_heads(run, x, positions) for x in (queries, keys))
  if config.family.norm_after_rope:
    queries, keys = (
      run.norm(params, f'{name}_norm', heads)
      for name, heads in (('q', queries), ('k', keys))
    )
  new_entries: Entries = {'keys': keys, 'values': values}
  if entries is not None:
    new_entries = nn.append(entries, new_entries, positions.length)
  scale = config.attention_scale
  keys_values = new_entries['keys'], new_entries['values']
  out = nn.attend(
    queries, *keys_values, positions.mask, scale, params.get('sinks')
  )
  if gate is not None:
    wide = gate.astype(nn.wide(out.dtype))
    out = (out.astype(wide.dtype) * nn.sigmoid(wide)).astype(out.dtype)
  return nn.linear(params, 'o_proj', out), new_entries


def split_gate(
  run: Run, projected: at.Float[Any, 'B S X']
) -> tuple[at.Float[Any, 'B S H*X'], at.Float[Any, 'B S H*X'] | None]:
  """Returns queries, and the gate if there is one: head by head beside them."""
  if not run.config.family.attention_gate:
    return projected, None
  width = run.config.head_dim
  by_head = projected.reshape(*projected.shape[:2], -1, 2 * width)
  halves = run.nn.parts(by_head, width)
  queries, gate = (half.reshape(*half.shape[:2], -1) for half in halves)
  return queries, gate


def _rotate_heads(
  run: Run, x: at.Float[Any, 'B S H X'], positions: Any
) -> at.Float[Any, 'B S H X']:
  """Returns `x` after rotating the part of each head that RoPE covers."""
  nn, config = run.nn, run.config
  if config.rope_dim == x.shape[-1]:
    return _rotate_pairs(run, x, positions.rope)
  turning, plain = nn.parts(x, config.rope_dim)
  rotated_part = _rotate_pairs(run, turning, positions.rope)
  return nn.concat((rotated_part, plain))


def _rotate_pairs(
  run: Run, x: at.Float[Any, 'B S H X'], rope: states.Rope
) -> at.Float[Any, 'B S H X']:
  """Returns `x` with each pair of its last axis rotated.

  Pairs are neighbours if `rope_interleave`, or half of X apart.  Either way the
  first members of all pairs come out first: queries and keys are permuted
  alike, so their products are the same.
  """
  values, half = x.astype(rope.cos.dtype), x.shape[-1] // 2
  first, second = values[..., :half], values[..., half:]
  if run.config.rope_interleave:
    pairs = values.reshape(*x.shape[:-1], half, 2)
    first, second = pairs[..., 0], pairs[..., 1]
  cos, sin = (a.reshape(*a.shape[:-1], 1, half) for a in rope)
  members = (first * cos - second * sin, second * cos + first * sin)
  return run.nn.concat(members).astype(x.dtype)


def _heads(
  run: Run, params: Params, name: str, y: at.Float[Any, 'B S X']
) -> at.Float[Any, 'B S H X']:
  """Returns queries, keys or values by head, normalised if they are."""
  config = run.config
  heads = y.reshape(*y.shape[:2], -1, config.head_dim)
  if name == 'v' or not config.qk_norm or config.family.norm_after_rope:
    return heads
  whole = config.qk_norm == 'whole'
  y = run.norm(params, f'{name}_norm', y if whole else heads)
  return y.reshape(heads.shape)


def latent_attention(
  run: Run,
  params: Params,
  x: at.Float[Any, 'B S D'],
  positions: Any,
  entries: Entries | None,
) -> tuple[at.Float[Any, 'B S D'], Entries]:
  """As `grouped_attention`, with compressed entries."""
  nn, config = run.nn, run.config
  new_entries = _compressed(run, params, x, positions)
  if entries is not None:
    new_entries = nn.append(entries, new_entries, positions.length)
  queries = _queries(run, params, x, positions)
  keys, values = _expanded(run, params, new_entries)
  scale = config.qk_head_dim**-0.5
  scale *= rope_numbers.softmax_factor(config.rope_scaling)
  out = nn.attend(queries, keys, values, positions.mask, scale)
  return nn.linear(params, 'o_proj', out), new_entries


def _queries(
  run: Run, params: Params, x: at.Float[Any, 'B S D'], positions: Any
) -> at.Float[Any, 'B S H X']:
  nn, config = run.nn, run.config
  if config.q_lora_rank is None:
    queries = nn.linear(params, 'q_proj', x)
  else:
    low = nn.linear(params, 'q_a_proj', x)
    norm = params['q_a_layernorm.weight']
    low = nn.rms_norm(low, norm, config.family.latent_eps)
    queries = nn.linear(params, 'q_b_proj', low)
  queries = queries.reshape(*x.shape[:2], -1, config.qk_head_dim)
  plain, turning = nn.parts(queries, config.qk_nope_head_dim)
  rotated_part = _rotate_pairs(run, turning, positions.rope)
  return nn.concat((plain, rotated_part))


def _compressed(
  run: Run, params: Params, x: at.Float[Any, 'B S D'], positions: Any
) -> Entries:
  nn, config = run.nn, run.config
  latent = nn.linear(params, 'kv_a_proj_with_mqa', x)
  low, turning = nn.parts(latent, config.kv_lora_rank)
  one_head = turning.reshape(*turning.shape[:2], 1, -1)
  rotated_part = _rotate_pairs(run, one_head, positions.rope)
  norm = params['kv_a_layernorm.weight']
  return {
    'compressed': nn.rms_norm(low, norm, config.family.latent_eps),
    'rotated': rotated_part.reshape(turning.shape),
  }


def _expanded(
  run: Run, params: Params, entries: Entries
) -> tuple[at.Float[Any, 'B C H X'], at.Float[Any, 'B C H Y']]:
  """Returns keys and values of every head."""
  nn, config = run.nn, run.config
  expanded = nn.linear(params, 'kv_b_proj', entries['compressed'])
  expanded = expanded.reshape(
    *expanded.shape[:2], config.num_attention_heads, -1
  )
  plain, values = nn.parts(expanded, config.qk_nope_head_dim)
  shared_part = entries['rotated']
  shared_part = shared_part.reshape(*shared_part.shape[:2], 1, -1)
  shared_part = nn.broadcast(
    shared_part, (*plain.shape[:3], shared_part.shape[-1])
  )
  return nn.concat((plain, shared_part)), values
