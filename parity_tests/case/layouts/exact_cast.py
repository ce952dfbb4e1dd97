"""Lossless casts to the storage dtype of a policy."""

import numpy as np

from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.quantised import quantise


def cast_exactly(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
  """Returns the same values in another dtype.

  Raises:
    ValueError: that dtype lacks some of the values.
  """
  target = _numpy_dtype(dtype)
  if array.dtype == target:
    return array
  bare = array.dtype.kind in 'Vui' and array.dtype.itemsize == target.itemsize
  if bare and target.kind != 'i' and target.itemsize == 2:
    return array.view(target)
  if array.dtype.name.startswith('float8'):  # every dtype has its values
    array = array.astype(np.float32)
  is_float = array.dtype.kind == 'f' or array.dtype.name == 'bfloat16'
  if not (is_float if target.kind != 'i' else array.dtype.kind in 'iu'):
    raise ValueError(f'{name}: expected {dtype}, got {array.dtype}')
  with np.errstate(over='ignore', invalid='ignore'):
    cast = array.astype(target)
    differs = (cast != array) & ~(np.isnan(cast) & np.isnan(array))
  if differs.any():
    place = tuple(int(i) for i in np.argwhere(differs)[0])
    raise ValueError(
      f'{name}: expected values of {dtype}, got {array.dtype} {array[place]} '
      f'at {list(place)}, which {dtype} cannot represent: '
      f'{_advise_rounding(name, dtype)}'
    )
  return cast


def _advise_rounding(name: str, dtype: str) -> str:
  advice = f'round it to {dtype}, as read_case.round_stored does'
  if name in precision.POINTS:
    return f'{advice}, or export the case with --policy={name}=f32'
  return f'{advice}, before it is written'


def _numpy_dtype(dtype: str) -> np.dtype:
  row = storage.FORMATS.get(dtype)
  return quantise.numpy_dtype(dtype) if row is None else row.numpy
