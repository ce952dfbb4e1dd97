"""Reads tensors from .safetensors and .npz files, with one-line errors."""

from collections.abc import Sequence
import os
import zipfile

import ml_dtypes  # noqa: F401, safetensors needs it to return bfloat16.
import numpy as np
import safetensors

from reference import tensors as specs

# What a damaged file has been seen to raise (RuntimeError: a zip that claims
# to be encrypted or compressed in an unknown way).
_UNREADABLE = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    zipfile.BadZipFile,
    safetensors.SafetensorError,
)

DTYPES = {'BF16': 'bfloat16', 'F32': 'float32', 'I32': 'int32'}
_OF_KIND = {
    'storage': ['float32', 'bfloat16'],
    'f32': ['float32'],
    'i32': ['int32'],
}


def read(
    path: str | os.PathLike[str],
    required: Sequence[str],
    optional: Sequence[str] = (),
) -> dict[str, np.ndarray]:
  """Returns the named tensors of a file; optional ones if it has them.

  Raises:
    ValueError: the suffix is unknown, the file is unreadable or truncated, or
      a tensor is missing or of a dtype that its name may not have.
  """
  suffix = os.path.splitext(path)[1]
  if suffix not in READERS:
    raise ValueError(f'{path}: expected one of {list(READERS)}, got {suffix!r}')
  try:
    tensors, present = READERS[suffix](path, [*required, *optional])
  except _UNREADABLE as error:
    reason = ' '.join(str(error).split())
    raise ValueError(
        f'{path}: expected a readable {suffix} file, got {reason}'
    ) from error
  for name in required:
    if name not in present:
      raise ValueError(
          f'{path}: tensor {name}: expected in the file, got only {present}'
      )
  for name, tensor in tensors.items():
    allowed = _OF_KIND[specs.SPECS[name].kind]
    got = tensor if isinstance(tensor, str) else str(tensor.dtype)
    if got not in allowed:
      raise ValueError(
          f'{path}: tensor {name}: expected {" or ".join(allowed)}, got {got}'
      )
  return tensors


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
  with zipfile.ZipFile(path):  # np.load also takes other kinds of file.
    pass
  with np.load(path, allow_pickle=False) as file:
    present = sorted(file.files)
    return {name: file[name] for name in names if name in present}, present


READERS = {'.safetensors': _read_safetensors, '.npz': _read_npz}
