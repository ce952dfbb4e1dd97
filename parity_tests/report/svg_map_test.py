"""Every tile is a square, every failing one a crossed square."""

import re

import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import svg_map

PLENTY = 10**6


def _result(*ranks, stage='gate_up', failure=None):
  """Given per rank a list of (expert, `[B, C]` of 0 and 1)."""
  grids, experts = [], []
  for strips in ranks:
    bad = [np.array(b, bool).reshape(len(b), -1) for _, b in strips]
    grids.append(np.concatenate(bad) if bad else np.zeros((0, 2), bool))
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


def _squares(drawing):
  """Returns the places of good squares and of failing ones, by drawing."""
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


TWO_RANKS = _result(
  [(0, [[0, 0], [0, 1]]), (1, [[1, 0]])],
  [(4, [[0, 0], [0, 0], [1, 1]])],
)


def test_every_tile_is_drawn_once_and_the_failing_ones_are_crossed():
  drawing = svg_map.draw(svg_map.make(TWO_RANKS, PLENTY))

  for grid, (good, bad) in zip(TWO_RANKS.grids, _squares(drawing)):
    assert len(bad) == grid.sum()
    assert len(good) + len(bad) == grid.size
    assert len({*good, *bad}) == grid.size
  assert _titles(drawing) == [
    'rank 0, expert 0, row block 1, column block 1',
    'rank 0, expert 1, row block 0, column block 0',
    'rank 1, expert 4, row block 2, column block 0',
    'rank 1, expert 4, row block 2, column block 1',
  ]
  assert [t.text for t in drawing[0].iter('text')][1:] == ['e0', 'e1']


def test_rows_go_down_columns_across_and_experts_stand_apart():
  drawing = svg_map.draw(svg_map.make(TWO_RANKS, PLENTY))

  (good, bad), _ = _squares(drawing)
  first, right, below, corner = good[0], good[1], good[2], bad[0]
  assert right[0] > first[0] and right[1] == first[1]
  assert below[0] == first[0] and corner == (right[0], below[1])
  assert bad[1][1] - corner[1] > corner[1] - first[1]


def test_only_the_tile_of_the_first_failure_has_a_ring():
  first = _failure(rank=1, expert=4, row_block=2, col_block=1)
  result = _result(*([(4, [[0, 0], [0, 0], [1, 1]])],) * 2, failure=first)

  here = svg_map.draw(svg_map.make(result, PLENTY, first))
  elsewhere = svg_map.draw(svg_map.make(TWO_RANKS, PLENTY, first))

  rings = [u for u in here.iter('use') if u.get('href') == '#first']
  assert [r.find('title').text for r in rings] == [
    'rank 1, expert 4, row block 2, column block 1, the first failure'
  ]
  assert {u.get('href') for u in elsewhere.iter('use')} == {'#bad'}


def test_a_failure_past_the_last_valid_row_has_no_tile():
  first = _failure(rank=0, expert=None, row_block=None, col_block=None)
  result = _result([(0, [[1]])], failure=first)

  drawing = svg_map.draw(svg_map.make(result, PLENTY, first))

  assert [u.get('href') for u in drawing.iter('use')] == ['#bad']


def test_a_rank_without_rows_says_so_and_the_others_keep_their_number():
  drawing = svg_map.draw(svg_map.make(_result([], [(5, [[1, 0]])]), PLENTY))

  texts = [[t.text for t in svg.iter('text')] for svg in drawing.iter('svg')]
  assert texts == [['rank 0', 'no rows'], ['rank 1', 'e5']]


def test_tiles_of_tokens_have_no_expert():
  result = _result([(tiles.NO_EXPERT, [[0], [1]])], stage='y')

  drawing = svg_map.draw(svg_map.make(result, PLENTY))

  assert _titles(drawing) == ['rank 0, token block 1, column block 0']


def test_too_many_tiles_share_squares_and_no_failing_one_is_lost():
  # Given 7 x 5 tiles, two of which fail,
  bad = np.zeros((7, 5), int)
  bad[3, 4] = bad[6, 0] = 1

  # when there may be but 12 squares, then 2 x 2 tiles share one.
  one = svg_map.make(_result([(0, bad)]), 12)
  assert one.merged == 2 and not one.left_out
  assert 'up to 2 x 2 tiles' in one.words()
  assert _titles(svg_map.draw(one)) == [
    'rank 0, expert 0, row blocks 2 to 3, column block 4',
    'rank 0, expert 0, row block 6, column blocks 0 to 1',
  ]


@pytest.mark.parametrize('most', [1, 2, 3])
def test_experts_are_left_out_last_and_those_that_fail_after_others(most):
  ranks = [[(e, [[e in (2, 5)] * 3] * 3)] for e in range(6)]

  one = svg_map.make(_result(*ranks), most)

  drawn = [s.expert for s in one.strips]
  assert drawn == {1: [2], 2: [2, 5], 3: [0, 2, 5]}[most]
  lost = 9 if most == 1 else 0
  assert f'{6 - most} of 6 experts, {lost} failing tiles' in one.words()
  assert len(svg_map.draw(one)) == most
