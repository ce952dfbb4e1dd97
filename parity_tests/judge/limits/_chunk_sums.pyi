"""Native part of parity_tests.judge.limits."""

from collections.abc import Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray

class Added:
  @property
  def worst_error(self) -> float: ...
  @property
  def worst_of_bound(self) -> float: ...
  @property
  def worst_at(self) -> int: ...
  @property
  def regions(
    self,
  ) -> Annotated[
    NDArray[numpy.float64], dict(shape=(None, None), writable=False)
  ]: ...
  @property
  def square(
    self,
  ) -> Annotated[
    NDArray[numpy.float64], dict(shape=(None, None), writable=False)
  ]: ...
  @property
  def product(
    self,
  ) -> Annotated[
    NDArray[numpy.float64], dict(shape=(None, None), writable=False)
  ]: ...
  @property
  def information(
    self,
  ) -> Annotated[
    NDArray[numpy.float64], dict(shape=(None, None), writable=False)
  ]: ...
  @property
  def by_row(
    self,
  ) -> Annotated[
    NDArray[numpy.float64], dict(shape=(None, None), writable=False)
  ]: ...
  @property
  def by_column(
    self,
  ) -> Annotated[
    NDArray[numpy.float64], dict(shape=(None, None), writable=False)
  ]: ...

def add(
  actual: Annotated[
    NDArray[numpy.float32],
    dict(shape=(None, None), order='C', device='cpu', writable=False),
  ],
  golden: Annotated[
    NDArray[numpy.float64],
    dict(shape=(None, None), order='C', device='cpu', writable=False),
  ],
  bound: Annotated[
    NDArray[numpy.float64],
    dict(shape=(None, None), order='C', device='cpu', writable=False),
  ],
  benchmark: Annotated[
    NDArray[numpy.float32],
    dict(shape=(None, None), order='C', device='cpu', writable=False),
  ]
  | None,
  variance: Annotated[
    NDArray[numpy.float64],
    dict(shape=(None, None), order='C', device='cpu', writable=False),
  ]
  | None,
  row_starts: Sequence[int],
  col_starts: Sequence[int],
  thresholds: Sequence[tuple[float, float]],
) -> Added: ...
@overload
def furthest(
  one: Annotated[
    NDArray[numpy.int16],
    dict(shape=(None,), order='C', device='cpu', writable=False),
  ],
  other: Annotated[
    NDArray[numpy.int16],
    dict(shape=(None,), order='C', device='cpu', writable=False),
  ],
) -> int: ...
@overload
def furthest(
  one: Annotated[
    NDArray[numpy.int32],
    dict(shape=(None,), order='C', device='cpu', writable=False),
  ],
  other: Annotated[
    NDArray[numpy.int32],
    dict(shape=(None,), order='C', device='cpu', writable=False),
  ],
) -> int: ...
