"""Linear attention by the gated delta rule: a state in place of a cache.

A head's state maps keys to values.  Of each token it forgets a part, then what
it has for the token's key moves towards the token's value; the token's query
reads the state.  Source: Gated Delta Networks, arXiv 2412.06464, section 3.1,
as Qwen3-Next and Qwen3.5 of transformers 5.24 compute it, which take tokens in
chunks: the same sums in another order.
"""

from typing import Any

import numpy as np

from hpmoe.models import operators
from hpmoe.models import states
from hpmoe.reference.contract import array_typing as at

Params = operators.Params
Run = operators.Run
# Beside the squares of a query or key.
_EPS = 1e-6


def attend(
  run: Run,
  params: Params,
  x: at.Float[Any, 'B S D'],
  positions: states.Positions,
  entries: states.Entries | None,
) -> tuple[at.Float[Any, 'B S D'], states.Entries]:
  """Returns `[B, S, D]` and the layer's entries after these tokens.

  Args:
    run: of this call.
    params: those of `linear_attn`.
    x: `[B, S, D]`, normalised.
    positions: of these tokens.
    entries: of the tokens before; None for none.
  """
  nn, config = run.nn, run.config
  dtype = nn.wide(x.dtype)
  if positions.padding is not None:  # leaves no trace in a state
    wide = x.astype(dtype)
    zero = nn.constant(0.0, wide)
    x = nn.select(positions.padding[..., None], zero, wide).astype(x.dtype)
  past = entries or _start(run, x)
  mixed, gates, strengths, steps = _project(run, params, x)
  mixed, convolved = _convolve(run, params, mixed, past['convolved'])
  queries, keys, values = _split(run, mixed.astype(dtype))
  by_head = values.shape[:-1]
  rates = nn.exp(params['A_log'].astype(dtype))
  steps = nn.softplus(steps.astype(dtype) + params['dt_bias'].astype(dtype))
  shares = nn.exp(-rates * steps).reshape(by_head)
  strengths = nn.sigmoid(strengths.astype(dtype)).reshape(by_head)
  state, out = nn.scan(
    _step, past[states.STATE], (queries, keys, values, shares, strengths)
  )
  out = nn.rms_norm(out, params['norm.weight'], config.rms_norm_eps)
  out = nn.gated(gates.astype(dtype).reshape(out.shape), out).astype(x.dtype)
  new_entries = {'convolved': convolved, states.STATE: state}
  return nn.linear(
    params, 'out_proj', out.reshape(*x.shape[:2], -1)
  ), new_entries


def _step(state: Any, token: tuple[Any, ...]) -> tuple[Any, Any]:
  """Returns the state `[B, G, H, X, Y]` after a token, and what it reads.

  G heads of keys have H heads of values each.
  """
  query, key, value, share, strength = token
  state = state * share[..., None, None]
  memory = (state * key[..., None]).sum(axis=-2)
  update = (value - memory) * strength[..., None]
  state = state + key[..., None] * update[..., None, :]
  return state, (state * query[..., None]).sum(axis=-2)


def _start(run: Run, x: at.Float[Any, 'B S D']) -> dict[str, Any]:
  """Returns the entries of a sequence that begins."""
  layer = run.config.layer_types.index('linear_attention')
  shapes = states.entry_shapes(run.config, layer, 0)
  wide = x.astype(run.nn.wide(x.dtype))
  return {
    name: run.nn.constant(np.zeros((x.shape[0], *shape)), wide)
    for name, shape in shapes.items()
  }


def _project(
  run: Run, params: Params, x: at.Float[Any, 'B S D']
) -> tuple[Any, Any, Any, Any]:
  """Returns what is convolved, gates, strengths, and steps of forgetting."""
  nn, config = run.nn, run.config
  if config.family.linear_attention == 'by_purpose':
    project = lambda name: nn.linear(params, f'in_proj_{name}', x)
    return project('qkv'), project('z'), project('b'), project('a')
  of_head = (*x.shape[:2], config.linear_num_key_heads, -1)
  whole = nn.linear(params, 'in_proj_qkvz', x).reshape(of_head)
  queries, whole = nn.parts(whole, config.linear_key_head_dim)
  keys, whole = nn.parts(whole, config.linear_key_head_dim)
  values, gates = nn.parts(whole, whole.shape[-1] // 2)
  pair = nn.linear(params, 'in_proj_ba', x).reshape(of_head)
  strengths, steps = nn.parts(pair, pair.shape[-1] // 2)
  flat = [a.reshape(*x.shape[:2], -1) for a in (queries, keys, values)]
  rest = (a.reshape(*x.shape[:2], -1) for a in (gates, strengths, steps))
  return nn.concat(flat), *rest


def _convolve(
  run: Run,
  params: Params,
  mixed: at.Float[Any, 'B S C'],
  past: at.Float[Any, 'B K-1 C'],
) -> tuple[at.Float[Any, 'B S C'], at.Float[Any, 'B K-1 C']]:
  """Returns silu of each channel's convolution, and the last K-1 tokens."""
  nn, count, dtype = run.nn, mixed.shape[1], run.nn.wide(mixed.dtype)
  weight = params['conv1d.weight'].astype(dtype)
  window = nn.concat((past.astype(dtype), mixed.astype(dtype)), axis=1)
  total = nn.constant(0.0, window)
  for tap in range(run.config.linear_conv_kernel_dim):
    total = total + window[:, tap : tap + count] * weight[:, 0, tap]
  out = (total * nn.sigmoid(total)).astype(mixed.dtype)
  return out, window[:, count:].astype(mixed.dtype)


def _split(
  run: Run, mixed: at.Float[Any, 'B S C']
) -> tuple[
  at.Float[Any, 'B S G 1 X'],
  at.Float[Any, 'B S G 1 X'],
  at.Float[Any, 'B S G H Y'],
]:
  """Returns queries and keys of unit length, those scaled, and values."""
  nn, config = run.nn, run.config
  heads, width = config.linear_num_key_heads, config.linear_key_head_dim
  queries, rest = nn.parts(mixed, heads * width)
  keys, values = nn.parts(rest, heads * width)
  normed = []
  for array, power in ((queries, -1.0), (keys, -0.5)):
    by_head = array.reshape(*array.shape[:2], heads, 1, width)
    weight = nn.constant(np.full(width, width**power), mixed)
    normed.append(nn.rms_norm(by_head, weight, _EPS / width))
  sharing = config.linear_num_value_heads // heads
  values = values.reshape(*values.shape[:2], heads, sharing, -1)
  return *normed, values
