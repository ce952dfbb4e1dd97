"""What a bad tile looks like: a hint, never part of a verdict."""

import numpy as np

from hpmoe.parity_tests.explain import element_sizes
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import poison
from hpmoe.reference.contract import storage

_MAX_ROWS = 4096
# A byte of what a candidate's memory starts with under --poison.
_FILL = 0x7F
# Units in the last place that a right kernel's errors may have here and there.
_FEW = 4
# How the pattern begins of an error that may be a rounding, or not.
NEAR = 'near what is expected'


def describe(
  actual: np.ndarray, expected: np.ndarray, bad: np.ndarray, rows: np.ndarray
) -> str:
  """Returns a likely cause in a few words, or ''.

  Args:
    actual: `[n, c]` the tile as stored.
    expected: `[n, c]` what it should hold, same dtype.
    bad: `[n, c]` bool, at least one is set.
    rows: `[m, columns]` expected rows near the tile, searched for its rows.
  """
  if actual.dtype.kind == 'i':
    return ''
  if np.isnan(actual[bad]).all():
    if poison.is_poison(actual[bad]).all():
      return 'never written, or copied from memory that was never written'
    return 'NaN: computed from memory that was never written, or from a NaN'
  if not actual[bad].any():
    return 'all zero'
  if (ulp.bits(actual[bad]).view(np.uint8) == _FILL).mean() > 0.5:
    return (
      'never written, or added to memory that was not: the fill of --poison'
    )
  if not expected[bad.any(axis=1)].any():
    return 'not zero, in rows that should be'
  for narrow_format in storage.KERNEL_FORMATS.values():
    if _rounded_early(actual[bad], expected[bad], narrow_format):
      return (
        f'{actual.dtype} values that {narrow_format.name} could hold: '
        'rounded too early'
      )
  size = element_sizes.measure_sizes(expected)
  size = np.where(size > 0, size, 1.0)
  actual_units, expected_units = (
    a.astype(np.float64) / size for a in (actual, expected)
  )
  if _is_opposite(actual_units[bad], expected_units[bad]):
    return 'of the opposite sign'
  row = int(np.argmax(bad.any(axis=1)))
  actual_row, expected_row = (
    a[row].astype(np.float64) for a in (actual, expected)
  )
  if scaled := _describe_factor(actual_units, expected_units, bad):
    return scaled
  if near := _near(actual, expected, bad):
    return near
  if actual_row.size > 2 and _close(actual_row[:-1], expected_row[1:]):
    return 'shifted by one column'
  if _one_outer_product(actual_units - expected_units, bad):
    return 'off by one outer product: one term of every sum is lost or wrong'
  if rows.shape[1] == actual.shape[1]:
    near_rows = rows[:_MAX_ROWS].astype(np.float64)
    if _is_other_row(actual_row, expected_row, near_rows):
      return "holds another row's values"
  return ''


def _one_outer_product(difference: np.ndarray, bad: np.ndarray) -> bool:
  """Says whether a difference has rank one, over several rows and columns.

  This is how a weight gradient differs that lost a row, or a GEMM tile that
  lost one term of its depth.
  """
  if min(bad.any(axis=1).sum(), bad.any(axis=0).sum()) < 3:
    return False
  size = np.abs(difference)
  row, column = np.unravel_index(int(np.argmax(size)), difference.shape)
  if not 0 < size[row, column] < np.inf:
    return False
  product = (
    np.outer(difference[:, column], difference[row]) / difference[row, column]
  )
  return bool(np.abs(product - difference).max() <= 2.0**-6 * size.max())


def _rounded_early(
  actual: np.ndarray, expected: np.ndarray, narrow_format: storage.Format
) -> bool:
  with np.errstate(over='ignore'):
    early = expected.astype(narrow_format.numpy).astype(actual.dtype)
  return bool(((actual == early) & (expected != early)).mean() > 0.5)


