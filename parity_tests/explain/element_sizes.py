"""How large the elements of a tensor are meant to be, by row and column.

Columns of real data differ by many powers of two.  An error is compared with
the largest of its row, each column in units of its own largest.
"""

import numpy as np

from hpmoe.reference.contract.array_typing import Float


def measure_sizes(
  expected: Float[np.ndarray, '*rows C'],
) -> Float[np.ndarray, '*rows C']:
  """Returns float64, the largest of a row in units of each column; 0 is 0."""
  with np.errstate(invalid='ignore', over='ignore'):
    wide = np.abs(expected.astype(np.float64))
  wide = np.where(np.isfinite(wide), wide, 0.0)
  columns = wide.reshape(-1, wide.shape[-1]).max(axis=0, initial=0.0)
  units = np.where(columns > 0, columns, 1.0)
  return (wide / units).max(axis=-1, keepdims=True, initial=0.0) * units
