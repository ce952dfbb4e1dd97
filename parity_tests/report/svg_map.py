"""Tile maps as SVG: one drawing per rank, one square per tile."""

from collections.abc import Iterator, Sequence
import dataclasses
import xml.etree.ElementTree as ET

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import markup

_SIDE, _PITCH, _GAP = 12, 14, 6  # of a square; from one to the next; of experts
_LABEL = 34  # left of a square, for the expert
_TITLE = 18  # above the squares, for the rank


@dataclasses.dataclass(frozen=True)
class Strip:
  """The tiles of one expert on one rank, or of a rank's tokens.

  Attributes:
    rank: that holds them.
    expert: global, or `tiles.NO_EXPERT`.
    bad: `[B, C]` bool by row block and column block.
  """

  rank: int
  expert: int
  bad: np.ndarray

  def squares(self, merged: int) -> np.ndarray:
    """Returns `[ceil(B / merged), ceil(C / merged)]` int64, bad tiles."""
    rows, columns = (np.arange(0, n, merged) for n in self.bad.shape)
    counts = self.bad.astype(np.int64)
    return np.add.reduceat(np.add.reduceat(counts, rows), columns, axis=1)

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
        f'one square is up to {self.merged} x {self.merged} tiles and is '
        'marked if any of them fails'
      )
    if self.left_out:
      bad = sum(int(strip.bad.sum()) for strip in self.left_out)
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
  size = dict(width=_SIDE, height=_SIDE)
  cross = markup.tag('path', d='M3 3l6 6M9 3l-6 6')
  return markup.tag(
    'svg',
    markup.tag(
      'defs',
      markup.tag('g', markup.tag('rect', **size), cross, id='bad'),
      markup.tag(
        'g',
        markup.tag('rect', **size),
        markup.tag('path', d='M3 3l6 6M9 3l-6 6'),
        markup.tag(
          'rect',
          class_='ring',
          x=-1.5,
          y=-1.5,
          width=_SIDE + 3,
          height=_SIDE + 3,
        ),
        id='first',
      ),
    ),
    width=0,
    height=0,
    class_='defs',
  )


def draw(one: Map) -> ET.Element:
  """Returns the drawings of all ranks, side by side."""
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
  label = _LABEL if any(s.expert != tiles.NO_EXPERT for s in strips) else 2
  parts = [markup.tag('text', f'rank {rank}', x=2, y=11)]
  if not strips:
    parts.append(markup.tag('text', 'no rows', x=2, y=_TITLE + 11))
  top, width = _TITLE, 0
  for strip in strips:
    counts = strip.squares(one.merged)
    if strip.expert != tiles.NO_EXPERT:
      parts.append(markup.tag('text', f'e{strip.expert}', x=2, y=top + 10))
    parts += _squares(one, strip, counts, label, top)
    top += _PITCH * len(counts) + _GAP
    width = max(width, counts.shape[1])
  width = max(label + width * _PITCH + 2, 52)
  height = max(top, _TITLE + _PITCH)
  return markup.tag(
    'svg',
    *parts,
    viewBox=f'0 0 {width} {height}',
    width=width,
    height=height,
  )


def _squares(
  one: Map, strip: Strip, counts: np.ndarray, left: int, top: int
) -> Iterator[ET.Element]:
  good = np.argwhere(counts == 0)
  if len(good):
    square = f'h{_SIDE}v{_SIDE}h-{_SIDE}z'
    path = ''.join(
      f'M{left + c * _PITCH} {top + b * _PITCH}{square}' for b, c in good
    )
    owner = _owner(strip)
    about = [markup.tag('title', owner)] if owner else []
    yield markup.tag('path', *about, d=path, class_='good')
  for b, c in np.argwhere(counts):
    is_first = _holds(one, strip, b, c)
    yield markup.tag(
      'use',
      markup.tag('title', _words(one, strip, b, c, counts[b, c], is_first)),
      href='#first' if is_first else '#bad',
      x=left + c * _PITCH,
      y=top + b * _PITCH,
    )


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
  where += [f'{bad} failing tiles'] if bad > 1 else []
  where += ['the first failure'] if is_first else []
  return ', '.join(filter(None, where))
