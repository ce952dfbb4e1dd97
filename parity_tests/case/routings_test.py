"""Each routing has the property of its name, counted by another way."""

import collections
import itertools
import zlib

import numpy as np
import pytest

from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import presets

ALL_ROUTINGS = (*routings.GENERATORS, *routings.DROPPING)
# R, T, E, K: one row, K = E, R = 1, L = 1, odd L, T no multiple of a block.
AWKWARD = {
  'one_row': (1, 1, 8, 1),
  'one_expert': (1, 3, 1, 1),
  'k_equals_e': (2, 5, 8, 8),
  'one_rank': (1, 7, 6, 3),
  'one_expert_per_rank': (4, 9, 4, 2),
  'odd_experts_per_rank': (2, 13, 6, 3),
}


def _config(ranks, tokens, experts, top_k):
  return config_testing.make_config(
    r=ranks, t=tokens, e=experts, k=top_k, d=8, f=8
  )


CONFIGS = [
  *(
    presets.config(presets.get(name), ranks)
    for name, ranks in itertools.product(presets.RUNS_HERE, (1, 2, 4, 8))
  ),
  *(_config(*sizes) for sizes in AWKWARD.values()),
]


def _rows(config, ids):
  """Counts with a dictionary, one id at a time; ids of a token distinct."""
  rows = collections.Counter()
  for token in ids.reshape(-1, config.top_k).tolist():
    assert len(set(token)) == config.top_k
    rows.update(token)
  assert set(rows) <= set(range(config.num_experts))
  return [rows[expert] for expert in range(config.num_experts)]


