"""Matrices of codes and scales as other tools write them.

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
    awq                 qweight i32 `[I, O/8]`, with the code of column
                        0, 2, 4, 6, 1, 3, 5, 7 in each next 4 bits; qzeros i32
                        `[I/G, O/8]` likewise, scales f16 `[I/G, O]`
    gptq                qweight i32 `[I/8, O]`, the first code in the lowest
                        bits, qzeros i32 `[I/G, O/8]` likewise, each less 1 but
                        in format gptq_v2, scales f16 `[I/G, O]`, and g_idx
                        i32 `[I]`, the group of each row
    fp8 or int8         weight e4m3 or i8 `[O, I]`, weight_scale of the matrix,
                        of its rows or of groups along them

Sources: compressed-tensors `pack_quantized.py` at 179cba93 and
`fp4_quantized.py` at 0c9d5c7e; vLLM `quantization/modelopt.py` at c9a59901;
AutoAWQ `WQLinear_GEMM.from_linear`; AutoGPTQ `qlinear_cuda_old.py`.
Kimi-K2-Thinking's files are packed int4 with groups of 32.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math

import numpy as np

from hpmoe.models.checkpoint import safetensors_file
from hpmoe.reference.contract import quantised
from hpmoe.reference.quantised import quantise

# Ends of names, after `x.weight`.
CODES_END, _SCALE, _SHAPE = '_packed', '_scale', '_shape'
# In place of `weight`.
QWEIGHT, _QZEROS, _SCALES, _GROUPS = 'qweight', 'qzeros', 'scales', 'g_idx'
# Beside `x.weight`: what kernels quantise their inputs and caches with.
_IGNORED = ('input_scale', 'input_global_scale', 'k_scale', 'v_scale')
_CODES_IN_WORD = 8
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
    order: of the codes in an int32, of `quantised.PACKINGS`.
    is_along_input: whether an int32 holds codes of one output, not of one
      input.
    zeros: the end of the name of zero points; '': there are none.
    zero_offset: added to those that are stored.
    format: the `checkpoint_format` that the config says; '': any.
  """

  name: str
  dtypes: tuple[str, ...]
  codes: str = ''
  tensor_scale: str = ''
  divides: bool = False
  items: int = 1
  group: int = 0
  has_shape: bool = False
  order: str = 'gptq'
  is_along_input: bool = True
  zeros: str = ''
  zero_offset: int = 0
  format: str = ''

  @property
  def ends(self) -> tuple[str, ...]:
    """The ends of the names of its tensors."""
    if self.zeros:
      groups = (_GROUPS,) * self.is_along_input
      return (self.codes, self.zeros, _SCALES, *groups)
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
  *(
    Packing(
      'GPTQ',
      ('int32',),
      QWEIGHT,
      zeros=_QZEROS,
      zero_offset=offset,
      format=word,
    )
    for offset, word in ((0, 'gptq_v2'), (1, ''))
  ),
  Packing(
    *('AWQ', ('int32',), QWEIGHT),
    order='awq',
    is_along_input=False,
    zeros=_QZEROS,
  ),
  Packing('codes of 8 bits', ('float8_e4m3fn', 'int8')),
)


def join_name(name: str, end: str) -> str:
  """Returns the name of a part of the weight `x.weight`."""
  if end[:1] in ('', '_'):
    return name + end
  return f'{name.rpartition(".")[0]}.{end}'


def find_packing(index: Index, name: str, format: str = '') -> Packing | None:
  """Returns how a weight `name` is stored; None: not in any of these ways.

  Args:
    index: of all tensors.
    name: of the weight.
    format: `checkpoint_format` of the config, or ''.
  """
  for packing in PACKINGS:
    codes = index.get(join_name(name, packing.codes))
    if codes is None or codes.dtype.name not in packing.dtypes:
      continue
    is_asymmetric = name + '_zero_point' in index or name + '_g_idx' in index
    is_whole = all(join_name(name, end) in index for end in packing.ends)
    if is_whole and not is_asymmetric and packing.format in ('', format):
      return packing
  return None


