"""Weights of exact data as what they are: a few entries in each column.

A sum over a column is then a handful of terms, so that a proof reads no zero.
"""

from collections.abc import Sequence
import dataclasses
import weakref
import zlib

import numpy as np

from hpmoe.parity_tests.case import shared_memory
from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.array_typing import Int


@dataclasses.dataclass(frozen=True)
class SparseWeight:
  """One expert's weight `[X, Y]`.

  Attributes:
    rows: of the entries of each column, different ones.
    values: of the entries.
  """

  rows: Int[np.ndarray, 'Y terms']
  values: Float[np.ndarray, 'Y terms']

  def multiply(self, a: Float[np.ndarray, 'n X']) -> Float[np.ndarray, 'n Y']:
    """Returns a times the weight, in float32."""
    total = a[:, self.rows[:, 0]] * self.values[:, 0]
    for term in range(1, self.rows.shape[1]):
      total += a[:, self.rows[:, term]] * self.values[:, term]
    return total

  def absolute(self) -> 'SparseWeight':
    """Returns the magnitudes."""
    return SparseWeight(self.rows, np.abs(self.values))

  def mark(self) -> int:
    """Returns a digest, the same for any order of entries that are not 0."""
    order = np.argsort(self.rows, axis=1)
    mark = 0
    for part in (self.rows, self.values):
      mark = zlib.crc32(np.take_along_axis(part, order, 1), mark)
    return mark

  def has_distinct_rows(self) -> bool:
    """Says whether no column has two entries in one row."""
    ordered = np.sort(self.rows, axis=1)
    return bool((ordered[:, 1:] != ordered[:, :-1]).all())


_experts_by_id: dict[int, tuple[SparseWeight, ...]] = {}


def note(array: np.ndarray, experts: Sequence[SparseWeight]) -> None:
  """Keeps the entries of a large array `[R, L, X, Y]`, expert by expert."""
  if array.nbytes < shared_memory.LEAST_BYTES:
    return
  if all(expert.has_distinct_rows() for expert in experts):
    _experts_by_id[id(array)] = tuple(experts)
    weakref.finalize(array, _experts_by_id.pop, id(array), None).atexit = False


def find(array: object) -> tuple[SparseWeight, ...] | None:
  """Returns the entries of each expert of an array, or None."""
  return _experts_by_id.get(id(array))
