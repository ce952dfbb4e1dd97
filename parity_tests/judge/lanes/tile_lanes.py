"""The four lanes: what is compared with what, tile by tile.

exact     small-integer data: every correct order of summation gives the same
          values, so candidate and oracle must be equal.
bitwise   any data: stages that only move rows, against the oracle; and the
          megakernel against its own tile kernels, run serially in other tiles.
bounded   any data: within the a-priori rounding bound of the golden, with the
          spread of rounding errors, see `spread`; where kernels round, tensors
          whose sources were not returned are judged by `edges`.
standard  any data: published rules, see `standards`.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import prefetch
from hpmoe.parity_tests.judge import rank_parts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import spread_tally
from hpmoe.parity_tests.judge.lanes import tally as tally_lib
from hpmoe.parity_tests.judge.limits import chunk_sums
from hpmoe.parity_tests.judge.limits import edges
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import power
from hpmoe.parity_tests.judge.limits import shares as shares_lib
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors

# Tiles of a rank, the first tile row, and its rows.
_Range = tuple[tiles.Cut, int, slice]

# Results of some inputs overflow.
_overflows: np.errstate = np.errstate(over='ignore', invalid='ignore')

# Elements that are judged at once, with a dozen float64 temporaries.
_CHUNK = 1 << 18


def _same_bits(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
  return ulp.bits(actual) == ulp.bits(expected)


def _same_values(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
  # The sign of a zero sum depends on the order of its terms, even if the sum is
  # exact.
  return actual == expected


def differs(lane: str, actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """Returns `[...]` bool: elements that a lane of equal values refuses."""
  return ~(_same_values if lane == 'exact' else _same_bits)(actual, expected)


@_overflows
def out_of_bound(
  stage: str,
  actual: np.ndarray,
  golden: golden_lib.Rows,
  with_spread: bool = True,
) -> np.ndarray:
  """Returns `[R, ...]` bool: elements that lane bounded refuses.

  In a tile that fails by its spread, these are the elements that stand out;
  without `with_spread`, such tiles do not count.
  """
  bad = np.zeros(actual.shape, bool)
  tiling = golden.tiling
  judge = spread_tally.SpreadTally(stage, golden, None)
  for rank in tiling.judged_ranks:
    for cut, first, rows in ranges_of(tiling, stage, rank):
      chunk_rows = tiling.rows(stage, actual, rank)[rows]
      value = golden.rows(stage, rank, rows.start, rows.stop)
      e = _elements(value, chunk_rows, chunk_rows)
      chunk = _against_golden(rank, cut, first, chunk_rows, value, e)
      stands_out = with_spread and judge.add(chunk, e, value, rows)
      tiling.rows(stage, bad, rank)[rows] = chunk.bad | stands_out
  return bad


def out_of_edges(
  stage: str, actual: np.ndarray, chain: edges.Chain
) -> np.ndarray:
  """Returns `[R, ...]` bool: elements that no right kernel stores."""
  bad = np.zeros(actual.shape, bool)
  tiling = chain.golden.tiling
  for rank in tiling.judged_ranks:
    rank_rows = tiling.rows(stage, actual, rank)
    for _, _, rows in ranges_of(tiling, stage, rank):
      right = chain.interval(stage, rank, rows.start, rows.stop)
      tiling.rows(stage, bad, rank)[rows] = right.refuses(rank_rows[rows])
  return bad


def compare(
  stage: str,
  lane: str,
  rule: str,
  actual: np.ndarray,
  expected: np.ndarray,
  tiling: tiles.Tiling,
) -> verdicts.Result:
  """Compares a plan or stage tensor `[R, ...]` with what it must equal.

  In lane 'exact' values must be equal, elsewhere bits.
  """
  look = functools.partial(
    _compare_rank, stage, lane, rule, actual, expected, tiling
  )
  return _of_ranks(tiling, lambda rank: [look(rank)])[0]


def _compare_rank(
  stage, lane, rule, actual, expected, tiling, rank: int
) -> rank_parts.Part:
  is_same = _same_values if lane == 'exact' else _same_bits
  plan = stage in tensors.PLAN
  tally = tally_lib.Tally(stage, lane, rule, None if plan else tiling)
  if plan:
    own_rows, right_rows = (np.atleast_2d(a[rank]) for a in (actual, expected))
    cut = tiles.cut_tokens(*(n for n in own_rows.shape for _ in range(2)))
  else:
    own_rows, right_rows = (
      tiling.rows(stage, a, rank) for a in (actual, expected)
    )
    cut = tiling.cut(stage, rank)
  for first, last in cut.chunks(_CHUNK):
    rows = slice(cut.starts[first], cut.starts[last])
    bad = ~is_same(own_rows[rows], right_rows[rows])
    if bad.any():
      tally.add(
        _unequal(rank, cut, first, own_rows[rows], right_rows[rows], bad)
      )
    else:
      tally.add_right(rank, cut, range(first, last), None)
  if not plan:
    tally.add_padding(rank, tiling.padding(stage, actual, rank))
  return tally.part()


def _of_ranks(
  tiling: tiles.Tiling, judge: Callable[[int], list[rank_parts.Part]]
) -> list[verdicts.Result]:
  """Returns the verdicts on the ranks that are judged, rank by rank."""
  parts: list[rank_parts.Part] = []
  for rank in tiling.judged_ranks:
    rank_found = judge(rank)
    parts = (
      [a + b for a, b in zip(parts, rank_found, strict=True)]
      if parts
      else rank_found
    )
  results = (part.result() for part in parts)
  return [result for result in results if result is not None]


def _unequal(rank, cut, first, actual, expected, bad) -> tally_lib.Chunk:
  apart = ulp.distance(actual, expected)
  error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
  return tally_lib.Chunk(rank, cut, first, actual, expected, bad, error, apart)


@_overflows
def tolerances(
  stage: str,
  actual: np.ndarray,
  golden: golden_lib.Rows,
  benchmark: np.ndarray | None,
  records: Sequence[standards.Standard],
  bounded: bool = True,
  stored_oracle: np.ndarray | None = None,
) -> list[verdicts.Result]:
  """Judges a stage tensor `[R, ...]` in the lanes bounded and standard.

  Args:
    stage: its name, or its row of `LAYERS` for a result of the fused layer.
    actual: the candidate's tensor.
    golden: golden rows and bounds; for a fused layer without captured tensors.
    benchmark: the oracle's tensor, from the same inputs as the golden; None
      if no record asks.
    records: standards to judge by.
    bounded: whether to judge by the rounding bound, and by the spread.
    stored_oracle: the oracle's tensor, where the golden is computed from
      tensors that were never stored; None if it is one stage away from stored
      tensors.
  """
  tensor = verdicts.tensor_of(stage)
  tiling, dtype = golden.tiling, golden.dtype(tensor)
  if not golden.captured_tensors:  # Fused: roundings on the way count as well.
    dtype = golden.policy.storage
  silent = [
    verdicts.Result(
      *(stage, 'standard', r.name),
      verdict=verdicts.NOT_JUDGED,
      reason=f'{r.name} has no number for {dtype}',
    )
    for r in records
    if not r.supports(dtype)
  ]
  records = [r for r in records if r.supports(dtype)]
  if not (records or bounded):
    return silent
  arguments = stage, golden, records, dtype, bounded, stored_oracle

  def judge_rank(rank: int) -> list[rank_parts.Part]:
    judges = _ToleranceRules(*arguments)
    rank_rows = tiling.rows(tensor, actual, rank)
    benchmark_rows = tiling.rows(tensor, benchmark, rank) if records else None
    look = functools.partial(
      judges.look, golden, tensor, rank, rank_rows, benchmark_rows
    )
    for tile_range, chunk_judgement in prefetch.prefetch_map(
      look, ranges_of(tiling, tensor, rank)
    ):
      judges.add(rank, tile_range, *chunk_judgement)
    judges.add_padding(rank, tiling.padding(tensor, actual, rank))
    return judges.parts()

  return _of_ranks(tiling, judge_rank) + silent


@_overflows
def within_edges(
  stage: str, actual: np.ndarray, chain: edges.Chain
) -> verdicts.Result:
  """Judges a tensor `[R, ...]` by intervals of right values, see `edges`."""
  tiling = chain.golden.tiling

  def judge_rank(rank: int) -> list[rank_parts.Part]:
    tally = tally_lib.Tally(stage, 'bounded', verdicts.EDGES_RULE, tiling)
    worst, worth = 0.0, power.Power()
    rank_rows = tiling.rows(stage, actual, rank)
    for cut, first, rows in ranges_of(tiling, stage, rank):
      right = chain.interval(stage, rank, rows.start, rows.stop)
      bad = right.refuses(rank_rows[rows])
      chunk = _unequal(rank, cut, first, rank_rows[rows], right.own, bad)
      tally.add(chunk)
      detectable = right.detectable
      worst = max(worst, float((chunk.error / detectable).max(initial=0.0)))
      worth += power.measure(right.own, right.deviation, detectable)
    tally.add_padding(rank, tiling.padding(stage, actual, rank))
    return [tally.part(rank_parts.BoundFigures(worst, worth, worth.elements))]

  return _of_ranks(tiling, judge_rank)[0]


class _ToleranceRules:
  """All rules of lanes bounded and standard on one tensor."""

  def __init__(
    self, stage: str, golden, records, dtype: str, bounded, stored_oracle
  ):
    tiling = golden.tiling
    self._judges = [standards.Judge(record, dtype) for record in records]
    self._tallies = [
      tally_lib.Tally(stage, 'standard', r.name, tiling) for r in records
    ]
    self._bound_tally = tally_lib.Tally(
      stage, 'bounded', verdicts.BOUND_RULE, tiling
    )
    self._spread_tally = spread_tally.SpreadTally(stage, golden, stored_oracle)
    self._bounded, self._dtype = bounded, dtype
    forms = quantised.row_forms(golden.policy.rows)
    self._form = forms.get(stage, '')
    self._worst_of_bound = 0.0
    self._regions: chunk_sums.Regions | None = None  # of right chunks
    self._worth = power.Power()
    self._num_bounded = 0  # elements with a finite bound
    pairs = dict.fromkeys(judge.thresholds for judge in self._judges)
    self._pairs = [pair for pair in pairs if pair is not None]
    self._excuse = all(record.excuse_rounding for record in records)

  def look(
    self, golden, tensor: str, rank: int, actual, benchmark, tile_range: _Range
  ):
    """Returns the arguments of `add` for some tile rows; has no side effect."""
    rows_held = actual[tile_range[2]]
    beside = None if benchmark is None else benchmark[tile_range[2]]
    rows = tile_range[2].start, tile_range[2].stop
    # A transposed product has another memory order than the other arrays.
    value = golden.rows(tensor, rank, *rows).contiguous()
    right = self._right(tile_range, rows_held, value, beside)
    worth = self._power(rows_held, value, right)
    measured = self._measure(tile_range, rows_held, value, right)
    return rows_held, value, beside, right, worth, measured

  def _measure(
    self,
    tile_range: _Range,
    actual: np.ndarray,
    value: bounded_values.Bounded,
    right: tally_lib.CleanRows | None,
  ) -> shares_lib.Shares | None:
    """Returns errors over limits, if the report shows them."""
    if not self._bounded:
      return None
    cut, first, _ = tile_range
    if right is None:
      e = _elements(value, actual, actual)
      errors, limits = np.abs(e.actual - e.golden), e.bound
    else:
      errors, limits = np.abs(actual - value.value), value.bound()
    measured = shares_lib.measure_shares(cut, first, errors, limits)
    if not self._form:
      return measured
    moved_codes, codes = shares_lib.count_moved(
      self._form, actual, value.value, self._dtype
    )
    return dataclasses.replace(measured, moved_codes=moved_codes, codes=codes)

  def _power(
    self,
    actual: np.ndarray,
    value: bounded_values.Bounded,
    right: tally_lib.CleanRows | None,
  ) -> power.Power:
    if right is not None:
      return right.sums.power
    limit = value.bound()
    # If the golden is certainly infinite, the candidate must be so too.
    error = np.abs(actual.astype(np.float64) - value.value)
    return power.measure(
      actual, limit, power.round_detectable(actual, limit + error)
    )

  def add(
    self,
    rank: int,
    tile_range: _Range,
    actual: np.ndarray,
    value: bounded_values.Bounded,
    beside: np.ndarray | None,
    right: tally_lib.CleanRows | None,
    worth: power.Power,
    measured: shares_lib.Shares | None,
  ) -> None:
    """Adds whole tile rows; `beside`: the benchmark's, if a record needs it."""
    cut, first, rows = tile_range
    self._worth += worth
    if measured is not None:
      self._bound_tally.add_shares(rank, measured)
    if right is not None and self._add_right(rank, cut, first, right, value):
      return
    self._num_bounded += int(np.isfinite(value.bound()).sum())
    e = _elements(value, actual, actual if beside is None else beside)
    chunk = _against_golden(rank, cut, first, actual, value, e)
    self._bound_tally.add(chunk)
    if self._bounded:
      self._spread_tally.add(chunk, e, value, rows)
    if chunk.error.size:
      ratio = _of_bound(chunk.error, e.bound).max()
      self._worst_of_bound = rank_parts.largest(self._worst_of_bound, ratio)
    for judge, tally in zip(self._judges, self._tallies):
      tally.add(chunk, judge.add(e))

  def _right(
    self, tile_range, actual, value, beside
  ) -> tally_lib.CleanRows | None:
    """Returns the sums of tile rows that every rule accepts, or None."""
    spread_ = self._bounded and value.variance is not None
    if not self._excuse or (spread_ and self._spread_tally.counts(value)):
      return None
    cut, first, _ = tile_range
    sums = chunk_sums.add_chunk(
      cut, first, actual, value, beside, spread_, self._pairs
    )
    if sums is None:
      return None
    expected = value.value.astype(actual.dtype)
    return tally_lib.CleanRows(sums, actual, expected)

  def _add_right(
    self, rank, cut, first, right: tally_lib.CleanRows, value
  ) -> bool:
    """Adds tile rows; False: their spread is refused, nothing was added."""
    tile_rows = range(first, cut.row_of(first, len(right.actual)))
    if self._bounded and not self._spread_tally.add_right(
      rank, cut, tile_rows, right, value
    ):
      return False
    self._num_bounded += right.actual.size
    worst = right.sums.native_sums.worst_of_bound
    self._worst_of_bound = rank_parts.largest(self._worst_of_bound, worst)
    for tally in (self._bound_tally, *self._tallies):
      tally.add_right(rank, cut, tile_rows, right)
    regions = right.sums.regions
    total = self._regions
    self._regions = regions if total is None else total + regions
    return True

  def add_padding(self, rank: int, padding: np.ndarray) -> None:
    for tally in (self._bound_tally, *self._tallies):
      tally.add_padding(rank, padding)

  def parts(self) -> list[rank_parts.Part]:
    """Returns the part of each rule."""
    num_bounded, elements = self._num_bounded, self._worth.elements
    figures_parts = []
    if self._bounded:
      figures = rank_parts.BoundFigures(
        self._worst_of_bound, self._worth, num_bounded
      )
      figures_parts = [
        self._bound_tally.part(figures),
        self._spread_tally.part(num_bounded, elements),
      ]
    for judge, tally in zip(self._judges, self._tallies):
      if self._regions is not None:
        judge.add_right(self._regions)
      name, dtype = judge.standard.name, self._dtype
      sums = judge.partials, judge.not_finite
      figures_parts.append(
        tally.part(
          rank_parts.StandardFigures(name, dtype, *sums, num_bounded, elements)
        )
      )
    return figures_parts


