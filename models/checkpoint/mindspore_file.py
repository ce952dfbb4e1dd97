"""MindSpore's checkpoint format, `.ckpt`, without MindSpore.

A file is one protobuf message, and a concatenation of such messages is one
again:

    Checkpoint { repeated Value value = 1; }
    Value { string tag = 1; TensorProto tensor = 2; }
    TensorProto { repeated int64 dims = 1; string tensor_type = 2;
                  bytes tensor_content = 3; }

A tensor of more than 512 MiB is cut into several values of one tag that each
hold all dims.  After the message may follow `crc_num` and ten bytes, the
CRC-32 of the message, big-endian.  Sources: `mindspore/train/serialization.py`
and the descriptor in `mindspore/train/checkpoint_pb2.py`, 2.10.0.
"""

from collections.abc import Callable, Iterator, Mapping
import math
import os
import pathlib
from typing import Any
import zlib

import numpy as np

from hpmoe.models.checkpoint import safetensors_file
from hpmoe.models.checkpoint import stored_tensor

DTYPES: dict[str, np.dtype] = {
  'Float64': np.dtype(np.float64),
  'Float32': np.dtype(np.float32),
  'Float16': np.dtype(np.float16),
  'BFloat16': stored_tensor.BFLOAT16,
  'Int64': np.dtype(np.int64),
  'Int32': np.dtype(np.int32),
  'Int16': np.dtype(np.int16),
  'Int8': np.dtype(np.int8),
  'UInt64': np.dtype(np.uint64),
  'UInt32': np.dtype(np.uint32),
  'UInt16': np.dtype(np.uint16),
  'UInt8': np.dtype(np.uint8),
  'Bool': np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# protobuf parses no message of 2 GiB, so MindSpore reads no such file.
MAX_BYTES = 2**31 - 1
_CRC = b'crc_num'
_CRC_BYTES = 10
_VARINT, _BYTES = 0, 2  # wire types
_CHUNK = 1 << 24


def read_index(path: str | os.PathLike[str]) -> safetensors_file.Index:
  """Returns where each tensor of a file lies.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is damaged, truncated, encrypted, fails its checksum, or
      holds something that is no tensor.
  """
  found: dict[str, list] = {}
  with open(path, 'rb') as file:
    end = _check_crc(path, file)
    try:
      for name, dtype, shape, part in _values(file, end):
        of_name = found.setdefault(name, [dtype, shape, []])
        if of_name[:2] != [dtype, shape]:
          raise ValueError(f'{name} twice, of two shapes')
        of_name[2].append(part)
      index = {
        name: _stored(pathlib.Path(path), name, *value)
        for name, value in found.items()
      }
    except (EOFError, KeyError, ValueError) as error:
      reason = ' '.join(f'{type(error).__name__} {error}'.split())
      raise ValueError(
        f'{path}: expected a checkpoint of MindSpore, got {reason[:200]}'
      ) from error
  return index


def _stored(path, name, dtype, shape, parts) -> stored_tensor.StoredTensor:
  tensor = stored_tensor.StoredTensor(path, dtype, shape, tuple(parts))
  size = sum(size for _, size in parts)
  if size != tensor.num_bytes:
    raise ValueError(f'{size} bytes for {name}, {list(shape)} of {dtype}')
  return tensor


def _check_crc(path, file) -> int:
  """Returns where the message ends; checks its checksum if it has one."""
  size = os.path.getsize(path)
  end = size - len(_CRC) - _CRC_BYTES
  if end < 0:
    return size
  file.seek(end)
  tail = file.read()
  if not tail.startswith(_CRC):
    return size
  file.seek(0)
  crc = 0
  for begin in range(0, end, _CHUNK):
    crc = zlib.crc32(file.read(min(_CHUNK, end - begin)), crc)
  want = int.from_bytes(tail[len(_CRC) :], 'big')
  if crc != want:
    raise ValueError(f'{path}: expected CRC-32 {want:08x}, got {crc:08x}')
  return end


def _values(file, end: int) -> Iterator[tuple]:
  """Yields (name, dtype, shape, (offset, size)) of each value of a message."""
  for field, begin, stop in _fields(file, 0, end):
    if field != 1:
      raise ValueError(f'field {field} in the message')
    name, tensor = None, None
    for inner, *span in _fields(file, begin, stop):
      if inner == 1:
        name = _text(file, *span)
      elif inner == 2:
        tensor = _tensor(file, *span)
      else:
        raise ValueError(f'{name}, which is no tensor')
    if name is None or tensor is None:
      raise ValueError('a value without name or tensor')
    yield name, *tensor


def _tensor(file, begin: int, end: int):
  dims: list[int] = []
  kind, part = '', (begin, 0)
  for field, first, last in _fields(file, begin, end):
    if field == 1:
      dims += _integers(file, first, last)
    elif field == 2:
      kind = _text(file, first, last)
    elif field == 3:
      part = (first, last - first)
  # MindSpore writes a scalar's dims as none or as [0], by version.
  dtype = DTYPES[kind]
  shape = () if dims == [0] and part[1] == dtype.itemsize else tuple(dims)
  return dtype, shape, part


def _fields(file, at: int, end: int) -> Iterator[tuple[int, int, int]]:
  """Yields (number, begin, end) of each field of a message."""
  while at < end:
    file.seek(at)
    key = _varint(file)
    at = file.tell()
    if key & 7 == _BYTES:
      size = _varint(file)
      at = file.tell()
      stop = at + size
    elif key & 7 == _VARINT:
      _varint(file)
      stop = file.tell()
    else:
      raise ValueError(f'wire type {key & 7} at byte {at}')
    if stop > end:
      raise EOFError(f'{stop - end} bytes too few from byte {at} on')
    yield key >> 3, at, stop
    at = stop


def _text(file, begin: int, end: int) -> str:
  file.seek(begin)
  return file.read(end - begin).decode()


def _integers(file, begin: int, end: int) -> list[int]:
  file.seek(begin)
  values = []
  while file.tell() < end:
    values.append(_varint(file))
  return values


def _varint(file) -> int:
  value = 0
  for shift in range(0, 64, 7):
    byte = file.read(1)
    if not byte:
      raise EOFError('the end of the file')
    value |= (byte[0] & 0x7F) << shift
    if byte[0] < 0x80:
      return value
  raise ValueError('a number of more than 64 bits')


def write(
  path: str | os.PathLike[str],
  specs: Mapping[str, Any],
  read: Callable[[str], np.ndarray],
) -> None:
  """Writes tensors, each of which is made when its turn comes.

  Args:
    path: the new file.
    specs: name -> something with `shape` and `dtype`.
    read: name -> the tensor.

  Raises:
    ValueError: a tensor is not what its spec says, or the file would be larger
      than MindSpore can read.
  """
  total = sum(value_bytes(name, spec) for name, spec in specs.items())
  if total > MAX_BYTES:
    raise ValueError(
      f'{path}: expected at most {MAX_BYTES} bytes, which is what protobuf '
      f'reads, got {total}'
    )
  with open(path, 'xb') as file:
    for name, spec in specs.items():
      tensor = np.asarray(read(name))
      safetensors_file.check_spec(name, spec, tensor)
      file.write(_before_content(name, spec))
      file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)


def value_bytes(name: str, spec: Any) -> int:
  """Returns what a tensor takes in a file."""
  return len(_before_content(name, spec)) + _num_bytes(spec)


def _num_bytes(spec) -> int:
  return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def _before_content(name: str, spec: Any) -> bytes:
  """Returns the bytes of a value up to the tensor's own, which are its last."""
  size = _num_bytes(spec)
  kind = _NAMES[np.dtype(spec.dtype)].encode()
  dims = b''.join(b'\x08' + _encoded(int(n)) for n in spec.shape)
  head = dims + _key(2, len(kind)) + kind + _key(3, size)
  tag = name.encode()
  inner = _key(1, len(tag)) + tag + _key(2, len(head) + size) + head
  return _key(1, len(inner) + size) + inner


def _key(field: int, size: int) -> bytes:
  return bytes([field << 3 | _BYTES]) + _encoded(size)


def _encoded(value: int) -> bytes:
  out = bytearray()
  while value >= 0x80:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes(out + bytes([value]))
