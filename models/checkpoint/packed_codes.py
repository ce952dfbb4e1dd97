"""Matrices of codes and scales as ModelOpt and compressed-tensors write them.

In place of a weight `x.weight` `[O, I]`, a file has codes, one scale of each
group along a row, and perhaps one scale of the whole matrix:

    nvfp4 of ModelOpt   weight u8 `[O, I/2]`, weight_scale e4m3 `[O, I/16]`,
                        weight_scale_2 f32: all three multiply
    nvfp4 of compressed-tensors
                        weight_packed, weight_scale likewise; the product is
                        divided by weight_global_scale f32
    int4 or int8, packed
                        weight_packed i32 `[O, I/8]` or `[O, I/4]`, the first
                        code in the lowest bits, each with 8 or 128 added;
                        weight_scale `[O, I/G]`, weight_shape
    fp8 or int8         weight e4m3 or i8 `[O, I]`, weight_scale of the matrix,
                        of its rows or of groups along them

Sources: compressed-tensors `pack_quantized.py` at 179cba93 and
`fp4_quantized.py` at 0c9d5c7e; vLLM `quantization/modelopt.py` at c9a59901.
Kimi-K2-Thinking's files are packed int4 with groups of 32.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math

import ml_dtypes
import numpy as np

from hpmoe.models.checkpoint import safetensors_file

# Ends of names, after `x.weight`.
CODES_END, _SCALE, _SHAPE = '_packed', '_scale', '_shape'
# Beside `x.weight`: what kernels quantise their inputs and caches with.
_IGNORED = ('input_scale', 'input_global_scale', 'k_scale', 'v_scale')
_E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
_NVFP4_GROUP = 16
Index = Mapping[str, safetensors_file.StoredTensor]
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Packing:
  """How one tool stores a matrix.

  Attributes:
    name: in messages.
    dtypes: of the tensor of codes.
    codes: the end of its name.
    tensor_scale: the end of the name of the matrix's scale; '': it has none.
    divides: whether that scale divides.
    items: codes in an element; 0: from the shape.
    group: codes along a row under one scale; 0: any number.
    has_shape: whether a tensor says the shape.
  """

  name: str
  dtypes: tuple[str, ...]
  codes: str = ''
  tensor_scale: str = ''
  divides: bool = False
  items: int = 1
  group: int = 0
  has_shape: bool = False

  @property
  def ends(self) -> tuple[str, ...]:
    """The ends of the names of its tensors."""
    ends = (self.codes, _SCALE, self.tensor_scale, self.has_shape and _SHAPE)
    return (ends[0], *(end for end in ends[1:] if end))


PACKINGS = (
  Packing(
    'NVFP4 of ModelOpt', ('uint8',), '', '_scale_2', False, 2, _NVFP4_GROUP
  ),
  Packing(
    'NVFP4 of compressed-tensors',
    ('uint8',),
    CODES_END,
    '_global_scale',
    True,
    2,
    _NVFP4_GROUP,
  ),
  Packing('packed integers', ('int32',), CODES_END, items=0, has_shape=True),
  Packing('codes of 8 bits', ('float8_e4m3fn', 'int8')),
)


def find_packing(index: Index, name: str) -> Packing | None:
  """Returns how a weight `name` is stored; None: not in any of these ways."""
  for packing in PACKINGS:
    codes = index.get(name + packing.codes)
    if codes is None or codes.dtype.name not in packing.dtypes:
      continue
    is_asymmetric = name + '_zero_point' in index or name + '_g_idx' in index
    if all(name + end in index for end in packing.ends) and not is_asymmetric:
      return packing
  return None


def name_element(packing: Packing, index: Index, name: str) -> str:
  """Returns nvfp4, int4, int8 or float8: what the codes of a weight are."""
  codes = index[name + packing.codes]
  if codes.dtype == np.uint8:
    return 'nvfp4'
  if codes.dtype == np.int32:
    shape = index[name + _SHAPE].read().tolist()
    return 'int4' if _count_items(codes.shape, shape) == 8 else 'int8'
  return 'int8' if codes.dtype == np.int8 else 'float8'


def list_names(packing: Packing, index: Index, name: str) -> set[str]:
  """Returns the tensors that a weight is stored in, and those to ignore."""
  prefix = name.rpartition('.')[0]
  ignored = {f'{prefix}.{end}' for end in _IGNORED} & {*index}
  return {name + end for end in packing.ends} | ignored


def find_fault(
  packing: Packing, index: Index, name: str, shape: Shape
) -> str | None:
  """Returns what is wrong with the shapes of a weight `[O, I]`; None: nothing.

  Args:
    packing: of the weight.
    index: of all tensors.
    name: of the weight.
    shape: `(O, I)`.
  """
  rows, columns = shape
  codes, scales = index[name + packing.codes], index[name + _SCALE]
  per_item = packing.items or _count_items(codes.shape, shape)
  want = (rows, -(-columns // per_item)) if per_item else (rows, columns // 8)
  if codes.shape != want:
    return _say_shapes(name + packing.codes, want, codes.shape)
  if packing.tensor_scale:
    of_all = index[name + packing.tensor_scale].shape
    if math.prod(of_all) != 1:
      return _say_shapes(name + packing.tensor_scale, (1,), of_all)
  groups = _count_groups(scales.shape, rows)
  group = columns // groups if groups and columns % groups == 0 else 0
  if not group or packing.group not in (0, group):
    expected = (rows, columns // (packing.group or 32))
    return _say_shapes(name + _SCALE, expected, scales.shape)
  return None


def _say_shapes(name: str, want: Shape, actual: Shape) -> str:
  return f'{name} (expected {list(want)}, got {list(actual)})'


def _count_items(codes: Shape, shape: Shape) -> int:
  """Returns the codes in an int32: 8 of 4 bits, 4 of 8 bits; 0: neither."""
  for items in (8, 4):
    if codes == (shape[0], -(-shape[1] // items)):
      return items
  return 0


def _count_groups(scales: Shape, rows: int) -> int:
  """Returns the scales of a row; 0: the shape has another number of rows."""
  if math.prod(scales) == 1:
    return 1
  if scales[0] != rows or len(scales) > 2:
    return 0
  return scales[1] if len(scales) == 2 else 1


def dequantise(
  packing: Packing,
  read: Callable[[str], np.ndarray],
  name: str,
  shape: Shape,
) -> np.ndarray:
  """Returns a weight `[O, I]` float32: products of codes and scales.

  Each is rounded once.

  Args:
    packing: of the weight.
    read: returns a tensor by its name.
    name: of the weight.
    shape: `(O, I)`.
  """
  rows, columns = shape
  codes = _read_codes(packing, read(name + packing.codes), shape)
  scales = read(name + _SCALE).astype(np.float64)
  groups = _count_groups(scales.shape, rows)
  scales = scales.reshape(-1, groups)
  weights = codes.reshape(rows, groups, -1) * scales[..., None]
  if packing.tensor_scale:
    of_all = float(read(name + packing.tensor_scale).reshape(()))
    weights = weights / of_all if packing.divides else weights * of_all
  return weights.reshape(rows, columns).astype(np.float32)


def _read_codes(packing: Packing, codes: np.ndarray, shape: Shape):
  """Returns codes `[O, I]` float64."""
  rows, columns = shape
  if codes.dtype == np.uint8:
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(rows, -1)
    return _E2M1.astype(np.float64)[nibbles]
  if codes.dtype != np.int32:
    return codes.astype(np.float64)
  items = _count_items(codes.shape, shape)
  bits = 32 // items
  shifts = np.arange(items, dtype=np.uint32) * bits
  parts = (codes.view(np.uint32)[..., None] >> shifts) & (2**bits - 1)
  parts = parts.reshape(rows, -1)[:, :columns]
  return parts.astype(np.float64) - 2 ** (bits - 1)
