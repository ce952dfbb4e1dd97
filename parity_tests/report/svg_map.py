"""Tile maps as SVG: some drawings per expert, one square per tile."""

from collections.abc import Iterator, Sequence
import dataclasses
import xml.etree.ElementTree as ET

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import markup

# Of a square, in which a number fits, and from one to the next.
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 40, 14, 42, 16
_LABEL = 34  # left of a square, for the expert
_EDGE, _BASE = 3, 11  # for a ring; from a square's top to its number's base
_TALL = 16  # rows of squares, before the next go beside them


@dataclasses.dataclass(frozen=True)
class Strip:
  """The tiles of one expert on one rank, or of a rank's tokens.

  Attributes:
    rank: that holds them.
    expert: global, or `tiles.NO_EXPERT`.
    bad: `[B, C]` int64 by row block and column block, bad elements.
  """

  rank: int
  expert: int
  bad: np.ndarray

  def squares(self, merged: int) -> np.ndarray:
    """Returns `[ceil(B / merged), ceil(C / merged)]` int64, bad elements."""
    rows, columns = (np.arange(0, n, merged) for n in self.bad.shape)
    return np.add.reduceat(np.add.reduceat(self.bad, rows), columns, axis=1)

  def num_squares(self, merged: int) -> int:
    rows, columns = self.bad.shape
    return -(-rows // merged) * -(-columns // merged)


@dataclasses.dataclass(frozen=True)
class Map:
  """What is drawn of one comparison.

  Attributes:
    strips: that are drawn.
    merged: tiles along the side of a square.
    left_out: strips that are not drawn.
    num_ranks: R.
    block: what a tile row is called.
    first: the first failure of the whole check, if it is in here.
  """

  strips: tuple[Strip, ...]
  merged: int
  left_out: tuple[Strip, ...]
  num_ranks: int
  block: str
  first: verdicts.Failure | None = None

  def words(self) -> str:
    """Returns what a square is, and what is not drawn."""
    told = [f'{self.block}s down, column blocks across']
    if self.merged > 1:
      told.append(
        f'one square is up to {self.merged} x {self.merged} tiles and counts '
        'for all of them'
      )
    if self.left_out:
      bad = sum(np.count_nonzero(strip.bad) for strip in self.left_out)
      told.append(
        f'not drawn, to keep the file small: {len(self.left_out)} of '
        f'{len(self.strips) + len(self.left_out)} experts, {bad} failing '
        f'tiles among them'
      )
    return '; '.join(told)


def make(
  result: verdicts.Result, most: int, first: verdicts.Failure | None = None
) -> Map:
  """Returns what to draw.

  Tiles share a square if there are too many; if that is not enough, strips are
  left out, those without a failing tile first.

  Args:
    result: a comparison that was made.
    most: squares.
    first: the first failure of the whole check.
  """
  strips = list(_strips(result))
  merged, longest = 1, max((max(s.bad.shape) for s in strips), default=1)
  while _total(strips, merged) > most and merged < longest:
    merged *= 2
  kept = strips
  if _total(strips, merged) > most:
    by_need = sorted(
      range(len(strips)), key=lambda i: (not strips[i].bad.any(), i)
    )
    kept = [strips[i] for i in sorted(by_need[:most])]
  inside = {id(strip) for strip in kept}
  return Map(
    tuple(kept),
    merged,
    tuple(s for s in strips if id(s) not in inside),
    len(result.grids),
    verdicts.block_name(result.stage),
    first if result.failure is first else None,
  )


def _strips(result: verdicts.Result) -> Iterator[Strip]:
  for rank, (bad, experts) in enumerate(zip(result.grids, result.experts)):
    # An expert's tile rows are consecutive.
    starts = np.flatnonzero(np.diff(experts, prepend=experts[:1] - 1))
    for begin, end in zip(starts, [*starts[1:], len(experts)]):
      yield Strip(rank, int(experts[begin]), bad[begin:end])


def _total(strips: Sequence[Strip], merged: int) -> int:
  return sum(strip.num_squares(merged) for strip in strips)


def definitions() -> ET.Element:
  """Returns the marks, which a page has once."""
  block = dict(width=_WIDTH, height=_HEIGHT)
  ring = dict(x=-1.5, y=-1.5, width=_WIDTH + 3, height=_HEIGHT + 3)
  return markup.tag(
    'svg',
    markup.tag(
      'defs',
      markup.tag('rect', **block, id='bad'),
      markup.tag(
        'g',
        markup.tag('rect', **block),
        markup.tag('rect', **ring, class_='ring'),
        id='first',
      ),
    ),
    width=0,
    height=0,
    class_='defs',
  )


def draw(one: Map) -> ET.Element:
  """Returns the drawings of all ranks, which fill a page's width."""
  by_rank: dict[int, list[Strip]] = {r: [] for r in range(one.num_ranks)}
  for strip in one.strips:
    by_rank[strip.rank].append(strip)
  hidden = {strip.rank for strip in one.left_out}
  return markup.tag(
    'div',
    *(
      _rank(one, rank, strips)
      for rank, strips in by_rank.items()
      if strips or rank not in hidden
    ),
    class_='maps',
  )


def _rank(one: Map, rank: int, strips: Sequence[Strip]) -> ET.Element:
  drawn = [piece for strip in strips for piece in _pieces(one, strip)]
  name = markup.tag('small', f'rank {rank}' + (': no rows' * (not drawn)))
  return markup.tag('div', name, *drawn, class_='rank')


def _pieces(one: Map, strip: Strip) -> Iterator[ET.Element]:
  """Yields a drawing for each few rows of squares, one right of the other."""
  counts = strip.squares(one.merged)
  named = [_name(strip, b * one.merged) for b in range(0, len(counts), _TALL)]
  left = _LABEL if any(named) else _EDGE
  for name, begin in zip(named, range(0, len(counts), _TALL)):
    rows = counts[begin : begin + _TALL]
    width = left + rows.shape[1] * _ACROSS + _EDGE
    height = len(rows) * _DOWN + 2 * _EDGE
    yield markup.tag(
      'svg',
      *([markup.tag('text', name, x=2, y=_EDGE + _BASE)] if name else []),
      *_squares(one, strip, rows, begin, left),
      viewBox=f'0 0 {width} {height}',
      width=width,
    )


def _name(strip: Strip, block: int) -> str:
  if block:
    return str(block)
  return '' if strip.expert == tiles.NO_EXPERT else f'e{strip.expert}'


def _squares(
  one: Map, strip: Strip, counts: np.ndarray, begin: int, left: int
) -> Iterator[ET.Element]:
  good = np.argwhere(counts == 0)
  if len(good):
    square = f'h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z'
    path = ''.join(
      f'M{left + c * _ACROSS} {_EDGE + b * _DOWN}{square}' for b, c in good
    )
    owner = _owner(strip)
    about = [markup.tag('title', owner)] if owner else []
    yield markup.tag('path', *about, d=path, class_='good')
  for b, c in np.argwhere(counts):
    bad, row = int(counts[b, c]), begin + b
    is_first = _holds(one, strip, row, c)
    x, y = left + c * _ACROSS, _EDGE + b * _DOWN
    yield markup.tag(
      'use',
      markup.tag('title', _words(one, strip, row, c, bad, is_first)),
      href='#first' if is_first else '#bad',
      x=x,
      y=y,
    )
    number = str(bad) if bad < 100_000 else f'{bad // 1000}k'
    yield markup.tag('text', number, x=x + _WIDTH // 2, y=y + _BASE)


def _owner(strip: Strip) -> str:
  return '' if strip.expert == tiles.NO_EXPERT else f'expert {strip.expert}'


def _holds(one: Map, strip: Strip, b: int, c: int) -> bool:
  first = one.first
  if first is None or first.row_block is None or first.col_block is None:
    return False
  owner = tiles.NO_EXPERT if first.expert is None else first.expert
  # A row that a token sends to an expert is in the token's tile.
  return (
    first.rank == strip.rank
    and strip.expert in (owner, tiles.NO_EXPERT)
    and (first.row_block // one.merged, first.col_block // one.merged) == (b, c)
  )


def _words(
  one: Map, strip: Strip, b: int, c: int, bad: int, is_first: bool
) -> str:
  where = [f'rank {strip.rank}', _owner(strip)]
  rows, columns = strip.bad.shape
  for name, at, end in ((one.block, b, rows), ('column block', c, columns)):
    begin, last = at * one.merged, min((at + 1) * one.merged, end) - 1
    where.append(
      f'{name} {begin}' if begin == last else f'{name}s {begin} to {last}'
    )
  where += [f'{bad} wrong elements' if bad > 1 else '1 wrong element']
  where += ['the first failure'] if is_first else []
  return ', '.join(filter(None, where))
