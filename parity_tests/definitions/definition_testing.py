"""A small definition of each kind, and kernels of numpy for them."""

import json
import pathlib
from typing import Any

_BLOCK = 128
_E, _L = 16, 8

# What a kernel of numpy needs: dequantised tensors of one definition.
KERNELS = """
import ml_dtypes
import numpy as np

TOP_K, GROUPS, TOP_GROUPS = {top_k}, {groups}, {top_groups}


def spread(scales, shape):
  for axis in (-2, -1):
    scales = np.repeat(scales, 128, axis)
  return scales[..., : shape[-2], : shape[-1]]


def route(logits, bias):
  logits = logits.astype(np.float32)
  s = 1 / (1 + np.exp(-logits))
  c = s + bias.astype(np.float32)
  groups = c.reshape(len(c), GROUPS, -1)
  two = np.sort(groups, -1)[..., -2:].sum(-1)
  kept = np.argsort(-two, -1, kind='stable')[:, :TOP_GROUPS]
  mask = np.zeros(two.shape, bool)
  np.put_along_axis(mask, kept, True, -1)
  c = np.where(np.repeat(mask, groups.shape[-1], -1), c, -np.inf)
  ids = np.argsort(-c, -1, kind='stable')[:, :TOP_K]
  w = np.take_along_axis(s, ids, -1)
  return ids, w / (w.sum(-1, keepdims=True) + np.float32(1e-20))


def quantise(rows):
  groups = rows.reshape(len(rows), -1, 128)
  scale = np.maximum(np.abs(groups).max(-1, keepdims=True), 1e-4) / 448
  codes = (groups / scale).astype(ml_dtypes.float8_e4m3fn)
  return (codes.astype(np.float32) * scale).reshape(rows.shape)


def layer(logits, bias, x, xs, w1, s1, w2, s2, first, scale, change=''):
  x = x.astype(np.float32) * np.repeat(xs.T, 128, -1)
  if change == 'x scales not transposed':
    x = x * 0 + np.float32(1)
  w1 = w1.astype(np.float32) * spread(s1, w1.shape)
  w2 = w2.astype(np.float32) * spread(s2, w2.shape)
  ids, weights = route(logits, bias)
  if change == 'second expert left out':
    ids = np.where(np.arange(TOP_K) == 1, -1, ids)
  if change == 'biased weights':
    weights = weights + bias.astype(np.float32)[ids]
  half = w1.shape[1] // 2
  y = np.zeros(x.shape, np.float32)
  for expert in range(len(w1)):
    token, slot = np.nonzero(ids == first + expert)
    both = x[token] @ w1[expert].T
    up, gate = both[:, :half], both[:, half:]
    if change == 'gate first':
      up, gate = gate, up
    with np.errstate(over='ignore'):
      rows = gate / (1 + np.exp(-gate)) * up
    if change == 'activation in fp8' and len(rows):
      rows = quantise(rows)
    if change == 'activation in bf16':
      rows = rows.astype(ml_dtypes.bfloat16).astype(np.float32)
    rows = rows @ w2[expert].T * weights[token, slot][:, None]
    np.add.at(y, token, rows)
  if change != 'no scaling factor':
    y = y * np.float32(scale)
  if change == 'last token lost' and len(y) > 1:
    y[-1] = 0
  return y.astype(ml_dtypes.bfloat16)


def run(*inputs):
  return layer(*inputs)


{extra_source}
"""
CHANGES = (
  'x scales not transposed',
  'second expert left out',
  'biased weights',
  'gate first',
  'activation in fp8',
  'no scaling factor',
  'last token lost',
)
# Kernels that are right when they are called once.
CHEATS = {
  'cached_by_shape': """
_held = {}


def cached_by_shape(*inputs):
  return _held.setdefault(inputs[2].shape, layer(*inputs))
""",
  'cached_by_address': """
_held = {}


def cached_by_address(*inputs):
  return _held.setdefault(id(inputs[2]), layer(*inputs))
""",
  'cached_by_first_values': """
_held = {}


def cached_by_first_values(*inputs):
  key = inputs[2][0, :8].tobytes()
  return _held.setdefault(key, layer(*inputs))
""",
  'third_call': """
_calls = []


def third_call(*inputs):
  _calls.append(0)
  y = layer(*inputs)
  return y if len(_calls) < 3 else y * 0
""",
  'writes_inputs': """
def writes_inputs(*inputs):
  y = layer(*inputs)
  inputs[2][...] = 0
  return y
""",
  'returns_float32': """
def returns_float32(*inputs):
  return layer(*inputs).astype(np.float32)
""",
}
DESTINATION = """
destination_passing_style = True


def run_into(*inputs):
  inputs[-1][...] = layer(*inputs[:-1])


def writes_nothing(*inputs):
  pass


def writes_half(*inputs):
  y = layer(*inputs[:-1])
  inputs[-1][: len(y) // 2] = y[: len(y) // 2]
"""


