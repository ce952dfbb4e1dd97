"""Kinds of definition whose references are loops of numpy here."""

import json
import pathlib

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from hpmoe.parity_tests.definitions import definition_check
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts

pytestmark = pytest.mark.verdict_alone

_T, _E, _D, _F, _K = 9, 8, 256, 128, 3
_JUDGEMENT = judgement.Judgement(definition_check.LANES, repeat=1)
# Solutions of Llama-4's definitions and of one in NVFP4; what is wrong with
# them replaces a part of the text.
_LLAMA4 = """
import ml_dtypes
import numpy as np

f32 = np.float32


def compute(logits, x, w1, w2, up_scale, gate_scale, down_scale):
  weight = 1 / (1 + np.exp(-logits.astype(f32))) * f32(FACTOR)
  expert = logits.astype(f32).argmax(-1)
  y = np.zeros(x.shape, f32)
  for token, e in enumerate(expert):
    row = x[token].astype(f32) * weight[token, e]
    both = row @ w1[e].astype(f32).T
    half = len(both) // 2
    up, gate = both[:half] * up_scale[e], both[half:] * gate_scale[e]
    with np.errstate(over='ignore'):
      row = gate / (1 + np.exp(-gate)) * up
    y[token] = row @ w2[e].astype(f32).T * down_scale[e]
  return y.astype(ml_dtypes.bfloat16)
"""
_FP8 = """

def run(logits, x, w1, up, gate, w2, down, bias):
  return compute(logits, x, w1, w2, up, gate, down)
"""
_FP4 = """

def run(logits, x, w1, w2, bias):
  ones = np.ones(len(w1), f32)
  logits = logits.astype(f32) + bias.astype(f32)
  return compute(logits, x, w1, w2, ones, ones, ones)
"""
_NVFP4 = """
import ml_dtypes
import numpy as np

f32 = np.float32
LOW, HIGH = 15, 4


def read(codes, scales):
  values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
  values = values.astype(f32)
  wide = np.empty((len(codes), 2 * codes.shape[1]), f32)
  wide[:, 0::2] = values[codes & LOW]
  wide[:, 1::2] = values[codes >> HIGH]
  return wide * np.repeat(scales.astype(f32), 16, 1)


def run(ids, x, xs, w1, s1, w2, s2, scale1, scale1_gate, scale2, first):
  x = read(x, xs)
  y = np.zeros(x.shape, f32)
  experts = (ids >> 16) & 0xFFFF
  weights = (ids & 0xFFFF).astype(np.uint16).view(ml_dtypes.bfloat16)
  for held in range(len(w1)):
    token, slot = np.nonzero(experts == first + held)
    both = x[token] @ read(w1[held], s1[held]).T
    half = both.shape[1] // 2
    gate, up = both[:, :half] * scale1[held], both[:, half:]
    with np.errstate(over='ignore'):
      rows = gate / (1 + np.exp(-gate)) * (up * scale1_gate[held])
    rows = rows @ read(w2[held], s2[held]).T * scale2[held]
    rows = rows * weights[token, slot].astype(f32)[:, None]
    np.add.at(y, token, rows)
  return y.astype(ml_dtypes.bfloat16)
"""


