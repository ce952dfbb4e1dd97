"""The safetensors format, tensor by tensor.

The `safetensors` library maps a whole file and writes a file from tensors that
are all in memory.  Here a file is larger than what may be in memory beside the
model.  Format: 8 bytes of length, a JSON header of that length, tensors without
gaps, in the order of their offsets.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
# OCP's E8M0: powers of 2 alone.
SCALE8 = np.dtype(ml_dtypes.float8_e8m0fnu)
DTYPES: dict[str, np.dtype] = {
  'F64': np.dtype(np.float64),
  'F32': np.dtype(np.float32),
  'F16': np.dtype(np.float16),
  'BF16': BFLOAT16,
  'F8_E4M3': FLOAT8,
  'F8_E5M2': np.dtype(ml_dtypes.float8_e5m2),
  'F8_E8M0': SCALE8,
  'F8_E4M3FNUZ': np.dtype(ml_dtypes.float8_e4m3fnuz),
  'F8_E5M2FNUZ': np.dtype(ml_dtypes.float8_e5m2fnuz),
  'I64': np.dtype(np.int64),
  'I32': np.dtype(np.int32),
  'I16': np.dtype(np.int16),
  'I8': np.dtype(np.int8),
  'U64': np.dtype(np.uint64),
  'U32': np.dtype(np.uint32),
  'U16': np.dtype(np.uint16),
  'U8': np.dtype(np.uint8),
  'BOOL': np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = '__metadata__'
_MAX_HEADER = 100_000_000  # the library's own limit
_ALIGNMENT = 8


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """A tensor that lies in a file, read without the rest of the file.

  Attributes:
    path: the file.
    dtype: of its elements, little-endian.
    shape: of all of it, C order.
    offset: of its first byte.
  """

  path: pathlib.Path
  dtype: np.dtype
  shape: tuple[int, ...]
  offset: int

  @property
  def num_bytes(self) -> int:
    return math.prod(self.shape) * self.dtype.itemsize

  def read(self) -> np.ndarray:
    """Returns the tensor.

    Raises:
      ValueError: the file ends before it does.
    """
    size = self.num_bytes
    data = np.fromfile(self.path, np.uint8, size, offset=self.offset)
    if data.size != size:
      raise ValueError(
        f'{self.path}: expected {size} bytes at {self.offset}, got {data.size}'
      )
    return data.view(self.dtype).reshape(self.shape)

  def row(self, index: int) -> 'StoredTensor':
    """Returns where row `index` along the first axis lies."""
    offset = self.offset + index * (self.num_bytes // self.shape[0])
    return StoredTensor(self.path, self.dtype, self.shape[1:], offset)

  def reshape(self, shape: tuple[int, ...]) -> 'StoredTensor':
    """Returns the same elements in another shape."""
    return dataclasses.replace(self, shape=shape)


Index = dict[str, StoredTensor]


def read_index(path: str | os.PathLike[str]) -> tuple[Index, dict[str, str]]:
  """Returns where each tensor of a file lies, and the file's metadata.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is damaged, truncated, or has a dtype that is not known.
  """
  with open(path, 'rb') as file:
    length = int.from_bytes(file.read(8), 'little')
    if not 2 <= length <= min(_MAX_HEADER, os.path.getsize(path)):
      raise ValueError(
        f'{path}: expected a safetensors file, got a header of {length} bytes'
      )
    text = file.read(length)
  try:
    header = json.loads(text)
    metadata = header.pop(_METADATA, {})
    index = {
      name: _parse_entry(pathlib.Path(path), 8 + length, name, entry)
      for name, entry in header.items()
    }
  except (
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
  ) as error:
    reason = ' '.join(f'{type(error).__name__} {error}'.split())
    raise ValueError(
      f'{path}: expected a safetensors header, got {reason[:200]}'
    ) from error
  _check_no_gaps(path, 8 + length, index)
  return index, metadata


def _parse_entry(
  path: pathlib.Path, begin: int, name: str, entry: Mapping[str, Any]
) -> StoredTensor:
  if entry['dtype'] not in DTYPES:
    expected = ', '.join(DTYPES)
    raise ValueError(f'{name} of {entry["dtype"]}, expected {expected}')
  dtype, shape = DTYPES[entry['dtype']], tuple(entry['shape'])
  first, last = entry['data_offsets']
  if not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
    raise ValueError('a size below 0 or of another type')
  if last - first != math.prod(shape) * dtype.itemsize:
    raise ValueError(f'{last - first} bytes for {list(shape)} of {dtype}')
  return StoredTensor(path, dtype, shape, begin + first)


def _check_no_gaps(path, begin: int, index: Index) -> None:
  for tensor in sorted(index.values(), key=lambda t: (t.offset, t.num_bytes)):
    if tensor.offset != begin:
      raise ValueError(
        f'{path}: expected a tensor at byte {begin}, got one at {tensor.offset}'
      )
    begin += tensor.num_bytes
  if (size := os.path.getsize(path)) != begin:
    raise ValueError(f'{path}: expected {begin} bytes, got {size}')


def write(
  path: str | os.PathLike[str],
  specs: Mapping[str, Any],
  read: Callable[[str], np.ndarray],
  metadata: Mapping[str, str],
) -> None:
  """Writes tensors, each of which is made when its turn comes.

  Args:
    path: the new file.
    specs: name -> something with `shape` and `dtype`.
    read: name -> the tensor.
    metadata: goes into the header.

  Raises:
    ValueError: a tensor is not what its spec says.
  """
  # The widest first, so that every tensor is aligned; else the caller's order.
  names = sorted(specs, key=lambda n: -np.dtype(specs[n].dtype).itemsize)
  with open(path, 'xb') as file:
    file.write(_header(names, specs, metadata))
    for name in names:
      tensor = np.asarray(read(name))
      check_spec(name, specs[name], tensor)
      file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)


def check_spec(name: str, spec: Any, tensor: np.ndarray) -> None:
  """Refuses a tensor that is not what was announced.

  Raises:
    ValueError: its shape or dtype is another.
  """
  want = (tuple(spec.shape), np.dtype(spec.dtype))
  if (tensor.shape, tensor.dtype) != want:
    raise ValueError(
      f'{name}: expected {list(want[0])} of {want[1]}, got '
      f'{list(tensor.shape)} of {tensor.dtype}'
    )


def _header(names, specs, metadata) -> bytes:
  entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
  offset = 0
  for name in names:
    dtype = np.dtype(specs[name].dtype)
    shape = [int(n) for n in specs[name].shape]
    size = math.prod(shape) * dtype.itemsize
    entries[name] = dict(
      dtype=_NAMES[dtype], shape=shape, data_offsets=[offset, offset + size]
    )
    offset += size
  text = json.dumps(entries, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % _ALIGNMENT)
  return len(text).to_bytes(8, 'little') + text
