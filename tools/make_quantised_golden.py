"""Makes reference/testdata/quantised.npz with torch and transformers.

Needs both, and expecttest, and nothing of this project:

    python tools/make_quantised_golden.py

Names are those of `hpmoe.reference.contract.quantised`: NAME.codes as bytes (or
words of two nibbles), NAME.scales, of the values in `rows` or `weights`.
"""

import pathlib
import types

import numpy as np
import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401, registers ops
from torch.testing._internal import common_quantized
import transformers
from transformers.integrations import finegrained_fp8
from transformers.integrations import mxfp4

_FILE = pathlib.Path(__file__).resolve().parents[1]
_FILE /= 'reference/testdata/quantised.npz'
_OPS = torch.ops.quantized_decomposed


def main() -> None:
  rows, weights = _drawn(24, 128), _drawn(128, 256)
  made = {
    'rows': rows.view(torch.uint16),
    'weights': weights.view(torch.uint16),
  }
  made |= _tokens(rows)
  for name, scale in (
    ('e4m3_128x128_transformers', 'float'),
    ('e4m3_128x128_ceil', 'ue8m0'),
  ):
    made |= _blocks(name, scale, weights)
  for name, code in (('mxfp8_ceil', 'mxfp8'), ('mxfp4_ceil', 'mxfp4')):
    scales, codes = common_quantized.to_mxfp(rows, 32, code)
    made |= _named(name, codes, scales)
  packed = made['mxfp4_ceil.codes'].reshape(24, 4, 16)
  exponents = made['mxfp4_ceil.scales']
  # It swaps the last two axes.
  made['mxfp4.values'] = mxfp4.convert_moe_packed_tensors(
    packed[None], exponents[None], dtype=torch.float32
  )[0].T
  made |= _casts()
  versions = f'torch {torch.__version__}, transformers '
  versions += transformers.__version__
  arrays = {name: a.numpy() for name, a in made.items()}
  np.savez_compressed(_FILE, made_by=versions, **arrays)


def _drawn(*shape: int) -> torch.Tensor:
  """Returns bfloat16 numbers; the 2nd row of 24 or more is zero."""
  rng = np.random.default_rng(shape[1])
  values = rng.normal(size=shape) * np.exp2(rng.integers(-9, 9, (shape[0], 1)))
  values[1] = 0
  return torch.tensor(values).to(torch.bfloat16)


def _named(name: str, codes: torch.Tensor, scales: torch.Tensor) -> dict:
  if scales.dtype != torch.float32:
    scales = scales.view(torch.uint8)
  return {f'{name}.codes': codes.view(torch.uint8), f'{name}.scales': scales}


def _tokens(rows: torch.Tensor) -> dict:
  rows = rows.float()
  scales, zeros = _OPS.choose_qparams_per_token(rows, torch.int8)
  codes = _OPS.quantize_per_token(rows, scales, zeros, -128, 127, torch.int8)
  return _named('int8_token_torch', codes, scales)


def _blocks(name: str, scale: str, weights: torch.Tensor) -> dict:
  """Returns 128 x 128 blocks, whose scales are 1 where all is zero."""
  config = types.SimpleNamespace(weight_block_size=(128, 128), scale_fmt=scale)
  holder = types.SimpleNamespace(quantization_config=config)
  made = finegrained_fp8.Fp8Quantize(holder).convert({'w.weight': weights})
  return _named(name, made['w.weight'], made['w.weight_scale_inv'])


def _casts() -> dict:
  """Returns all positive bfloat16 numbers up to 57344 as torch casts them."""
  halves = torch.arange(0x4760, dtype=torch.int32).to(torch.int16)
  values = halves.view(torch.bfloat16).float()
  within = values[values <= 448]
  return {
    'float8_e4m3fn.casts': within.to(torch.float8_e4m3fn).view(torch.uint8),
    'float8_e5m2.casts': values.to(torch.float8_e5m2).view(torch.uint8),
  }


if __name__ == '__main__':
  main()
