"""A decoder's layers, written once over the operators of a framework.

What is here is the order of operators and the names of parameters; what a sum,
or a rotation is, each framework says in its `Operators`.
Sources: arXiv 2412.19437, section 2.1.1, for compressed keys and values, and
the published code of each family.
"""

from collections.abc import Sequence
from typing import Any

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
  hidden = run.between('model.embed_tokens', run.nn.embed(embeddings, tokens))
  count = tokens.shape[1]
  length, capacity, starts = 0, count, None
  cached: Sequence[Entries | None] = (None,) * run.config.num_hidden_layers
  if cache is not None:
    length, capacity, starts = cache.length, cache.capacity, cache.starts
    cached = cache.layers
  seen = run.nn.seen(run.config, length, count, capacity, hidden.dtype, starts)
  hidden_states, held, routed = stack(run, hidden, seen, cached)
  if cache is not None:
    cache = states.Cache(length + count, tuple(held), starts)
  last, further = hidden_states[-1], None
  if mtp:
    number = run.config.num_hidden_layers
    further, routed[number] = _mtp(run, tokens, last)
  aux = states.Aux(tuple(hidden_states), routed, cache, further)
  return logits(run, last), aux


def stack(
  run: Run,
  hidden: at.Float[Any, 'B S D'],
  seen: Any,
  cached: Sequence[Entries | None],
) -> tuple[list[at.Float[Any, 'B S D']], list[Entries], dict[int, Any]]:
  """Returns the states, what each attention holds, and routings by layer.

  States `[B, S, D]` are the embeddings and what follows each layer, of the last
  one after the norm.

  Args:
    run: of this call.
    hidden: `[B, S, D]`, the embeddings.
    seen: of these tokens.
    cached: of each layer, entries of the tokens before; None for none.
  """
  states, held = [hidden], []
  routed = {}
  for number, entries in enumerate(cached):
    hidden, entries, of_layer = layer(run, number, hidden, seen, entries)
    hidden = run.between(f'model.layers.{number}', hidden)
    states.append(hidden)
    held.append(entries)
    if of_layer is not None:
      routed[number] = of_layer
  normed = run.norm(run.params, 'model.norm', hidden)
  states[-1] = run.between('model.norm', normed)
  return states, held, routed


def layer(
  run: Run,
  number: int,
  hidden: at.Float[Any, 'B S D'],
  seen: Any,
  entries: Entries | None,
) -> tuple[at.Float[Any, 'B S D'], Entries, Any]:
  """Returns a layer's sum, what its attention holds, and its routing if any."""
  params = parameters.under(run.params, f'model.layers.{number}')
  latent = run.config.family.attention == 'mla'
  attention = latent_attention if latent else grouped_attention
  of_attention = parameters.under(params, 'self_attn')
  x = run.norm(params, 'input_layernorm', hidden)
  if run.config.has_window(number):
    seen = seen._replace(mask=seen.near)
  added, entries = attention(run, of_attention, x, seen, entries)
  if run.config.sandwich_norm:
    hidden = hidden + run.norm(params, 'post_attention_layernorm', added)
    x = run.norm(params, 'pre_mlp_layernorm', hidden)
    added, routed = _feed_forward(run, number, params, x)
    added = run.norm(params, 'post_mlp_layernorm', added)
    return hidden + added, entries, routed
  hidden = hidden + added
  x = run.norm(params, 'post_attention_layernorm', hidden)
  added, routed = _feed_forward(run, number, params, x)
  return hidden + added, entries, routed


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
  both = (
    run.norm(params, 'enorm', after),
    run.norm(params, 'hnorm', nn.without_last(hidden)),
  )
  x = nn.linear(params, 'eh_proj', nn.concat(both))
  x = run.between(f'model.layers.{number}.eh_proj', x)
  count = x.shape[1]
  x, _, routed = layer(
    run, number, x, nn.seen(run.config, 0, count, count, x.dtype), None
  )
  x = run.between(f'model.layers.{number}', x)
  return logits(run, run.norm(params, 'shared_head.norm', x)), routed