def name_element(packing: Packing, index: Index, name: str) -> str:
  """Returns nvfp4, int4, int8 or float8: what the codes of a weight are."""
  codes = index[join_name(name, packing.codes)]
  if codes.dtype == np.uint8:
    return 'nvfp4'
  if packing.zeros:
    return 'int4'
  if codes.dtype == np.int32:
    shape = index[name + _SHAPE].read().tolist()
    return 'int4' if _count_items(codes.shape, shape) == 8 else 'int8'
  return 'int8' if codes.dtype == np.int8 else 'float8'


def list_names(packing: Packing, index: Index, name: str) -> set[str]:
  """Returns the tensors that a weight is stored in, and those to ignore."""
  prefix = name.rpartition('.')[0]
  ignored = {f'{prefix}.{end}' for end in _IGNORED} & {*index}
  return {join_name(name, end) for end in packing.ends} | ignored


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
  if packing.zeros:
    return _find_fault_of_zeros(packing, index, name, shape)
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


def _find_fault_of_zeros(packing, index, name: str, shape: Shape) -> str | None:
  """Returns what `find_fault` does, of a packing with zero points."""
  outputs, inputs = shape
  scales = index[join_name(name, _SCALES)].shape
  groups = scales[0] if len(scales) == 2 else 1
  in_words = outputs // _CODES_IN_WORD
  expected = {
    _SCALES: (groups, outputs),
    packing.codes: (inputs // _CODES_IN_WORD, outputs)
    if packing.is_along_input
    else (inputs, in_words),
    packing.zeros: (groups, in_words),
    _GROUPS: (inputs,),
  }
  for end in (_SCALES, *packing.ends):
    actual = index[join_name(name, end)].shape
    if actual != expected[end]:
      return _say_shapes(join_name(name, end), expected[end], actual)
  if _GROUPS not in packing.ends and inputs % groups:
    return _say_shapes(
      join_name(name, _SCALES), (inputs // 128, outputs), scales
    )
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

  Raises:
    ValueError: a row is in a group that has no scale.
  """
  if packing.zeros:
    return _dequantise_with_zeros(packing, read, name, shape)
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


def _dequantise_with_zeros(packing, read, name: str, shape: Shape):
  """Returns what `dequantise` does, of codes less zero points."""
  form = _nibbles('uint4', packing.order)

  def read_codes(end: str, axis: int) -> np.ndarray:
    words = read(join_name(name, end))
    return quantise.unpack(form, words, axis).astype(np.int64)

  codes = read_codes(packing.codes, 0 if packing.is_along_input else 1)
  zeros = read_codes(packing.zeros, 1) + packing.zero_offset
  zeros %= 2**4  # as a zero point of 0 is stored less 1
  scales = read(join_name(name, _SCALES)).astype(np.float64)
  if _GROUPS in packing.ends:
    group = read(join_name(name, _GROUPS))
    if group.min() < 0 or group.max() >= len(scales):
      raise ValueError(
        f'{join_name(name, _GROUPS)}: expected groups of {len(scales)}, got '
        f'{group.min()} to {group.max()}'
      )
  else:
    group = np.arange(len(codes)) * len(scales) // len(codes)
  weights = (codes - zeros[group]) * scales[group]
  return np.ascontiguousarray(weights.T).reshape(shape).astype(np.float32)


def _nibbles(element: str, order: str) -> quantised.Form:
  """Returns a form that says how 4-bit codes of an element are packed."""
  return quantised.Form('codes', element, (1, 0), '', packing=order)


def _read_codes(packing: Packing, codes: np.ndarray, shape: Shape):
  """Returns codes `[O, I]` float64."""
  if codes.dtype == np.uint8:
    form = _nibbles('float4_e2m1fn', 'low')
    return quantise.unpack(form, codes).astype(np.float64)
  if codes.dtype != np.int32:
    return codes.astype(np.float64)
  if _count_items(codes.shape, shape) == _CODES_IN_WORD:
    parts, half = quantise.unpack(_nibbles('uint4', packing.order), codes), 8
  else:
    parts, half = codes.view(np.uint8).reshape(len(codes), -1), 128
  return parts[:, : shape[1]].astype(np.float64) - half
