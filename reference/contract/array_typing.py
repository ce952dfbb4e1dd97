"""Notation of the project: one letter, one meaning, in every signature.

| letter | meaning                        | letter | meaning               |
|--------|--------------------------------|--------|-----------------------|
| `r`, R | expert-parallel rank           | `e`, E | expert; L = E/R of    |
|        |                                |        | them live on a rank   |
| `t`, T | token of one rank              | `k`, K | slot among a token's  |
|        |                                |        | top-k experts         |
| `d`, D | model width                    | `f`, F | expert hidden width   |
| `n`, N | routed row held by a rank      | `b`    | row block: successive |
|        | after dispatch                 |        | rows of ONE expert    |
| `s`, S | shared experts' hidden width   |        |                       |

Shapes in jaxtyping strings use the capitals; `2F` is written `2*F`.

The names are for type checkers: jaxtyping loads JAX, or without it asyncio,
unittest and email, which a small check has no use for.  When a program runs, an
annotation is the bare array type.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from jaxtyping import Array
  from jaxtyping import Bool
  from jaxtyping import Float
  from jaxtyping import Int
  from jaxtyping import Int32
  from jaxtyping import Num
else:
  Array = Any

  class Num:
    """Numbers: `Float[np.ndarray, 'R T D']`."""

    def __class_getitem__(cls, item):
      return item[0]

  Bool = Float = Int = Int32 = Num

__all__ = ['Array', 'Bool', 'Float', 'Int', 'Int32', 'Num']
