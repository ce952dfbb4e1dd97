"""Lazy tensors `[R, ...]` in files: a rank's part is read when it is used.

Nothing is cached.  A part in our layout is a memory map of its file, so only
accessed elements are read; indexing returns copies.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class LazyTensor:
  """A tensor that is indexed like an array, by rank first.

  Attributes:
    shape: of all ranks.
    dtype: of its elements.
    read: returns the part `[...]` of a rank.
    data: kind of data, one of `inputs.DATA`.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  read: Callable[[int], np.ndarray]
  data: str

  @property
  def ndim(self) -> int:
    """The number of axes, with the rank axis."""
    return len(self.shape)

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, index: Any) -> Any:
    """Returns a part, a copy of some of it, or rows `(owners, rows)` `[n]`."""
    first, *rest = index if isinstance(index, tuple) else (index,)
    if isinstance(first, slice):
      return self._slice(first, tuple(rest))
    if np.ndim(first):
      return self._rows(np.asarray(first), np.asarray(*rest))
    part = self.read(int(first))
    return np.array(part[tuple(rest)]) if rest else part

  def _slice(self, ranks: slice, rest: tuple) -> 'LazyTensor':
    if ranks != slice(None):
      raise IndexError(f'slabs: expected all ranks or one, got {ranks}')
    of_one = np.broadcast_to(np.zeros((), self.dtype), self.shape[1:])[rest]
    shape = (self.shape[0], *of_one.shape)
    read = self.read
    return dataclasses.replace(self, shape=shape, read=lambda r: read(r)[rest])

  def _rows(self, owners: np.ndarray, rows: np.ndarray) -> np.ndarray:
    gathered = np.empty((len(owners), *self.shape[2:]), self.dtype)
    for rank in np.unique(owners):
      of_rank = owners == rank
      gathered[of_rank] = self.read(int(rank))[rows[of_rank]]
    return gathered

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    """Returns all of it."""
    del copy
    whole = np.stack([self.read(rank) for rank in range(len(self))])
    return whole if dtype is None else whole.astype(dtype)


def load_whole(array: Any) -> Any:
  """Returns an array; a lazy tensor is read as a whole."""
  return np.asarray(array) if isinstance(array, LazyTensor) else array