class TestGenerators:
  def test_balanced(self):
    for config in CONFIGS:
      rows = _rows(config, routings.make('balanced', config).topk_ids)
      assert max(rows) - min(rows) <= 1

  def test_zipf(self):
    for config in CONFIGS:
      rows = _rows(config, routings.make('zipf', config).topk_ids)
      if config.top_k < config.num_experts / 2 and sum(rows) > 200:
        assert max(rows) > 1.5 * sum(rows) / len(rows)

  def test_hot(self):
    for config in CONFIGS:
      rows = _rows(config, routings.make('hot', config).topk_ids)
      assert config.num_ranks * config.num_tokens in rows

  def test_one_rank(self):
    for config in CONFIGS:
      routed = routings.make('one_rank', config)
      local = config.experts_per_rank
      rows = _rows(config, routed.topk_ids)
      ranks = [sum(rows[i : i + local]) for i in range(0, len(rows), local)]
      tokens = config.num_ranks * config.num_tokens
      assert max(ranks) == tokens * min(config.top_k, local)
      assert ('only' in routed.note) == (config.top_k > local)

  def test_empty_experts(self):
    for config in CONFIGS:
      if config.num_experts < 2 or config.top_k > (config.num_experts + 1) // 2:
        with pytest.raises(
          ValueError, match='empty_experts: expected top_k <='
        ):
          routings.make('empty_experts', config)
        continue
      routed = routings.make('empty_experts', config)
      rows = np.array(_rows(config, routed.topk_ids))
      local = config.experts_per_rank
      empty = (rows.reshape(-1, local) == 0).sum(-1)
      assert (empty >= local // 2).all()
      assert (rows == 0).sum() >= config.num_experts // 2
      assert ('RANK' in routed.note) == (local == 1)

  def test_weights_are_positive_normal_and_spread(self):
    for config in CONFIGS:
      weights = routings.make('balanced', config).topk_weights
      assert weights.dtype == np.float32
      assert (weights > 0).all()
      assert np.abs(weights.sum(-1, dtype=np.float64) - 1).max() < 1e-6
      gaps = np.diff(np.sort(weights, axis=-1), axis=-1)
      top_k = config.top_k
      assert gaps.min(initial=1) > 0.49 / (top_k * (top_k + 2) / 2)


class TestRoutings:
  @pytest.mark.parametrize(
    ('name', 'crc'),
    [
      ('balanced', 3458506816),
      ('zipf', 4121254418),
      ('hot', 1172647323),
      ('one_rank', 2882138074),
      ('empty_experts', 2659002240),
      ('dropped', 921528472),
    ],
  )
  def test_bits_are_these(self, name, crc):
    routed = routings.make(name, _config(2, 13, 8, 3), seed=3)
    actual = zlib.crc32(
      routed.topk_ids.tobytes() + routed.topk_weights.tobytes()
    )
    assert actual == crc

  @pytest.mark.parametrize('name', ALL_ROUTINGS)
  def test_seed_matters(self, name):
    config = _config(2, 64, 16, 4)
    first, second = (routings.make(name, config, seed) for seed in (1, 2))
    assert (first.topk_ids != second.topk_ids).any()
    assert (first.topk_weights != second.topk_weights).any()

  @pytest.mark.parametrize('name', routings.GENERATORS)
  def test_generator_refuses_rows_that_are_not_its_own(self, name, monkeypatch):
    # given: a count that has experts shifted by one and two rows too many.
    count_rows = routings.count_rows

    def shifted(config, ids):
      rows = np.roll(count_rows(config, ids), 1)
      rows[0] += 2
      return rows

    monkeypatch.setattr(routings, 'count_rows', shifted)
    with pytest.raises(ValueError, match=f'routing {name}: expected'):
      routings.make(name, _config(2, 64, 16, 4))

  def test_dropped_slots_are_of_every_third_token_and_all_of_one(self):
    config = _config(2, 8, 8, 2)
    ids = routings.make('dropped', config).topk_ids.reshape(16, 2)
    num_dropped = (ids == -1).sum(axis=1)
    expected = np.arange(16) % 3 == 0
    np.testing.assert_array_equal(num_dropped[:-1], expected[:-1])
    assert num_dropped[-1] == 2
    with pytest.raises(ValueError, match='^dropped: expected 2 tokens'):
      routings.make('dropped', _config(1, 1, 8, 2))

  def test_balanced_mixes_experts(self):
    # given: K divides E, where dealing alone yields E / K lists.
    routed = routings.make('balanced', _config(4, 64, 16, 4))
    lists = np.sort(routed.topk_ids.reshape(-1, 4), axis=-1)
    assert len(np.unique(lists, axis=0)) > 200

  def test_unknown_name(self):
    with pytest.raises(ValueError, match=r"routing: .*'zipf'.*got 'zip'"):
      routings.make('zip', _config(1, 4, 4, 2))

  def test_skew_of_a_known_routing(self):
    # given: expert 0 gets 3 rows, expert 1 one, experts 2 and 3 none.
    config = _config(2, 2, 4, 1)
    ids = np.array([[[0], [0]], [[1], [0]]], np.int32)
    assert routings.measure_skew(config, ids) == {
      'max_over_mean_expert': 3.0,
      'max_over_mean_rank': 2.0,
      'empty_experts': 2,
      'max_rows_of_rank': 4,
    }


class TestLoad:
  config = _config(1, 2, 4, 2)
  ids = np.array([[[0, 1], [3, 2]]], np.int32)
  weights = np.array([[[0.5, 0.5], [0.25, 0.75]]], np.float32)

  def _load(self, tmp_path, **arrays):
    path = tmp_path / 'routing.npz'
    np.savez(path, **arrays)
    return routings.load(path, self.config)

  def test_weights_are_made_up_if_absent(self, tmp_path):
    routed = self._load(tmp_path, topk_ids=self.ids)
    assert routed.topk_weights.shape == self.ids.shape
    assert 'generated' in routed.note

  @pytest.mark.parametrize(
    ('change', 'message'),
    [
      ({'topk_ids': ids.astype(np.int64)}, 'topk_ids: .*got int64'),
      ({'topk_ids': ids[:, :1]}, r'topk_ids: expected int32 \[1, 2, 2\]'),
      ({'topk_ids': ids + 1}, 'topk_ids: .*got 4 at rank 0, token 1'),
      ({'topk_ids': ids * 0}, 'topk_ids: .*expert 0 twice'),
      ({'topk_weights': weights * np.inf}, 'topk_weights: .*got inf at'),
      ({'topk_weights': weights[0]}, 'topk_weights: expected float32'),
      ({'topk_weights': weights.astype(int)}, 'topk_weights: .*got int64'),
    ],
  )
  def test_bad_tensor(self, tmp_path, change, message):
    good = {'topk_ids': self.ids, 'topk_weights': self.weights}
    with pytest.raises(ValueError, match=message) as error_info:
      self._load(tmp_path, **{**good, **change})
    assert str(error_info.value).startswith(f'{tmp_path}/routing.npz: ')
