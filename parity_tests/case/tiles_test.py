"""Tiles against a loop over elements."""

import itertools
import zlib

import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import tensors

ALL = tensors.STAGES + tensors.GRADS
WEIGHTS = ('d_w_down', 'd_w_gate_up')
TOKENS = ('returned', 'y', 'd_returned', 'dx', 'd_topk_weights')
ROWS = tuple(name for name in ALL if name not in WEIGHTS + TOKENS)


def _routing(name: str):
  """Named routings with their config: the awkward cases."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  config = config_testing.make_config(r=2, t=7, e=4, k=2, d=6, f=5)
  ids = np.stack(
    [np.stack([rng.permutation(4)[:2] for _ in range(7)]) for _ in range(2)]
  )
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


def _tensor(tiling, stage):
  """A tensor whose elements are their own flat index."""
  shape = tensors.SPECS[stage].dims(**tiling.config.dims())
  return np.arange(np.prod(shape)).reshape(shape)


def test_every_element_lies_in_one_tile_of_its_own_expert(tiling):
  # Given the tiles of a stage, when each is filled with its own number,
  for stage, rank in itertools.product(ALL, range(tiling.config.num_ranks)):
    cut = tiling.cut(stage, rank)
    visits = np.zeros((cut.num_rows, tiling.columns(stage)), int)
    for b, c in np.ndindex(cut.shape):
      rows, columns = cut.window((b, c))
      visits[rows, columns] += 1
      # then a tile row holds rows of one expert, and of one block of it,
      for row in range(rows.start, rows.stop):
        if stage in ROWS + WEIGHTS:
          assert tiling.expert_of(stage, rank, row) == cut.expert[b]
          assert rows.stop - rows.start <= (4 if stage in ROWS else 3)
    # and no element is left out or held twice.
    np.testing.assert_array_equal(visits, 1)


def test_sources_are_the_inverse_of_row_of_slot(tiling):
  for index in np.ndindex(tiling.topk_ids.shape):
    owner = tiling.topk_ids[index] // tiling.config.experts_per_rank
    row = tiling.row_of_slot[index]

    assert tiling.source('gate_up', owner, row) == index
    slot = index[1] * tiling.config.top_k + index[2]
    assert tiling.source('returned', index[0], slot) == index


def test_rows_and_padding_are_the_whole_tensor(tiling):
  # Given a tensor, when a rank's rows and padding are put together, then
  # nothing is missing; and every row lies where `index` says.
  for stage, rank in itertools.product(ALL, range(tiling.config.num_ranks)):
    tensor = _tensor(tiling, stage)
    rows = tiling.rows(stage, tensor, rank)
    padding = tiling.padding(stage, tensor, rank)

    joined_rows = np.concatenate([rows, padding])
    np.testing.assert_array_equal(
      joined_rows.reshape(tensor[rank].shape), tensor[rank]
    )
    num_routed = int((tiling.topk_ids // 2 == rank).sum())
    assert len(rows) == tiling.cut(stage, rank).num_rows
    assert len(rows) == num_routed or stage not in ROWS
    assert stage in ROWS or not padding.size
    for number, row in enumerate(rows):
      index = tiling.index(stage, rank, number)
      np.testing.assert_array_equal(tensor[index], row)


@pytest.mark.parametrize(
  ('grad', 'forward'),
  [
    ('d_expert_out', 'expert_in'),
    ('d_activation', 'expert_out'),
    ('d_gate_up', 'activation'),
    ('d_expert_in', 'gate_up'),
    ('d_returned', 'returned'),
    ('dx', 'y'),
    ('d_topk_weights', 'y'),
  ],
)
def test_gradients_are_cut_as_the_tasks_of_their_kin(tiling, grad, forward):
  # Given a forward stage whose task is of the same kind (it moves, is a GEMM,
  # or works on whole rows), when its gradient is cut, then rows are cut alike,
  for rank in range(tiling.config.num_ranks):
    grad_cut, forward_cut = tiling.cut(grad, rank), tiling.cut(forward, rank)
    np.testing.assert_array_equal(grad_cut.starts, forward_cut.starts)
    np.testing.assert_array_equal(grad_cut.expert, forward_cut.expert)
    np.testing.assert_array_equal(grad_cut.block, forward_cut.block)
    # and columns by the block of a GEMM, or not at all.
    whole = forward not in ('gate_up', 'expert_out')
    width = tiling.columns(grad)
    assert np.diff(grad_cut.col_starts).max() == (width if whole else 3)
    for row in range(grad_cut.num_rows):
      assert tiling.source(grad, rank, row) == tiling.source(forward, rank, row)
      assert tiling.expert_of(grad, rank, row) == tiling.expert_of(
        forward, rank, row
      )


@pytest.mark.parametrize('stage', WEIGHTS)
def test_weight_tiles_are_blocks_of_one_experts_weight(tiling, stage):
  config, tensor = tiling.config, _tensor(tiling, stage)
  height, width = tensor.shape[2:]
  for rank in range(config.num_ranks):
    cut, rows = tiling.cut(stage, rank), tiling.rows(stage, tensor, rank)
    for b, c in np.ndindex(cut.shape):
      local = int(cut.expert[b]) - rank * config.experts_per_rank
      first, left = 3 * int(cut.block[b]), 3 * c

      expected = tensor[rank, local, first : first + 3, left : left + 3]
      np.testing.assert_array_equal(rows[cut.window((b, c))], expected)
    assert cut.shape == (
      config.experts_per_rank * -(-height // 3),
      -(-width // 3),
    )
    assert tiling.source(stage, rank, 0) == (None, None, None)


@pytest.mark.parametrize('elements', (1, 17, 10**6))
def test_counts_equal_those_of_a_loop_in_any_chunks(tiling, elements):
  for stage, rank in itertools.product(
    ('gate_up', 'expert_in', 'returned', 'y', 'd_activation', 'd_w_down')
    + ('d_topk_weights',),
    range(tiling.config.num_ranks),
  ):
    rng = np.random.default_rng(zlib.crc32(f'{stage}{elements}'.encode()))
    cut = tiling.cut(stage, rank)
    mask = rng.random((cut.num_rows, tiling.columns(stage))) < 0.1
    expected = np.zeros(cut.shape, int)
    for tile in np.ndindex(cut.shape):
      expected[tile] = mask[cut.window(tile)].sum()

    parts = [
      cut.count(mask[cut.starts[first] : cut.starts[last]], first)
      for first, last in cut.chunks(elements)
    ]

    actual = np.concatenate([np.zeros((0, cut.shape[1]), int), *parts])
    np.testing.assert_array_equal(actual, expected)


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
