"""Tiles against a loop over elements."""

import zlib

import numpy as np
import pytest

from parity_tests import tiles
from reference import config as config_lib
from reference import tensors

ROWS = tuple(
    name for name in tensors.STAGES if name not in ('returned', 'y')
)


def _routing(name: str):
  """Named routings with their config: the awkward cases."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  config = config_lib.MoEConfig(2, 7, 4, 2, 6, 5)
  ids = np.stack([
      np.stack([rng.permutation(4)[:2] for _ in range(7)]) for _ in range(2)
  ])
  if name == 'empty_expert':
    ids = np.where(ids == 1, 3, ids)
    ids[..., 0] = np.where(ids[..., 0] == ids[..., 1], 2, ids[..., 0])
    ids[..., 1] = np.where(ids[..., 0] == ids[..., 1], 0, ids[..., 1])
  elif name == 'one_rank_gets_all':
    ids[:] = [0, 1]
  elif name == 'one_row':
    ids[:] = [0, 1]
    ids[1, 3] = [0, 3]
  return config, ids.astype(np.int32)


def _plan(config, ids):
  """Addresses as a serial run would hand them out."""
  counts = np.zeros((config.num_ranks, config.num_experts), np.int32)
  row_of_slot = np.zeros_like(ids)
  next_row = [0] * config.num_ranks
  for expert in range(config.num_experts):
    owner = expert // config.experts_per_rank
    for index in np.argwhere(ids == expert):
      counts[index[0], expert] += 1
      row_of_slot[tuple(index)] = next_row[owner]
      next_row[owner] += 1
  return counts, row_of_slot


@pytest.fixture(params=['even', 'empty_expert', 'one_rank_gets_all', 'one_row'])
def tiling(request):
  config, ids = _routing(request.param)
  counts, row_of_slot = _plan(config, ids)
  return tiles.Tiling(config, counts, row_of_slot, ids, 4, 3, 2)


@pytest.mark.parametrize('stage', tensors.STAGES)
def test_every_element_lies_in_one_tile_of_its_own_expert(tiling, stage):
  # Given the tiles of a stage, when each is filled with its own number,
  for rank in range(tiling.config.num_ranks):
    cut = tiling.cut(stage, rank)
    seen = np.zeros((cut.num_rows, tiling.columns(stage)), int)
    for b, c in np.ndindex(cut.shape):
      rows, columns = cut.window((b, c))
      seen[rows, columns] += 1
      # then a tile row holds rows of one expert, and of one block of it,
      for row in range(rows.start, rows.stop):
        if stage in ROWS:
          assert tiling.expert_of(stage, rank, row) == cut.expert[b]
          assert rows.stop - rows.start <= 4
    # and no element is left out or held twice.
    np.testing.assert_array_equal(seen, 1)


def test_sources_are_the_inverse_of_row_of_slot(tiling):
  for index in np.ndindex(tiling.topk_ids.shape):
    owner = tiling.topk_ids[index] // tiling.config.experts_per_rank
    row = tiling.row_of_slot[index]

    assert tiling.source('gate_up', owner, row) == index
    slot = index[1] * tiling.config.top_k + index[2]
    assert tiling.source('returned', index[0], slot) == index


@pytest.mark.parametrize('stage', ('gate_up', 'expert_in', 'returned', 'y'))
@pytest.mark.parametrize('elements', (1, 17, 10**6))
def test_counts_equal_those_of_a_loop_in_any_chunks(tiling, stage, elements):
  rng = np.random.default_rng(zlib.crc32(f'{stage}{elements}'.encode()))
  for rank in range(tiling.config.num_ranks):
    cut = tiling.cut(stage, rank)
    mask = rng.random((cut.num_rows, tiling.columns(stage))) < 0.1
    expected = np.zeros(cut.shape, int)
    for tile in np.ndindex(cut.shape):
      expected[tile] = mask[cut.window(tile)].sum()

    parts = [
        cut.count(mask[cut.starts[first] : cut.starts[last]], first)
        for first, last in cut.chunks(elements)
    ]

    got = np.concatenate([np.zeros((0, cut.shape[1]), int), *parts])
    np.testing.assert_array_equal(got, expected)


def test_padding_starts_after_the_last_valid_row(tiling):
  n = tiling.config.num_rows
  tensor = np.zeros((2, n, 6))
  for rank in range(2):
    held = int((tiling.topk_ids // 2 == rank).sum())

    assert len(tiling.rows('expert_in', tensor, rank)) == held
    assert len(tiling.padding('expert_in', tensor, rank)) == n - held
  assert not tiling.padding('y', np.zeros((2, 7, 6)), 0).size


def test_map_shows_where_the_bad_tiles_are():
  grids = [
      np.array([[False, True], [False, False], [False, True]]),
      np.zeros((1, 2), bool),
  ]
  experts = [np.array([4, 4, 5]), np.array([tiles.NO_EXPERT])]

  text = tiles.ascii_map(grids, experts)

  assert text.splitlines() == [
      'rank 0 column block 0   expert 4: ..  expert 5: .',
      'rank 0 column block 1   expert 4: #.  expert 5: #',
      'rank 1 column block 0   .',
      'rank 1 column block 1   .',
  ]


def test_a_map_too_wide_names_the_experts_with_a_bad_tile():
  bad = np.arange(40)[:, None] == 7

  text = tiles.ascii_map([bad], [np.arange(40) // 2], width=50)

  assert text == 'rank 0 column block 0   expert 3: .#  others: .'
