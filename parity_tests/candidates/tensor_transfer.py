"""Tensors between processes, and from whatever a user's kernel returns.

The process of a user's candidate imports this module, its imports and
`reference.contract`, and no other module of the project.
"""

from collections.abc import Iterator, Mapping
import pathlib
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import shared_memory

# Bytes that are compared at once: they fit a core's cache.
_PIECE_BYTES = 1 << 18


def as_array(value: object) -> np.ndarray:
  """Returns a tensor of numpy, JAX, torch or another framework as an array.

  Raises:
    Exception: whatever the framework raises.
    TypeError: the value is no array of numbers.
  """
  return read_case.as_numpy(read_case.bits_of(value))


def copy(
  inputs: Mapping[str, np.ndarray],
  copies: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
  """Returns inputs that a call may write to.

  `describe_overwritten` compares them afterwards.

  Args:
    inputs: tensors by name.
    copies: small copies of an earlier call: those that fit are overwritten, the
      others are replaced; None: there was no earlier call.
  """
  own = {}
  for name, array in inputs.items():
    earlier = None if copies is None else copies.get(name)
    if earlier is not None and _fits(earlier, array):
      np.copyto(earlier, array)
      own[name] = earlier
    else:
      own[name] = shared_memory.copy(array)
    if copies is not None and array.nbytes < shared_memory.LEAST_BYTES:
      copies[name] = own[name]
  return own


def _fits(earlier: np.ndarray, array: np.ndarray) -> bool:
  alike = earlier.shape == array.shape and earlier.dtype == array.dtype
  return alike and earlier.flags.writeable


def describe_overwritten(
  before: Mapping[str, np.ndarray], after: Mapping
) -> str:
  """Returns a message that names an input that a call overwrote, or ''."""
  for name, array in before.items():
    if not _have_same_bytes(array, after[name]):
      return (
        f'{name}: expected an input as it was before the call, got other '
        'values: it was written to; work on a copy'
      )
  return ''


def _have_same_bytes(array: np.ndarray, own: np.ndarray) -> bool:
  large = array.nbytes >= shared_memory.LEAST_BYTES
  if large and shared_memory.is_unwritten(own):
    return True
  if array.shape != own.shape or array.dtype != own.dtype:
    return False
  pieces = zip(_iterate_bytes(array), _iterate_bytes(own), strict=True)
  return all(np.array_equal(*pair) for pair in pieces)


def _iterate_bytes(array: np.ndarray) -> Iterator[np.ndarray]:
  flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
  if flat.size % 8 == 0:
    flat = flat.view(np.uint64)
  step = _PIECE_BYTES // flat.itemsize
  return (flat[i : i + step] for i in range(0, flat.size, step))


def save(path: pathlib.Path, values: Mapping[str, np.ndarray]) -> None:
  """Writes tensors to a file, whole or not at all.

  Raises:
    ValueError: the file format lacks the dtype of a tensor.
  """
  read_case.save(str(path), values, {})


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads the tensors that `save` wrote."""
  tensors = read_case.read(str(path))[0]
  return {name: read_case.as_numpy(array) for name, array in tensors.items()}


def lend(
  path: pathlib.Path, values: Mapping[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
  """Writes small tensors to a file, and describes large ones as JSON.

  The process that `borrow`s them must inherit the `file` descriptors.
  """
  places = shared_memory.find_places(values)
  save(path, {n: a for n, a in values.items() if n not in places})
  return {
    name: dict(
      file=place.file,
      size=place.size,
      shape=values[name].shape,
      dtype=read_case.bits_of(values[name][:0]).dtype.descr,
    )
    for name, place in places.items()
  }


def borrow(
  path: pathlib.Path, rows: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray]:
  """Reads the tensors that `lend` wrote, and maps those it described.

  Mapped tensors are read-only.
  """
  values = load(path)
  for name, row in rows.items():
    place = shared_memory.Place(row['file'], row['size'])
    dtype = np.dtype([tuple(field) for field in row['dtype']])
    # A plain dtype is described by one field without a name.
    dtype = dtype if row['dtype'][0][0] else dtype[0]
    array = shared_memory.attach(place, tuple(row['shape']), dtype)
    values[name] = read_case.as_numpy(array)
  return values
