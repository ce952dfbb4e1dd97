"""Reads tensors from .safetensors and .npz files, with one-line errors."""

from collections.abc import Sequence
import math
import os
import zipfile

import ml_dtypes  # noqa: F401, safetensors needs it to return bfloat16.
import numpy as np
import safetensors

from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors as specs

# Deflate makes at most this many bytes of one; what numpy writes knows no other
# compression.
_MAX_EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}

_READ_HEADER = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}

DTYPES = {
  **{row.file_code: name for name, row in storage.STORED.items()},
  'I32': 'int32',
}
_OF_KIND = {
  'storage': list(storage.STORED),
  'f32': ['float32'],
  'i32': ['int32'],
}


def read(
  path: str | os.PathLike[str],
  required: Sequence[str],
  optional: Sequence[str] = (),
  only: bool = False,
) -> dict[str, np.ndarray]:
  """Returns the named tensors of a file; optional ones if it has them.

  Memory is bounded by the size of the file, whatever the file says of it.

  Args:
    path: its suffix is one of `READERS`.
    required: names of tensors.
    optional: likewise.
    only: whether a tensor of another name is refused.

  Raises:
    ValueError: the suffix is unknown, the file is unreadable or truncated, or
      a tensor is missing, one too many, or of a dtype that its name may not
      have.
  """
  suffix = os.path.splitext(path)[1]
  if suffix not in READERS:
    raise ValueError(f'{path}: expected one of {list(READERS)}, got {suffix!r}')
  try:
    tensors, present = READERS[suffix](path, [*required, *optional])
  except MemoryError:  # no file is to blame for the machine
    raise
  except Exception as error:
    # Of a damaged file the libraries raise SafetensorError, BadZipFile,
    # OSError, EOFError, RuntimeError, TypeError, OverflowError, zlib.error,
    # tokenize.TokenError and more, by version.
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise ValueError(
      f'{path}: expected a readable {suffix} file, got {reason}'
    ) from error
  for name in required:
    if name not in present:
      raise ValueError(
        f'{path}: tensor {name}: expected in the file, got only {present}'
      )
  known = [*required, *optional]
  for name in present:
    if only and name not in known:
      raise ValueError(
        f'{path}: tensor {name!r}: expected only {", ".join(known)}, got one '
        'more, which would not be read'
      )
  for name, tensor in tensors.items():
    allowed = _OF_KIND[specs.SPECS[name].kind]
    got = tensor if isinstance(tensor, str) else str(tensor.dtype)
    if got not in allowed:
      raise ValueError(
        f'{path}: tensor {name}: expected {" or ".join(allowed)}, got {got}'
      )
  return tensors


def notes(path: str | os.PathLike[str]) -> dict[str, str]:
  """Returns the metadata of a readable .safetensors file; .npz has none."""
  if os.path.splitext(path)[1] != '.safetensors':
    return {}
  with safetensors.safe_open(path, framework='np') as file:
    return file.metadata() or {}


def _read_safetensors(path, names):
  """Returns the named tensors that are there, and the names of all.

  In place of a tensor that numpy may not know, its dtype's name.
  """
  with safetensors.safe_open(path, framework='np') as file:
    present = sorted(file.keys())
    tensors = {}
    for name in [name for name in names if name in present]:
      dtype = file.get_slice(name).get_dtype()
      tensors[name] = file.get_tensor(name) if dtype in DTYPES else dtype
    return tensors, present


def _read_npz(path, names):
  """As `_read_safetensors`."""
  with zipfile.ZipFile(path) as archive:
    members = {m.filename.removesuffix('.npy'): m for m in archive.infolist()}
    room = os.path.getsize(path)
    tensors = {
      name: _read_npy(archive, members[name], room)
      for name in names
      if name in members
    }
    return tensors, sorted(members)


def _read_npy(archive, member, room):
  """Returns one member of an archive of `room` bytes.

  numpy's own reader allocates what the header claims before it reads.
  """
  name = member.filename
  if member.compress_type not in _MAX_EXPANSION:
    raise ValueError(
      f'{name}: expected it stored or deflated, got compression '
      f'{member.compress_type}'
    )
  most = room * _MAX_EXPANSION[member.compress_type]
  if member.file_size > most:
    raise ValueError(
      f'{name}: expected at most {most} bytes, got {member.file_size}'
    )
  with archive.open(member) as file:
    shape, in_fortran_order, dtype = _read_npy_header(file)
    size = math.prod(shape) * dtype.itemsize
    left = member.file_size - file.tell()
    if dtype.hasobject or size != left:
      raise ValueError(
        f'{name}: expected {left} bytes of numbers, got {list(shape)} of '
        f'{dtype}'
      )
    data = bytearray(file.read(size))
    if len(data) != size:
      raise ValueError(f'{name}: expected {size} bytes, got {len(data)}')
  array = np.frombuffer(data, dtype)
  return array.reshape(shape, order='F' if in_fortran_order else 'C')


def _read_npy_header(file):
  version = np.lib.format.read_magic(file)
  if version not in _READ_HEADER:
    raise ValueError(f'expected .npy version 1 or 2, got {version}')
  try:
    return _READ_HEADER[version](file)
  except MemoryError as error:  # Python's parser, of too many parentheses
    raise ValueError('expected a flat header of .npy') from error


READERS = {'.safetensors': _read_safetensors, '.npz': _read_npz}
