"""What right kernels may store, element by element, in narrow storage.

Two right kernels of one policy differ in float32 alone, and that is far less
than the spacing of a narrower storage: an element is stored alike by all unless
a rounding edge lies within the float32 noise of its value.  The oracle's own
tensors tell where its values lie.  So each stage is computed in float64 from
what the oracle stored before it, and with e, the most that a right kernel is
off, its element is between round(v - e) and round(v + e): mostly one number.

e has two parts.  What float32 loses in this stage is sub-Gaussian with the
variance V of `bounds`, so it is at most

  c sqrt(V),  c^2 = 2 ln(2 elements / p)

at all elements of a chain but for the probability p, see `spread.log_share`;
and never more than its worst case.  What was stored otherwise before, by those
elements that the float32 noise leaves open, is carried along in the worst case.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.judge import prefetch
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import golden_cache
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.parity_tests.judge.limits import ulp

# Elements that are looked at at once.
_CHUNK = 1 << 18


@dataclasses.dataclass(frozen=True)
class Interval:
  """What right kernels may store, each `[rows, columns]`.

  Attributes:
    own: what the oracle stored, in the storage dtype.
    low, high: the least and the largest right number, in the storage dtype.
    known: bool, where the limits are finite.
  """

  own: np.ndarray
  low: np.ndarray
  high: np.ndarray
  known: np.ndarray

  @property
  def deviation(self) -> np.ndarray:
    """Returns float64, the most that a right number is off the oracle's."""
    own = self.own.astype(np.float64)
    with np.errstate(invalid='ignore'):
      off = np.maximum(
        self.high.astype(np.float64) - own, own - self.low.astype(np.float64)
      )
    return np.where(self.known, np.maximum(off, 0.0), np.inf)

  @property
  def seen(self) -> np.ndarray:
    """Returns float64, the least error that leads past the limits."""
    dtype = str(self.own.dtype)
    with np.errstate(invalid='ignore'):
      size = np.abs(self.own.astype(np.float64)) + self.deviation
      # What is not half a spacing past them is stored as they are.
      half = ulp.half_spacing(size, dtype)
    return (self.deviation + half) * (1 + ulp.unit_roundoff(dtype))

  def refuses(self, got: np.ndarray) -> np.ndarray:
    """Returns bool, where `got` `[rows, columns]` is no right number."""
    return self.known & ~((self.low <= got) & (got <= self.high))


@dataclasses.dataclass(frozen=True)
class Chain:
  """Stages one after another, from what was captured to one under judgement.

  Attributes:
    golden: rows in float32, as one kernel computes them, with the tensors of
      the candidate and, where it kept them, of the oracle as captured ones.
    own: the oracle's tensors, computed from the same.
    unseen: those of them that the candidate kept to itself, in order.
    comparisons: tensors that a run judges so, at most.
  """

  golden: golden_lib.Rows
  own: Mapping[str, np.ndarray]
  unseen: Sequence[str]
  comparisons: int

  @functools.cached_property
  def _deviations(self) -> float:
    """c: how many standard deviations float32 is off at most."""
    elements = sum(self.own[name].size for name in self.own)
    log_p = spread.log_share(elements, self.comparisons)
    return float(np.sqrt(2 * (np.log(2) + log_p)))

  def interval(self, stage: str, rank: int, lo: int, hi: int) -> Interval:
    """Returns `[hi - lo, columns]`, what right kernels store in some rows."""
    # What the oracle owns has been captured.
    facts = stage, rank, lo, hi, tuple(self.unseen), self.comparisons
    edges = golden_cache.recall(
      ('edges', *facts, *self.golden.facts),
      self.golden.arrays,
      lambda: vars(self._interval(self._carried, stage, rank, lo, hi)),
    )
    return Interval(**edges)

  def _interval(self, carried, stage, rank, lo, hi) -> Interval:
    own = self.golden.tiling.rows(stage, self.own[stage], rank)[lo:hi]
    alone = self.golden.rows(stage, rank, lo, hi)
    off = alone.bound()
    # Where a rounding inside may fall to either side the worst case holds.
    if alone.variance is not None and alone.crossed is None:
      off = np.minimum(off, self._deviations * np.sqrt(alone.variance))
    if carried.off:
      off = off + carried.rows(stage, rank, lo, hi).bound() - alone.bound()
    with np.errstate(over='ignore', invalid='ignore'):
      low, high = (
        (alone.value + side * off).astype(own.dtype) for side in (-1, 1)
      )
    known = np.isfinite(low) & np.isfinite(high)
    return Interval(own, low, high, known)

  @functools.cached_property
  def _carried(self) -> golden_lib.Rows:
    """Golden rows whose sources are off as those of right kernels may be."""
    carried = self.golden
    for name in self.unseen:
      off = self._off(carried, name)
      if off.any():
        carried = dataclasses.replace(carried, off={**carried.off, name: off})
    return carried

  def _off(self, carried: golden_lib.Rows, stage: str) -> np.ndarray:
    """Returns `[R, ...]`, the most that a stage is off the oracle's."""
    tiling = self.golden.tiling
    off = np.zeros(self.own[stage].shape, np.float32)
    # Of a layer with many products one expert after another: both goldens read
    # the same weights.
    chunk = 1 if self.golden.has_many_products else _CHUNK
    ranges = [
      (rank, int(cut.starts[first]), int(cut.starts[last]))
      for rank in range(len(off))
      for cut, first, last in tiling.iterate_judged(stage, rank, chunk)
    ]
    deviate = lambda rows: self._interval(carried, stage, *rows).deviation
    for (rank, lo, hi), deviation in prefetch.prefetch_map(deviate, ranges):
      tiling.rows(stage, off, rank)[lo:hi] = deviation
    return off
