"""Tiles: how the tasks cut a stage tensor, on one rank."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
from itertools import pairwise

import numpy as np

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import tensors

NO_EXPERT = -1


@dataclasses.dataclass(frozen=True)
class Cut:
  """The tiles of one rank's tensor, seen as `[rows, columns]`.

  Tile rows are consecutive ranges of rows, so a tensor is reduced to tiles by
  two `reduceat`, never by a loop over elements.

  Attributes:
    starts: `[B + 1]` first row of every tile row, and the end of the last.
    expert: `[B]` global expert of a tile row, or NO_EXPERT.
    block: `[B]` row block within its expert (or token block).
    col_starts: `[C + 1]` first column of every tile column, and the end.
  """

  starts: np.ndarray
  expert: np.ndarray
  block: np.ndarray
  col_starts: np.ndarray

  @property
  def shape(self) -> tuple[int, int]:
    """Tile rows and tile columns."""
    return len(self.block), len(self.col_starts) - 1

  @property
  def num_rows(self) -> int:
    return int(self.starts[-1])

  def count(self, mask: np.ndarray, first: int = 0) -> np.ndarray:
    """Returns `[b, C]` int64, marked elements of each tile; as `sum`."""
    if not mask.any():  # most often
      rows = self.row_of(first, len(mask)) - first
      return np.zeros((rows, self.shape[1]), np.int64)
    return self.sum(mask, first, np.int64)

  def sum(
    self, values: np.ndarray, first: int = 0, dtype: type = np.float64
  ) -> np.ndarray:
    """Returns `[b, C]`, sums over each tile.

    Args:
      values: `[rows, columns]`, whole tile rows from tile row `first` on.
      first: tile row that they start with.
      dtype: of the sums.
    """
    if not values.size:
      return np.zeros((0, self.shape[1]), dtype)
    by_column = np.add.reduceat(
      values, self.col_starts[:-1], axis=1, dtype=dtype
    )
    return np.add.reduceat(by_column, self._first_rows(values, first), axis=0)

  def largest(self, values: np.ndarray, first: int = 0) -> np.ndarray:
    """Returns `[b, C]`, the largest value of each tile; as `sum`."""
    if not values.size:
      return np.zeros((0, self.shape[1]), values.dtype)
    by_column = np.maximum.reduceat(values, self.col_starts[:-1], axis=1)
    first_rows = self._first_rows(values, first)
    return np.maximum.reduceat(by_column, first_rows, axis=0)

  def fill(self, tiles: np.ndarray, first: int = 0) -> np.ndarray:
    """Returns `[rows, columns]`: all have what their tile `[b, C]` has."""
    heights = np.diff(self.starts)[first : first + len(tiles)]
    widths = np.diff(self.col_starts)
    return np.repeat(np.repeat(tiles, heights, axis=0), widths, axis=1)

  def row_of(self, first: int, rows: int) -> int:
    """Returns the tile row that begins `rows` rows after that of `first`."""
    return int(np.searchsorted(self.starts, self.starts[first] + rows))

  def _first_rows(self, values: np.ndarray, first: int) -> np.ndarray:
    """Returns where tile rows begin in values that start with one."""
    last = self.row_of(first, len(values))
    return self.starts[first:last] - self.starts[first]

  def lines(self, values: np.ndarray, first: int = 0) -> 'Lines':
    """Returns sums of rows and columns of each tile, as `sum` does."""
    rows = self._first_rows(values, first)
    return Lines(
      np.add.reduceat(values, self.col_starts[:-1], axis=1),
      np.add.reduceat(values, rows, axis=0),
    )

  def most_alike(
    self, lines: 'Lines', first: int = 0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns `[b, C]` twice: the most equal rows, and columns, of each tile.

    Rows with the same golden values have the same errors, and so do columns.
    Sums identify them; rows and columns of zeros have no error.
    """
    by_row, by_column = lines.by_row, lines.by_column
    rows = self._first_rows(by_row, first)
    counts = np.ones((2, len(rows), self.shape[1]), np.int64)
    # Most often nothing in all the rows or columns is alike.
    if not (any_equal(by_row.T) or any_equal(by_column)):
      return counts[0], counts[1]
    for b, (begin, end) in enumerate(zip(rows, [*rows[1:], len(by_row)])):
      for c, (left, right) in enumerate(pairwise(self.col_starts)):
        counts[0, b, c] = most_equal(by_row[begin:end, c])
        counts[1, b, c] = most_equal(by_column[b, left:right])
    return counts[0], counts[1]

  def chunks(self, elements: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of whole tile rows with about `elements` elements each."""
    width = max(1, int(self.col_starts[-1]))
    first, tile_rows = 0, len(self.block)
    while first < tile_rows:
      limit = self.starts[first] + max(1, elements // width)
      last = int(np.searchsorted(self.starts, limit, side='right')) - 1
      last = min(max(last, first + 1), tile_rows)
      yield first, last
      first = last

  def window(self, tile: tuple[int, int]) -> tuple[slice, slice]:
    """Returns the rows and columns of one tile."""
    b, c = tile
    return (
      slice(int(self.starts[b]), int(self.starts[b + 1])),
      slice(int(self.col_starts[c]), int(self.col_starts[c + 1])),
    )


@dataclasses.dataclass(frozen=True)
class Lines:
  """Sums of the rows and columns of each tile of whole tile rows.

  Attributes:
    by_row: `[rows, C]`.
    by_column: `[b, columns]`.
  """

  by_row: np.ndarray
  by_column: np.ndarray


def any_equal(keys: np.ndarray) -> bool:
  """Says whether `most_equal` of any row of keys `[m, n]` is more than 1."""
  keys = np.sort(keys.astype(np.float32), axis=1)
  return bool(((keys[:, 1:] == keys[:, :-1]) & (keys[:, 1:] != 0)).any())


def most_equal(keys: np.ndarray) -> int:
  """Returns how often the commonest key `[n]` occurs; zeros do not count."""
  keys = np.sort(keys[keys != 0].astype(np.float32))
  if len(keys) < 2:
    return 1
  edges = np.flatnonzero(np.diff(keys, prepend=np.nan, append=np.nan) != 0)
  return int(np.diff(edges).max())


def _edges(extent: int, size: int) -> np.ndarray:
  return np.append(np.arange(0, extent, size, dtype=np.int64), extent)


def expert_rows(
  config: config_lib.MoEConfig, counts: np.ndarray, rank: int
) -> np.ndarray:
  """Returns `[L + 1]` first packed row of each expert of `rank`, and the end.

  `counts` is `[R, E]` int32, rows that each rank sends to each expert.
  """
  local = config.experts_per_rank
  rows = counts.sum(axis=0)[rank * local : (rank + 1) * local]
  return np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])


def _cut_experts(
  begin: np.ndarray, first_expert: int, row_block: int, col_starts: np.ndarray
) -> Cut:
  """Cuts experts, each from its `begin` on, by (expert, row block, columns).

  Rows past the last `begin` belong to no tile.
  """
  rows = np.diff(begin)
  blocks = -(-rows // row_block)
  local = np.repeat(np.arange(len(rows)), blocks)
  block = np.arange(len(local)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
  starts = np.append(begin[local] + block * row_block, begin[-1])
  return Cut(starts, local + first_expert, block, col_starts)


def cut_tokens(rows: int, row_block: int, columns: int, col_block: int) -> Cut:
  """Cuts a tensor of a rank's own tokens by (token block, column block)."""
  starts = _edges(rows, row_block)
  block = np.arange(len(starts) - 1)
  experts = np.full(len(block), NO_EXPERT)
  return Cut(starts, experts, block, _edges(columns, col_block))


# Tensors whose tasks cut columns; every other task writes whole rows.
_CUT_COLUMNS = (
  'gate_up',
  'expert_out',
  'd_activation',
  'd_expert_in',
  'd_w_down',
  'd_w_gate_up',
  'd_b_gate_up',
  'd_b_down',
  'd_w_norm',
  'd_router_w',
  *(name for name, spec in tensors.SPECS.items() if spec.part == 'shared'),
)


# Axes of rows that are no rank's tokens and of no expert.
_OF_WEIGHTS = ('D', 'S', '')
_RELAYED = tuple(spec.name for spec in tensors.RELAYED)


def is_of_tokens(stage: str) -> bool:
  """Says whether a rank's rows are of its tokens, not of its experts."""
  return tensors.SPECS[stage].shape.split()[1:2] == ['T']


def _row_axes(stage: str) -> str:
  """Returns the axes whose product are a rank's rows.

  N, T, TK, L, LD, LF, D or S of a gradient of shared weights, or none of a
  vector, which is one row.  All ranks' gradient of a router's weights has D.
  """
  return ''.join(tensors.SPECS[stage].shape.split()[:-1]).removeprefix('R')


def is_packed(stage: str) -> bool:
  """Returns whether a tensor has a row for each used slot, by experts."""
  return _row_axes(stage) == 'N'


@dataclasses.dataclass(frozen=True)
class Sample:
  """Which tile rows of a tensor are judged, where not all are.

  Attributes:
    tiles: tile rows of each tensor on each rank; those at edges are added.
    seed: of the choice.
  """

  tiles: int
  seed: int = 0

  def choose(self, cut: Cut, *tensor_numbers: int) -> np.ndarray:
    """Returns tile rows, ascending: the last of each expert is at an edge.

    `tensor_numbers` are numbers that name the tensor.
    """
    all_rows = np.arange(len(cut.block))
    if len(all_rows) <= self.tiles:
      return all_rows
    last = np.flatnonzero(np.diff(cut.expert, append=NO_EXPERT - 1))
    rng = np.random.default_rng((self.seed, *tensor_numbers))
    chosen_rows = rng.choice(all_rows, self.tiles, replace=False)
    return np.unique(np.concatenate([chosen_rows, last, all_rows[:1]]))


@dataclasses.dataclass(frozen=True)
class Tiling:
  """Where the rows of every stage tensor belong, for one routing.

  Attributes:
    config: sizes.
    counts: `[R, E]` int32, the oracle's.
    row_of_slot: `[R, T, K]` int32, the oracle's.
    topk_ids: `[R, T, K]` int32.
    row_block: rows of one expert in a tile.
    col_block: columns of a GEMM tile.
    token_block: tokens of a combine tile.
    sample: the tiles to be judged by golden values; None: all.
    ranks: those whose tensors are here, ascending; None: all.
    share: those that this process judges, ascending; None: all.
  """

  config: config_lib.MoEConfig
  counts: np.ndarray
  row_of_slot: np.ndarray
  topk_ids: np.ndarray
  row_block: int = 64
  col_block: int = 128
  token_block: int = 64
  sample: Sample | None = None
  ranks: tuple[int, ...] | None = None
  share: tuple[int, ...] | None = None

  @property
  def judged_ranks(self) -> Sequence[int]:
    """The ranks that are judged: their tensors are here."""
    all_ranks = range(self.config.num_ranks)
    present = all_ranks if self.ranks is None else self.ranks
    return (
      present if self.share is None else [*filter(self.share.count, present)]
    )

  def iterate_judged(
    self, stage: str, rank: int, elements: int
  ) -> Iterator[tuple[Cut, int, int]]:
    """Yields (cut, first, last): ranges of tile rows to be judged."""
    cut = self.cut(stage, rank)
    if self.sample is None:
      yield from ((cut, *chunk) for chunk in cut.chunks(elements))
      return
    name = list(tensors.SPECS).index(stage)
    for row in self.sample.choose(cut, name, rank):
      yield cut, int(row), int(row) + 1

  def columns(self, stage: str) -> int:
    last = tensors.SPECS[stage].shape.split()[-1]
    return self.config.dims()[last[-1]] * (1 + last.startswith('2'))

  def cut(self, stage: str, rank: int) -> Cut:
    """Returns the tiles of a tensor of `STAGES` or `GRADS` on one rank.

    Rows are those that `rows` returns.  A weight gradient is cut by
    `col_block` along both axes.
    """
    config, width = self.config, self.columns(stage)
    self = self.for_stage(stage)
    col_block = self.col_block if stage in _CUT_COLUMNS else width
    axes = _row_axes(stage)
    first, columns = rank * config.experts_per_rank, _edges(width, col_block)
    if axes == 'N':
      begin = expert_rows(config, self.counts, rank)
      return _cut_experts(begin, first, self.row_block, columns)
    if axes[:1] == 'L':
      begin = self._height(stage) * np.arange(config.experts_per_rank + 1)
      return _cut_experts(begin, first, col_block, columns)
    if axes in _OF_WEIGHTS:
      rows = config.dims().get(axes, 1)
      return cut_tokens(rows, col_block, width, col_block)
    slots = config.top_k if axes == 'TK' else 1
    rows = config.num_tokens * slots
    return cut_tokens(rows, self.token_block * slots, width, col_block)

  def rows(self, stage: str, tensor: np.ndarray, rank: int) -> np.ndarray:
    """Returns `[rows, columns]`, the rows of one rank that hold something.

    Those of a weight gradient `[R, L, X, Y]` are `[L * X, Y]`.
    """
    self = self.for_stage(stage)
    flat = tensor[rank].reshape(-1, tensor.shape[-1])
    return flat[: self.num_valid(rank)] if _row_axes(stage) == 'N' else flat

  def padding(self, stage: str, tensor: np.ndarray, rank: int) -> np.ndarray:
    """Returns `[rows, columns]`, the rows past the last valid one.

    Only packed rows `[R, N, ...]` have any.
    """
    if _row_axes(stage) != 'N':
      return tensor[rank][:0].reshape(0, tensor.shape[-1])
    return tensor[rank, self.for_stage(stage).num_valid(rank) :]

  def index(self, stage: str, rank: int, row: int) -> tuple[int, ...]:
    """Returns where a row of `rows` lies in the tensor: rank first."""
    axes = _row_axes(stage)
    if not axes:
      return (rank,)
    if axes == 'TK':
      return rank, *divmod(row, self.config.top_k)
    if axes[:-1] == 'L':
      return rank, *divmod(row, self._height(stage))
    return rank, row

  def _height(self, stage: str) -> int:
    """Returns the rows of one expert: X of a weight, 1 of a bias."""
    of_expert = _row_axes(stage)[1:]
    return self.config.dims()[of_expert] if of_expert else 1

  def repeat_experts(self, rank: int, of_experts: np.ndarray) -> np.ndarray:
    """Returns `[valid rows]` of `[L]`: what the expert of each row has."""
    edges = expert_rows(self.config, self.counts, rank)
    return np.repeat(of_experts, np.diff(edges))

  def num_valid(self, rank: int) -> int:
    return int(expert_rows(self.config, self.counts, rank)[-1])

  def for_stage(self, stage: str) -> 'Tiling':
    """Returns where the rows of a tensor belong: relayed ones are fewer."""
    return self._relayed if stage in _RELAYED else self

  @functools.cached_property
  def _relayed(self) -> 'Tiling':
    ids = self.topk_ids
    owner = ids // self.config.experts_per_rank
    same_owner = owner[..., :, None] == owner[..., None, :]
    lowest = ~(same_owner & (ids[..., None, :] < ids[..., :, None])).any(
      axis=-1
    )
    lowest &= ids != tensors.UNUSED
    source = np.broadcast_to(np.arange(len(ids))[:, None, None], ids.shape)
    counts = np.zeros_like(self.counts)
    np.add.at(counts, (source[lowest], ids[lowest]), 1)
    # Experts ascending, then as slots are numbered; counted on each rank.
    order = np.argsort(ids[lowest], kind='stable')
    of_rank = owner[lowest][order]
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order)) - np.searchsorted(of_rank, of_rank)
    rows = np.full(ids.shape, -1)
    rows[lowest] = row
    return dataclasses.replace(self, counts=counts, row_of_slot=rows)

  @functools.cached_property
  def shared(self) -> 'Tiling':
    """That of the layer that the shared experts are, see `config.shared`."""
    config = self.config.shared()
    ranks, tokens = config.num_ranks, config.num_tokens
    shape = (ranks, tokens, 1)
    return dataclasses.replace(
      self,
      config=config,
      counts=np.int32(tokens) * np.eye(ranks, dtype=np.int32),
      row_of_slot=np.broadcast_to(np.arange(tokens)[:, None], shape),
      topk_ids=np.broadcast_to(np.arange(ranks)[:, None, None], shape),
    )

  @functools.cached_property
  def slot_of_row(self) -> tuple[np.ndarray, ...]:
    """Per rank `[valid rows]` int64, (source rank * T + token) * K + slot."""
    owner = (self.topk_ids // self.config.experts_per_rank).reshape(-1)
    row = self.row_of_slot.reshape(-1)
    slots_by_rank = []
    for rank in range(self.config.num_ranks):
      slots = np.flatnonzero((owner == rank) & (row >= 0))
      of_row = np.empty(len(slots), np.int64)
      of_row[row[slots]] = slots
      slots_by_rank.append(of_row)
    return tuple(slots_by_rank)

  def source(
    self, stage: str, rank: int, row: int
  ) -> tuple[int | None, int | None, int | None]:
    """Returns (source rank, token, slot) of a row.

    The slot is -1 if a row is a token's.  A row of a weight gradient comes from
    no token: all three are None.
    """
    k, t = self.config.top_k, self.config.num_tokens
    axes = _row_axes(stage)
    if axes[:1] in ('L', *_OF_WEIGHTS):
      return None, None, None
    if axes == 'T':
      return rank, row, -1
    if axes == 'TK':
      return rank, row // k, row % k
    slot = int(self.for_stage(stage).slot_of_row[rank][row])
    return slot // (t * k), slot // k % t, slot % k

  def expert_of(self, stage: str, rank: int, row: int) -> int:
    """Returns the global expert of a row, or NO_EXPERT."""
    axes = _row_axes(stage)
    if axes in ('T', *_OF_WEIGHTS):
      return NO_EXPERT
    if axes[:1] == 'L':
      local = row // self._height(stage)
      return rank * self.config.experts_per_rank + local
    return int(self.topk_ids[self.source(stage, rank, row)])


def ascii_map(
  bad_tiles: Sequence[np.ndarray],
  experts: Sequence[np.ndarray],
  width: int = 100,
) -> str:
  """Draws tiles, one line per rank and tile column: '.' good, '#' bad.

  Args:
    bad_tiles: per rank, `[B, C]`, not 0 where a tile is bad.
    experts: per rank, `[B]` expert of a tile row, or NO_EXPERT.
    width: most characters of a line; experts without a bad tile are left out
      of one that would be longer, and neighbours share a character.
  """
  lines = []
  for rank, (tiles, expert) in enumerate(zip(bad_tiles, experts)):
    for c, column in enumerate(tiles.T):
      text = _map_line(column, expert, width)
      lines.append(f'rank {rank} column block {c:<3d} {text}')
  return '\n'.join(lines)


def _map_line(column: np.ndarray, expert: np.ndarray, width: int) -> str:
  groups = {int(e): column[expert == e] for e in dict.fromkeys(expert)}
  text = '  '.join(_marks(e, g, width) for e, g in groups.items())
  if len(text) <= width:
    return text
  bad = [_marks(e, g, 16) for e, g in groups.items() if g.any()]
  return '  '.join([*bad, 'others: .'] if len(bad) < len(groups) else bad)


def _marks(expert: int, column: np.ndarray, width: int) -> str:
  groups = np.array_split(column, min(width, len(column)) or 1)
  text = ''.join('#' if g.any() else '.' for g in groups)
  return text if expert == NO_EXPERT else f'expert {expert}: {text}'
