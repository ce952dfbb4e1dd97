"""Large arrays in memory that another process can map, so that none is copied.

On Linux an array of `empty` lies in an anonymous file.  A candidate's process
maps that file copy-on-write: it may write to its inputs, the judge does not see
that, and pages that nobody writes to exist once.  Elsewhere, and below
`LEAST_BYTES`, `empty` is numpy's.

Inside of `reuse`, blocks that are no longer used are kept for the next array of
their size: fresh pages cost more than the values that are drawn into them.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import math
import mmap
import os
import sys
import weakref

import numpy as np

# A smaller array is written to a file faster than it is mapped.
LEAST_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Place:
  """Where an array lies in shared memory.

  Attributes:
    file: descriptor of the anonymous file.
    size: bytes of the array, which the file begins with.
  """

  file: int
  size: int

  def map_private(self) -> mmap.mmap:
    """Returns the bytes, copied page by page where they are written to."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    return mmap.mmap(self.file, self.size, mmap.MAP_PRIVATE, access)

  def map_shared(self) -> mmap.mmap:
    """Returns the bytes themselves, read-only."""
    return mmap.mmap(self.file, self.size, mmap.MAP_SHARED, mmap.PROT_READ)


class _Blocks:
  """Blocks of this process: those in use, by address, and those to reuse."""

  def __init__(self):
    self._by_address: dict[int, Place] = {}
    self._spare: list[tuple[Place, mmap.mmap]] = []
    self.num_reusers = 0

  def take(self, size: int) -> np.ndarray:
    """Returns `[size]` bytes, of any value."""
    return self._use(*(self._pop(size) or self._create(size)))

  def _use(self, place: Place, block: mmap.mmap) -> np.ndarray:
    array = np.frombuffer(block, np.uint8)
    address = array.__array_interface__['data'][0]
    self._by_address[address] = place
    weakref.finalize(array, self._give_back, address, block).atexit = False
    return array

  def take_zeros(self, size: int) -> np.ndarray:
    """Returns `[size]` zeros."""
    spare = self._pop(size)
    if spare is None:
      return self._use(*self._create(size))
    array = self._use(*spare)
    array.fill(0)
    return array

  def create(self, size: int) -> np.ndarray:
    """Returns `[size]` zeros, of which those written to take memory."""
    self.drop_unused()
    return self._use(*self._create(size))

  def attach(self, place: Place) -> np.ndarray:
    """Returns a block of another process, read-only."""
    array = np.frombuffer(place.map_shared(), np.uint8)
    self._by_address[array.__array_interface__['data'][0]] = place
    return array

  def find(self, array: np.ndarray) -> Place | None:
    """Returns where an array lies that is a whole block."""
    place = self._by_address.get(array.__array_interface__['data'][0])
    whole = place is not None and place.size == array.nbytes
    return place if whole and array.flags.c_contiguous else None

  def drop_unused(self) -> None:
    """Returns the memory of blocks that no array uses."""
    while self._spare:
      place, block = self._spare.pop()
      block.close()
      os.close(place.file)

  def _pop(self, size: int) -> tuple[Place, mmap.mmap] | None:
    for index, (place, _) in enumerate(self._spare):
      if place.size == size:
        return self._spare.pop(index)
    self.drop_unused()
    return None

  def _create(self, size: int) -> tuple[Place, mmap.mmap]:
    file = os.memfd_create('hpmoe')
    try:
      os.ftruncate(file, size)
      block = mmap.mmap(file, size)
    except OSError as error:
      os.close(file)
      raise MemoryError(f'{size} bytes of shared memory: {error}') from error
    if hasattr(mmap, 'MADV_HUGEPAGE'):
      block.madvise(mmap.MADV_HUGEPAGE)
    return Place(file, size), block

  def _give_back(self, address: int, block: mmap.mmap) -> None:
    place = self._by_address.pop(address)
    if self.num_reusers:
      self._spare.append((place, block))
    else:
      os.close(place.file)


_blocks = _Blocks()


def is_supported() -> bool:
  """Says whether arrays of this platform can be mapped by another process."""
  return sys.platform == 'linux' and hasattr(os, 'memfd_create')


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Returns an array of any values, in shared memory if it is large."""
  size = math.prod(shape) * np.dtype(dtype).itemsize
  if size < LEAST_BYTES or not is_supported():
    return np.empty(shape, dtype)
  return _blocks.take(size).view(dtype).reshape(shape)


def empty_rows(
  shape: tuple[int, ...], dtype: np.dtype, rows: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns an array `[R, L, ...]` for some of its R L rows, and which.

  They are `rows`, and the others are zeros that take no memory; or all rows,
  None, where that saves nothing.
  """
  size = math.prod(shape) * np.dtype(dtype).itemsize
  is_part = rows is not None and len(rows) < shape[0] * shape[1]
  if not is_part or size < LEAST_BYTES or not is_supported():
    return empty(shape, dtype), None
  return _blocks.create(size).view(dtype).reshape(shape), rows


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Returns an array of zeros, in shared memory if it is large."""
  size = math.prod(shape) * np.dtype(dtype).itemsize
  if size < LEAST_BYTES or not is_supported():
    return np.zeros(shape, dtype)
  return _blocks.take_zeros(size).view(dtype).reshape(shape)


def attach(place: Place, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Returns an array of the process that started this one, read-only."""
  return _blocks.attach(place).view(dtype).reshape(shape)


def copy(array: np.ndarray) -> np.ndarray:
  """Returns a copy that may be written to; of a block pages where it is."""
  place = _blocks.find(array)
  if place is None:
    return array.copy()
  block = np.frombuffer(place.map_private(), np.uint8)
  return block.view(array.dtype).reshape(array.shape)


def is_unwritten(array: np.ndarray) -> bool:
  """Says whether an array is a `copy` none of whose pages was written to.

  False where nobody says.
  """
  begin = array.__array_interface__['data'][0]
  kilobytes, is_mapped = 0, False
  with contextlib.suppress(OSError), open('/proc/self/smaps') as lines:
    is_inside = False
    for line in lines:
      name, *rest = line.split()
      if not name.endswith(':'):
        low, high = (int(edge, 16) for edge in name.split('-'))
        is_inside = low < begin + array.nbytes and begin < high
        # Only a private map has pages of its own.
        is_mapped |= is_inside and rest[0].endswith('p')
      elif is_inside and name in ('Anonymous:', 'Swap:'):
        kilobytes += int(rest[0])
  return is_mapped and not kilobytes


def find_places(arrays: Mapping[str, np.ndarray]) -> dict[str, Place]:
  """Returns the places of those arrays that lie in shared memory, by name."""
  places = {name: _blocks.find(np.asarray(a)) for name, a in arrays.items()}
  return {name: place for name, place in places.items() if place is not None}


@contextlib.contextmanager
def reuse() -> Iterator[None]:
  """Keeps blocks that no array uses for others, until the context ends."""
  _blocks.num_reusers += 1
  try:
    yield
  finally:
    _blocks.num_reusers -= 1
    if not _blocks.num_reusers:
      _blocks.drop_unused()
