"""Experts' weights in MXFP4, as GPT-OSS's files hold them.

A weight `x` of `[E, in, out]` is two tensors of bytes: `x_blocks`
`[E, out, in / 32, 16]`, two codes a byte, the lower half first, and `x_scales`
`[E, out, in / 32]`, an exponent of 2 for each 32 codes.  Codes are OCP's E2M1,
scales its E8M0 (MX v1.0).  Source: `convert_moe_packed_tensors` of
transformers 5.23.
"""

from jaxtyping import Float
from jaxtyping import UInt8
import ml_dtypes
import numpy as np

BLOCKS, SCALES = '_blocks', '_scales'
_GROUP = 32
_VALUES = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)


def shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of blocks and scales, by suffix, of `[E, in, out]`."""
  experts, inputs, outputs = shape
  groups = -(-inputs // _GROUP)
  scales = (experts, outputs, groups)
  return {BLOCKS: (*scales, _GROUP // 2), SCALES: scales}


def dequantised(
  blocks: UInt8[np.ndarray, 'O G 16'], scales: UInt8[np.ndarray, 'O G']
) -> Float[np.ndarray, 'I O']:
  """Returns one expert's weights, `[in, out]` float32, exactly."""
  codes = np.stack([blocks & 15, blocks >> 4], axis=-1)
  values = _VALUES.astype(np.float32)[codes].reshape(*scales.shape, _GROUP)
  powers = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
  return (values * powers[..., None]).reshape(len(scales), -1).T
