"""Reads tensors from .safetensors and .npz files, with one-line errors."""

from collections.abc import Sequence
import os
import zipfile

import ml_dtypes  # noqa: F401, safetensors needs it to return bfloat16.
import numpy as np
import safetensors

DTYPES = {'BF16': 'bfloat16', 'F32': 'float32', 'I32': 'int32'}


def read(
    path: str | os.PathLike[str],
    required: Sequence[str],
    optional: Sequence[str] = (),
) -> dict[str, np.ndarray]:
  """Returns the named tensors of a file; optional ones if it has them.

  Raises:
    ValueError: the suffix is unknown, the file is unreadable or truncated, or
      a tensor is missing or of a dtype that is not in `DTYPES`.
  """
  suffix = os.path.splitext(path)[1]
  if suffix not in READERS:
    raise ValueError(f'{path}: expected one of {list(READERS)}, got {suffix!r}')
  try:
    return READERS[suffix](path, tuple(required), tuple(optional))
  except (
      OSError,
      EOFError,
      zipfile.BadZipFile,
      safetensors.SafetensorError,
  ) as error:
    raise ValueError(
        f'{path}: expected a readable {suffix} file, got {error}'
    ) from error


def _read_safetensors(path, required, optional):
  with safetensors.safe_open(path, framework='np') as file:
    names = _select(path, file.keys(), required, optional)
    for name in names:
      _check_dtype(path, name, file.get_slice(name).get_dtype(), DTYPES)
    return {name: file.get_tensor(name) for name in names}


def _read_npz(path, required, optional):
  try:
    file = np.load(path, allow_pickle=False)
  except ValueError as error:
    raise ValueError(
        f'{path}: expected a readable .npz file, got {error}'
    ) from error
  if not isinstance(file, np.lib.npyio.NpzFile):
    raise ValueError(f'{path}: expected an .npz archive, got a single array')
  with file:
    names = _select(path, file.files, required, optional)
    arrays = {name: file[name] for name in names}
  for name, array in arrays.items():
    _check_dtype(path, name, array.dtype.name, DTYPES.values())
  return arrays


def _select(path, present, required, optional) -> list[str]:
  for name in required:
    if name not in present:
      raise ValueError(
          f'{path}: tensor {name}: expected in the file, got only '
          f'{sorted(present)}'
      )
  return [*required, *(name for name in optional if name in present)]


def _check_dtype(path, name, dtype, known):
  if dtype not in known:
    raise ValueError(
        f'{path}: tensor {name}: expected one of {list(known)}, got {dtype}'
    )


READERS = {'.safetensors': _read_safetensors, '.npz': _read_npz}
