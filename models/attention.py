"""A decoder's attention, written once over the operators of a framework.

Sources: arXiv 2412.19437, section 2.1.1, for compressed keys and values; the
report on DeepSeek-V3.2, section 2.1, for the indexer; and the published code of
each family.
"""

from typing import Any

import numpy as np

from hpmoe.models import operators
from hpmoe.models import rope_numbers
from hpmoe.models import states
from hpmoe.reference.contract import array_typing as at

Params = operators.Params
Run = operators.Run
Entries = states.Entries
# Beside the variance of an indexer's key.
_INDEX_EPS = 1e-6


def grouped(
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
  takes_keys = 'v_proj.weight' not in params
  sources = 'qkk' if takes_keys else 'qkv'
  projected = [nn.linear(params, f'{name}_proj', x) for name in sources]
  projected[0], gate = split_gate(run, projected[0])
  queries, keys, values = (
    _heads(run, params, name, y) for name, y in zip('qkv', projected)
  )
  queries, keys, values = (
    _clip(run, heads) for heads in (queries, keys, values)
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


def _clip(
  run: Run, heads: at.Float[Any, 'B S H X']
) -> at.Float[Any, 'B S H X']:
  """Returns `heads` within the model's limit on both sides, if it has one."""
  if not (limit := run.config.clip_qkv):
    return heads
  # MindSpore on a CPU selects no bfloat16.
  wide = heads.astype(run.nn.wide(heads.dtype))
  for bound in (limit, -limit):
    edge = run.nn.constant(bound, heads).astype(wide.dtype)
    is_beyond = wide > edge if bound > 0 else wide < edge
    wide = run.nn.select(is_beyond, edge, wide)
  return wide.astype(heads.dtype)


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
  if config.partial_rotary_factor == 1:
    return _rotate(run, x, positions.rope, config.rope_interleave)
  turning, plain = nn.parts(x, config.rope_dim)
  rotated_part = _rotate(run, turning, positions.rope, config.rope_interleave)
  return nn.concat((rotated_part, plain))


def _rotate(
  run: Run, x: at.Float[Any, 'B S H X'], rope: states.Rope, neighbours: bool
) -> at.Float[Any, 'B S H X']:
  """Returns `x` with each pair of its last axis rotated.

  Pairs are `neighbours`, or half of X apart.  Either way the first members of
  all pairs come out first: queries and keys are permuted alike, so their
  products are the same.
  """
  values, half = x.astype(rope.cos.dtype), x.shape[-1] // 2
  first, second = values[..., :half], values[..., half:]
  if neighbours:
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
  # Not `head_dim`, which need not be that of each layer.
  queries = params['q_proj.weight'].shape[0] // config.num_attention_heads
  width = queries // 2 if config.family.attention_gate else queries
  heads = y.reshape(*y.shape[:2], -1, width)
  if name == 'v' and config.family.separate_norms:
    plain = run.nn.constant(np.ones(width), heads)
    return run.nn.rms_norm(heads, plain, config.rms_norm_eps)
  if name == 'v' or not config.qk_norm or config.family.norm_after_rope:
    return heads
  whole = config.qk_norm == 'whole'
  y = run.norm(params, f'{name}_norm', y if whole else heads)
  return y.reshape(heads.shape)


def latent(
  run: Run,
  params: Params,
  x: at.Float[Any, 'B S D'],
  positions: Any,
  entries: Entries | None,
) -> tuple[at.Float[Any, 'B S D'], Entries]:
  """As `grouped`, with compressed entries."""
  nn, config = run.nn, run.config
  new_entries = _compressed(run, params, x, positions)
  capacity = positions.mask.shape[-1]
  if config.leaves_out(capacity):
    new_entries['indexed'] = _indexed(run, params, x, positions)
  if entries is not None:
    new_entries = nn.append(entries, new_entries, positions.length)
  low = _low_queries(run, params, x)
  mask = positions.mask
  if config.leaves_out(capacity):
    mask = _choose_seen(run, params, x, low, positions, new_entries['indexed'])
  queries = _queries(run, params, low, positions)
  keys, values = _expanded(run, params, new_entries)
  scale = config.qk_head_dim**-0.5
  scale *= rope_numbers.softmax_factor(config.rope_scaling)
  out = nn.attend(queries, keys, values, mask, scale)
  return nn.linear(params, 'o_proj', out), new_entries


def _low_queries(
  run: Run, params: Params, x: at.Float[Any, 'B S D']
) -> at.Float[Any, 'B S X']:
  """Returns compressed queries, or `x` where none are."""
  if run.config.q_lora_rank is None:
    return x
  low = run.nn.linear(params, 'q_a_proj', x)
  norm = params['q_a_layernorm.weight']
  return run.nn.rms_norm(low, norm, run.config.family.latent_eps)


def _queries(
  run: Run, params: Params, low: at.Float[Any, 'B S X'], positions: Any
) -> at.Float[Any, 'B S H X']:
  nn, config = run.nn, run.config
  name = 'q_proj' if config.q_lora_rank is None else 'q_b_proj'
  queries = nn.linear(params, name, low)
  queries = queries.reshape(*low.shape[:2], -1, config.qk_head_dim)
  plain, turning = nn.parts(queries, config.qk_nope_head_dim)
  rotated_part = _rotate(run, turning, positions.rope, config.rope_interleave)
  return nn.concat((plain, rotated_part))


def _compressed(
  run: Run, params: Params, x: at.Float[Any, 'B S D'], positions: Any
) -> dict[str, Any]:
  nn, config = run.nn, run.config
  latent = nn.linear(params, 'kv_a_proj_with_mqa', x)
  low, turning = nn.parts(latent, config.kv_lora_rank)
  one_head = turning.reshape(*turning.shape[:2], 1, -1)
  rotated_part = _rotate(run, one_head, positions.rope, config.rope_interleave)
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


def _indexed(
  run: Run, params: Params, x: at.Float[Any, 'B S D'], positions: Any
) -> at.Float[Any, 'B S X']:
  """Returns the indexer's key of each token."""
  nn = run.nn
  keys = nn.linear(params, 'indexer.wk', x)
  wide = keys.astype(nn.wide(x.dtype))
  width = nn.constant(float(keys.shape[-1]), wide)
  centred = wide - wide.sum(axis=-1, keepdims=True) / width
  norm, bias = (params[f'indexer.k_norm.{n}'] for n in ('weight', 'bias'))
  normed = nn.rms_norm(centred, norm, _INDEX_EPS) + bias.astype(wide.dtype)
  by_head = normed.reshape(*x.shape[:2], 1, -1)
  by_head = _rotate_start(run, by_head, positions)
  return by_head.reshape(keys.shape).astype(x.dtype)


def _choose_seen(
  run: Run,
  params: Params,
  x: at.Float[Any, 'B S D'],
  low: at.Float[Any, 'B S X'],
  positions: Any,
  keys: at.Float[Any, 'B C X'],
) -> at.Bool[Any, 'B S C']:
  """Returns the mask of the `index_topk` tokens that each token sees.

  Those of the best scores; of equal ones the earlier token.  Scores are in
  `Operators.wide`, without the rotation and the float8 of the published kernel,
  as in transformers.
  """
  nn, config = run.nn, run.config
  queries = nn.linear(params, 'indexer.wq_b', low)
  by_head = queries.reshape(*x.shape[:2], config.index_n_heads, -1)
  by_head = _rotate_start(run, by_head, positions)
  dtype = nn.wide(x.dtype)
  wide = x.astype(dtype)
  weights = nn.linear(params, 'indexer.weights_proj', wide)
  factor = (config.index_n_heads * config.index_head_dim) ** -0.5
  weights = weights * nn.constant(factor, weights)
  shape = (x.shape[0], 1, *keys.shape[1:])
  columns = keys.astype(dtype).reshape(shape).swapaxes(-1, -2)
  products = nn.matmul(by_head.astype(dtype), columns)
  zero = nn.constant(0.0, products)
  products = nn.select(products > zero, products, zero)
  scores = (products * weights[..., None]).sum(axis=-2)
  lowest = nn.constant(float('-inf'), scores)
  scores = nn.select(positions.mask, scores, lowest)
  count = scores.shape[-1]
  order = nn.best(scores, count)
  places = nn.best(-order, count)  # of each token in that order
  return positions.mask & (places < config.index_topk)


def _rotate_start(
  run: Run, x: at.Float[Any, 'B S H X'], positions: Any
) -> at.Float[Any, 'B S H X']:
  """Returns queries or keys of an indexer; the start of each head rotates."""
  config = run.config
  turning, plain = run.nn.parts(x, config.qk_rope_head_dim)
  neighbours = config.family.indexer_interleave
  return run.nn.concat(
    (_rotate(run, turning, positions.rope, neighbours), plain)
  )