def write_definition(
  folder: pathlib.Path, width: int = 256, hidden: int = 128
) -> str:
  """Writes the contest's definition in a small size; returns its path."""
  axes: dict[str, Any] = {
    name: {'type': 'const', 'value': size}
    for name, size in (
      ('num_experts', _E),
      ('num_local_experts', _L),
      ('hidden_size', width),
      ('gemm1_out_size', 2 * hidden),
      ('intermediate_size', hidden),
      ('num_hidden_blocks', width // _BLOCK),
      ('num_intermediate_blocks', hidden // _BLOCK),
      ('num_gemm1_out_blocks', 2 * hidden // _BLOCK),
    )
  }
  axes['seq_len'] = {'type': 'var'}
  inputs = {
    'routing_logits': (['seq_len', 'num_experts'], 'float32'),
    'routing_bias': (['num_experts'], 'bfloat16'),
    'hidden_states': (['seq_len', 'hidden_size'], 'float8_e4m3fn'),
    'hidden_states_scale': (['num_hidden_blocks', 'seq_len'], 'float32'),
    'gemm1_weights': (
      ['num_local_experts', 'gemm1_out_size', 'hidden_size'],
      'float8_e4m3fn',
    ),
    'gemm1_weights_scale': (
      ['num_local_experts', 'num_gemm1_out_blocks', 'num_hidden_blocks'],
      'float32',
    ),
    'gemm2_weights': (
      ['num_local_experts', 'hidden_size', 'intermediate_size'],
      'float8_e4m3fn',
    ),
    'gemm2_weights_scale': (
      ['num_local_experts', 'num_hidden_blocks', 'num_intermediate_blocks'],
      'float32',
    ),
    'local_expert_offset': (None, 'int32'),
    'routed_scaling_factor': (None, 'float32'),
  }
  table = dict(
    name=(
      f'moe_fp8_block_scale_ds_routing_topk4_ng4_kg2_e{_L}_h{width}_i{hidden}'
    ),
    op_type='moe',
    axes=axes,
    inputs={n: dict(shape=s, dtype=d) for n, (s, d) in inputs.items()},
    outputs={
      'output': dict(shape=['seq_len', 'hidden_size'], dtype='bfloat16')
    },
    reference=make_kernels(),
  )
  path = folder / 'definition.json'
  path.write_text(json.dumps(table))
  return str(path)


def make_kernels(extra_source: str = '') -> str:
  """Returns a module with the function `run`, and what else is asked for."""
  text = KERNELS.replace('{top_k}', '4').replace('{groups}', '4')
  return text.replace('{top_groups}', '2').replace(
    '{extra_source}', extra_source
  )


def write_kernels(folder: pathlib.Path, extra_source: str = '') -> str:
  """Writes `make_kernels`; returns its path."""
  path = folder / 'kernels.py'
  path.write_text(make_kernels(extra_source))
  return str(path)


def make_change(change: str) -> str:
  """Returns a function `changed` that is wrong in one of `CHANGES`."""
  return f'def changed(*inputs):\n  return layer(*inputs, change={change!r})\n'


def write_workload(folder: pathlib.Path, tokens: int) -> str:
  """Writes a workload of random inputs and two scalars; returns its path."""
  inputs: dict[str, Any] = {
    'local_expert_offset': {'type': 'scalar', 'value': 4},
    'routed_scaling_factor': {'type': 'scalar', 'value': 2.5},
  }
  row = dict(axes=dict(seq_len=tokens), inputs=inputs, uuid=f'w{tokens}')
  path = folder / 'workloads.jsonl'
  path.write_text(json.dumps(dict(definition='d', workload=row)) + '\n')
  return str(path)
