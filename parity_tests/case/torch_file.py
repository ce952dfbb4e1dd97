"""Reads a .pt file without torch: tensors only, nothing of it is run.

The format is that of `torch.save` (a zip of data.pkl and one file a storage,
torch/serialization.py); what the pickle may name is what `weights_only` allows
of tensors, dicts and lists.
"""

import collections
from collections.abc import Mapping
import os
import pickle
from typing import BinaryIO
import zipfile

import numpy as np

from hpmoe.parity_tests.case import read_case

_STORAGES: dict[str, np.dtype] = {
  'UntypedStorage': np.dtype('u1'),
  'DoubleStorage': np.dtype('<f8'),
  'FloatStorage': np.dtype('<f4'),
  'HalfStorage': np.dtype('<f2'),
  'BFloat16Storage': read_case.BFLOAT16,
  'LongStorage': np.dtype('<i8'),
  'IntStorage': np.dtype('<i4'),
  'ShortStorage': np.dtype('<i2'),
  'CharStorage': np.dtype('i1'),
  'ByteStorage': np.dtype('u1'),
  'BoolStorage': np.dtype('?'),
}
# Of tensors whose storage is of bytes.
_DTYPES = read_case.FLOAT8 | {
  'uint8': np.dtype('u1'),
  'uint16': np.dtype('<u2'),
  'uint32': np.dtype('<u4'),
}


def read(
  path: str | os.PathLike[str], content: BinaryIO | None = None
) -> object:
  """Returns what a .pt file holds, tensors as arrays.

  bfloat16 is `read_case.BFLOAT16`.

  Args:
    path: of the file.
    content: the part of it that is a .pt file; None: all of it.

  Raises:
    ValueError: it is damaged, or holds what is no tensor.
  """
  try:
    with zipfile.ZipFile(content or path) as archive:
      (name,) = (n for n in archive.namelist() if n.endswith('data.pkl'))
      with archive.open(name) as file:
        return _Unpickler(file, archive, name.removesuffix('data.pkl')).load()
  except Exception as error:  # of damaged files pickle raises anything
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ValueError(
      f'{path}: expected tensors that torch.save wrote, got {reason[:150]}'
    ) from error


class _Unpickler(pickle.Unpickler):
  """Makes arrays, and refuses all else."""

  def __init__(self, file, archive: zipfile.ZipFile, prefix: str):
    super().__init__(file)
    self._archive, self._prefix = archive, prefix

  def find_class(self, module: str, name: str):
    if module in ('torch', 'torch.storage') and name in _STORAGES | _DTYPES:
      return name  # A pickle can change a dtype itself, of the whole process.
    constructors: Mapping[tuple[str, str], object] = {
      ('collections', 'OrderedDict'): collections.OrderedDict,
      ('torch._utils', '_rebuild_tensor_v2'): _tensor,
      ('torch._utils', '_rebuild_tensor_v3'): _tensor_of,
      ('torch._utils', '_rebuild_parameter'): _parameter,
    }
    if (module, name) not in constructors:
      raise pickle.UnpicklingError(f'{module}.{name}, which is no tensor')
    return constructors[module, name]

  def persistent_load(self, pid) -> np.ndarray:
    kind, storage, key, _, elements = pid
    if kind != 'storage':
      raise pickle.UnpicklingError(f'{kind!r}, which is no storage')
    data = self._archive.read(f'{self._prefix}data/{key}')
    return np.frombuffer(data, _STORAGES[storage], elements)


def _tensor(storage, offset, size, stride, *_) -> np.ndarray:
  """Returns a tensor of a storage, copied."""
  last = offset + sum((n - 1) * step for n, step in zip(size, stride))
  if min((offset, *size, *stride), default=0) < 0 or (
    0 not in size and last >= len(storage)
  ):
    raise ValueError(f'a tensor {list(size)} beyond its storage')
  steps = [step * storage.itemsize for step in stride]
  view = np.lib.stride_tricks.as_strided(storage[offset:], size, steps)
  return np.ascontiguousarray(view)


def _tensor_of(storage, offset, size, stride, grad, hooks, dtype, *_):
  """Returns a tensor of bytes that have a dtype."""
  del grad, hooks
  return _tensor(storage.view(_DTYPES[dtype]), offset, size, stride)


def _parameter(data: np.ndarray, *_) -> np.ndarray:
  return data
