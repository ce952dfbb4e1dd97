"""What a peer is: one way to run the layer."""

from collections.abc import Callable

import numpy as np

Arrays = dict[str, np.ndarray]
# What a call returns is its framework's; `results` makes arrays of it, by the
# names of `cases.RESULTS`, and is not timed.
Call = Callable[[], object]


class CannotRun(Exception):
  """The peer does not have this dtype or this pass."""


class Peer:
  """Holds a case in its framework's arrays.

  What a user of the framework prepares once, such as a layout of weights or a
  compilation, is prepared in `__init__` and in the first call.
  """

  def __init__(self, arrays: Arrays):
    self.arrays = arrays

  def forward(self) -> object:
    """Computes y; returns once it is there."""
    raise NotImplementedError

  def both(self) -> object:
    """Computes y and every gradient; returns once they are there."""
    raise CannotRun('no gradient')

  def results(self, out) -> Arrays:
    """Returns arrays of what a call returned."""
    raise NotImplementedError

  @staticmethod
  def versions() -> dict[str, str]:
    raise NotImplementedError
