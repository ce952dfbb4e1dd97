"""Inner products with a fixed order of additions.

The order follows from the length alone, or the caller gives it.  The oracle
leaves the order of other sums to the compiler.  A machine that stores rows in
order of arrival also adds them in that order; `chain_over_rows` computes its
bits.
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
  point: str = '',
) -> at.Float[at.Array, '*batch']:
  """Returns sum(a * b) over the last axis, `[...]`, in the accumulate dtype.

  Products are rounded to that dtype; then the second half is added to the first
  until one term is left: 1 + ceil(log2(X)) roundings for every term.

  Args:
    policy: precision.
    a: one side.
    b: the other.
    point: of the policy, at which products may be rounded more; '': none.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  a, b = numerics.widen(policy, a), numerics.widen(policy, b)
  terms = numerics.rounded(a * b)
  if point:
    terms = numerics.at_point(policy, point, terms)
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
    order: `[n]` int, rows of the expert in the order of additions.
    flushes: whether subnormal operands and results become zeros, as in the
      contract for bfloat16.
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

  The float64 sum is rounded to odd if it is not exact, so that the second
  rounding gives the same result as a single one.
  """
  wide = total.astype(np.float64)
  near = product + wide
  back = near - product
  residue = (product - (near - back)) + (wide - back)
  is_even = (near.view(np.int64) & 1) == 0
  side = np.where(residue > 0, np.inf, -np.inf)
  odd = np.where(is_even & (residue != 0), np.nextafter(near, side), near)
  return odd.astype(np.float32)
