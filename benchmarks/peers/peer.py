"""What a peer is: one way to run the layer."""

import abc
from collections.abc import Callable

import numpy as np

Arrays = dict[str, np.ndarray]
# What a call returns is its framework's; `results` makes arrays of it, by the
# names of `cases.RESULTS`, and is not timed.
Call = Callable[[], object]


class CannotRun(Exception):
  """The peer does not have this dtype or this pass."""


class Peer(abc.ABC):
  """Holds a case in its framework's arrays.

  What a user of the framework prepares once, such as a layout of weights or a
  compilation, is prepared in `__init__` and in the first call.  Where the
  interface takes arrays to write to, they are made once too.
  """

  def __init__(self, arrays: Arrays):
    self.arrays = arrays

  @abc.abstractmethod
  def forward(self) -> object:
    """Computes y; returns once it is there."""

  def both(self) -> object:
    """Computes y and every gradient; returns once they are there."""
    raise CannotRun('no gradient')

  def multiply(self) -> object:
    """Multiplies two of `cases.squares` into the third, by its library."""
    raise CannotRun('no product of its own')

  @abc.abstractmethod
  def results(self, out) -> Arrays:
    """Returns arrays of what a call returned."""

  @staticmethod
  @abc.abstractmethod
  def versions() -> dict[str, str]:
    """Returns what it runs on, and of which version."""
