"""The four lanes: what is compared with what, tile by tile.

exact     small-integer data: every correct order of summation gives the same
          values, so candidate and oracle must be equal.
bitwise   any data: stages that move, against the oracle; and the megakernel
          against its own tile kernels run serially, cut in another way.
bounded   any data: within the a-priori rounding bound of the golden, and as
          spread around it as rounding spreads, see `spread`.
standard  any data: published rules, see `standards`.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import ahead
from hpmoe.parity_tests.judge import patterns
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import chunk_sums
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import tensors

LANES = ('exact', 'bitwise', 'bounded', 'standard')
LAYER = 'layer'  # the fused layer, x to y, as one operator
# A pass as one operator has a row of its own for each result.
LAYERS = {'y': LAYER} | {
  name: f'{LAYER} {name}' for name in passes.BACKWARD.results
}
_TENSOR_OF = {row: tensor for tensor, row in LAYERS.items()}
ORDER = tuple(
  name
  for one in (passes.FORWARD, passes.BACKWARD)
  for name in (
    *one.plan,
    one.relayed,
    *one.stages,
    *(LAYERS[result] for result in one.results),
  )
)
# What may be told apart by chance: relayed rows have bits only.
COMPARISONS = len(ORDER) - len(tensors.RELAYED)
BOUND_RULE = 'a-priori rounding bound'
SPREAD_RULE = 'spread of rounding errors'

PASS, FAIL, NOT_JUDGED = 'pass', 'fail', 'not judged'

# How a tensor's tiles are cut, by its axes after the rank.
_BLOCK_NAMES = {'N': 'row block', 'T': 'token block', 'L': 'weight row block'}

# Tiles of a rank, the first tile row, and its rows.
_Range = tuple[tiles.Cut, int, slice]

# Inputs may be such that results overflow.
_overflows: np.errstate = np.errstate(over='ignore', invalid='ignore')

# Elements under judgement at once: some dozen float64 temporaries of them.
_CHUNK = 1 << 18


@dataclasses.dataclass(frozen=True)
class Failure:
  """The first bad tile of one comparison, and the worst element in it.

  Attributes:
    stage, lane, rule: which comparison.
    rank: rank that holds the tile.
    expert: global expert, or None where a tile has none.
    row_block, col_block: tile; row_block is None past the last valid row.
    token: token of the element's row on `source_rank`, or None.
    source_rank, slot: where the row comes from, or None.
    index: coordinates in the tensor.
    got, expected: the element.
    ulp: units in the last place between them.
    bad_rows, bad_cols: rows and columns of the tile with a bad element.
    rows, cols: of the tile.
    hint: what may bring the reader nearer to the cause, or ''.
    pattern: what the tile looks like, or ''.
    replay: the command that shows it again.
  """

  stage: str
  lane: str
  rule: str
  rank: int
  expert: int | None
  row_block: int | None
  col_block: int | None
  token: int | None
  source_rank: int | None
  slot: int | None
  index: tuple[int, ...]
  got: float
  expected: float
  ulp: int
  bad_rows: int
  bad_cols: int
  rows: int = 0
  cols: int = 0
  hint: str = ''
  pattern: str = ''
  replay: str = ''

  def order(self) -> tuple:
    """Sort key: dependency order of tasks, then lane."""
    padding = self.row_block is None
    return (
      ORDER.index(self.stage),
      self.rank,
      padding,
      self.expert or 0,
      self.row_block or 0,
      self.col_block or 0,
      LANES.index(self.lane),
    )

  def severity(self) -> tuple:
    """Sort key: the strictest lane, then dependency order."""
    return LANES.index(self.lane), *self.order()


@dataclasses.dataclass(frozen=True)
class Result:
  """One comparison of one stage tensor.

  Attributes:
    stage, lane, rule: which.
    tiles: tiles compared.
    failed: tiles with a bad element.
    worst_ulp: largest distance to what was expected.
    worst_abs: largest |got - expected|; NaN if an element is not finite.
    worst_element: coordinates of that element, None if nothing differs.
    verdict: PASS, FAIL or NOT_JUDGED.
    why: the limit that broke, or why nothing was judged.
    missing: the tensor that would have to be returned, or ''.
    values: the rule's metrics by name.
    failure: the first bad tile, None if it passes.
    grids: per rank `[B, C]` bool, bad tiles.
    experts: per rank `[B]`, expert of a tile row or `tiles.NO_EXPERT`.
  """

  stage: str
  lane: str
  rule: str
  tiles: int = 0
  failed: int = 0
  worst_ulp: int = 0
  worst_abs: float = 0.0
  worst_element: tuple[int, ...] | None = None
  verdict: str = PASS
  why: str = ''
  missing: str = ''
  values: Mapping[str, float] = dataclasses.field(default_factory=dict)
  failure: Failure | None = None
  grids: tuple[np.ndarray, ...] = ()
  experts: tuple[np.ndarray, ...] = ()


def tensor_of(stage: str) -> str:
  """Returns the tensor that is compared in a stage's row."""
  return _TENSOR_OF.get(stage, stage)


