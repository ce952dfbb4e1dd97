"""A tensor that lies in a file, read without the rest of the file."""

import dataclasses
import math
import os
import pathlib

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """Where a tensor lies.

  Attributes:
    path: the file.
    dtype: of its elements, little-endian.
    shape: of all of it, C order.
    parts: (offset, size) in bytes of the pieces that make it up, in order.
  """

  path: pathlib.Path
  dtype: np.dtype
  shape: tuple[int, ...]
  parts: tuple[tuple[int, int], ...]

  @property
  def num_bytes(self) -> int:
    return math.prod(self.shape) * self.dtype.itemsize

  def read(self) -> np.ndarray:
    """Returns the tensor.

    Raises:
      ValueError: the file ends before it does.
    """
    out = np.empty(self.num_bytes, np.uint8)
    at = 0
    with open(self.path, 'rb', buffering=0) as file:
      for offset, size in self.parts:
        file.seek(offset)
        self._fill(file, out[at : at + size])
        at += size
    return out.view(self.dtype).reshape(self.shape)

  def row(self, index: int) -> 'StoredTensor':
    """Returns where row `index` along the first axis lies."""
    ((offset, size),) = self.parts
    step = size // self.shape[0]
    part = (offset + index * step, step)
    return StoredTensor(self.path, self.dtype, self.shape[1:], (part,))

  def _fill(self, file, out: np.ndarray) -> None:
    left = out.data
    while left:
      got = file.readinto(left)
      if not got:
        raise ValueError(
          f'{self.path}: expected {len(left)} bytes more, got the end of it'
        )
      left = left[got:]


def check_size(path: str | os.PathLike[str], expected: int) -> None:
  """Refuses a file of another size than its contents say.

  Raises:
    ValueError: it was truncated, or has more.
  """
  size = os.path.getsize(path)
  if size != expected:
    raise ValueError(f'{path}: expected {expected} bytes, got {size}')
