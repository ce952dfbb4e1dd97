"""Bounds of a combine: the sum of the rows of a token."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weighting_bounds
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def combine(
  policy: precision.PrecisionPolicy,
  stage: str,
  slot_rows: bounded_values.Bounded,
  topk_weights: np.ndarray | None,
  lasts: Sequence[bounded_values.Bounded] = (),
) -> bounded_values.Bounded:
  """Returns `[t, D]`, the sum of `[t, K, D]` over its K slots, as a GEMM.

  Weights are `[t, K]`; None: they are 1.  `lasts`, `[t, D]` each, are added to
  the sum.  See `CombineSums`.
  """
  tokens, slots, columns = slot_rows.value.shape
  sums = CombineSums.zeros(policy, stage, slots, tokens, columns)
  for slot in range(slots):
    weight = None if topk_weights is None else topk_weights[:, slot]
    sums.add(np.arange(tokens), slot_rows[:, slot], weight)
  return sums.total(*lasts)


def _crosses_before(policy: precision.PrecisionPolicy, stage: str) -> bool:
  """Says whether rows of a sum, before it is stored, may have crossings."""
  if rounding.is_narrow(policy):
    # A sum that is stored narrower counts them anew.
    return policy.dtype(stage) == policy.accumulate
  # How the sum itself is stored crosses nothing before.
  return any(point.partition('=')[0] != stage for point in policy.points)


@dataclasses.dataclass(frozen=True)
class CombineSums:
  """Partial sums of a combine: rows may be added in any order.

  Attributes:
    policy: precision.
    stage: y or dx.
    slots: rows of a token.
    value: `[t, D]` float64, sum of weight times value.
    error: `[t, D]` float64, sum of |weight| times error bound.
    magnitude: `[t, D]` float64, sum of |weight| times |value|.
    squares: `[t, D]` float64, sum of (weight times value)^2.
    variance: `[t, D]` float64, sum of weight^2 times variance.
    apart: `[t, D]` float64, sum of |weight| times mean distance; narrow only.
    crossings: `[t, D]` float64, their sum; None: rows of the policy have none.
  """

  policy: precision.PrecisionPolicy
  stage: str
  slots: int
  value: np.ndarray
  error: np.ndarray
  magnitude: np.ndarray
  squares: np.ndarray
  variance: np.ndarray
  apart: np.ndarray
  crossings: np.ndarray | None = None

  @classmethod
  def zeros(
    cls,
    policy: precision.PrecisionPolicy,
    stage: str,
    slots: int,
    tokens: int,
    columns: int,
  ) -> 'CombineSums':
    sums = [np.zeros((tokens, columns)) for _ in range(6)]
    has_crossings = _crosses_before(policy, stage)
    crossings = np.zeros((tokens, columns)) if has_crossings else None
    combine_sums = cls(policy, stage, slots, *sums)
    return dataclasses.replace(combine_sums, crossings=crossings)

  def __getitem__(self, index) -> 'CombineSums':
    parts = {name: array[index] for name, array in self.arrays().items()}
    return dataclasses.replace(self, **parts)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns the sums by name, `crossings` unless it is None."""
    names = [field.name for field in dataclasses.fields(self)[3:]]
    sums = {name: getattr(self, name) for name in names}
    return {name: array for name, array in sums.items() if array is not None}

  def add(
    self,
    token: np.ndarray,
    row: bounded_values.Bounded,
    weight: np.ndarray | None,
  ) -> None:
    """Adds rows `[n, D]` times weights `[n]` to n different tokens `[n]`."""
    size: np.ndarray | float = 1.0
    if weight is not None and self.policy.rounding('weighted') is not None:
      row = rounding.round_at(
        self.policy,
        'weighted',
        weighting_bounds.scale_rows(self.policy, row, weight),
      )
    elif weight is not None:
      factor = weighting_bounds.factors(self.policy, weight)[:, None]
      size = np.abs(factor)
      row = dataclasses.replace(row, value=row.value * factor)
    self.value[token] += row.value
    self.magnitude[token] += rounding.finite_magnitudes(row.value)
    self.squares[token] += np.square(row.value)
    if row.error is not None:
      self.error[token] += row.error * size
    if row.variance is not None:
      self.variance[token] += row.variance * np.square(size)
    if row.variance is not None and rounding.is_narrow(self.policy):
      self.apart[token] += row.distance() * size
    crossings = rounding.count_crossings(row)
    if crossings is not None and self.crossings is not None:
      self.crossings[token] += crossings

  def total(self, *lasts: bounded_values.Bounded) -> bounded_values.Bounded:
    """Returns the sums `[t, D]` as stored, with `lasts` `[t, D]` added.

    Each is one more row, in any order: but if the policy rounds the sum of all
    others before, that is the first row.
    """
    routed_point = precision.ROUTED_SUMS[self.stage]
    if not lasts:
      return self._store_sum(self._sum_of_rows())
    tokens, columns = self.value.shape
    if self.policy.rounding(routed_point) is None:
      copies = {name: array.copy() for name, array in self.arrays().items()}
      slots = self.slots + len(lasts)
      sums = dataclasses.replace(self, slots=slots, **copies)
      for last in lasts:
        sums.add(np.arange(tokens), last, None)
      return sums.total()
    routed_sum = rounding.round_at(
      self.policy, routed_point, self._sum_of_rows()
    )
    terms = (routed_sum, *lasts)
    sums = CombineSums.zeros(
      self.policy, self.stage, len(terms), tokens, columns
    )
    for term in terms:
      sums.add(np.arange(tokens), term, None)
    return sums._store_sum(sums._add_up())

  def _sum_of_rows(self) -> bounded_values.Bounded:
    # Routing weights that the kernel computes have roundings of their own.
    placement = tensors.WEIGHTED_SUMS[self.stage]
    is_weighted = self.policy.placement == placement
    own_weights = self.policy.weight_ulp if is_weighted else 0.0
    return self._add_up(own_weights, precision.RUNNING_SUMS[self.stage])

  def _store_sum(self, total: bounded_values.Bounded) -> bounded_values.Bounded:
    dtype = self.policy.dtype(self.stage)
    return rounding.store(self.policy, total, dtype, self.magnitude)

  def _add_up(
    self, own_weights: float = 0.0, point: str = ''
  ) -> bounded_values.Bounded:
    """Returns the sums before storing.

    Weights have an error of `own_weights` units roundoff, and each partial sum
    is rounded at `point`; '': at none.
    """
    scale = rounding.gamma(self.slots + own_weights) + rounding.gamma(
      self.slots, rounding.U64
    )
    reach = self.magnitude + self.error
    error = self.error + scale * reach
    of_total, of_terms = rounding.sum_variance(self.policy, self.slots)
    own = of_total * np.square(self.value) + of_terms * self.squares
    own += np.square(
      own_weights * rounding.U * rounding.finite_magnitudes(self.magnitude)
    )
    own += (self.slots * rounding.TINY) ** 2
    rounding_error, of_rounding, (crossings, unlike) = (
      rounding.round_partial_sums(
        self.policy,
        point,
        self.slots,
        reach,
        lambda: np.sqrt(own + self.variance),
      )
    )
    error, own = error + (1 + scale) * rounding_error, own + of_rounding
    crossings = rounding.add_counts(self.crossings, crossings)
    variance = own + self.variance
    apart = None
    if rounding.is_narrow(self.policy):
      apart = np.minimum(np.sqrt(variance), self.apart + np.sqrt(own))
    error += self.slots * rounding.TINY
    return bounded_values.Bounded(
      self.value, error, variance, apart, crossings, unlike
    )