def pass_of(stage: str) -> passes.Pass:
  """Returns the pass that a row belongs to."""
  forward = (*passes.FORWARD.outputs, passes.FORWARD.relayed)
  return passes.FORWARD if tensor_of(stage) in forward else passes.BACKWARD


def block_name(stage: str) -> str:
  """Returns what a tile row of a stage is called."""
  axis = tensors.SPECS[tensor_of(stage)].shape.split()[1]
  return _BLOCK_NAMES.get(axis, 'row block')


def _is_of_tokens(stage: str) -> bool:
  """Says whether a row is a token's sum over experts."""
  axes = tensors.SPECS[tensor_of(stage)].shape.split()
  return axes[:2] == ['R', 'T'] and len(axes) == 3


def not_captured(stage: str, lane: str, rule: str, what: str) -> Result:
  return Result(
    stage,
    lane,
    rule,
    verdict=NOT_JUDGED,
    why=f'{what} not returned',
    missing=what,
  )


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Whole tile rows of one rank's tensor, compared.

  Attributes:
    rank: which rank.
    cut: the rank's tiles.
    first: first tile row of the chunk.
    got: `[rows, columns]` as stored.
    expected: `[rows, columns]` in the same dtype.
    bad: `[rows, columns]` bool.
    error: `[rows, columns]` float64, |got - expected| before rounding.
    apart: `[rows, columns]` int64 units in the last place.
  """

  rank: int
  cut: tiles.Cut
  first: int
  got: np.ndarray
  expected: np.ndarray
  bad: np.ndarray
  error: np.ndarray
  apart: np.ndarray

  @functools.cached_property
  def worst(self) -> tuple[float, int]:
    """The largest error and distance, the same for all who judge."""
    return float(self.error.max()), int(self.apart.max())


@dataclasses.dataclass(frozen=True)
class Right:
  """Whole tile rows of one rank's tensor with every element in its bound.

  Attributes:
    sums: over all elements.
    got: `[rows, columns]` as stored.
    expected: `[rows, columns]` in the same dtype.
    apart: the most units in the last place between them.
  """

  sums: chunk_sums.Sums
  got: np.ndarray
  expected: np.ndarray
  apart: int

  @property
  def error(self) -> float:
    """The largest |got - expected| before rounding."""
    return self.sums.worst_error

  @property
  def at(self) -> tuple[int, int]:
    """Row and column of the first element with that error."""
    return divmod(self.sums.worst_at, self.got.shape[1])

  def element(self) -> tuple:
    """Returns what was got there, expected, and how far they are apart."""
    got, expected = (
      np.atleast_1d(a[self.at]) for a in (self.got, self.expected)
    )
    return got[0], expected[0], int(ulp.distance(got, expected)[0])


class Tally:
  """Adds chunks up to one `Result`.  Chunks come in tile order."""

  def __init__(
    self, stage: str, lane: str, rule: str, tiling: tiles.Tiling | None
  ):
    self._id = (stage, lane, rule)
    self._tiling = tiling
    self._tiles = self._failed = self._worst_ulp = 0
    self.padding_failed = False
    self._worst_abs = 0.0
    self._grids: dict[int, list[np.ndarray]] = {}
    self._experts: dict[int, list[np.ndarray]] = {}
    self._bad_tokens: dict[int, list[np.ndarray]] = {}
    self._failure: Failure | None = None
    self._worst: tuple | None = None

  def add(self, chunk: Chunk, refused: np.ndarray | None = None) -> None:
    """Takes a chunk in; `refused` stands in for its bad elements."""
    refused = chunk.bad if refused is None else refused
    bad = chunk.cut.count(refused, chunk.first) > 0
    self._add_tiles(chunk.rank, chunk.cut, chunk.first, bad)
    if self._of_tokens:
      rows = refused.any(axis=1)
      self._bad_tokens.setdefault(chunk.rank, []).append(rows)
    if not chunk.error.size:
      return
    worst, apart = chunk.worst
    self._worst_ulp = max(self._worst_ulp, apart)
    if self._failure is None and bad.any():
      tile = np.unravel_index(np.argmax(bad), bad.shape)
      self._failure = self._locate(
        chunk, refused, (chunk.first + tile[0], tile[1])
      )
    if self._is_worst(worst):
      at = int(np.argmax(chunk.error))
      row, column = np.unravel_index(at, chunk.error.shape)
      self._worst = (
        chunk.cut,
        chunk.rank,
        chunk.first,
        row,
        column,
        (
          chunk.got[row, column],
          chunk.expected[row, column],
          int(chunk.apart[row, column]),
        ),
      )
      self._worst_abs = worst

  def add_right(
    self, rank: int, cut: tiles.Cut, tile_rows: range, right: 'Right | None'
  ) -> None:
    """Takes tile rows in without a bad element; none: nor any that differs."""
    first, shape = tile_rows.start, (len(tile_rows), cut.shape[1])
    self._add_tiles(rank, cut, first, np.zeros(shape, bool))
    if self._of_tokens:
      num_rows = int(cut.starts[tile_rows.stop] - cut.starts[first])
      self._bad_tokens.setdefault(rank, []).append(np.zeros(num_rows, bool))
    if right is None:
      return
    self._worst_ulp = max(self._worst_ulp, right.apart)
    if self._is_worst(right.error):
      self._worst = (cut, rank, first, *right.at, right.element())
      self._worst_abs = right.error

  @property
  def _of_tokens(self) -> bool:
    return self._tiling is not None and _is_of_tokens(self._id[0])

  def _add_tiles(self, rank: int, cut: tiles.Cut, first: int, bad) -> None:
    self._tiles += bad.size
    self._failed += int(bad.sum())
    self._grids.setdefault(rank, []).append(bad)
    experts = cut.expert[first : first + len(bad)]
    self._experts.setdefault(rank, []).append(experts)

  def _is_worst(self, error: float) -> bool:
    # NaN is the worst of all, and stays so.
    return not (error <= self._worst_abs or np.isnan(self._worst_abs))

  def add_padding(self, rank: int, padding: np.ndarray) -> None:
    """Takes the rows past the last valid one, which must be zero: a tile."""
    if self._tiling is None:
      return
    if rank not in self._grids:  # a rank without rows has no chunk
      cut = self._tiling.cut(tensor_of(self._id[0]), rank)
      self._grids[rank] = [np.zeros(cut.shape, bool)]
      self._experts[rank] = [cut.expert]
    if not padding.size:
      return
    bad = ~(padding == 0)
    self._tiles += 1
    if not bad.any():
      return
    self._failed += 1
    self.padding_failed = True
    row, column = np.unravel_index(np.argmax(bad), bad.shape)
    got = padding[row, column]
    first = self._tiling.num_valid(rank)
    apart = ulp.distance(padding, np.zeros_like(padding))
    self._worst_ulp = max(self._worst_ulp, int(apart.max()))
    self._worst_abs = float(
      np.maximum(self._worst_abs, np.abs(padding.astype(np.float64)).max())
    )
    self._failure = self._failure or Failure(
      *self._id,
      rank=rank,
      expert=None,
      row_block=None,
      col_block=None,
      token=None,
      source_rank=None,
      slot=None,
      index=(rank, first + int(row), int(column)),
      got=_plain(got),
      expected=0.0,
      ulp=int(apart[row, column]),
      bad_rows=int(bad.any(axis=1).sum()),
      bad_cols=int(bad.any(axis=0).sum()),
      rows=bad.shape[0],
      cols=bad.shape[1],
      pattern='not zero past the last valid row',
    )

  def result(
    self,
    broken: Sequence[str] | None = None,
    values: Mapping[str, float] | None = None,
  ) -> Result:
    """Returns the verdict: of a rule if it says what is `broken`, or tiles'."""
    fails = bool(self._failed if broken is None else broken)
    worst: Failure | None = None
    if self._worst is not None:
      worst = self._locate_element(*self._worst)
    failure = (self._failure or worst) if fails else None
    if failure is not None:
      failure = dataclasses.replace(failure, hint=self._guilty_expert())
    return Result(
      *self._id,
      tiles=self._tiles,
      failed=self._failed,
      worst_ulp=self._worst_ulp,
      worst_abs=self._worst_abs,
      worst_element=worst.index if worst else None,
      verdict=FAIL if fails else PASS,
      why='; '.join(broken or ()),
      values=values or {},
      failure=failure,
      grids=tuple(np.concatenate(g) for g in self._grids.values()),
      experts=tuple(np.concatenate(e) for e in self._experts.values()),
    )

  def _guilty_expert(self) -> str:
    """Names the expert whose tokens are the bad ones, if there is one."""
    if self._tiling is None or not self._bad_tokens or self._tiling.sample:
      return ''
    bad = np.stack([np.concatenate(b) for b in self._bad_tokens.values()])
    if not bad.any():
      return ''
    guilty = [
      str(expert)
      for expert in range(self._tiling.config.num_experts)
      if ((self._tiling.topk_ids == expert).any(axis=-1) == bad).all()
    ]
    if not guilty:
      return ''
    named = ' or '.join(guilty)
    return f'all bad tokens, and no others, went to expert {named}'

  def _locate(
    self, chunk: Chunk, refused: np.ndarray, tile: tuple[int, int]
  ) -> Failure:
    rows, columns = chunk.cut.window(tile)
    begin = int(chunk.cut.starts[chunk.first])
    local = (slice(rows.start - begin, rows.stop - begin), columns)
    bad = refused[local]
    # NaN errors first: argmax takes the first NaN for the largest.
    error = np.where(bad, chunk.error[local], -1.0)
    row, column = np.unravel_index(int(np.argmax(error)), bad.shape)
    return self._failure_at(
      chunk.cut,
      chunk.rank,
      tile,
      rows.start + int(row),
      columns.start + int(column),
      (
        chunk.got[local][row, column],
        chunk.expected[local][row, column],
        int(chunk.apart[local][row, column]),
      ),
      bad_rows=int(bad.any(axis=1).sum()),
      bad_cols=int(bad.any(axis=0).sum()),
      rows=bad.shape[0],
      cols=bad.shape[1],
      pattern=patterns.describe(
        chunk.got[local], chunk.expected[local], bad, chunk.expected
      ),
    )

  def _locate_element(self, cut, rank, first, row, column, element) -> Failure:
    row = int(row) + int(cut.starts[first])
    tile = (
      int(np.searchsorted(cut.starts, row, side='right')) - 1,
      int(np.searchsorted(cut.col_starts, column, side='right')) - 1,
    )
    return self._failure_at(
      cut,
      rank,
      tile,
      row,
      int(column),
      element,
      bad_rows=0,
      bad_cols=0,
      pattern='no single element breaks the rule; this is the worst',
    )

  def _failure_at(self, cut, rank, tile, row, column, element, **kwargs):
    stage = tensor_of(self._id[0])
    got, expected, apart = element
    expert = source = token = slot = None
    if self._tiling is not None:
      source, token, slot = self._tiling.source(stage, rank, row)
      expert = self._tiling.expert_of(stage, rank, row)
      expert = None if expert == tiles.NO_EXPERT else expert
      if slot == -1:
        slot = column if stage == 'd_topk_weights' else None
    elif stage != 'row_of_slot':
      expert = column
    return Failure(
      *self._id,
      rank=rank,
      expert=expert,
      row_block=int(cut.block[tile[0]]),
      col_block=int(tile[1]),
      token=token,
      source_rank=source,
      slot=slot,
      index=self._index(stage, rank, row, column),
      got=_plain(got),
      expected=_plain(expected),
      ulp=apart,
      **kwargs,
    )

  def _index(self, stage, rank, row, column) -> tuple[int, ...]:
    if stage in ('counts', 'row_base'):
      return rank, column
    if self._tiling is None:
      return rank, row, column
    return *self._tiling.index(stage, rank, row), column