def _close(a: np.ndarray, b: np.ndarray) -> bool:
  # Larger than any storage rounding, smaller than between unrelated rows.
  return bool(np.abs(a - b).max() <= 2.0**-6 * np.abs(b).max() > 0)


def _is_opposite(actual: np.ndarray, expected: np.ndarray) -> bool:
  """Says whether all elements have another sign, and nothing else is wrong."""
  with np.errstate(invalid='ignore', over='ignore'):
    error = np.abs(actual + expected)
    return bool((error < 2.0**-6 * np.abs(expected)).all())


def _factor(actual: np.ndarray, expected: np.ndarray) -> float | None:
  """Returns the factor that explains almost all of a difference, or None.

  A factor does not explain rounding errors, unless there are few of them.
  """
  size = np.square(expected).sum()
  if not 0 < size < np.inf:
    return None
  factor = float((actual * expected).sum() / size)
  residual = np.square(actual - factor * expected).sum()
  if np.count_nonzero(expected) < (8 if abs(factor - 1) < 2.0**-6 else 3):
    return None
  largest_residual = min(abs(factor - 1) / 4, 2.0**-6 * abs(factor))
  return factor if residual <= largest_residual**2 * size else None


def _describe_factor(
  actual: np.ndarray, expected: np.ndarray, bad: np.ndarray
) -> str:
  """Returns the first bad row's factor, if most rows have one, or all's."""
  rows = np.flatnonzero(bad.any(axis=1))
  factors = [_factor(actual[r][bad[r]], expected[r][bad[r]]) for r in rows]
  row_factors = [factor for factor in factors if factor is not None]
  # Of a row that is zero where others are not, nothing is explained.
  if factors[0] and 2 * len(row_factors) >= len(rows):
    alike = np.ptp(row_factors) <= 2.0**-6 * abs(factors[0])
    own = '' if alike else ', each row with a factor of its own'
    return f'got = {factors[0]:.6g} * expected{own}'
  factor = _factor(actual[bad], expected[bad])
  return '' if factor is None else f'got = {factor:.6g} * expected'


def _near(actual: np.ndarray, expected: np.ndarray, bad: np.ndarray) -> str:
  rows = bad.any(axis=1)
  actual_wide, expected_wide = (
    a[rows].astype(np.float64) for a in (actual, expected)
  )
  largest = element_sizes.measure_sizes(expected)[rows]
  with np.errstate(invalid='ignore', over='ignore'):
    apart = np.abs(actual_wide - expected_wide) / np.where(
      largest > 0, largest, np.nan
    )
  worst_share = apart[bad[rows]].max()
  if (
    not worst_share <= 2.0**-6
  ):  # coarser than any rounding, finer than two rows
    return ''
  unit = 2 * storage.FORMATS[str(actual.dtype)].unit_roundoff
  if worst_share <= _FEW * unit:
    return f'{NEAR}: rounding, or a lost low-order term'
  median = np.median(apart[bad[rows]])
  return (
    f'off by up to {100 * worst_share:.2g} %, in the median '
    f"{100 * median:.2g} %, of its row's largest: more than rounding to "
    f'{actual.dtype} leaves; an approximation, operands of fewer bits, or a '
    'lost low-order term'
  )


def _is_other_row(
  row: np.ndarray, expected_row: np.ndarray, rows: np.ndarray
) -> bool:
  """Says whether a row is near one of `rows` other than its own.

  It is so much nearer to that than to its own that no rounding explains it, in
  columns of any size.
  """
  size = element_sizes.measure_sizes(rows).max(axis=0)
  if not np.isfinite(row).all() or not (size > 0).any():
    return False
  unit = np.where(size > 0, size, 1.0)
  own = np.abs(row - expected_row) / unit
  distances = np.abs(rows - row) / unit
  largest = np.abs(row / unit).max()
  near = distances.max(axis=1) <= 2.0**-6 * largest
  near &= np.square(distances).sum(axis=1) <= np.square(own).sum() / 16
  return bool(largest > 0 and near.any())
