"""Every tile is a square, every failing one counts."""

import re

import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import svg_map

PLENTY = 10**6


def _result(*ranks, stage='gate_up', failure=None):
  """Given per rank a list of (expert, `[B, C]` bad elements)."""
  grids, experts = [], []
  for strips in ranks:
    bad = [np.array(b).reshape(len(b), -1) for _, b in strips]
    grids.append(np.concatenate(bad) if bad else np.zeros((0, 2), int))
    owner = [[e] * len(b) for e, b in strips]
    experts.append(np.array(sum(owner, []), int))
  return verdicts.Result(
    stage,
    'exact',
    'rule',
    grids=tuple(grids),
    experts=tuple(experts),
    verdict=verdicts.FAIL,
    failure=failure,
  )


def _failure(**where):
  return verdicts.Failure(
    **dict.fromkeys(('token', 'source_rank', 'slot')),
    stage='gate_up',
    lane='exact',
    rule='rule',
    index=(0,),
    got=0.0,
    expected=1.0,
    ulp=1,
    bad_rows=1,
    bad_cols=1,
    **where,
  )


def _ranks(drawing):
  return [e for e in drawing.iter('div') if e.get('class') == 'rank']


def _squares(drawing):
  """Returns the places of good squares and of failing ones, by expert."""
  found = []
  for svg in drawing.iter('svg'):
    good = [
      tuple(map(int, place))
      for path in svg.iter('path')
      for place in re.findall(r'M(\d+) (\d+)', path.get('d'))
    ]
    bad = [(int(u.get('x')), int(u.get('y'))) for u in svg.iter('use')]
    found.append((good, bad))
  return found


def _titles(drawing):
  return [use.find('title').text for use in drawing.iter('use')]


def _texts(drawing):
  return [text.text for text in drawing.iter('text')]


TWO_RANKS = _result(
  [(0, [[0, 0], [0, 7]]), (1, [[1, 0]])],
  [(4, [[0, 0], [0, 0], [128, 123_456]])],
)


def test_every_tile_is_drawn_once_and_the_failing_ones_count():
  drawing = svg_map.draw(svg_map.make(TWO_RANKS, PLENTY))

  for grid, rank in zip(TWO_RANKS.grids, _ranks(drawing)):
    assert len(_titles(rank)) == np.count_nonzero(grid)
    assert sum(len(g) + len(b) for g, b in _squares(rank)) == grid.size
    assert all(len({*g, *b}) == len(g) + len(b) for g, b in _squares(rank))
  assert _titles(drawing) == [
    'rank 0, expert 0, row block 1, column block 1, 7 wrong elements',
    'rank 0, expert 1, row block 0, column block 0, 1 wrong element',
    'rank 1, expert 4, row block 2, column block 0, 128 wrong elements',
    'rank 1, expert 4, row block 2, column block 1, 123456 wrong elements',
  ]
  assert _texts(drawing) == ['e0', '7', 'e1', '1', 'e4', '128', '123k']


def test_rows_go_down_and_columns_across():
  drawing = svg_map.draw(svg_map.make(TWO_RANKS, PLENTY))

  good, bad = _squares(drawing)[0]
  first, right, below, corner = good[0], good[1], good[2], bad[0]
  assert right[0] > first[0] and right[1] == first[1]
  assert below[0] == first[0] and corner == (right[0], below[1])


def test_many_row_blocks_go_on_beside_the_first_ones():
  # Given 40 row blocks, of which 17 has 3 bad elements,
  blocks = np.zeros((40, 1), int)
  blocks[17] = 3

  # when they are drawn, then in three pieces that name their first.
  drawing = svg_map.draw(svg_map.make(_result([(0, blocks)]), PLENTY))
  assert _texts(drawing) == ['e0', '16', '3', '32']
  assert _titles(drawing) == [
    'rank 0, expert 0, row block 17, column block 0, 3 wrong elements'
  ]
  assert [len(g) + len(b) for g, b in _squares(drawing)] == [16, 16, 8]


def test_only_the_tile_of_the_first_failure_has_a_ring():
  first = _failure(rank=1, expert=4, row_block=2, col_block=1)
  result = _result(*([(4, [[0, 0], [0, 0], [1, 1]])],) * 2, failure=first)

  here = svg_map.draw(svg_map.make(result, PLENTY, first))
  elsewhere = svg_map.draw(svg_map.make(TWO_RANKS, PLENTY, first))

  rings = [u for u in here.iter('use') if u.get('href') == '#first']
  assert [r.find('title').text for r in rings] == [
    'rank 1, expert 4, row block 2, column block 1, 1 wrong element, the '
    'first failure'
  ]
  assert {u.get('href') for u in elsewhere.iter('use')} == {'#bad'}


def test_a_failure_past_the_last_valid_row_has_no_tile():
  first = _failure(rank=0, expert=None, row_block=None, col_block=None)
  result = _result([(0, [[1]])], failure=first)

  drawing = svg_map.draw(svg_map.make(result, PLENTY, first))

  assert [u.get('href') for u in drawing.iter('use')] == ['#bad']


def test_a_rank_without_rows_says_so_and_the_others_keep_their_number():
  drawing = svg_map.draw(svg_map.make(_result([], [(5, [[1, 0]])]), PLENTY))

  told = [(r[0].text, _texts(r)) for r in _ranks(drawing)]
  assert told == [('rank 0: no rows', []), ('rank 1', ['e5', '1'])]


def test_tiles_of_tokens_have_no_expert():
  result = _result([(tiles.NO_EXPERT, [[0], [1]])], stage='y')

  drawing = svg_map.draw(svg_map.make(result, PLENTY))

  assert _titles(drawing) == [
    'rank 0, token block 1, column block 0, 1 wrong element'
  ]
  assert _texts(drawing) == ['1']


def test_too_many_tiles_share_squares_and_no_failing_one_is_lost():
  # Given 7 x 5 tiles, three of which fail,
  bad = np.zeros((7, 5), int)
  bad[3, 4] = bad[6, 0] = 1
  bad[2, 4] = 30

  # when there may be but 12 squares, then 2 x 2 tiles share one.
  one = svg_map.make(_result([(0, bad)]), 12)
  assert one.merged == 2 and not one.left_out
  assert 'up to 2 x 2 tiles' in one.words()
  assert _titles(svg_map.draw(one)) == [
    'rank 0, expert 0, row blocks 2 to 3, column block 4, 31 wrong elements',
    'rank 0, expert 0, row block 6, column blocks 0 to 1, 1 wrong element',
  ]


@pytest.mark.parametrize('most', [1, 2, 3])
def test_experts_are_left_out_last_and_those_that_fail_after_others(most):
  ranks = [[(e, [[e in (2, 5)] * 3] * 3)] for e in range(6)]

  one = svg_map.make(_result(*ranks), most)

  drawn = [s.expert for s in one.strips]
  assert drawn == {1: [2], 2: [2, 5], 3: [0, 2, 5]}[most]
  lost = 9 if most == 1 else 0
  assert f'{6 - most} of 6 experts, {lost} failing tiles' in one.words()
  assert len(_ranks(svg_map.draw(one))) == most
