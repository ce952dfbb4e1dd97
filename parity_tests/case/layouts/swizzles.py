"""Orders of scales in tiles, as block-scaled GEMMs read them.

A swizzled matrix is padded to whole tiles, which follow each other by rows of
tiles.  In a tile, both coordinates are split into parts, each with a stride, as
a CuTe layout has them:

    swizzled_128x4  (r % 32) * 16 + (r // 32) * 4 + c
                    MXFP8 and NVFP4 of cuBLAS ("Block scaling factors layout" in
                    its documentation), torchao `to_blocked`, vLLM
                    `swizzle_blockscale`, FlashInfer `block_scale_interleave`;
                    TensorRT-LLM and FlashInfer `get_sf_out_offset_128x4`
    swizzled_8x4    r * 4 + c, for few rows: FlashInfer and TensorRT-LLM,
                    `get_sf_out_offset_8x4`
    packed_4x1      r, of four rows of one column: bytes of which an int32 holds
                    four along the depth, for matrices whose rows are groups;
                    DeepGEMM `get_mn_major_tma_aligned_packed_ue8m0_tensor`
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

# Parts of a coordinate in a tile: (length, stride), the innermost first.
Parts = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Swizzle:
  """The order of elements in one tile.

  Attributes:
    rows: parts of the row.
    columns: parts of the column.
  """

  rows: Parts
  columns: Parts

  @property
  def tile(self) -> tuple[int, int]:
    """The number of rows and columns of a tile."""
    rows, columns = (
      math.prod(length for length, _ in parts)
      for parts in (self.rows, self.columns)
    )
    return rows, columns

  def pad(self, lengths: Sequence[int]) -> tuple[int, ...]:
    """Returns the lengths of rows and columns, padded to whole tiles."""
    return tuple(
      -(-length // size) * size for length, size in zip(lengths, self.tile)
    )

  def place(
    self, row: np.ndarray, column: np.ndarray, width: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns where elements lie in a padded matrix: rows and columns.

    Args:
      row: of elements; it and the column broadcast.
      column: of elements.
      width: of the padded matrix.
    """
    rows, columns = self.tile
    first = (row // rows * (width // columns) + column // columns) * (
      rows * columns
    )
    offset = _stride(row, self.rows) + _stride(column, self.columns)
    return np.divmod(first + offset, width)

  def apply(self, matrix: np.ndarray) -> np.ndarray:
    """Returns a matrix `[A, B]` in tiles; padding is zero."""
    swizzled = np.zeros(self.pad(matrix.shape), matrix.dtype)
    row, column = np.indices(matrix.shape, sparse=True)
    swizzled[self.place(row, column, swizzled.shape[1])] = matrix
    return swizzled


def _stride(coordinate: np.ndarray, parts: Parts) -> np.ndarray:
  """Returns the offset of a coordinate in its tile."""
  offset = np.zeros_like(coordinate)
  for length, stride in parts:
    coordinate, part = np.divmod(coordinate, length)
    offset = offset + part * stride
  return offset


SWIZZLES = {
  'swizzled_128x4': Swizzle(rows=((32, 16), (4, 4)), columns=((4, 1),)),
  'swizzled_8x4': Swizzle(rows=((8, 4),), columns=((4, 1),)),
  'packed_4x1': Swizzle(rows=((4, 1),), columns=((1, 4),)),
}
