"""Inner products whose order is known: fixed by the length alone, or told.

The oracle leaves the order of other sums to the compiler.  A machine whose rows
lie as they came adds them as they lie: what it makes of them is told here bit
for bit.
"""

import jax.numpy as jnp
import numpy as np

from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision

_LEAST_NORMAL = 2.0**-126


def inner_product(
  policy: precision.PrecisionPolicy,
  a: at.Float[at.Array, '*batch X'],
  b: at.Float[at.Array, '*batch X'],
) -> at.Float[at.Array, '*batch']:
  """Returns sum(a * b) over the last axis, `[...]`, in the accumulate dtype.

  Products are rounded to it, then the second half is added to the first until
  one is left: 1 + ceil(log2(X)) roundings for every term.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  a, b = numerics.widen(policy, a), numerics.widen(policy, b)
  terms = numerics.rounded(a * b)
  # Not jnp.sum or a dot: the compiler would choose their order.
  while (width := terms.shape[-1]) > 1:
    half = (width + 1) // 2
    second = terms[..., half:]
    missing = [(0, 0)] * (terms.ndim - 1) + [(0, 2 * half - width)]
    terms = terms[..., :half] + jnp.pad(second, missing)
  return terms[..., 0]


def chain_over_rows(
  left: np.ndarray, right: np.ndarray, order: np.ndarray, *, flushes: bool
) -> np.ndarray:
  """Returns `[X, Y]` float32, the sum over rows of left^T right.

  One chain of fused multiply-adds from +0.

  Args:
    left: `[N, X]` float, of at most 24 bits.
    right: `[N, Y]` likewise.
    order: `[n]` int, rows of the expert, as they are added.
    flushes: whether subnormal numbers are read and made as zeros, as the
      contract has it of bfloat16.
  """
  convert = _flush if flushes else np.asarray
  total = np.zeros((left.shape[1], right.shape[1]), np.float32)
  for row in order:
    a, b = (convert(side[row]).astype(np.float64) for side in (left, right))
    total = convert(_rounded_once(a[:, None] * b, total))
  return total


def _flush(array: np.ndarray) -> np.ndarray:
  wide = array.astype(np.float32)
  zero = np.copysign(np.float32(0), wide)
  return np.where(np.abs(wide) < _LEAST_NORMAL, zero, wide)


def _rounded_once(product: np.ndarray, total: np.ndarray) -> np.ndarray:
  """Returns float32 product + total; the product is exact.

  Their sum in float64 is rounded towards an odd last bit where it is not exact,
  so that rounding it again is as good as once.
  """
  wide = total.astype(np.float64)
  near = product + wide
  back = near - product
  residue = (product - (near - back)) + (wide - back)
  is_even = (near.view(np.int64) & 1) == 0
  side = np.where(residue > 0, np.inf, -np.inf)
  odd = np.where(is_even & (residue != 0), np.nextafter(near, side), near)
  return odd.astype(np.float32)