def _of_bound(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
  # If bound and error are both zero, their ratio counts as zero.
  with np.errstate(divide='ignore', invalid='ignore'):
    return np.where(error == 0, 0.0, error / bound)


def ranges_of(tiling: tiles.Tiling, stage: str, rank: int) -> Iterator[_Range]:
  """Yields ranges of judged tile rows of a rank's tensor."""
  for cut, first, last in tiling.iterate_judged(stage, rank, _CHUNK):
    yield cut, first, slice(int(cut.starts[first]), int(cut.starts[last]))


def _elements(golden, actual, benchmark) -> standards.Elements:
  """Converts a chunk to float64.

  If the golden is an infinity or NaN, the candidate must equal it; if the bound
  is infinite, the element is not judged further.
  """
  actual = actual.astype(np.float64)
  value, bound = golden.value, golden.bound()
  benchmark = benchmark.astype(np.float64)
  is_bounded, finite = np.isfinite(bound), np.isfinite(value)
  undefined = ~(is_bounded & finite)
  if undefined.any():
    agrees_exactly = (actual == value) | (np.isnan(actual) & np.isnan(value))
    agrees = np.where(is_bounded, agrees_exactly, finite | ~np.isfinite(actual))
    actual = np.where(undefined, np.where(agrees, 0.0, np.nan), actual)
    value, bound, benchmark = (
      np.where(undefined, 0.0, a) for a in (value, bound, benchmark)
    )
  return standards.Elements(actual, value, bound, benchmark, ~undefined)


def _against_golden(
  rank, cut, first, actual, golden, e: standards.Elements
) -> tally_lib.Chunk:
  error = np.abs(e.actual - e.golden)
  expected = near = golden.value.astype(actual.dtype)
  actual_or_zero = actual
  if not np.all(e.defined):
    actual_or_zero = e.actual.astype(actual.dtype)
    near = e.golden.astype(actual.dtype)
  return tally_lib.Chunk(
    rank=rank,
    cut=cut,
    first=first,
    actual=actual,
    expected=expected,
    bad=~(error <= e.bound),
    error=error,
    apart=ulp.distance(actual_or_zero, near),
  )
