"""The values that right kernels may store where rounding hides noise.

Two right kernels of one policy differ by float32 roundings alone, which are far
smaller than the spacing of a narrower storage: all kernels store the same value
unless a rounding edge lies within the float32 noise.  The same holds for
rounding points of float32 layers, and for codes of quantised rows: of thousands
of codes a few can move, and all others are known.  Each stage is computed in
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

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import prefetch
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import golden_cache
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.reference.contract import precision

# Elements that are computed at once.
_CHUNK = 1 << 18


def apply_to(policy: precision.PrecisionPolicy) -> bool:
  """Says whether right kernels mostly store the same number somewhere.

  In storage narrower than float32, at a rounding point, and in the codes of
  quantised operands.
  """
  has_codes = bool(policy.rows or policy.operand_forms)
  rounds = any(policy.rounding(point) for point in policy.roundings)
  return rounding.is_narrow(policy) or has_codes or rounds


def without_storage(
  policy: precision.PrecisionPolicy,
) -> precision.PrecisionPolicy:
  """Returns the policy whose stages are not rounded when they are stored.

  Intervals are rounded to the dtype of the oracle's tensor.
  """
  return dataclasses.replace(
    policy, storage='float32', points=policy.points_inside
  )


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
  _row_deviations: dict[str, np.ndarray] = golden_lib.own(dict)
  _filled_ranges: set[tuple[int, int, int]] = golden_lib.own(set)

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
  def row_stages(self) -> tuple[str, ...]:
    """The stages whose deviations `fill` computes for a few rows at a time.

    Those of packed rows, in a layer with many products: the products of a row
    block are then needed once.  Empty where a row depends on other rows, or
    where rows are sampled.
    """
    golden = self.golden
    is_by_row = golden.has_many_products and not golden.policy.operand_forms
    if not is_by_row or golden.tiling.sample is not None:
      return ()
    return tuple(name for name in self.unseen if tiles.is_packed(name))

  def fill(self, rank: int, lo: int, hi: int) -> None:
    """Computes the deviations of packed rows, from stage to stage."""
    deviating_golden = self.golden
    for name in self.row_stages:
      interval = self._interval(deviating_golden, name, rank, lo, hi)
      deviation = interval.deviation
      if deviation.any():
        deviations = self._row_deviations[name]
        self.golden.tiling.rows(name, deviations, rank)[lo:hi] = deviation
        deviating_golden = _with_deviations(deviating_golden, name, deviations)
    self._filled_ranges.add((rank, lo, hi))

  def accompany(self, golden: golden_lib.Rows) -> None:
    """Has rows filled beside the sums that `golden` computes of them.

    Both compute the same products.  Nothing changes if there is no row to fill.
    """
    if self.row_stages:
      self._make_room()
      golden.companions.append(self.fill)

  def _make_room(self) -> None:
    for name in self.row_stages:
      self._row_deviations[name] = np.zeros(self.own[name].shape, np.float32)

  def _fill_all(self) -> None:
    """Fills the rows that were not filled beside other work."""
    if not self._row_deviations:
      self._make_room()
    ranges = [part[:3] for part in self.golden.iterate_packed()]
    ranges = [rows for rows in ranges if rows not in self._filled_ranges]
    for _ in prefetch.prefetch_map(lambda rows: self.fill(*rows), ranges):
      pass

  @functools.cached_property
  def _deviating_golden(self) -> golden_lib.Rows:
    """Golden rows whose sources have the deviations of right kernels."""
    deviating_golden = self.golden
    if self.row_stages:
      self._fill_all()
    for name in self.unseen:
      if name in self.row_stages:
        deviation = self._row_deviations[name]
      else:
        deviation = self._find_deviations(deviating_golden, name)
      if deviation.any():
        deviating_golden = _with_deviations(deviating_golden, name, deviation)
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


def _with_deviations(
  golden: golden_lib.Rows, name: str, deviation: np.ndarray
) -> golden_lib.Rows:
  deviations = {**golden.deviations, name: deviation}
  return dataclasses.replace(golden, deviations=deviations)
