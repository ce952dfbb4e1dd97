"""Folders whose weights are codes, each beside the same weights in float."""

import math
import pathlib

import ml_dtypes
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import model_testing
from hpmoe.models.checkpoint import weights as weights_lib

_QWEN = model_testing.TESTDATA / 'qwen3_moe'
_WIDE = dict(
  hidden_size=64, moe_intermediate_size=32, intermediate_size=64, head_dim=32
)
# Values of e2m1, by code.
_E2M1 = [0.0, 0.5, 1, 1.5, 2, 3, 4, 6]
f32 = np.float32


def _pack_e2m1(rng, rows, columns):
  """Returns bytes and the values that they mean, one by one."""
  codes = rng.integers(0, 16, (rows, columns))
  code_bytes = np.zeros((rows, columns // 2), np.uint8)
  values = np.zeros((rows, columns))
  for (row, column), code in np.ndenumerate(codes):
    code_bytes[row, column // 2] |= np.uint8(int(code) << 4 * (column % 2))
    values[row, column] = (-1) ** (code // 8) * _E2M1[code % 8]
  return code_bytes, values


def _draw_nvfp4(rng, rows, columns):
  code_bytes, values = _pack_e2m1(rng, rows, columns)
  scale = rng.uniform(1, 448, (rows, columns // 16))
  scale = scale.astype(ml_dtypes.float8_e4m3fn)
  wide = np.repeat(scale.astype(np.float64), 16, axis=1)
  return code_bytes, scale, values * wide


def draw_modelopt(rng, rows, columns):
  code_bytes, scale, values = _draw_nvfp4(rng, rows, columns)
  tensors = {
    'weight': code_bytes,
    'weight_scale': scale,
    'weight_scale_2': f32(2.0**-13 * 1.3),
    'input_scale': f32(0.1),
  }
  return tensors, values * float(tensors['weight_scale_2'])


def draw_compressed_nvfp4(rng, rows, columns):
  code_bytes, scale, values = _draw_nvfp4(rng, rows, columns)
  tensors = {
    'weight_packed': code_bytes,
    'weight_scale': scale,
    'weight_global_scale': f32([5000.3]),
    'input_global_scale': f32([300.0]),
  }
  return tensors, values / float(tensors['weight_global_scale'][0])


def _draw_packed(rng, rows, columns, bits, group):
  half, items = 2 ** (bits - 1), 32 // bits
  codes = rng.integers(-half, half, (rows, columns))
  words = np.zeros((rows, math.ceil(columns / items)), np.uint32)
  for (row, column), code in np.ndenumerate(codes):
    unsigned = np.uint32(int(code) + half)
    words[row, column // items] |= unsigned << np.uint32(
      bits * (column % items)
    )
  scale = rng.uniform(0.01, 0.02, (rows, columns // group))
  scale = scale.astype(ml_dtypes.bfloat16)
  wide = np.repeat(scale.astype(np.float64), group, axis=1)
  tensors = {
    'weight_packed': words.view(np.int32),
    'weight_scale': scale,
    'weight_shape': np.array([rows, columns], np.int32),
  }
  return tensors, codes * wide


def draw_int4(rng, rows, columns):
  return _draw_packed(rng, rows, columns, 4, 32)


def draw_int8_packed(rng, rows, columns):
  return _draw_packed(rng, rows, columns, 8, columns)


def draw_fp8_channel(rng, rows, columns):
  codes = rng.normal(size=(rows, columns)).astype(ml_dtypes.float8_e4m3fn)
  scale = rng.uniform(0.01, 0.02, (rows, 1)).astype(f32)
  tensors = {'weight': codes, 'weight_scale': scale}
  return tensors, codes.astype(np.float64) * scale.astype(np.float64)


def draw_fp8_tensor(rng, rows, columns):
  codes = rng.normal(size=(rows, columns)).astype(ml_dtypes.float8_e4m3fn)
  tensors = {
    'weight': codes,
    'weight_scale': f32(0.013),
    'input_scale': f32(0.1),
  }
  return tensors, codes.astype(np.float64) * float(f32(0.013))


def _pack_words(codes, axis, order):
  """Returns int32 words: nibble n is code order[n] of eight along an axis."""
  codes = np.moveaxis(codes, axis, -1)
  words = np.zeros((*codes.shape[:-1], codes.shape[-1] // 8), np.int64)
  for word, nibble in np.ndindex(words.shape[-1], 8):
    words[..., word] |= codes[..., 8 * word + order[nibble]] << 4 * nibble
  words = words.astype(np.uint32).view(np.int32)
  return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def _draw_zeros(rng, rows, columns, group):
  """Returns codes `[I, O]`, zeros and scales `[I/G, O]`; and groups `[I]`."""
  codes = rng.integers(0, 16, (columns, rows))
  zeros = rng.integers(1, 16, (columns // group, rows))
  scales = rng.uniform(0.01, 0.02, zeros.shape).astype(np.float16)
  return codes, zeros, scales, np.arange(columns) // group


def _multiply(codes, zeros, scales, groups):
  """Returns weights `[O, I]` float64."""
  wide = scales.astype(np.float64)
  return ((codes - zeros[groups]) * wide[groups]).T


def draw_awq(rng, rows, columns):
  codes, zeros, scales, groups = _draw_zeros(rng, rows, columns, 32)
  order = (0, 2, 4, 6, 1, 3, 5, 7)
  tensors = {
    'qweight': _pack_words(codes, 1, order),
    'qzeros': _pack_words(zeros, 1, order),
    'scales': scales,
  }
  return tensors, _multiply(codes, zeros, scales, groups)


def draw_gptq(rng, rows, columns, offset=1):
  codes, zeros, scales, groups = _draw_zeros(rng, rows, columns, 32)
  groups = rng.permutation(groups)  # as desc_act has it
  tensors = {
    'qweight': _pack_words(codes, 0, range(8)),
    'qzeros': _pack_words(zeros - offset, 1, range(8)),
    'scales': scales,
    'g_idx': groups.astype(np.int32),
  }
  return tensors, _multiply(codes, zeros, scales, groups)


def draw_gptq_v2(rng, rows, columns):
  return draw_gptq(rng, rows, columns, offset=0)


DRAWS = {
  draw.__name__.removeprefix('draw_'): draw
  for draw in (
    *(draw_modelopt, draw_compressed_nvfp4, draw_int4, draw_int8_packed),
    *(draw_fp8_channel, draw_fp8_tensor),
    *(draw_awq, draw_gptq, draw_gptq_v2),
  )
}


def write_folders(
  tmp_path: pathlib.Path, seed: int, draw
) -> tuple[pathlib.Path, dict[str, np.ndarray], pathlib.Path]:
  """Returns a folder in codes, its tensors, and a folder of floats."""
  config = config_lib.from_hf(model_testing.read_fields(_QWEN) | _WIDE)
  params = model_testing.parameters(config, seed)
  convert.write(tmp_path / 'drawn', weights_lib.of_parameters(config, params))
  files = model_testing.tensors(tmp_path / 'drawn')
  rng = np.random.default_rng(seed)
  plain = {**files}
  for name in [n for n in files if n.endswith('_proj.weight')]:
    tensor = files.pop(name)
    tensors, values = draw(rng, *tensor.shape)
    prefix = name.removesuffix('weight')
    files |= {prefix + end: array for end, array in tensors.items()}
    plain[name] = values.astype(f32).astype(tensor.dtype)
  name = draw.__name__.removeprefix('draw_')
  method = name.partition('_')[0] if 'q' in name else 'compressed-tensors'
  options = dict(quant_method=method, checkpoint_format=name)
  fields = _WIDE | dict(quantization_config=options)
  folder = model_testing.write_folder(tmp_path / 'q', _QWEN, files, **fields)
  plain_folder = model_testing.write_folder(
    tmp_path / 'plain', _QWEN, plain, **_WIDE
  )
  return folder, files, plain_folder
