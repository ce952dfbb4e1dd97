"""The values that right kernels may store in narrow storage, per element.

Two right kernels of one policy differ by float32 roundings alone, which are far
smaller than the spacing of a narrower storage: all kernels store the same value
unless a rounding edge lies within the float32 noise.  Each stage is computed in
float64 from the tensors that the oracle stored before it.  If e is the largest
error of a right kernel, it stores a value between round(v - e) and
round(v + e), which are mostly the same number.

e has two parts.  The float32 error of this stage is sub-Gaussian with the
variance V of `bounds.rounding`, so except with probability p it is at most

  c sqrt(V),  c^2 = 2 ln(2 elements / p)

at all elements of a chain, see `spread.log_share`, and never more than its
worst case.  The second part propagates, in the worst case, the elements of
earlier stages that two right kernels may store differently.
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

# Elements that are computed at once.
_CHUNK = 1 << 18


@dataclasses.dataclass(frozen=True)
class Interval:
  """The interval of right values, each `[rows, columns]`.

  Attributes:
    own: the oracle's values, in the storage dtype.
    low, high: the smallest and the largest right value, in the storage dtype.
    is_finite: bool, where both limits are finite.
  """

  own: np.ndarray
  low: np.ndarray
  high: np.ndarray
  is_finite: np.ndarray

  @property
  def deviation(self) -> np.ndarray:
    """The largest distance of a right value from the oracle's, float64."""
    own = self.own.astype(np.float64)
    with np.errstate(invalid='ignore'):
      deviation = np.maximum(
        self.high.astype(np.float64) - own, own - self.low.astype(np.float64)
      )
    return np.where(self.is_finite, np.maximum(deviation, 0.0), np.inf)

  @property
  def detectable(self) -> np.ndarray:
    """The smallest error that is certain to exceed the limits, float64."""
    dtype = str(self.own.dtype)
    with np.errstate(invalid='ignore'):
      size = np.abs(self.own.astype(np.float64)) + self.deviation
      # A value less than half a spacing past a limit is stored as that limit.
      half = ulp.half_spacing(size, dtype)
    return (self.deviation + half) * (1 + ulp.unit_roundoff(dtype))

  def refuses(self, actual: np.ndarray) -> np.ndarray:
    """Returns bool, where `actual` `[rows, columns]` is no right value."""
    return self.is_finite & ~((self.low <= actual) & (actual <= self.high))


@dataclasses.dataclass(frozen=True)
class Chain:
  """Consecutive stages, from captured tensors to the judged one.

  Attributes:
    golden: golden rows whose captured tensors are the candidate's, and the
      oracle's where the candidate returned none.
    own: the oracle's tensors, computed from the same sources.
    unseen: the tensors that the candidate did not return, in order.
    comparisons: the number of tensors that a run judges in this way, at most.
  """

  golden: golden_lib.Rows
  own: Mapping[str, np.ndarray]
  unseen: Sequence[str]
  comparisons: int

  @functools.cached_property
  def _deviations(self) -> float:
    """c: the largest float32 error in standard deviations."""
    elements = sum(self.own[name].size for name in self.own)
    log_p = spread.log_share(elements, self.comparisons)
    return float(np.sqrt(2 * (np.log(2) + log_p)))

  def interval(self, stage: str, rank: int, lo: int, hi: int) -> Interval:
    """Returns the interval `[hi - lo, columns]` of some rows."""
    # The golden's captured tensors include the oracle's.
    facts = stage, rank, lo, hi, tuple(self.unseen), self.comparisons
    edges = golden_cache.recall(
      ('edges', *facts, *self.golden.facts),
      self.golden.arrays,
      lambda: vars(self._interval(self._deviating_golden, stage, rank, lo, hi)),
    )
    return Interval(**edges)

  def _interval(self, deviating_golden, stage, rank, lo, hi) -> Interval:
    own = self.golden.tiling.rows(stage, self.own[stage], rank)[lo:hi]
    alone = self.golden.rows(stage, rank, lo, hi)
    deviation = alone.bound()
    # With a rounding inside the stage only the worst case holds.
    if alone.variance is not None and alone.crossings is None:
      deviation = np.minimum(
        deviation, self._deviations * np.sqrt(alone.variance)
      )
    if deviating_golden.deviations:
      deviation = (
        deviation
        + deviating_golden.rows(stage, rank, lo, hi).bound()
        - alone.bound()
      )
    with np.errstate(over='ignore', invalid='ignore'):
      low, high = (
        (alone.value + side * deviation).astype(own.dtype) for side in (-1, 1)
      )
    is_finite = np.isfinite(low) & np.isfinite(high)
    return Interval(own, low, high, is_finite)

  @functools.cached_property
  def _deviating_golden(self) -> golden_lib.Rows:
    """Golden rows whose sources have the deviations of right kernels."""
    deviating_golden = self.golden
    for name in self.unseen:
      deviation = self._find_deviations(deviating_golden, name)
      if deviation.any():
        deviating_golden = dataclasses.replace(
          deviating_golden,
          deviations={**deviating_golden.deviations, name: deviation},
        )
    return deviating_golden

  def _find_deviations(
    self, deviating_golden: golden_lib.Rows, stage: str
  ) -> np.ndarray:
    """Returns `[R, ...]`, the largest distance of a stage from the oracle's."""
    tiling = self.golden.tiling
    deviations = np.zeros(self.own[stage].shape, np.float32)
    # A layer with many products takes one expert after another, so that both
    # goldens read the same weights.
    chunk = 1 if self.golden.has_many_products else _CHUNK
    ranges = [
      (rank, int(cut.starts[first]), int(cut.starts[last]))
      for rank in range(len(deviations))
      for cut, first, last in tiling.iterate_judged(stage, rank, chunk)
    ]
    deviate = lambda rows: (
      self._interval(deviating_golden, stage, *rows).deviation
    )
    for (rank, lo, hi), deviation in prefetch.prefetch_map(deviate, ranges):
      tiling.rows(stage, deviations, rank)[lo:hi] = deviation
    return deviations