def grouped_attention(
  run: Run,
  params: Params,
  x: at.Float[Any, 'B S D'],
  seen: Any,
  entries: Entries | None,
) -> tuple[at.Float[Any, 'B S D'], Entries]:
  """Returns `[B, S, D]` and the layer's keys and values, these tokens' too.

  Args:
    run: of this call.
    params: those of `self_attn`.
    x: `[B, S, D]`, normalised.
    seen: of these tokens.
    entries: of the tokens before; None for none.
  """
  nn, config = run.nn, run.config
  queries, keys, values = (_heads(run, params, name, x) for name in 'qkv')
  queries, keys = (_turned(run, x, seen) for x in (queries, keys))
  held: Entries = {'keys': keys, 'values': values}
  if entries is not None:
    held = nn.append(entries, held, seen.length)
  scale = config.head_dim**-0.5
  both = held['keys'], held['values']
  out = nn.attend(queries, *both, seen.mask, scale, params.get('sinks'))
  return nn.linear(params, 'o_proj', out), held


def _turned(
  run: Run, x: at.Float[Any, 'B S H X'], seen: Any
) -> at.Float[Any, 'B S H X']:
  """Returns `x` with the part of each head that rotates turned."""
  nn, config = run.nn, run.config
  if config.rope_dim == x.shape[-1]:
    return _rotated(run, x, seen.rope)
  turning, plain = nn.parts(x, config.rope_dim)
  turned = _rotated(run, turning, seen.rope)
  return nn.concat((turned, plain))


def _rotated(
  run: Run, x: at.Float[Any, 'B S H X'], rope: states.Rope
) -> at.Float[Any, 'B S H X']:
  """Returns `x` with each pair of its last axis turned.

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
  turned = (first * cos - second * sin, second * cos + first * sin)
  return run.nn.concat(turned).astype(x.dtype)


def _heads(
  run: Run, params: Params, name: str, x: at.Float[Any, 'B S D']
) -> at.Float[Any, 'B S H X']:
  """Returns queries, keys or values by head, normalised if they are."""
  config = run.config
  y = run.nn.linear(params, f'{name}_proj', x)
  heads = y.reshape(*y.shape[:2], -1, config.head_dim)
  if name == 'v' or not config.qk_norm:
    return heads
  whole = config.qk_norm == 'whole'
  y = run.norm(params, f'{name}_norm', y if whole else heads)
  return y.reshape(heads.shape)


def latent_attention(
  run: Run,
  params: Params,
  x: at.Float[Any, 'B S D'],
  seen: Any,
  entries: Entries | None,
) -> tuple[at.Float[Any, 'B S D'], Entries]:
  """As `grouped_attention`, with compressed entries."""
  nn, config = run.nn, run.config
  held = _compressed(run, params, x, seen)
  if entries is not None:
    held = nn.append(entries, held, seen.length)
  queries = _queries(run, params, x, seen)
  keys, values = _expanded(run, params, held)
  scale = config.qk_head_dim**-0.5
  scale *= rope_numbers.softmax_factor(config.rope_scaling)
  out = nn.attend(queries, keys, values, seen.mask, scale)
  return nn.linear(params, 'o_proj', out), held


def _queries(
  run: Run, params: Params, x: at.Float[Any, 'B S D'], seen: Any
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
  turned = _rotated(run, turning, seen.rope)
  return nn.concat((plain, turned))


def _compressed(
  run: Run, params: Params, x: at.Float[Any, 'B S D'], seen: Any
) -> Entries:
  nn, config = run.nn, run.config
  both = nn.linear(params, 'kv_a_proj_with_mqa', x)
  low, turning = nn.parts(both, config.kv_lora_rank)
  one_head = turning.reshape(*turning.shape[:2], 1, -1)
  turned = _rotated(run, one_head, seen.rope)
  norm = params['kv_a_layernorm.weight']
  return {
    'compressed': nn.rms_norm(low, norm, config.family.latent_eps),
    'rotated': turned.reshape(turning.shape),
  }


def _expanded(
  run: Run, params: Params, held: Entries
) -> tuple[at.Float[Any, 'B C H X'], at.Float[Any, 'B C H Y']]:
  """Returns keys and values of every head."""
  nn, config = run.nn, run.config
  both = nn.linear(params, 'kv_b_proj', held['compressed'])
  both = both.reshape(*both.shape[:2], config.num_attention_heads, -1)
  plain, values = nn.parts(both, config.qk_nope_head_dim)
  rotated = held['rotated']
  rotated = rotated.reshape(*rotated.shape[:2], 1, -1)
  rotated = nn.broadcast(rotated, (*plain.shape[:3], rotated.shape[-1]))
  return nn.concat((plain, rotated)), values
