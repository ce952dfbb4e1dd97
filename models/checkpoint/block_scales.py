"""DeepSeek-V3's float8 weights: blocks of 128 x 128 under one scale.

A weight `x.weight` of float8_e4m3 stands beside `x.weight_scale_inv`, float32
or E8M0, one number for each block; the weight is their product.  Stacked
experts `[E, O, I]` have scales `[E, BO, BI]`.  Sources: `weight_dequant` of
`inference/kernel.py` of the published DeepSeek-V3, and `FP8Experts` of
transformers 5.23.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
import numpy as np

SUFFIX = '_scale_inv'
_BLOCK = (128, 128)


def block_size(fields: Mapping[str, Any]) -> tuple[int, int]:
  """Returns rows and columns of a block, from the contents of config.json.

  Raises:
    ValueError: the weights are quantised in another way.
  """
  quantisation = fields.get('quantization_config') or {}
  method = quantisation.get('quant_method', 'fp8')
  size = quantisation.get('weight_block_size', _BLOCK)
  is_block_fp8 = (
    method == 'fp8' and isinstance(size, (list, tuple)) and len(size) == 2
  )
  if not is_block_fp8 or not all(type(n) is int and n > 0 for n in size):
    raise ValueError(
      'quantization_config: expected fp8 in blocks of weights, got '
      f'{method!r} with weight_block_size {size!r}'
    )
  return (size[0], size[1])


def scale_shape(
  shape: tuple[int, ...], block: tuple[int, int]
) -> tuple[int, ...]:
  """Returns the shape of the scales of a weight."""
  blocks = (-(-n // size) for n, size in zip(shape[-2:], block, strict=True))
  return (*shape[:-2], *blocks)


def dequantised(
  weight: Float[np.ndarray, 'O I'],
  scale: Float[np.ndarray, 'BO BI'],
  block: tuple[int, int],
) -> Float[np.ndarray, 'O I']:
  """Returns the weights, `[O, I]` float32: the products, correctly rounded."""
  rows, columns = weight.shape
  wide = np.repeat(scale.astype(np.float32), block[1], axis=1)[:, :columns]
  out = weight.astype(np.float32)
  for begin in range(0, rows, block[0]):
    out[begin : begin + block[0]] *= wide[begin // block[0]]
  return out
