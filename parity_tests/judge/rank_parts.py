"""A comparison on some ranks, and how parts of several ranks are merged.

One process adds the parts of its ranks, and several processes add theirs in the
same order, so both reach the same bits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import operator
from typing import Protocol, Self

import numpy as np

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import power as power_lib
from hpmoe.parity_tests.judge.limits import shares as shares_lib
from hpmoe.parity_tests.judge.limits import standards


@dataclasses.dataclass(frozen=True)
class FiguresVerdict:
  """The verdict of a rule on its figures.

  Attributes:
    violations: the limits that are exceeded; None: only bad tiles decide.
    values: metrics by name.
    power: see `verdicts.Result`.
    num_not_judged: elements without a useful limit.
    num_judged: elements with a useful limit; None: not counted.
  """

  violations: Sequence[str] | None = None
  values: Mapping[str, float] = dataclasses.field(default_factory=dict)
  power: Mapping[str, float] = dataclasses.field(default_factory=dict)
  num_not_judged: int = 0
  num_judged: int | None = None


class Figures(Protocol):
  """Sums that a rule needs in addition to the number of bad tiles."""

  def __add__(self, other: Self) -> Self:
    """Returns the sums of both; `other` is of later ranks."""

  def settle(self) -> FiguresVerdict | None:
    """Returns the verdict; None: there is nothing to judge."""


@dataclasses.dataclass(frozen=True)
class BoundFigures:
  """Figures of a rule with a limit for each element.

  Attributes:
    worst: the largest ratio of an error to its limit.
    power: the errors that the limits would have detected.
    num_bounded: elements with a finite limit.
  """

  worst: float
  power: power_lib.Power
  num_bounded: int

  def __add__(self, other: Self) -> Self:
    return dataclasses.replace(
      self,
      worst=largest(self.worst, other.worst),
      power=self.power + other.power,
      num_bounded=self.num_bounded + other.num_bounded,
    )

  def settle(self) -> FiguresVerdict:
    """See `Figures`."""
    values = {'error_of_bound': self.worst}
    power, elements = self.power, self.power.elements
    if not self.num_bounded and elements:
      return FiguresVerdict(None, values, {}, elements, 0)
    num_judged = power.num_judged if elements else None
    return FiguresVerdict(
      None, values, power.sizes(), power.not_judged, num_judged
    )


@dataclasses.dataclass(frozen=True)
class StandardFigures:
  """Figures of a record of lane standard.

  Attributes:
    record: its name.
    dtype: the dtype whose limits apply.
    sums: of `standards.Judge`.
    not_finite: elements that are not finite.
    num_bounded: elements with a finite rounding bound.
    elements: all of them.
  """

  record: str
  dtype: str
  sums: standards.Partials
  not_finite: int
  num_bounded: int
  elements: int

  def __add__(self, other: Self) -> Self:
    judge = self._judge()
    judge.merge(other.sums, other.not_finite)
    return dataclasses.replace(
      self,
      sums=judge.partials,
      not_finite=judge.not_finite,
      num_bounded=self.num_bounded + other.num_bounded,
      elements=self.elements + other.elements,
    )

  def _judge(self) -> standards.Judge:
    judge = standards.Judge(standards.STANDARDS[self.record], self.dtype)
    judge.merge(self.sums, self.not_finite)
    return judge

  def settle(self) -> FiguresVerdict:
    """See `Figures`."""
    judge = self._judge()
    verdict = FiguresVerdict(judge.list_broken(), judge.values())
    if self.num_bounded or not self.elements:
      return verdict
    return dataclasses.replace(
      verdict, num_not_judged=self.elements, num_judged=0
    )


@dataclasses.dataclass(frozen=True)
class Part:
  """One comparison on some ranks.

  Attributes:
    key: stage, lane and rule.
    tiles: tiles compared.
    bad_tiles: tiles with a bad element.
    worst_abs: largest |actual - expected|; NaN if an element is not finite.
    worst: that element, None if all are equal.
    first: the first bad tile, None if there is none.
    padding_failed: whether rows past the last valid one are not zero.
    has_bad_tokens: whether a row of a token is bad.
    experts_of_bad: experts to which all bad tokens, and no others, were routed.
    figures: the sums of the rule, by rank; empty: only bad tiles decide.
    grids: `[B, C]` int64 by rank, bad elements of each tile.
    experts: `[B]` by rank, expert of a tile row or `tiles.NO_EXPERT`.
    shares: `[B, C]` by rank, see `verdicts.Result`.
    histogram: likewise.
  """

  key: tuple[str, str, str]
  tiles: int
  bad_tiles: int
  worst_abs: float
  worst: verdicts.Failure | None
  first: verdicts.Failure | None
  padding_failed: bool
  has_bad_tokens: bool
  experts_of_bad: tuple[int, ...]
  figures: tuple[Figures, ...]
  grids: Mapping[int, np.ndarray]
  experts: Mapping[int, np.ndarray]
  shares: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict)
  histogram: shares_lib.Histogram | None = None

  def __add__(self, other: 'Part') -> 'Part':
    """Returns both; `other` is of later ranks."""
    worst_abs, worst = self.worst_abs, self.worst
    # NaN counts as the worst error.
    if not (other.worst_abs <= worst_abs or np.isnan(worst_abs)):
      worst_abs, worst = other.worst_abs, other.worst or worst
    return dataclasses.replace(
      self,
      tiles=self.tiles + other.tiles,
      bad_tiles=self.bad_tiles + other.bad_tiles,
      worst_abs=worst_abs,
      worst=worst,
      first=self.first or other.first,
      padding_failed=self.padding_failed or other.padding_failed,
      has_bad_tokens=self.has_bad_tokens or other.has_bad_tokens,
      experts_of_bad=tuple(
        e for e in self.experts_of_bad if e in other.experts_of_bad
      ),
      figures=self.figures + other.figures,
      grids={**self.grids, **other.grids},
      experts={**self.experts, **other.experts},
      shares={**self.shares, **other.shares},
      histogram=_add_histograms(self.histogram, other.histogram),
    )

  def but(
    self, change: Callable[[verdicts.Failure], verdicts.Failure]
  ) -> verdicts.Result:
    """Returns the verdict after `change` to its failures."""
    result = dataclasses.replace(
      self,
      first=self.first and change(self.first),
      worst=self.worst and change(self.worst),
    ).result()
    assert result is not None  # callers have a verdict
    return result

  def result(self) -> verdicts.Result | None:
    """Returns the verdict, None if the rule has nothing to say."""
    # Added rank by rank, however many ranks one process judged.
    outcome: FiguresVerdict | None = FiguresVerdict()
    if self.figures:
      outcome = functools.reduce(operator.add, self.figures).settle()
    if outcome is None:
      return None
    violations = [*(outcome.violations or ())]
    if self.padding_failed and outcome.violations is not None:
      violations.append('rows past the last valid one are zero')
    fails = bool(self.bad_tiles if outcome.violations is None else violations)
    failure = (self.first or self.worst) if fails else None
    if failure is not None:
      failure = failure.with_hint(self._guilty_expert())
    verdict, reason = verdicts.PASS, '; '.join(violations)
    if fails:
      verdict = verdicts.FAIL
    elif outcome.num_judged == 0:
      verdict, reason = verdicts.NOT_JUDGED, verdicts.NO_LIMIT
    return verdicts.Result(
      *self.key,
      tiles=self.tiles,
      failed_tiles=self.bad_tiles,
      worst_ulp=self.worst.ulp if self.worst else 0,
      worst_abs=self.worst_abs,
      worst_element=self.worst.index if self.worst else None,
      verdict=verdict,
      reason=reason,
      values=outcome.values,
      power=outcome.power,
      not_judged=outcome.num_not_judged,
      failure=failure,
      grids=_by_rank(self.grids, np.zeros((0, 0), np.int64)),
      experts=_by_rank(self.experts, np.zeros(0, int)),
      shares=_by_rank(self.shares, np.zeros((0, 0), np.float32)),
      histogram=self.histogram,
      part=self,
    )

  def _guilty_expert(self) -> str:
    """Names the expert whose tokens are the bad ones, if there is one."""
    if not self.has_bad_tokens or not self.experts_of_bad:
      return ''
    experts = ' or '.join(map(str, self.experts_of_bad))
    return f'{verdicts.GUILTY_TOKENS} {experts}'


def merge_ranks(
  rank_results: Iterable[Sequence[verdicts.Result]],
) -> list[verdicts.Result]:
  """Merges the rows of ranks, in rank order, to one row per comparison.

  Raises:
    ValueError: two rows without a part differ.
  """
  rows: dict[tuple[str, str, str], verdicts.Result] = {}
  order: list[tuple[str, str, str]] = []
  for results in rank_results:
    position = 0
    for result in results:
      key = (result.stage, result.lane, result.rule)
      if key not in rows:
        order.insert(position, key)
        rows[key] = result
      else:
        rows[key] = _merge_rows(rows[key], result)
      position = order.index(key) + 1
  return [rows[key] for key in order]


def _merge_rows(
  first: verdicts.Result, other: verdicts.Result
) -> verdicts.Result:
  if first.part is None or other.part is None:
    if first != other:
      raise ValueError(
        f'{first.stage}: expected one verdict of all ranks on {first.rule!r}, '
        f'got {first.verdict} {first.reason} and {other.verdict} {other.reason}'
      )
    return first
  result = (first.part + other.part).result()
  assert result is not None  # either had something to say
  return result


def largest(first: float, other: float) -> float:
  """Returns the larger; NaN stays."""
  return float(np.maximum(first, other))


def _add_histograms(
  first: shares_lib.Histogram | None, other: shares_lib.Histogram | None
) -> shares_lib.Histogram | None:
  if first is None or other is None:
    return first or other
  return first + other


def _by_rank(
  arrays: Mapping[int, np.ndarray], absent: np.ndarray
) -> tuple[np.ndarray, ...]:
  """Returns one array for each rank, up to the last rank given."""
  ranks = range(max(arrays, default=-1) + 1)
  return tuple(arrays.get(rank, absent) for rank in ranks)
