"""Values with bounds on the error of a right kernel.

A `Bounded` is a value in float64 with an absolute error bound; each function
of the modules beside this one propagates both through one stage.  Inputs that
the candidate returned have error 0, so that a fault does not spread; inputs
that it did not return have the bound of their own computation.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bounded:
  """A value, and a bound on the error of a right kernel.

  Attributes:
    value: `[...]` float64.
    error: `[...]` float64, not negative; None is zero everywhere.
    variance: `[...]` float64 of the error, or in narrow storage of the distance
      of two right kernels; None is zero everywhere.
    apart: `[...]` float64, mean of that distance, if it is less than the root
      of the variance; None is the root.
    crossings: `[...]` float64, for float32 computed from narrower numbers: the
      mean number of these that two right kernels store differently.  In
      float32 storage the variance is then that of all others.  None is zero
      everywhere.
    unlike: `[...]` float64, in narrow storage: the probability that two right
      kernels store this element differently; before it is stored, the mean
      number of its own roundings that differ.  A float32 result of it has these
      among its crossings.  None is zero everywhere.
  """

  value: np.ndarray
  error: np.ndarray | None = None
  variance: np.ndarray | None = None
  apart: np.ndarray | None = None
  crossings: np.ndarray | None = None
  unlike: np.ndarray | None = None

  def __getitem__(self, index) -> 'Bounded':
    return self.map_arrays(lambda array: array[index])

  @property
  def T(self) -> 'Bounded':
    return self.map_arrays(np.transpose)

  def contiguous(self) -> 'Bounded':
    """Returns a copy in C order."""
    return self.map_arrays(np.ascontiguousarray)

  def reshape(self, *shape: int) -> 'Bounded':
    return self.map_arrays(lambda array: array.reshape(*shape))

  def among(self, mask: np.ndarray) -> 'Bounded':
    """Returns `[n, ...]`: these rows where `mask` `[n]`, else zeros."""

    def spread(array: np.ndarray) -> np.ndarray:
      full = np.zeros((len(mask), *array.shape[1:]), array.dtype)
      full[mask] = array
      return full

    return self if mask.all() else self.map_arrays(spread)

  def map_arrays(self, change) -> 'Bounded':
    return Bounded(*(a if a is None else change(a) for a in self.arrays()))

  def arrays(self) -> tuple[np.ndarray | None, ...]:
    return (
      *(self.value, self.error, self.variance),
      *(self.apart, self.crossings, self.unlike),
    )

  def bound(self) -> np.ndarray:
    return np.zeros_like(self.value) if self.error is None else self.error

  def distance(self) -> np.ndarray:
    """Returns the mean of |error| `[...]`, or a bound on it."""
    if self.apart is not None:
      return self.apart
    if self.variance is None:
      return np.zeros_like(self.value)
    return np.sqrt(self.variance)


def join(parts: Sequence[Bounded]) -> Bounded:
  """Returns parts joined along the first axis."""
  return _concatenate(parts, 0)


def beside(*parts: Bounded) -> Bounded:
  """Returns parts joined along the last axis."""
  return _concatenate(parts, -1)


def _concatenate(parts: Sequence[Bounded], axis: int) -> Bounded:
  if any(part.apart is not None for part in parts):
    parts = [dataclasses.replace(part, apart=part.distance()) for part in parts]
  joined_arrays = []
  for arrays in zip(*(part.arrays() for part in parts)):
    columns = [
      np.zeros_like(part.value) if a is None else a
      for a, part in zip(arrays, parts)
    ]
    has_values = any(a is not None for a in arrays)
    joined_arrays.append(np.concatenate(columns, axis) if has_values else None)
  return Bounded(*joined_arrays)


def exact(values: np.ndarray, max_error: np.ndarray | None = None) -> Bounded:
  """Returns stored values `[...]` with an error of at most `max_error`."""
  error = None if max_error is None else max_error.astype(np.float64)
  return Bounded(values.astype(np.float64), error)
