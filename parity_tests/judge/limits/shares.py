"""Ratios of errors to their limits: of each tile, and as a histogram.

A verdict needs neither; they show how much of the limits a kernel uses.
"""

import dataclasses
from typing import Self

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import storage
from hpmoe.reference.quantised import quantise

# Ends of the bins of a histogram.  Its first bin has elements without error,
# its last those beyond all ends, or not finite.
_LEAST_POWER, _MOST_POWER = -12, 4
ENDS = (0.0, *(2.0**n for n in range(_LEAST_POWER, _MOST_POWER + 1)))
NUM_BINS = len(ENDS) + 1
_BIAS = 127  # of exponents of float32
# A bin includes its end: this factor gives the end the exponent of its bin.
_BELOW = np.float32(1 - 2.0**-24)
_ABOVE = np.nextafter(np.float32(1), np.float32(2))


@dataclasses.dataclass(frozen=True)
class Shares:
  """Errors of some tile rows over their limits.

  Attributes:
    largest: `[b, C]` float32, of each tile; NaN where one is not finite.
    counts: `[NUM_BINS]` int64, elements by their share.
    moved_codes: codes that differ from those of the golden as it is stored, of
      elements that a GEMM quantises.
    codes: how many there are.
  """

  largest: np.ndarray
  counts: np.ndarray
  moved_codes: int = 0
  codes: int = 0

  def summarise(self) -> 'Histogram':
    """Returns it without its tiles."""
    return Histogram(tuple(self.counts.tolist()), self.moved_codes, self.codes)


@dataclasses.dataclass(frozen=True)
class Histogram:
  """The counts of `Shares`, of all that was compared.

  Attributes:
    counts: elements by their share, as in `Shares`.
    moved_codes, codes: as in `Shares`.
  """

  counts: tuple[int, ...] = (0,) * NUM_BINS
  moved_codes: int = 0
  codes: int = 0

  def __add__(self, other: Self) -> Self:
    counts = tuple(a + b for a, b in zip(self.counts, other.counts))
    moved_codes, codes = (
      self.moved_codes + other.moved_codes,
      self.codes + other.codes,
    )
    return dataclasses.replace(
      self, counts=counts, moved_codes=moved_codes, codes=codes
    )

  @property
  def total(self) -> int:
    """How many elements there are."""
    return sum(self.counts)


def measure_shares(
  cut: tiles.Cut,
  first: int,
  errors: np.ndarray,
  limits: np.ndarray,
) -> Shares:
  """Returns the shares of whole tile rows.

  Args:
    cut: the rank's tiles.
    first: tile row that the arrays start with.
    errors: `[rows, columns]` float64, not negative or NaN.
    limits: `[rows, columns]` float64, not negative.
  """
  if not errors.size:
    shape = cut.row_of(first, len(errors)) - first, cut.shape[1]
    return Shares(np.zeros(shape, np.float32), np.zeros(NUM_BINS, np.int64))
  # If limit and error are both zero, their ratio counts as zero.
  with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
    shares = np.divide(errors, limits).astype(np.float32)
  shares[errors == 0] = 0
  is_beyond = errors > limits
  if is_beyond.any():  # and is so in float32 too
    shares[is_beyond] = np.maximum(shares[is_beyond], _ABOVE)
  rows = cut.starts[first : cut.row_of(first, len(errors))] - cut.starts[first]
  largest = np.maximum.reduceat(shares, rows, axis=0)
  return Shares(
    np.maximum.reduceat(largest, cut.col_starts[:-1], axis=1), _count(shares)
  )


def _count(shares: np.ndarray) -> np.ndarray:
  """Returns `[NUM_BINS]` int64, how many shares each bin has."""
  bits = (shares.reshape(-1) * _BELOW).view(np.uint32)
  by_exponent = np.bincount((bits >> 23) & 255, minlength=256)
  counts = np.zeros(NUM_BINS, np.int64)
  bins = np.arange(256) - (_BIAS - 1) - _LEAST_POWER + 1
  np.add.at(counts, np.clip(bins, 1, NUM_BINS - 1), by_exponent)
  counts[0] = shares.size - np.count_nonzero(shares)
  counts[1] -= counts[0]
  return counts


def count_moved(
  form_name: str, actual: np.ndarray, golden: np.ndarray, dtype: str
) -> tuple[int, int]:
  """Returns the number of codes that differ, and of all codes.

  A GEMM quantises its rows to codes: the candidate's rows, and the golden's as
  they are stored.  All right kernels round alike to storage, which is no move:
  bfloat16 has 16 numbers in a step of e4m3, so a golden that is not stored has
  other codes at 1 of 32 elements where scales are powers of two, as each edge
  is then a bfloat16 number and a tie, and elsewhere at 1 of 48 to 1 of 64.

  Args:
    form_name: of `quantised.FORMS`.
    actual: `[rows, columns]` as stored.
    golden: `[rows, columns]` float64.
    dtype: that the tensor is stored in.
  """
  form = quantised.FORMS[form_name]
  if form.reads_scale:  # the rows' experts are not known here
    return 0, 0
  with np.errstate(over='ignore'):
    golden = golden.astype(storage.FORMATS[dtype].numpy)
  own, right = (
    quantise.quantise(form, _finite(values)).codes.view(np.uint8)
    for values in (actual, golden)
  )
  return int((own != right).sum()), int(own.size)


def _finite(values: np.ndarray) -> np.ndarray:
  narrow = np.asarray(values, np.float32)
  return np.where(np.isfinite(narrow), narrow, np.float32(0))
