"""What tests of the host tiles share: an exact emulation of fma."""

import numpy as np


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
