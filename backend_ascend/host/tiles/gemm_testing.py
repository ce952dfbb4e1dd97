"""What tests of the host tiles share: an exact fma, and values in storage."""

import zlib

import ml_dtypes
import numpy as np

DTYPES = ('float32', 'bfloat16', 'float16')
_NUMPY = {'bfloat16': ml_dtypes.bfloat16, 'float16': np.float16}
_QUIET_NAN = {'float32': 0x7FC00000, 'bfloat16': 0x7FC0, 'float16': 0x7E00}


def assert_same(actual, want, message=''):
  """Says where bits differ."""
  np.testing.assert_array_equal(
    actual.view(f'u{actual.itemsize}'), want.view(f'u{want.itemsize}'), message
  )


def to_binding(x, dtype):
  """Returns float32 `x` rounded, as bindings take and give it.

  That is bfloat16 as its bits.
  """
  if dtype == 'float32':
    return x
  with np.errstate(over='ignore'):
    narrow = x.astype(_NUMPY[dtype])
  return narrow.view(np.uint16) if dtype == 'bfloat16' else narrow


def to_kernel_bits(x, dtype):
  """Returns `to_binding(x)`, NaN as the one quiet NaN that kernels write."""
  values = to_binding(x, dtype).copy()
  bits = values.view(f'u{values.itemsize}')
  bits[np.isnan(x)] = _QUIET_NAN[dtype]
  return values


def to_float32(x):
  """Returns an array of a binding as float32."""
  return (x.view(ml_dtypes.bfloat16) if x.dtype == 'u2' else x).astype('f4')


def flush_subnormals(x):
  """Returns float32 `x` with zeros, of their sign, for subnormal numbers."""
  return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(0, x), x)


def fma(a, b, c):
  """Returns float32 a * b + c rounded once; arrays that broadcast.

  The product of two float32 is exact in float64.  The sum is not, and
  rounding it twice is wrong, so it is rounded to odd first (Boldo and
  Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
  """
  product, c = np.broadcast_arrays(a.astype('f8') * b.astype('f8'), c)
  c = c.astype('f8')
  total = product + c
  part = total - product
  error = (product - (total - part)) + (c - part)
  even = (total.view('i8') & 1) == 0
  toward = np.where(error > 0, np.inf, -np.inf)
  odd = np.where(even & (error != 0), np.nextafter(total, toward), total)
  return np.where(np.isfinite(total), odd, total).astype('f4')


def chain(a, b, flushes=False):
  """Returns a @ b for float32 `[m, k]`, `[k, n]`: ascending fma from +0.

  `flushes`: subnormal numbers are read and written as zeros of their sign.
  """
  zeros = flush_subnormals if flushes else lambda x: x
  a, b = zeros(a), zeros(b)
  acc = np.zeros((a.shape[0], b.shape[1]), 'f4')
  for p in range(a.shape[1]):
    acc = zeros(fma(a[:, p, None], b[None, p], acc))
  return acc


def operands(name, m, k, n, dtype='float32'):
  """Returns `[m, k]`, `[k, n]` over 16 binades: order shows."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))

  def draw(*shape):
    scale = rng.integers(-8, 8, shape)
    values = np.ldexp(rng.standard_normal(shape, 'f4'), scale).astype('f4')
    return to_binding(values, dtype)

  return draw(m, k), draw(k, n)