def _draw_nvfp4(rng, *shape):
  """Returns bytes `[..., X / 2]` and scales `[..., X / 16]`."""
  codes = rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), np.uint8)
  scales = rng.uniform(0.05, 0.2, (*shape[:-1], shape[-1] // 16))
  return codes, scales.astype(ml_dtypes.float8_e4m3fn)


def _draw_llama4(rng, codes):
  dtype = ml_dtypes.float8_e4m3fn if codes else np.float32
  scale = rng.uniform(0.5, 2, (3, _E)).astype(np.float32)
  w1 = rng.normal(size=(_E, 2 * _F, _D)) / (1 if codes else 16)
  w2 = rng.normal(size=(_E, _D, _F)) / (1 if codes else 16)
  logits = rng.normal(size=(_T, _E)).astype(ml_dtypes.bfloat16)
  x = rng.normal(size=(_T, _D)).astype(
    ml_dtypes.float8_e4m3fn if codes else ml_dtypes.bfloat16
  )
  bias = rng.normal(size=_E).astype(ml_dtypes.bfloat16)
  tensors = {'routing_logits': logits, 'hidden_states': x}
  tensors['gemm1_weights'] = w1.astype(dtype)
  if codes:
    tensors['output1_scales_scalar'] = scale[0] / 16
    tensors['output1_scales_gate_scalar'] = scale[1] / 16
  tensors['gemm2_weights'] = w2.astype(dtype)
  if codes:
    tensors['output2_scales_scalar'] = scale[2] / 16
  return tensors | {'routing_bias': bias}


def _draw_routed(rng):
  experts = np.stack([rng.permutation(2 * _E)[:_K] for _ in range(_T)])
  weights = rng.uniform(0.1, 1, (_T, _K)).astype(ml_dtypes.bfloat16)
  id_bits = experts.astype(np.int32) << 16 | weights.view(np.uint16)
  tensors = {'topk_ids': id_bits.astype(np.int32)}
  for name, shape in (
    ('hidden_states', (_T, _D)),
    ('gemm1_weights', (_E, 2 * _F, _D)),
    ('gemm2_weights', (_E, _D, _F)),
  ):
    tensors[name], tensors[f'{name}_scale'] = _draw_nvfp4(rng, *shape)
  for name in ('1_scale', '1_scale_gate', '2_scale'):
    scalar = rng.uniform(0.5, 2, _E).astype(np.float32)
    tensors[f'output{name}_scalar'] = scalar
  return tensors | {'local_expert_offset': 4}


_CASES = {
  'trtllm_fp8_per_tensor_scale_moe_topk1_e8_h256_i128': (
    lambda rng: _draw_llama4(rng, codes=True),
    _LLAMA4.replace('FACTOR', '1') + _FP8,
  ),
  'trtllm_fp4_block_scale_moe_topk1_e8_h256_i128': (
    lambda rng: _draw_llama4(rng, codes=False),
    _LLAMA4.replace('FACTOR', '2.5') + _FP4,
  ),
  'moe_fp4_block_scale_pre_routed_topk3_ng8_kg4_e8_h256_i128': (
    _draw_routed,
    _NVFP4,
  ),
}
_WRONG = [
  (name, old, new)
  for name, *change in (
    ('trtllm_fp8', '* weight[token, e]\n', '\n'),
    ('trtllm_fp8', 'gate_scale[e]', 'up_scale[e]'),
    ('trtllm_fp8', '* down_scale[e]', '* down_scale[e] * weight[token, e]'),
    ('trtllm_fp4', '+ bias.astype(f32)', ''),
    ('trtllm_fp4', '* f32(2.5)', ''),
    ('moe_fp4', 'LOW, HIGH = 15, 4\n', 'LOW, HIGH = 15, 5\n'),
    ('moe_fp4', 'first + held', 'held'),
    ('moe_fp4', '(up * scale1_gate[held])', '(up * scale1[held])'),
    ('moe_fp4', 'gate, up = both', 'up, gate = both'),
    ('moe_fp4', '* scale2[held]', ''),
  )
  for old, new in [change]
]


def _describe(array) -> dict:
  if np.ndim(array) == 0:
    return dict(shape=None, dtype='int32')
  return dict(
    shape=[f'n{size}' for size in array.shape], dtype=str(array.dtype)
  )


def _judge(
  folder: pathlib.Path, name: str, seed: int, change: tuple[str, str] = ('', '')
) -> check.Report:
  """Returns the verdict on a definition's solution, with its text changed."""
  draw, text = _CASES[name]
  tensors = draw(np.random.default_rng(seed))
  assert change[0] in text
  arrays = {n: a for n, a in tensors.items() if np.ndim(a)}
  safetensors_numpy.save_file(arrays, folder / 'inputs.safetensors')
  sizes = {size for array in arrays.values() for size in array.shape}
  axes = {f'n{size}': dict(type='const', value=size) for size in sizes}
  definition = dict(
    name=name,
    op_type='moe',
    axes=axes | {f'n{_T}': dict(type='var')},
    inputs={n: _describe(a) for n, a in tensors.items()},
    outputs=dict(output=dict(shape=[f'n{_T}', f'n{_D}'], dtype='bfloat16')),
    reference=text,
  )
  (folder / 'definition.json').write_text(json.dumps(definition))
  rows = {
    n: dict(type='safetensors', path='inputs.safetensors', tensor_key=n)
    if n in arrays
    else dict(type='scalar', value=int(a))
    for n, a in tensors.items()
  }
  work = dict(axes={f'n{_T}': _T}, inputs=rows, uuid='w')
  (folder / 'w.jsonl').write_text(json.dumps(dict(workload=work)) + '\n')
  (folder / 'kernel.py').write_text(
    text.replace(*change) if change[0] else text
  )
  case, candidate = definition_check.make_request(
    str(folder / 'definition.json'),
    f'{folder / "kernel.py"}::run',
    workload=str(folder / 'w.jsonl'),
  )
  return check.run(request_lib.Request(case, candidate, _JUDGEMENT))


@pytest.mark.parametrize('name', _CASES)
@pytest.mark.few(1)
def test_a_right_solution_passes(tmp_path, seed, name):
  assert _judge(tmp_path, name, seed).verdict == verdicts.PASS


@pytest.mark.parametrize(('kind', 'old', 'new'), _WRONG)
@pytest.mark.few(1)
def test_a_wrong_solution_fails(tmp_path, seed, kind, old, new):
  (name,) = (n for n in _CASES if n.startswith(kind))
  assert _judge(tmp_path, name, seed, (old, new)).verdict == verdicts.FAIL
