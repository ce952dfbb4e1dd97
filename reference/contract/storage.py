"""The one table of storage dtypes; every other list of them is made from it."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import numpy as np


@dataclasses.dataclass(frozen=True)
class Format:
  """A binary floating-point format that tensors are stored in.

  Attributes:
    name: in policies, reports and JSON; numpy and JAX call it so.
    short: as flags may say it.
    digits: bits of the significand, the hidden one included.
    min_exponent: of the smallest normal number, 2**min_exponent.
    file_code: what safetensors calls it; None: files hold none.
    truncates: whether numbers are rounded to it toward zero; the others, to
      nearest even.
  """

  name: str
  short: str
  digits: int
  min_exponent: int
  file_code: str | None
  truncates: bool = False

  @property
  def numpy(self) -> 'np.dtype':
    # Not above: flags read this table before anything heavy is loaded.
    import ml_dtypes
    import numpy as np

    # By type: other frameworks give numpy a bfloat16 of their own by that name.
    return np.dtype(getattr(ml_dtypes, self.name, self.name))

  @property
  def exponent_bits(self) -> int:
    return (2 - self.min_exponent).bit_length()

  @property
  def unit_roundoff(self) -> float:
    """The largest relative error of one rounding."""
    return 2.0 ** (self.truncates - self.digits)

  @property
  def smallest_normal(self) -> float:
    return 2.0**self.min_exponent

  @property
  def smallest(self) -> float:
    """The smallest number above zero: the spacing of subnormals."""
    return 2.0 ** (self.min_exponent - self.digits + 1)

  @property
  def largest(self) -> float:
    """The largest finite number."""
    return (2.0 - 2.0 ** (1 - self.digits)) * 2.0 ** (1 - self.min_exponent)


_TABLE = (
  Format('float32', 'f32', 24, -126, 'F32'),
  Format('bfloat16', 'bf16', 8, -126, 'BF16'),
  Format('float16', 'f16', 11, -14, 'F16'),
  Format('float64', 'f64', 53, -1022, None),
)

FORMATS = {row.name: row for row in _TABLE}

# What a matrix unit reads of a float32 operand.  Tensor cores drop bits that
# TF32 lacks; a kernel that converts first (cvt.rna) rounds them away.
_OF_OPERANDS = (
  Format('tf32', 'tf32', 11, -126, None),
  Format('tf32_rz', 'tf32_rz', 11, -126, None, truncates=True),
)

# What a value may be rounded to on its way: operands of matrix units too.
ROUNDED = FORMATS | {row.name: row for row in _OF_OPERANDS}

# The formats that a kernel may store; float64 is for golden values.
KERNEL_FORMATS = {name: row for name, row in FORMATS.items() if row.file_code}


@dataclasses.dataclass(frozen=True)
class Emulated:
  """Products of float32 numbers, made of products of narrower parts.

  An operand is split into `parts`: its value in `dtype`, what is left of it in
  `dtype`, and so on.  Part i of one is multiplied by part j of the other where
  i + j is at most `largest_sum`; each product is exact in float32.

  Attributes:
    dtype: of `ROUNDED`.
    parts: of an operand.
    largest_sum: see above.
  """

  dtype: str
  parts: int
  largest_sum: int

  @property
  def pairs(self) -> tuple[tuple[int, int], ...]:
    """Parts (i, j) that are multiplied, the smallest products first."""
    grid = ((i, j) for i in range(self.parts) for j in range(self.parts))
    return tuple(
      sorted(
        (p for p in grid if sum(p) <= self.largest_sum), key=sum, reverse=True
      )
    )

  @property
  def error(self) -> float:
    """What the products left out come to, at most, relative to a product."""
    u = ROUNDED[self.dtype].unit_roundoff
    left_out = sum(
      u ** (i + j)
      for i in range(self.parts)
      for j in range(self.parts)
      if i + j > self.largest_sum
    )
    # What no part holds of an operand: nothing, where all of its bits are held.
    bits_held = self.parts * (ROUNDED[self.dtype].digits + 1) - 1
    rest = 0.0 if bits_held >= FORMATS['float32'].digits else u**self.parts
    return left_out + rest * (2 + rest)


# As cuBLAS's emulation and XLA's `dot_algorithm` have them.
EMULATED = {
  'tf32x3': Emulated('tf32', 2, 1),
  'bf16x3': Emulated('bfloat16', 2, 1),
  'bf16x6': Emulated('bfloat16', 3, 2),
  'bf16x9': Emulated('bfloat16', 3, 4),
}
