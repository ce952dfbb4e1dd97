"""Placements of experts: who lies where, and what is refused."""

import json

import numpy as np
import pytest

from hpmoe.backend_ascend.host.load import expert_placement
from hpmoe.reference.contract import config_testing

CONFIG = config_testing.make_config(r=2, t=5, e=6, k=2, d=4, f=3)


def test_the_fullest_expert_goes_to_the_emptiest_rank_that_has_room():
  loads = [9, 8, 1, 1, 1, 1]
  placement = expert_placement.place_by_loads(np.array(loads), 2)
  assert placement.experts == (0, 3, 5, 1, 2, 4)
  assert placement.places[0].tolist() == [0, 3, 4, 1, 5, 2]


@pytest.mark.parametrize(
  'rows, ranks, places',
  [
    ((4, 3, 2, 1), 2, [0, 2, 3, 1]),  # 4 + 1 and 3 + 2
    ((9, 1, 1, 1), 2, [0, 2, 3, 1]),  # full: the last one has no choice
    ((1, 1, 1, 1), 1, [0, 1, 2, 3]),
    ((0, 0, 5, 5), 2, [1, 3, 0, 2]),
  ],
)
def test_experts_are_spread_fullest_first(rows, ranks, places):
  placement = expert_placement.place_by_loads(np.array(rows), ranks)
  assert placement.places[0].tolist() == places


def test_the_fullest_experts_have_a_copy_and_ranks_share_it():
  # Given two experts that are far fuller than four others, when each rank has
  # room for a copy, then both have one on either rank, which takes the tokens
  # of its half of the ranks.
  loads = np.array([9, 8, 1, 1, 1, 1])
  placement = expert_placement.place_by_loads(loads, 2, copies=True)
  assert placement.experts == (0, 1, 2, 4, 0, 1, 3, 5)
  assert placement.places[:, :2].tolist() == [[0, 1], [4, 5]]
  assert (placement.places[0, 2:] == placement.places[1, 2:]).all()


@pytest.mark.parametrize('local', [1, 2, 3, 8])
@pytest.mark.parametrize('ranks', [2, 3, 8])
def test_copies_find_a_place_under_any_loads(ranks, local):
  rng = np.random.default_rng(ranks * 10 + local)
  for skew in (0, 1, 9):
    loads = rng.random(ranks * local) ** skew
    placement = expert_placement.place_by_loads(loads, ranks, copies=True)
    copies = np.bincount(placement.experts)
    assert sorted(copies)[-ranks:] == [2] * ranks
    assert len(placement.experts) == ranks * (local + 1)


def test_tensors_come_back_as_they_went():
  rng = np.random.default_rng(3)
  ids = np.argsort(rng.random((2, 5, 6)))[..., :2].astype(np.int32)
  placement = expert_placement.ExpertPlacement((5, 0, 3, 2, 4, 1), 2)
  view = expert_placement.PlacedLayer(placement, CONFIG, ids)
  sizes = CONFIG.dims()
  weights = rng.random((2, 3, sizes['D'], 2 * sizes['F']))
  image = view.place(dict(topk_ids=ids, w_gate_up=weights))
  assert (image['w_gate_up'][0, 0] == weights[1, 2]).all()
  assert (
    view.restore(dict(d_w_gate_up=image['w_gate_up']))['d_w_gate_up'] == weights
  ).all()
  assert (np.array(placement.experts)[image['topk_ids']] == ids).all()


def test_what_lies_past_the_rows_of_a_rank_shows():
  rng = np.random.default_rng(4)
  ids = np.argsort(rng.random((2, 5, 6)))[..., :2].astype(np.int32)
  placement = expert_placement.ExpertPlacement((5, 0, 3, 2, 4, 1), 2)
  view = expert_placement.PlacedLayer(placement, CONFIG, ids)
  rows = np.zeros((2, view.config.num_rows, 4))
  assert not view.restore(dict(expert_in=rows))['expert_in'].any()
  rows[1, -3, 2] = 7
  restored = view.restore(dict(expert_in=rows))['expert_in']
  assert np.argwhere(restored).tolist() == [[1, CONFIG.num_rows - 1, 2]]


def test_files_are_read(tmp_path):
  placement = expert_placement.ExpertPlacement((5, 0, 3, 2, 4, 1), 2)
  path, loads = tmp_path / 'placement.json', tmp_path / 'loads.json'
  expert_placement.save(path, placement)
  assert expert_placement.read(str(path), 2) == placement
  loads.write_text(json.dumps([[9, 8, 0, 1, 1, 0], [0, 0, 1, 0, 0, 1]]))
  for prefix, copies in (('loads:', False), ('copies:', True)):
    by_loads = expert_placement.read(f'{prefix}{loads}', 2)
    assert by_loads == expert_placement.place_by_loads(
      np.array([9, 8, 1, 1, 1, 1]), 2, copies
    )


@pytest.mark.parametrize(
  'text, says',
  [
    ('{', 'expected JSON in'),
    ('[1, 2]', 'wrote, loads:FILE or copies:FILE'),
    ('{"format": "other"}', 'no "format": .hpmoe-expert-placement'),
    ('[[0, 1], [2]]', 'as many experts on each rank'),
    ('[[0, 1], [1, 2]]', 'expected a multiple of 2 ranks, got 3'),
    ('[[0, 0, 1], [2, 3, 1]]', 'no expert twice on a rank'),
    ('[[0, 1], [2, 4]]', r'each of 0 to 4 in some place'),
  ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text, says):
  path = tmp_path / 'placement.json'
  if text.startswith('[['):
    text = f'{{"format": "{expert_placement.FORMAT}", "experts": {text}}}'
  path.write_text(text)
  with pytest.raises(ValueError, match='expert_placement: .*' + says):
    expert_placement.read(str(path), 2)


@pytest.mark.parametrize(
  'loads, ranks, copies, says',
  [
    ([1, 2, 3], 2, False, 'those of a multiple of 2 experts, got 3'),
    ([1, -2], 2, False, 'finite numbers of at least 0'),
    ([[1, 2]], 2, False, r'expected \[E\]'),
    ([1, 2], 1, True, 'expected at least 2 ranks'),
  ],
)
def test_loads_that_place_nothing_are_refused(loads, ranks, copies, says):
  with pytest.raises(ValueError, match=says):
    expert_placement.place_by_loads(np.array(loads), ranks, copies)


def test_a_placement_of_another_layer_is_refused():
  placement = expert_placement.ExpertPlacement((1, 0), 2)
  ids = np.zeros((2, 5, 2), np.int32)
  with pytest.raises(ValueError, match='expected one of num_experts=6, got 2'):
    expert_placement.PlacedLayer(placement, CONFIG, ids)


@pytest.mark.parametrize(
  'prefix, text',
  [
    ('loads:', '{"loads": [1, 2]}'),
    ('loads:', '[[1, 2], [3]]'),
    ('copies:', '["1", "2"]'),
    ('loads:', '5'),
    ('', '[1, 2, 3, 4]'),
    ('', '{"experts": [[0], [1]]}'),
  ],
)
def test_a_file_of_another_kind_is_refused_in_words(tmp_path, prefix, text):
  path = tmp_path / 'loads.json'
  path.write_text(text)
  with pytest.raises(ValueError, match='expert_placement: expected a') as error:
    expert_placement.read(f'{prefix}{path}', 2)
  assert 'loads:FILE' in str(error.value) or 'numbers' in str(error.value)
