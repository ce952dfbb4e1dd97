"""The NaN that fills buffers before a checked launch: no kernel writes it."""

import numpy as np

from hpmoe.reference.contract import storage

POISON = np.uint32(0x7FDEDEAD).view(np.float32)
_POISON_16 = np.uint16(0x7FDE)


def poison(dtype: np.dtype):
  """Returns the poison of a storage dtype."""
  return _POISON_16.view(dtype) if dtype.itemsize == 2 else POISON


def is_poison(array: np.ndarray) -> np.ndarray:
  """Returns where an array still holds what a launch put there at its start.

  Kernels write another NaN, so no task wrote such an element, or a put sent on
  what no task had written.

  Args:
    array: `[...]` of a storage dtype.

  Returns:
    `[...]` bool.

  Raises:
    ValueError: the array has another dtype.
  """
  names = list(storage.KERNEL_FORMATS)
  if str(array.dtype) not in names:
    raise ValueError(f'array: expected one of {names}, got {array.dtype}')
  if array.dtype.itemsize == 2:
    return array.view(np.uint16) == _POISON_16
  return array.view(np.uint32) == POISON.view(np.uint32)
