"""Tile maps as tables: a row for each block of rows, a cell for each tile."""

from collections.abc import Iterator
import dataclasses
import itertools
import math
import xml.etree.ElementTree as ET

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import markup

_COLUMNS = 48  # cells across; more column blocks share one
_MOST_ROWS = 64  # of right tiles that are drawn one by one
_DENSE = 8  # cells across that a phone has room for with their numbers
# Levels of a tile's largest error over its limit, by what each ends with: those
# up to 1 pass.  data/report.css has a colour for each, from light to dark.
LEVELS = (
  ('s0', 0.0, '0'),
  ('s1', 2.0**-6, '1/64'),
  ('s2', 2.0**-3, '1/8'),
  ('s3', 2.0**-1, '1/2'),
  ('s4', 1.0, '1'),
  ('s5', 4.0, '4'),
  ('s6', 64.0, '64'),
  ('s7', math.inf, ''),
)


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of tiles that holds a wrong one, or neighbours that hold none.

  Attributes:
    rank: that holds them.
    expert: global, or `tiles.NO_EXPERT`.
    begin, end: row blocks of that expert, or of a rank's tokens.
    bad: `[C]` int64 by column block, wrong elements.
    shares: `[C]` float32, largest error over its limit; None: there is none.
  """

  rank: int
  expert: int
  begin: int
  end: int
  bad: np.ndarray
  shares: np.ndarray | None = None


def find_level(share: float) -> str:
  """Returns the class of a tile: the name of the level that its error has."""
  return next((name for name, end, _ in LEVELS if share <= end), LEVELS[-1][0])


def has_shares(result: verdicts.Result) -> bool:
  """Says whether each tile of a comparison has an error over its limit."""
  shapes = [grid.shape for grid in result.grids]
  return bool(shapes) and shapes == [share.shape for share in result.shares]


def iterate_rows(
  result: verdicts.Result, is_merged: bool = True
) -> Iterator[Row]:
  """Yields all tiles of a comparison, in order; right rows as one if merged."""
  all_shares = result.shares if has_shares(result) else ()
  for rank, (bad, experts) in enumerate(zip(result.grids, result.experts)):
    right = ~bad.any(axis=1) & is_merged
    # Right rows of one expert follow each other; a wrong one is alone.
    alone = np.where(right, -1, np.arange(len(bad)))
    keys = zip(experts.tolist(), alone.tolist())
    first = {e: i for i, e in reversed([*enumerate(experts.tolist())])}
    begin = 0
    for (expert, _), run in itertools.groupby(keys):
      end = begin + len([*run])
      blocks = begin - first[expert], end - first[expert]
      shares = all_shares[rank][begin:end].max(axis=0) if all_shares else None
      yield Row(rank, expert, *blocks, bad[begin], shares)
      begin = end


def draw_map(
  result: verdicts.Result, max_tiles: int, first: verdicts.Failure | None = None
) -> Iterator[ET.Element]:
  """Yields the map of a comparison that fails, and what it says of tiles.

  Args:
    result: the comparison.
    max_tiles: tiles that are drawn; where there are more, rows are left out,
      those that hold no wrong tile first, and how many is said.
    first: the first failure of the whole check, which gets a ring.
  """
  across = max(1, min(_COLUMNS, result.grids[0].shape[1]))
  max_rows = max(1, max_tiles // across)
  num_rows = sum(len(grid) for grid in result.grids)
  # All are drawn where each has something to show, and there is room.
  is_merged = not has_shares(result) or num_rows > min(max_rows, _MOST_ROWS)
  everything = drawn_rows = [*iterate_rows(result, is_merged)]
  if len(drawn_rows) > max_rows:
    drawn_rows = [row for row in drawn_rows if row.bad.any()][:max_rows]
  first = first if result.failure is first else None
  block = verdicts.block_name(result.stage)
  lines = [_line(row, block, first) for row in drawn_rows]
  yield markup.make_tag(
    'div',
    markup.make_tag(
      'table', *lines, class_='map dense' if across > _DENSE else 'map'
    ),
    class_='maps',
  )
  notes = [f'{block}s down, column blocks across']
  if (width := _count_merged(result.grids[0].shape[1])) > 1:
    notes.append(f'one cell counts for up to {width} tiles')
  if len(drawn_rows) < len(everything):
    num_lost = sum(np.count_nonzero(row.bad) for row in everything)
    num_lost -= sum(np.count_nonzero(row.bad) for row in drawn_rows)
    notes.append(
      'not drawn, to keep the file small: '
      f'{len(everything) - len(drawn_rows)} rows of tiles, {num_lost} failing '
      'tiles '
      'among them'
    )
  yield markup.make_tag('p', '; '.join(notes), class_='small')


def _count_merged(columns: int) -> int:
  return -(-columns // _COLUMNS)


def _line(row: Row, block: str, first: verdicts.Failure | None) -> ET.Element:
  owner = '' if row.expert == tiles.NO_EXPERT else f' e{row.expert}'
  blocks = _span(row.begin, row.end)
  name = markup.make_tag('th', f'rank {row.rank}{owner}: {blocks}')
  width = _count_merged(len(row.bad))
  counts = np.add.reduceat(row.bad, np.arange(0, len(row.bad), width))
  if not row.bad.any() and row.shares is None:
    return markup.make_tag(
      'tr', name, markup.make_tag('td', '', class_='good', colspan=len(counts))
    )
  cells = []
  for i, bad in enumerate(counts.tolist()):
    columns = i * width, min((i + 1) * width, len(row.bad))
    ring = _holds(row, columns, first)
    about, level = _words(row, block, columns, bad), ''
    if row.shares is not None:
      share = float(row.shares[slice(*columns)].max())
      about += f', error at most {share:.3g} of its limit'
      level = find_level(share)
    about += ', the first failure' * ring
    kind = ('bad first' if ring else 'bad') if bad else 'good'
    cells.append(
      markup.make_tag(
        'td',
        _shorten_count(bad, len(counts)) if bad else '',
        class_=f'{kind} {level}'.rstrip(),
        title=about if bad or level else None,
      )
    )
  return markup.make_tag('tr', name, *cells)


def _shorten_count(bad: int, across: int) -> str:
  """Returns a count as a cell has room for: three characters of many cells."""
  if across > _DENSE and bad >= 1000:
    return f'{bad // 10 ** (len(str(bad)) - 1)}e{len(str(bad)) - 1}'
  return str(bad) if bad < 100_000 else f'{bad // 1000}k'


def _holds(
  row: Row, columns: tuple[int, int], first: verdicts.Failure | None
) -> bool:
  if first is None or first.row_block is None or first.col_block is None:
    return False
  owner = tiles.NO_EXPERT if first.expert is None else first.expert
  # A row that a token sends to an expert is in the token's tile.
  return (
    first.rank == row.rank
    and row.expert in (owner, tiles.NO_EXPERT)
    and row.begin <= first.row_block < row.end
    and columns[0] <= first.col_block < columns[1]
  )


def _words(row: Row, block: str, columns: tuple[int, int], bad: int) -> str:
  location = [f'rank {row.rank}']
  if row.expert != tiles.NO_EXPERT:
    location.append(f'expert {row.expert}')
  blocks = _span(row.begin, row.end)
  location += [f'{block} {blocks}', f'column block {_span(*columns)}']
  if bad:
    location.append(f'{bad} wrong element{"s" * (bad > 1)}')
  return ', '.join(location)


def _name_level(end: float, word: str) -> str:
  return f'≤ {word}' if word and end else word or 'more'


def draw_legend() -> ET.Element:
  """Returns what each colour of a tile means."""
  ends = [
    markup.make_tag('span', _name_level(end, word), class_=name)
    for name, end, word in LEVELS
  ]
  return markup.make_tag('p', 'Error over its limit: ', *ends, class_='scale')


def _span(begin: int, end: int) -> str:
  return str(begin) if end - begin == 1 else f'{begin} to {end - 1}'
