"""The bits of one tensor over many launches."""

import hashlib

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.law import law_table


class Tally:
  """All launches' bits of one tensor.

  Attributes:
    name: of the tensor.
    launches: how many were added.
    differing_bits: summed over them.
    digests: distinct ones, in order, what is expected first.
    first_break: the first launch that differs, or None.
  """

  def __init__(self, name: str, expected: np.ndarray):
    self.name = name
    self.launches = self.differing_bits = 0
    self.first_break: law_table.Break | None = None
    self._expected = expected
    self.digests = {_digest(expected): None}  # a set that keeps its order

  def add(self, got: np.ndarray, **how) -> None:
    """Adds one launch; `how` are the fields of `Break` that say which."""
    self.launches += 1
    digest = _digest(got)
    if digest == next(iter(self.digests)):
      return
    self.digests[digest] = None
    bits = ulp.bits(got) ^ ulp.bits(self._expected)
    self.differing_bits += int(
      np.unpackbits(np.ascontiguousarray(bits).view(np.uint8)).sum()
    )
    if self.first_break is None:
      index = np.unravel_index(np.argmax(bits != 0), bits.shape)
      self.first_break = law_table.Break(
        index=tuple(int(i) for i in index),
        got=float(got[index]),
        expected=float(self._expected[index]),
        **how,
      )

  def row(self, direction: str, dtype: str, tensor: str) -> law_table.Row:
    """Returns what was added, as a row of that name."""
    return law_table.Row(
      direction,
      dtype,
      tensor,
      self.launches,
      tuple(self.digests),
      self.differing_bits,
      self.first_break,
    )


def _digest(array: np.ndarray) -> str:
  data = np.ascontiguousarray(array).view(np.uint8)
  return hashlib.sha256(data.data).hexdigest()
