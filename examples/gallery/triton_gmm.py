"""A grouped product as a Triton kernel; on a CPU under its interpreter."""

import of_torch  # noqa: F401, it comes before Triton
import triton
import triton.language as tl


@triton.jit
def _kernel(
  rows,
  weights,
  out,
  first,
  last,
  width: tl.constexpr,
  depth: tl.constexpr,
  block: tl.constexpr,
  columns: tl.constexpr,
  chunk: tl.constexpr,
  wide: tl.constexpr,
):
  """One program: a block of rows of one expert, a block of columns."""
  expert = tl.program_id(0)
  row = tl.load(first + expert) + tl.program_id(1) * block + tl.arange(0, block)
  column = tl.program_id(2) * columns + tl.arange(0, columns)
  mine = row < tl.load(last + expert)
  total = tl.zeros((block, columns), tl.float32)
  for start in range(0, depth, chunk):
    k = start + tl.arange(0, chunk)
    a = tl.load(rows + row[:, None] * depth + k, mask=mine[:, None], other=0)
    b = tl.load(weights + (expert * depth + k[:, None]) * width + column)
    if wide:
      a, b = a.to(tl.float32), b.to(tl.float32)
    total += tl.dot(a, b, input_precision='ieee')
  where = out + row[:, None] * width + column
  tl.store(where, total.to(out.dtype.element_ty), mask=mine[:, None])


def product(rows, weights, sizes, wide=False):
  """Returns [S, B]: rows [S, A] of experts of `sizes` [E] by weights [E, A, B].

  A is a multiple of 32, B of 64.  `wide`: float32 alone within the kernel, and
  the result is rounded here.
  """
  shape = list(weights.shape)
  if shape[1] % 32 or shape[2] % 64:
    raise ValueError(
      f'weights: expected [E, A, B], A of 32s and B of 64s, got {shape}'
    )
  last = sizes.cumsum(0)
  out = rows.new_empty(len(rows), weights.shape[-1])
  out = out.float() if wide else out
  grid = (len(weights), triton.cdiv(int(sizes.max()), 16), out.shape[1] // 64)
  held = (rows.contiguous(), weights.contiguous(), out, last - sizes, last)
  _kernel[grid](*held, out.shape[1], rows.shape[1], 16, 64, 32, wide)
  return out.to(rows.dtype)
