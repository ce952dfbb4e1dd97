"""Casts that change no value, to the dtype that a policy stores."""

import numpy as np

from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage


def cast_exactly(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
  """Returns the same values in the dtype that the policy has.

  Raises:
    ValueError: they are others in that dtype.
  """
  wanted = _numpy_dtype(dtype)
  if array.dtype == wanted:
    return array
  bare = array.dtype.kind in 'Vui' and array.dtype.itemsize == wanted.itemsize
  if bare and wanted.kind != 'i' and wanted.itemsize == 2:
    return array.view(wanted)
  if array.dtype.name.startswith('float8'):  # of which it has every value
    array = array.astype(np.float32)
  is_float = array.dtype.kind == 'f' or array.dtype.name == 'bfloat16'
  if not (is_float if wanted.kind != 'i' else array.dtype.kind in 'iu'):
    raise ValueError(f'{name}: expected {dtype}, got {array.dtype}')
  with np.errstate(over='ignore', invalid='ignore'):
    cast = array.astype(wanted)
    lost = (cast != array) & ~(np.isnan(cast) & np.isnan(array))
  if lost.any():
    at = tuple(int(i) for i in np.argwhere(lost)[0])
    raise ValueError(
      f'{name}: expected values of {dtype}, got {array.dtype} {array[at]} at '
      f'{list(at)}, which {dtype} has not: {_advise_rounding(name, dtype)}'
    )
  return cast


def _advise_rounding(name: str, dtype: str) -> str:
  if name in precision.POINTS:
    return f'round it to {dtype}, or export the case with --policy={name}=f32'
  return f'round it to {dtype} before it is written'


def _numpy_dtype(dtype: str) -> np.dtype:
  row = storage.FORMATS.get(dtype)
  return np.dtype(dtype) if row is None else row.numpy
