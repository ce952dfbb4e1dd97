"""Adds the chunks of a tensor up to one row, and locates its errors."""

import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import patterns
from hpmoe.parity_tests.judge import rank_parts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import chunk_sums
from hpmoe.parity_tests.judge.limits import shares as shares_lib
from hpmoe.parity_tests.judge.limits import ulp


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Whole tile rows of one rank's tensor, compared.

  Attributes:
    rank: which rank.
    cut: the rank's tiles.
    first: first tile row of the chunk.
    actual: `[rows, columns]` as stored.
    expected: `[rows, columns]` in the same dtype.
    bad: `[rows, columns]` bool.
    error: `[rows, columns]` float64, |actual - expected| before rounding.
    apart: `[rows, columns]` int64 units in the last place.
  """

  rank: int
  cut: tiles.Cut
  first: int
  actual: np.ndarray
  expected: np.ndarray
  bad: np.ndarray
  error: np.ndarray
  apart: np.ndarray

  @functools.cached_property
  def worst(self) -> float:
    """The largest error, shared by all rules."""
    return float(self.error.max())


@dataclasses.dataclass(frozen=True)
class CleanRows:
  """Whole tile rows of one rank's tensor, with every element in its bound.

  Attributes:
    sums: over all elements.
    actual: `[rows, columns]` as stored.
    expected: `[rows, columns]` in the same dtype.
  """

  sums: chunk_sums.Sums
  actual: np.ndarray
  expected: np.ndarray

  @property
  def error(self) -> float:
    """The largest |actual - expected| before rounding."""
    return self.sums.native_sums.worst_error

  @property
  def worst_position(self) -> tuple[int, int]:
    """Row and column of the first element with that error."""
    return divmod(self.sums.native_sums.worst_at, self.actual.shape[1])

  def element(self) -> tuple:
    """Returns the actual and expected element there, and their distance."""
    actual, expected = (
      np.atleast_1d(a[self.worst_position])
      for a in (self.actual, self.expected)
    )
    return actual[0], expected[0], int(ulp.distance(actual, expected)[0])


class Tally:
  """Adds chunks up to one `rank_parts.Part`.  Chunks come in tile order."""

  def __init__(
    self, stage: str, lane: str, rule: str, tiling: tiles.Tiling | None
  ):
    self._id = (stage, lane, rule)
    self._tiling = tiling
    self._tiles = self._bad_tiles = 0
    self.padding_failed = False
    self._worst_abs = 0.0
    self._grids: dict[int, list[np.ndarray]] = {}
    self._experts: dict[int, list[np.ndarray]] = {}
    self._bad_tokens: dict[int, list[np.ndarray]] = {}
    self._shares: dict[int, list[np.ndarray]] = {}
    self._histogram: shares_lib.Histogram | None = None
    self._failure: verdicts.Failure | None = None
    self._worst: tuple | None = None
    self._worst_padding: verdicts.Failure | None = None

  def add(
    self, chunk: Chunk, refused_elements: np.ndarray | None = None
  ) -> None:
    """Adds a chunk; `refused_elements` replaces its bad elements."""
    refused_elements = (
      chunk.bad if refused_elements is None else refused_elements
    )
    wrong = chunk.cut.count(refused_elements, chunk.first)
    self._add_tiles(chunk.rank, chunk.cut, chunk.first, wrong)
    if self._of_tokens:
      rows = refused_elements.any(axis=1)
      self._bad_tokens.setdefault(chunk.rank, []).append(rows)
    if not chunk.error.size:
      return
    worst = chunk.worst
    if self._failure is None and wrong.any():
      tile = np.unravel_index(np.argmax(wrong > 0), wrong.shape)
      self._failure = self._locate(
        chunk, refused_elements, (chunk.first + tile[0], tile[1])
      )
    if self._is_worst(worst):
      position = int(np.argmax(chunk.error))
      row, column = np.unravel_index(position, chunk.error.shape)
      self._worst = (
        chunk.cut,
        chunk.rank,
        chunk.first,
        row,
        column,
        (
          chunk.actual[row, column],
          chunk.expected[row, column],
          int(chunk.apart[row, column]),
        ),
      )
      self._worst_abs = worst

  def add_right(
    self, rank: int, cut: tiles.Cut, tile_rows: range, right: 'CleanRows | None'
  ) -> None:
    """Adds tile rows without a bad element; None: all elements are equal."""
    first, shape = tile_rows.start, (len(tile_rows), cut.shape[1])
    self._add_tiles(rank, cut, first, np.zeros(shape, np.int64))
    if self._of_tokens:
      num_rows = int(cut.starts[tile_rows.stop] - cut.starts[first])
      self._bad_tokens.setdefault(rank, []).append(np.zeros(num_rows, bool))
    if right is None:
      return
    if self._is_worst(right.error):
      self._worst = (cut, rank, first, *right.worst_position, right.element())
      self._worst_abs = right.error

  def add_shares(self, rank: int, shares: shares_lib.Shares) -> None:
    """Adds the errors of tile rows over their limits."""
    self._shares.setdefault(rank, []).append(shares.largest)
    total = self._histogram or shares_lib.Histogram()
    self._histogram = total + shares.summarise()

  def add_codes(self, moved_codes: int, num_codes: int) -> None:
    """Adds to the number of codes that differ from the oracle's."""
    total = self._histogram or shares_lib.Histogram()
    self._histogram = total + shares_lib.Histogram(
      moved_codes=moved_codes, codes=num_codes
    )

  @property
  def _of_tokens(self) -> bool:
    return self._tiling is not None and verdicts.is_of_tokens(self._id[0])

  def _add_tiles(self, rank: int, cut: tiles.Cut, first: int, wrong) -> None:
    self._tiles += wrong.size
    self._bad_tiles += int(np.count_nonzero(wrong))
    self._grids.setdefault(rank, []).append(wrong)
    experts = cut.expert[first : first + len(wrong)]
    self._experts.setdefault(rank, []).append(experts)

  def _is_worst(self, error: float) -> bool:
    # NaN counts as the worst error.
    return not (error <= self._worst_abs or np.isnan(self._worst_abs))

  def add_padding(self, rank: int, padding: np.ndarray) -> None:
    """Adds the rows past the last valid one, which must be zero, as a tile."""
    if self._tiling is None:
      return
    if rank not in self._grids:  # a rank without rows has no chunk
      cut = self._tiling.cut(verdicts.tensor_of(self._id[0]), rank)
      self._grids[rank] = [np.zeros(cut.shape, np.int64)]
      self._experts[rank] = [cut.expert]
    if not padding.size:
      return
    bad = ~(padding == 0)
    self._tiles += 1
    if not bad.any():
      return
    self._bad_tiles += 1
    self.padding_failed = True
    first = self._tiling.num_valid(rank)
    error = np.abs(padding.astype(np.float64))
    self._failure = self._failure or self._locate_padding(
      padding, (rank, first), int(np.argmax(bad)), bad
    )
    if self._is_worst(float(error.max())):
      self._worst_abs, self._worst = float(error.max()), None
      self._worst_padding = self._locate_padding(
        padding, (rank, first), int(np.argmax(error)), bad
      )

  def _locate_padding(
    self, padding: np.ndarray, first: tuple[int, int], position: int, bad
  ) -> verdicts.Failure:
    """Returns an element past the last valid row; `first`: rank and row."""
    row, column = np.unravel_index(position, padding.shape)
    actual = padding[row : row + 1, column]
    return verdicts.Failure(
      *self._id,
      rank=first[0],
      expert=None,
      row_block=None,
      col_block=None,
      token=None,
      source_rank=None,
      slot=None,
      index=(first[0], first[1] + int(row), int(column)),
      actual=_plain(actual[0]),
      expected=0.0,
      ulp=int(ulp.distance(actual, np.zeros_like(actual))[0]),
      bad_rows=int(bad.any(axis=1).sum()),
      bad_cols=int(bad.any(axis=0).sum()),
      rows=bad.shape[0],
      cols=bad.shape[1],
      pattern='not zero past the last valid row',
    )

  def part(self, figures: rank_parts.Figures | None = None) -> rank_parts.Part:
    """Returns the part, with the figures of the rule."""
    worst = self._worst_padding
    if self._worst is not None:
      worst = self._locate_element(*self._worst)
    experts = self._experts_of_bad()
    return rank_parts.Part(
      key=self._id,
      tiles=self._tiles,
      bad_tiles=self._bad_tiles,
      worst_abs=self._worst_abs,
      worst=worst,
      first=self._failure,
      padding_failed=self.padding_failed,
      has_bad_tokens=any(b.any() for b in self._bad_of_rank().values()),
      experts_of_bad=tuple(experts),
      figures=(figures,) if figures else (),
      grids={rank: np.concatenate(g) for rank, g in self._grids.items()},
      experts={rank: np.concatenate(e) for rank, e in self._experts.items()},
      shares={rank: np.concatenate(s) for rank, s in self._shares.items()},
      histogram=self._histogram,
    )

  def _bad_of_rank(self) -> dict[int, np.ndarray]:
    """Returns, by rank, which tokens are bad."""
    return {rank: np.concatenate(b) for rank, b in self._bad_tokens.items()}

  def _experts_of_bad(self) -> list[int]:
    """Returns the experts to which all bad tokens went, and no others."""
    if self._tiling is None or not self._bad_tokens or self._tiling.sample:
      return []
    ids, bad = self._tiling.topk_ids, self._bad_of_rank()
    if all(bad[rank][(ids[rank] >= 0).any(axis=-1)].all() for rank in bad):
      return []  # every token that has an expert is bad
    return [
      expert
      for expert in range(self._tiling.config.num_experts)
      if all(
        ((ids[rank] == expert).any(axis=-1) == bad[rank]).all() for rank in bad
      )
    ]

  def _locate(
    self, chunk: Chunk, refused_elements: np.ndarray, tile: tuple[int, int]
  ) -> verdicts.Failure:
    rows, columns = chunk.cut.window(tile)
    begin = int(chunk.cut.starts[chunk.first])
    local = (slice(rows.start - begin, rows.stop - begin), columns)
    bad = refused_elements[local]
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
        chunk.actual[local][row, column],
        chunk.expected[local][row, column],
        int(chunk.apart[local][row, column]),
      ),
      bad_rows=int(bad.any(axis=1).sum()),
      bad_cols=int(bad.any(axis=0).sum()),
      rows=bad.shape[0],
      cols=bad.shape[1],
      pattern=patterns.describe(
        chunk.actual[local], chunk.expected[local], bad, chunk.expected
      ),
    )

  def _locate_element(
    self, cut, rank, first, row, column, element
  ) -> verdicts.Failure:
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
    stage = verdicts.tensor_of(self._id[0])
    actual, expected, apart = element
    expert = source = token = slot = None
    if self._tiling is not None:
      source, token, slot = self._tiling.source(stage, rank, row)
      expert = self._tiling.expert_of(stage, rank, row)
      expert = None if expert == tiles.NO_EXPERT else expert
      if slot == -1:
        slot = column if stage == 'd_topk_weights' else None
    elif stage != 'row_of_slot':
      expert = column
    return verdicts.Failure(
      *self._id,
      rank=rank,
      expert=expert,
      row_block=int(cut.block[tile[0]]),
      col_block=int(tile[1]),
      token=token,
      source_rank=source,
      slot=slot,
      index=self._index(stage, rank, row, column),
      actual=_plain(actual),
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
