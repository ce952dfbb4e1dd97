"""Every failing tile is a cell with its number; right ones share a row."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import reports_testing
from hpmoe.parity_tests.report import tile_map

PLENTY = 10**6


def _result(*ranks, stage='gate_up', failure=None):
  """Given per rank a list of (expert, `[B, C]` bad elements)."""
  grids, experts = [], []
  for strips in ranks:
    bad = [np.array(b).reshape(len(b), -1) for _, b in strips]
    grids.append(np.concatenate(bad) if bad else np.zeros((0, 2), int))
    experts.append(np.repeat([e for e, _ in strips], [len(b) for b in bad]))
  return verdicts.Result(
    stage,
    'exact',
    'rule',
    grids=tuple(grids),
    experts=tuple(experts),
    verdict=verdicts.FAIL,
    failure=failure,
  )


def _draw(result, max_tiles=PLENTY, first=None):
  """Returns rows as (name, cells), the titles of cells, and what is said."""
  drawing, words = tile_map.draw_map(result, max_tiles, first)
  lines = [[e.text.strip() for e in row] for row in drawing.iter('tr')]
  titles = [c.get('title') for c in drawing.iter('td') if c.get('title')]
  return [(name, cells) for name, *cells in lines], titles, words.text


TWO_RANKS = _result(
  [(0, [[0, 0], [0, 0], [0, 7]]), (1, [[1, 0]])],
  [(4, [[0, 0], [0, 0], [128, 123_456]])],
)


def test_a_wrong_row_has_a_cell_for_each_tile_and_right_ones_share_one():
  lines, titles, words = _draw(TWO_RANKS)
  assert lines == [
    ('rank 0 e0: 0 to 1', ['']),
    ('rank 0 e0: 2', ['', '7']),
    ('rank 0 e1: 0', ['1', '']),
    ('rank 1 e4: 0 to 1', ['']),
    ('rank 1 e4: 2', ['128', '123k']),
  ]
  assert titles == [
    'rank 0, expert 0, row block 2, column block 1, 7 wrong elements',
    'rank 0, expert 1, row block 0, column block 0, 1 wrong element',
    'rank 1, expert 4, row block 2, column block 0, 128 wrong elements',
    'rank 1, expert 4, row block 2, column block 1, 123456 wrong elements',
  ]
  assert words == 'row blocks down, column blocks across'


@pytest.mark.parametrize(
  'rank, expert, block, titles',
  [
    (1, 4, 2, ['rank 1, expert 4, row block 2, column block 1']),
    # Of the other rank, and past the last valid row, where there is no tile.
    (0, 4, 2, []),
    (1, None, None, []),
  ],
)
def test_only_the_tile_of_the_first_failure_has_a_ring(
  rank, expert, block, titles
):
  column = None if block is None else 1
  first = reports_testing.failure(
    stage='gate_up', rank=rank, expert=expert, row_block=block, col_block=column
  )
  strips = [(4, [[0, 0], [0, 0], [1, 1]])]
  result = _result([], strips, failure=first)
  _, actual, _ = _draw(result, first=first)
  ring = ', 1 wrong element, the first failure'
  assert [t for t in actual if 'first' in t] == [t + ring for t in titles]
  # Nor in a map of another comparison.
  assert not any('first' in t for t in _draw(TWO_RANKS, first=first)[1])


def test_tiles_of_tokens_have_no_expert():
  result = _result([(tiles.NO_EXPERT, [[0], [1]])], stage='y')
  lines, titles, _ = _draw(result)
  assert lines == [('rank 0: 0', ['']), ('rank 0: 1', ['1'])]
  assert titles == ['rank 0, token block 1, column block 0, 1 wrong element']


def test_many_column_blocks_share_cells_and_no_wrong_element_is_lost():
  bad = np.zeros((1, 100), int)
  bad[0, [0, 2, 99]] = 1, 30, 5
  ((_, cells),), titles, words = _draw(_result([(0, bad)]))
  assert len(cells) == 34 and [*filter(None, cells)] == ['31', '5']
  assert [t.split(', ')[3] for t in titles] == [
    'column block 0 to 2',
    'column block 99',
  ]
  assert 'one cell counts for up to 3 tiles' in words


@pytest.mark.parametrize(
  'max_tiles, names, message',
  [
    (3, ['rank 0 e2: 1'], '7 rows of tiles, 1 failing tiles'),
    (6, ['rank 0 e2: 1', 'rank 0 e5: 1'], '6 rows of tiles, 0 failing tiles'),
  ],
)
def test_right_rows_are_left_out_first(max_tiles, names, message):
  fails = [[0, 0, 0], [0, 1, 0]]
  ranks = [(e, fails if e in (2, 5) else [[0, 0, 0]]) for e in range(5)]
  result = _result([*ranks, (5, fails)])
  lines, _, words = _draw(result, max_tiles)
  assert [name for name, _ in lines] == names and message in words


@pytest.mark.parametrize(
  ('share', 'level'),
  [
    *((0.0, 's0'), (1e-6, 's1'), (0.5, 's3'), (1.0, 's4'), (1.001, 's5')),
    *((64.0, 's6'), (1e9, 's7'), (np.inf, 's7'), (np.nan, 's7')),
  ],
)
def test_a_share_has_the_colour_of_its_level(share, level):
  assert tile_map.find_level(share) == level


def test_colours_get_darker_and_pass_and_fail_differ_in_brightness():
  css = (
    pathlib.Path(tile_map.__file__).parents[1] / 'data/report.css'
  ).read_text()

  brightness = []
  for name, _, _ in tile_map.LEVELS:
    digits = re.search(rf'--{name}: #(\w+);', css)[1]
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    linear = [
      c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
      for c in (red, green, blue)
    ]
    brightness.append(np.dot(linear, [0.2126, 0.7152, 0.0722]))

  assert brightness == sorted(brightness, reverse=True)
  # As WCAG has it, of what passes and fails next to each other.
  assert (brightness[4] + 0.05) / (brightness[5] + 0.05) > 2
  assert all(1.05 / (b + 0.05) > 4.5 for b in brightness[5:])  # white numbers


def test_right_tiles_are_drawn_one_by_one_where_their_errors_are_known():
  result = dataclasses.replace(
    _result([(0, [[0, 0], [0, 0]])]),
    shares=(np.float32([[0.25, 0], [1, 0.125]]),),
  )

  drawing, _ = tile_map.draw_map(result, PLENTY)
  narrow_drawing, _ = tile_map.draw_map(result, 1)

  classes = [[c.get('class') for c in row[1:]] for row in drawing.iter('tr')]
  assert classes == [['good s3', 'good s0'], ['good s4', 'good s2']]
  titles = [c.get('title') for c in drawing.iter('td')]
  assert titles[2] == (
    'rank 0, expert 0, row block 1, column block 0, '
    'error at most 1 of its limit'
  )
  assert [c.get('class') for c in narrow_drawing.iter('td')] == [
    'good s4',
    'good s2',
  ]


def test_many_cells_have_numbers_of_three_characters():
  bad = np.zeros((1, 40), int)
  bad[0, [0, 7]] = 123_456, 1000

  ((_, cells),), _, _ = _draw(_result([(0, bad)]))

  assert [*filter(None, cells)] == ['1e5', '1e3']