def _plain(value) -> float | int:
  return int(value) if value.dtype.kind == 'i' else float(value)


def _same_bits(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
  return ulp.bits(got) == ulp.bits(expected)


def _same_values(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
  # The sign of a zero sum depends on the order of its terms, even where the
  # sum is exact.
  return got == expected


def differs(lane: str, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """Returns `[...]` bool: which elements a lane of equality refuses."""
  return ~(_same_values if lane == 'exact' else _same_bits)(got, expected)


def check_each_once(results: Sequence[Result]) -> None:
  """Checks that no tensor is judged twice by its spread.

  The limits share the chance of a false alarm among all rows that there are.

  Raises:
    AssertionError: one is.
  """
  rows = [one.stage for one in results if one.rule == SPREAD_RULE]
  twice = sorted({row for row in rows if rows.count(row) > 1})
  if twice:
    raise AssertionError(
      f'results: expected each tensor once under {SPREAD_RULE!r}, got twice: '
      f'{", ".join(twice)}'
    )


@_overflows
def out_of_bound(
  stage: str, got: np.ndarray, golden: golden_lib.Rows
) -> np.ndarray:
  """Returns `[R, ...]` bool: which elements lane bounded refuses.

  Of a tile that is not spread as it should be, what stands out.
  """
  bad = np.zeros(got.shape, bool)
  tiling = golden.tiling
  judge = _SpreadTally(stage, golden, None)
  for rank in range(len(got)):
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
) -> Result:
  """Compares a plan or stage tensor `[R, ...]` with what it must equal.

  In lane 'exact' values must be equal, elsewhere bits.
  """
  same = _same_values if lane == 'exact' else _same_bits
  plan = stage in tensors.PLAN
  tally = Tally(stage, lane, rule, None if plan else tiling)
  for rank in range(len(got)):
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
  return tally.result()


def _unequal(rank, cut, first, got, expected, bad) -> Chunk:
  apart = ulp.distance(got, expected)
  error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
  return Chunk(rank, cut, first, got, expected, bad, error, apart)


@_overflows
def tolerances(
  stage: str,
  got: np.ndarray,
  golden: golden_lib.Rows,
  benchmark: np.ndarray | None,
  records: Sequence[standards.Standard],
  bounded: bool = True,
  same: np.ndarray | None = None,
) -> list[Result]:
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
  if not (records or bounded):
    return []
  tensor = tensor_of(stage)
  tiling, dtype = golden.tiling, golden.dtype(tensor)
  if not golden.captured:  # Fused: roundings on the way count as well.
    dtype = golden.policy.storage
  judges = _Judges(stage, golden, records, dtype, bounded, same)
  for rank in range(len(got)):
    held = tiling.rows(tensor, got, rank)
    beside = tiling.rows(tensor, benchmark, rank) if records else None
    look = functools.partial(judges.look, golden, tensor, rank, held, beside)
    for at, seen in ahead.map_ahead(look, ranges_of(tiling, tensor, rank)):
      judges.add(rank, at, *seen)
    judges.add_padding(rank, tiling.padding(tensor, got, rank))
  return judges.results()


class _Judges:
  """All who judge one tensor in the lanes bounded and standard."""

  def __init__(self, stage: str, golden, records, dtype: str, bounded, same):
    tiling = golden.tiling
    self._judges = [standards.Judge(record, dtype) for record in records]
    self._tallies = [Tally(stage, 'standard', r.name, tiling) for r in records]
    self._bound_tally = Tally(stage, 'bounded', BOUND_RULE, tiling)
    self._spread_tally = _SpreadTally(stage, golden, same)
    self._bounded = bounded
    self._worst_of_bound = 0.0
    pairs = dict.fromkeys(judge.thresholds for judge in self._judges)
    self._pairs = [pair for pair in pairs if pair is not None]
    self._excuse = all(record.excuse_rounding for record in records)

  def look(self, golden, tensor: str, rank: int, got, benchmark, at: _Range):
    """Returns what `add` takes of some tile rows; changes nothing."""
    held = got[at[2]]
    beside = None if benchmark is None else benchmark[at[2]]
    value = golden_rows(golden, tensor, rank, at)
    return held, value, beside, self._right(at, held, value, beside)

  def add(
    self,
    rank: int,
    at: _Range,
    held: np.ndarray,
    value: bounds.Bounded,
    beside: np.ndarray | None,
    right: Right | None,
  ) -> None:
    """Takes whole tile rows in; `beside` is the benchmark's, if one asks."""
    cut, first, rows = at
    if right is not None and self._add_right(rank, cut, first, right, value):
      return
    e = _elements(value, held, held if beside is None else beside)
    chunk = _against_golden(rank, cut, first, held, value, e)
    self._bound_tally.add(chunk)
    if self._bounded:
      self._spread_tally.add(chunk, e, value, rows)
    if chunk.error.size:
      ratio = float(_of_bound(chunk.error, e.bound).max())
      self._note_worst(ratio)
    for judge, tally in zip(self._judges, self._tallies):
      tally.add(chunk, judge.add(e))

  def _note_worst(self, of_bound: float) -> None:
    worst = np.maximum(self._worst_of_bound, of_bound)
    self._worst_of_bound = float(worst)  # NaN stays

  def _right(self, at, held, value, beside) -> Right | None:
    """Returns what all need of tile rows that none objects to, or None."""
    spread_ = self._bounded and value.variance is not None
    if not self._excuse or (spread_ and self._spread_tally.counts(value)):
      return None
    cut, first, _ = at
    sums = chunk_sums.of(cut, first, held, value, beside, spread_, self._pairs)
    if sums is None:
      return None
    expected = value.value.astype(held.dtype)
    return Right(sums, held, expected, chunk_sums.furthest(held, expected))

  def _add_right(self, rank, cut, first, right: Right, value) -> bool:
    """Takes tile rows in, unless their spread is not right after all."""
    tile_rows = range(first, cut.row_of(first, len(right.got)))
    if self._bounded and not self._spread_tally.add_right(
      rank, cut, tile_rows, right, value
    ):
      return False
    self._note_worst(right.sums.worst_of_bound)
    for tally in (self._bound_tally, *self._tallies):
      tally.add_right(rank, cut, tile_rows, right)
    for judge in self._judges:
      judge.add_right(right.sums)
    return True

  def add_padding(self, rank: int, padding: np.ndarray) -> None:
    for tally in (self._bound_tally, *self._tallies):
      tally.add_padding(rank, padding)

  def results(self) -> list[Result]:
    results = []
    if self._bounded:
      values = {'error_of_bound': self._worst_of_bound}
      results = [self._bound_tally.result(values=values)]
      results += self._spread_tally.results()
    for judge, tally in zip(self._judges, self._tallies):
      broken = judge.broken()
      if tally.padding_failed:
        broken.append('rows past the last valid one are zero')
      results.append(tally.result(broken, judge.values()))
    return results


def golden_rows(
  golden: golden_lib.Rows, stage: str, rank: int, at: _Range
) -> bounds.Bounded:
  """Returns the golden of a range of `ranges_of`."""
  with np.errstate(over='ignore', invalid='ignore'):
    # A transposed product is not in the order in which all else is.
    return golden.rows(stage, rank, at[2].start, at[2].stop).contiguous()


class _SpreadTally:
  """Judges chunks of one tensor by their spread; there may be nothing to say.

  A tensor without rounding has no spread.
  """

  def __init__(
    self, stage: str, golden: golden_lib.Rows, same: np.ndarray | None
  ):
    self._tensor = tensor_of(stage)
    self._tiling, self._same = golden.tiling, same
    dtype = golden.dtype(self._tensor)
    cuts = [
      self._tiling.cut(self._tensor, rank)
      for rank in range(self._tiling.config.num_ranks)
    ]
    self._judge = spread.Judge(
      golden.policy,
      dtype,
      _independent(stage, golden, fused=same is not None),
      sum(int(np.prod(cut.shape)) for cut in cuts),
      comparisons=COMPARISONS,
    )
    self._tally = Tally(stage, 'bounded', SPREAD_RULE, self._tiling)
    self._keys: list[np.ndarray] = []
    self._sums: spread.Sums | None = None
    self._worst: dict[str, float] = {}

  def add(
    self, chunk: Chunk, e: standards.Elements, value: bounds.Bounded, rows
  ) -> np.ndarray:
    """Returns `[rows, columns]` bool, what stands out in refused tiles."""
    counts, same = self._judge.counts(value), self._same
    lost = value.crossed is not None and same is None
    if value.variance is None or lost or not chunk.bad.size:
      return np.zeros_like(chunk.bad)
    expected = chunk.expected
    if same is not None and counts:
      expected = self._tiling.rows(self._tensor, same, chunk.rank)[rows]
    expected = np.where(e.defined, expected, np.zeros_like(expected))
    held = e.actual.astype(expected.dtype)
    model = dataclasses.replace(
      value,
      value=e.golden,
      variance=np.where(e.defined, value.variance, 1.0),
    )
    # What overflows is the same for all, or nothing is known of it.
    if value.crossed is not None:
      crossed = np.where(e.defined, value.crossed, 0.0)
      model = dataclasses.replace(model, crossed=crossed)
    elif counts:
      apart = np.where(e.defined, value.distance(), 0.0)
      model = dataclasses.replace(model, apart=apart)
    seen = e.actual, expected.astype(np.float64), model
    sums = self._judge.sums(chunk.cut, chunk.first, *seen)
    shares = self._judge.shares(sums)
    self._add_up(sums, e.golden.sum(axis=1), shares)
    bad = ~np.all([share <= 1 for share in shares.values()], axis=0)
    refused = chunk.cut.fill(bad, chunk.first)
    if bad.any():
      # All of a tile where no element stands out.
      marked = refused & self._judge.marked(*seen)
      none = chunk.cut.count(marked, chunk.first) == 0
      refused &= marked | chunk.cut.fill(none, chunk.first)
    apart = chunk.apart
    if counts:
      apart = ulp.distance(held, expected)
    self._tally.add(
      dataclasses.replace(chunk, expected=expected, apart=apart), refused
    )
    return refused

  def counts(self, value: bounds.Bounded) -> bool:
    """Says whether elements are counted, and errors not looked at."""
    return self._judge.counts(value)

  def add_right(
    self,
    rank: int,
    cut: tiles.Cut,
    tile_rows: range,
    right: Right,
    value: bounds.Bounded,
  ) -> bool:
    """Takes tile rows in; False, and nothing taken, if a tile is refused."""
    if value.variance is None:
      return True
    added = right.sums.added
    sums = self._judge.sums_of(cut, tile_rows, added)
    shares = self._judge.shares(sums)
    if not all(np.all(share <= 1) for share in shares.values()):
      return False
    self._add_up(sums, added.by_row.sum(axis=1), shares)
    self._tally.add_right(rank, cut, tile_rows, right)
    return True

  def _add_up(self, sums: spread.Sums, keys: np.ndarray, shares) -> None:
    total = sums.total(0)
    self._sums = total if self._sums is None else self._sums + total
    self._keys.append(keys)
    self._note(shares)

  def _note(self, shares: Mapping[str, np.ndarray], prefix: str = '') -> None:
    for name, share in shares.items():
      worst = np.maximum(self._worst.get(prefix + name, 0.0), np.max(share))
      self._worst[prefix + name] = float(worst)  # NaN stays

  def _judge_tensor(self) -> None:
    if self._sums is None or not self._judge.independent.rows:
      return
    equal = tiles.most_equal(np.concatenate(self._keys))
    alike = np.asarray(equal * self._tiling.columns(self._tensor))
    sums = dataclasses.replace(self._sums, alike=alike)
    self._note(self._judge.shares(sums), 'tensor_')

  def results(self) -> list[Result]:
    self._judge_tensor()
    if not self._worst:
      return []
    broken = [
      f'{spread.words(name)}: {share:.3g} times the limit'
      for name, share in self._worst.items()
      if not share <= 1
    ]
    worst = float(np.max(list(self._worst.values())))
    values = self._worst | {'error_of_bound': worst}
    return [self._tally.result(broken, values)]


def _independent(
  stage: str, golden: golden_lib.Rows, fused: bool
) -> spread.Independent:
  """Says what errs independently: all but what was computed before.

  Args:
    stage: which.
    golden: of it.
    fused: whether it was computed from what was not captured.
  """
  if not fused and stage not in _TENSOR_OF:
    return spread.Independent()
  tensor, policy = tensor_of(stage), golden.policy
  # Both halves of d_gate_up come from one d_activation.
  pairs = tensor in ('d_gate_up', 'd_w_gate_up')
  if tensors.SPECS[tensor].shape.split()[1] != 'L':
    return spread.Independent(columns=False, pairs=pairs)
  common = 0.0
  if tensor == 'd_w_gate_up' and policy.placement == 'combine':
    # All columns of d_activation read the same weighted rows of dy.
    depth = golden.tiling.config.d_model
    common = bounds.share_of_operands(policy, depth)
  return spread.Independent(rows=False, pairs=pairs, common=common)


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
) -> Chunk:
  error = np.abs(e.actual - e.golden)
  expected = near = golden.value.astype(held.dtype)
  actual = held
  if not np.all(e.defined):
    actual, near = e.actual.astype(held.dtype), e.golden.astype(held.dtype)
  return Chunk(
    rank=rank,
    cut=cut,
    first=first,
    got=held,
    expected=expected,
    bad=~(error <= e.bound),
    error=error,
    apart=ulp.distance(actual, near),
  )
