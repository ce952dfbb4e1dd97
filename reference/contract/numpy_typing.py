"""Shapes of numpy arrays in signatures, in the notation of `array_typing`.

A small check loads no JAX.  jaxtyping would load asyncio, unittest and email
instead, which takes as long as numpy: here its names are for type checkers, and
an annotation is the bare array type when the program runs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from jaxtyping import Float
  from jaxtyping import Int
else:

  class Float:
    """Floating-point numbers: `Float[np.ndarray, 'R T D']`."""

    def __class_getitem__(cls, item):
      return item[0]

  class Int(Float):
    """Integers."""


__all__ = ['Float', 'Int']
