"""The four lanes: what is compared with what, tile by tile.

exact     small-integer data: every correct order of summation gives the same
          values, so candidate and oracle must be equal.
bitwise   any data: stages that move, against the oracle; and the megakernel
          against its own tile kernels run serially, cut in another way.
bounded   any data: within the a-priori rounding bound of the golden, and as
          spread around it as rounding spreads, see `spread`; in narrow
          storage what was computed from what is not known, by `edges`.
standard  any data: published rules, see `standards`.
"""

from collections.abc import Callable, Iterator, Sequence
import functools

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import prefetch
from hpmoe.parity_tests.judge import rank_parts
from hpmoe.parity_tests.judge import spread_tally
from hpmoe.parity_tests.judge import tally as tally_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import chunk_sums
from hpmoe.parity_tests.judge.limits import edges
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import power
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import tensors

# Tiles of a rank, the first tile row, and its rows.
_Range = tuple[tiles.Cut, int, slice]

# Inputs may be such that results overflow.
_overflows: np.errstate = np.errstate(over='ignore', invalid='ignore')

# Elements under judgement at once: some dozen float64 temporaries of them.
_CHUNK = 1 << 18


def _same_bits(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
  return ulp.bits(got) == ulp.bits(expected)


def _same_values(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
  # The sign of a zero sum depends on the order of its terms, even where the
  # sum is exact.
  return got == expected


def differs(lane: str, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """Returns `[...]` bool: which elements a lane of equality refuses."""
  return ~(_same_values if lane == 'exact' else _same_bits)(got, expected)


@_overflows
def out_of_bound(
  stage: str, got: np.ndarray, golden: golden_lib.Rows
) -> np.ndarray:
  """Returns `[R, ...]` bool: which elements lane bounded refuses.

  Of a tile that is not spread as it should be, what stands out.
  """
  bad = np.zeros(got.shape, bool)
  tiling = golden.tiling
  judge = spread_tally.SpreadTally(stage, golden, None)
  for rank in tiling.held:
    for cut, first, rows in ranges_of(tiling, stage, rank):
      held = tiling.rows(stage, got, rank)[rows]
      value = golden.rows(stage, rank, rows.start, rows.stop)
      e = _elements(value, held, held)
      chunk = _against_golden(rank, cut, first, held, value, e)
      refused = judge.add(chunk, e, value, rows)
      tiling.rows(stage, bad, rank)[rows] = chunk.bad | refused
  return bad


def compare(
  stage: str,
  lane: str,
  rule: str,
  got: np.ndarray,
  expected: np.ndarray,
  tiling: tiles.Tiling,
) -> verdicts.Result:
  """Compares a plan or stage tensor `[R, ...]` with what it must equal.

  In lane 'exact' values must be equal, elsewhere bits.
  """
  look = functools.partial(
    _compare_rank, stage, lane, rule, got, expected, tiling
  )
  return _of_ranks(tiling, lambda rank: [look(rank)])[0]


def _compare_rank(
  stage, lane, rule, got, expected, tiling, rank: int
) -> rank_parts.Part:
  same = _same_values if lane == 'exact' else _same_bits
  plan = stage in tensors.PLAN
  tally = tally_lib.Tally(stage, lane, rule, None if plan else tiling)
  if plan:
    one, other = (np.atleast_2d(a[rank]) for a in (got, expected))
    cut = tiles.cut_tokens(*(n for n in one.shape for _ in range(2)))
  else:
    one, other = (tiling.rows(stage, a, rank) for a in (got, expected))
    cut = tiling.cut(stage, rank)
  for first, last in cut.chunks(_CHUNK):
    rows = slice(cut.starts[first], cut.starts[last])
    bad = ~same(one[rows], other[rows])
    if bad.any():
      tally.add(_unequal(rank, cut, first, one[rows], other[rows], bad))
    else:
      tally.add_right(rank, cut, range(first, last), None)
  if not plan:
    tally.add_padding(rank, tiling.padding(stage, got, rank))
  return tally.part()


def _of_ranks(
  tiling: tiles.Tiling, judge: Callable[[int], list[rank_parts.Part]]
) -> list[verdicts.Result]:
  """Returns the verdicts on the ranks that are judged, rank by rank."""
  found: list[rank_parts.Part] = []
  for rank in tiling.held:
    mine = judge(rank)
    found = [a + b for a, b in zip(found, mine, strict=True)] if found else mine
  results = (part.result() for part in found)
  return [result for result in results if result is not None]


def _unequal(rank, cut, first, got, expected, bad) -> tally_lib.Chunk:
  apart = ulp.distance(got, expected)
  error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
  return tally_lib.Chunk(rank, cut, first, got, expected, bad, error, apart)


@_overflows
def tolerances(
  stage: str,
  got: np.ndarray,
  golden: golden_lib.Rows,
  benchmark: np.ndarray | None,
  records: Sequence[standards.Standard],
  bounded: bool = True,
  same: np.ndarray | None = None,
) -> list[verdicts.Result]:
  """Judges a stage tensor `[R, ...]` in the lanes bounded and standard.

  Args:
    stage: its name, or its row of `LAYERS` for a result of the fused layer.
    got: the candidate's tensor.
    golden: golden rows and bounds; for a fused layer without captured tensors.
    benchmark: the oracle's tensor, from the same inputs as the golden; None
      if no record asks.
    records: standards to judge by.
    bounded: whether to judge by the rounding bound, and by the spread.
    same: the oracle's tensor, where the golden is computed from what was never
      stored; None if it is but one stage away from stored tensors.
  """
  tensor = verdicts.tensor_of(stage)
  tiling, dtype = golden.tiling, golden.dtype(tensor)
  if not golden.captured:  # Fused: roundings on the way count as well.
    dtype = golden.policy.storage
  silent = [
    verdicts.Result(
      *(stage, 'standard', r.name),
      verdict=verdicts.NOT_JUDGED,
      why=f'{r.name} has no number for {dtype}',
    )
    for r in records
    if not r.has(dtype)
  ]
  records = [r for r in records if r.has(dtype)]
  if not (records or bounded):
    return silent
  of = stage, golden, records, dtype, bounded, same

  def judged(rank: int) -> list[rank_parts.Part]:
    judges = _Judges(*of)
    held = tiling.rows(tensor, got, rank)
    beside = tiling.rows(tensor, benchmark, rank) if records else None
    look = functools.partial(judges.look, golden, tensor, rank, held, beside)
    for at, seen in prefetch.map_ahead(look, ranges_of(tiling, tensor, rank)):
      judges.add(rank, at, *seen)
    judges.add_padding(rank, tiling.padding(tensor, got, rank))
    return judges.parts()

  return _of_ranks(tiling, judged) + silent


@_overflows
def within_edges(
  stage: str, got: np.ndarray, chain: edges.Chain
) -> verdicts.Result:
  """Judges a tensor `[R, ...]` by what right kernels may store, see `edges`."""
  tiling = chain.golden.tiling

  def judged(rank: int) -> list[rank_parts.Part]:
    tally = tally_lib.Tally(stage, 'bounded', verdicts.EDGES_RULE, tiling)
    worst, worth = 0.0, power.Power()
    held = tiling.rows(stage, got, rank)
    for cut, first, rows in ranges_of(tiling, stage, rank):
      right = chain.interval(stage, rank, rows.start, rows.stop)
      bad = right.refuses(held[rows])
      chunk = _unequal(rank, cut, first, held[rows], right.own, bad)
      tally.add(chunk)
      seen = right.seen
      worst = max(worst, float((chunk.error / seen).max(initial=0.0)))
      worth += power.of(right.own, right.deviation, seen)
    tally.add_padding(rank, tiling.padding(stage, got, rank))
    return [tally.part(rank_parts.OfBound(worst, worth, worth.elements))]

  return _of_ranks(tiling, judged)[0]


class _Judges:
  """All who judge one tensor in the lanes bounded and standard."""

  def __init__(self, stage: str, golden, records, dtype: str, bounded, same):
    tiling = golden.tiling
    self._judges = [standards.Judge(record, dtype) for record in records]
    self._tallies = [
      tally_lib.Tally(stage, 'standard', r.name, tiling) for r in records
    ]
    self._bound_tally = tally_lib.Tally(
      stage, 'bounded', verdicts.BOUND_RULE, tiling
    )
    self._spread_tally = spread_tally.SpreadTally(stage, golden, same)
    self._bounded, self._dtype = bounded, dtype
    self._worst_of_bound = 0.0
    self._regions: chunk_sums.Regions | None = None  # of right chunks
    self._worth = power.Power()
    self._known = 0  # elements with a finite bound
    pairs = dict.fromkeys(judge.thresholds for judge in self._judges)
    self._pairs = [pair for pair in pairs if pair is not None]
    self._excuse = all(record.excuse_rounding for record in records)

  def look(self, golden, tensor: str, rank: int, got, benchmark, at: _Range):
    """Returns what `add` takes of some tile rows; changes nothing."""
    held = got[at[2]]
    beside = None if benchmark is None else benchmark[at[2]]
    rows = at[2].start, at[2].stop
    # A transposed product is not in the order in which all else is.
    value = golden.rows(tensor, rank, *rows).contiguous()
    right = self._right(at, held, value, beside)
    return held, value, beside, right, self._power(held, value, right)

  def _power(
    self,
    held: np.ndarray,
    value: bounds.Bounded,
    right: tally_lib.Right | None,
  ) -> power.Power:
    if right is not None:
      return right.sums.power
    limit = value.bound()
    # Where the golden is certain to be infinite, so must the candidate be.
    error = np.abs(held.astype(np.float64) - value.value)
    return power.of(held, limit, power.stored(held, limit + error))

  def add(
    self,
    rank: int,
    at: _Range,
    held: np.ndarray,
    value: bounds.Bounded,
    beside: np.ndarray | None,
    right: tally_lib.Right | None,
    worth: power.Power,
  ) -> None:
    """Takes whole tile rows in; `beside` is the benchmark's, if one asks."""
    cut, first, rows = at
    self._worth += worth
    if right is not None and self._add_right(rank, cut, first, right, value):
      return
    self._known += int(np.isfinite(value.bound()).sum())
    e = _elements(value, held, held if beside is None else beside)
    chunk = _against_golden(rank, cut, first, held, value, e)
    self._bound_tally.add(chunk)
    if self._bounded:
      self._spread_tally.add(chunk, e, value, rows)
    if chunk.error.size:
      ratio = _of_bound(chunk.error, e.bound).max()
      self._worst_of_bound = rank_parts.largest(self._worst_of_bound, ratio)
    for judge, tally in zip(self._judges, self._tallies):
      tally.add(chunk, judge.add(e))

  def _right(self, at, held, value, beside) -> tally_lib.Right | None:
    """Returns what all need of tile rows that none objects to, or None."""
    spread_ = self._bounded and value.variance is not None
    if not self._excuse or (spread_ and self._spread_tally.counts(value)):
      return None
    cut, first, _ = at
    sums = chunk_sums.of(cut, first, held, value, beside, spread_, self._pairs)
    if sums is None:
      return None
    expected = value.value.astype(held.dtype)
    return tally_lib.Right(
      sums, held, expected, chunk_sums.furthest(held, expected)
    )

  def _add_right(self, rank, cut, first, right: tally_lib.Right, value) -> bool:
    """Takes tile rows in, unless their spread is not right after all."""
    tile_rows = range(first, cut.row_of(first, len(right.got)))
    if self._bounded and not self._spread_tally.add_right(
      rank, cut, tile_rows, right, value
    ):
      return False
    self._known += right.got.size
    worst = right.sums.added.worst_of_bound
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
    """Returns what each of them found."""
    known, elements = self._known, self._worth.elements
    found = []
    if self._bounded:
      figures = rank_parts.OfBound(self._worst_of_bound, self._worth, known)
      found = [
        self._bound_tally.part(figures),
        self._spread_tally.part(known, elements),
      ]
    for judge, tally in zip(self._judges, self._tallies):
      if self._regions is not None:
        judge.add_right(self._regions)
      name, dtype = judge.standard.name, self._dtype
      sums = judge.partials, judge.not_finite
      found.append(
        tally.part(rank_parts.OfStandard(name, dtype, *sums, known, elements))
      )
    return found


def _of_bound(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
  # Where the bound is zero, no error at all is no share of it.
  with np.errstate(divide='ignore', invalid='ignore'):
    return np.where(error == 0, 0.0, error / bound)


def ranges_of(tiling: tiles.Tiling, stage: str, rank: int) -> Iterator[_Range]:
  """Yields what is judged of a rank's tensor, some tile rows at a time."""
  for cut, first, last in tiling.judged(stage, rank, _CHUNK):
    yield cut, first, slice(int(cut.starts[first]), int(cut.starts[last]))


def _elements(golden, held, benchmark) -> standards.Elements:
  """Brings a chunk to float64.

  Where the golden is an infinity or NaN, the candidate must hold the same;
  where the bound is infinite, nothing is known but that.
  """
  actual = held.astype(np.float64)
  value, bound = golden.value, golden.bound()
  benchmark = benchmark.astype(np.float64)
  known, finite = np.isfinite(bound), np.isfinite(value)
  undefined = ~(known & finite)
  if undefined.any():
    same = (actual == value) | (np.isnan(actual) & np.isnan(value))
    agrees = np.where(known, same, finite | ~np.isfinite(actual))
    actual = np.where(undefined, np.where(agrees, 0.0, np.nan), actual)
    value, bound, benchmark = (
      np.where(undefined, 0.0, a) for a in (value, bound, benchmark)
    )
  return standards.Elements(actual, value, bound, benchmark, ~undefined)


def _against_golden(
  rank, cut, first, held, golden, e: standards.Elements
) -> tally_lib.Chunk:
  error = np.abs(e.actual - e.golden)
  expected = near = golden.value.astype(held.dtype)
  actual = held
  if not np.all(e.defined):
    actual, near = e.actual.astype(held.dtype), e.golden.astype(held.dtype)
  return tally_lib.Chunk(
    rank=rank,
    cut=cut,
    first=first,
    got=held,
    expected=expected,
    bad=~(error <= e.bound),
    error=error,
    apart=ulp.distance(actual, near),
  )
