"""Units in the last place: the distance of two stored values."""

import numpy as np

from hpmoe.reference.contract import storage

_WORDS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def storage_dtype(name: str) -> np.dtype:
  """Returns the numpy dtype of a storage dtype."""
  return storage.FORMATS[name].numpy


def bits(values: np.ndarray) -> np.ndarray:
  """Returns `[...]` integers that hold the bits of `values` `[...]`."""
  values = np.ascontiguousarray(values)
  return values.view(_WORDS[values.dtype.itemsize])


def _magnitude(words: np.ndarray) -> np.ndarray:
  """Returns `[...]` int64, representable values up from zero."""
  return words.astype(np.int64) & np.int64(np.iinfo(words.dtype).max)


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Returns `[...]` int64, representable values between `a` and `b` `[...]`.

  The two zeros are one value.  A NaN is `2**bits - 1` from any number (the
  largest distance there is) and 0 from another NaN.  Integers are counted one
  by one.

  Raises:
    ValueError: the dtypes differ.
  """
  if a.dtype != b.dtype:
    raise ValueError(f'b: expected dtype {a.dtype}, got {b.dtype}')
  if a.dtype.kind in 'iu':
    return np.abs(a.astype(np.int64) - b)
  bits_a, other = bits(a), bits(b)
  apart = np.abs(bits_a - other).astype(np.int64)
  # Distances between values of different signs lead through zero.
  across = (bits_a ^ other) < 0
  if across.any():
    apart[across] = _magnitude(bits_a[across]) + _magnitude(other[across])
  nan_a, nan_b = np.isnan(a), np.isnan(b)
  if nan_a.any() or nan_b.any():
    far = np.int64(2 ** min(8 * a.dtype.itemsize, 63) - 1)
    apart = np.where(nan_a ^ nan_b, far, np.where(nan_a, 0, apart))
  return apart


def half_spacing(magnitude: np.ndarray, dtype: str) -> np.ndarray:
  """Returns `[...]` float64, the most that rounding to `dtype` can move.

  Half the spacing of `dtype` in the binade of `magnitude` `[...]` float64;
  among subnormals, half the smallest of them.
  """
  digits = storage.ROUNDED[dtype].digits
  lowest = storage.ROUNDED[dtype].min_exponent
  fraction, exponent = np.frexp(magnitude)
  exponent = np.where(fraction == 0, lowest, np.maximum(exponent - 1, lowest))
  return np.ldexp(0.5, exponent - (digits - 1))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
  """Returns `[...]` float64, values `[...]` rounded to `dtype`.

  To nearest even, or toward zero where the format truncates.  Beyond the
  largest number of `dtype` they are infinite.
  """
  spacing = 2 * half_spacing(np.abs(values), dtype)
  to_whole = np.trunc if storage.ROUNDED[dtype].truncates else np.rint
  near = to_whole(values / spacing) * spacing
  is_infinite = np.abs(near) > storage.ROUNDED[dtype].largest
  return np.where(is_infinite, np.copysign(np.inf, values), near)


def unit_roundoff(dtype: str) -> float:
  """Returns u, the largest relative error of one rounding."""
  return storage.ROUNDED[dtype].unit_roundoff


def smallest_normal(dtype: str) -> float:
  """Returns the largest error of flushing a subnormal number to zero."""
  return storage.FORMATS[dtype].smallest_normal
