"""Routings of the witnesses are what their names say."""

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.reproduce import compiled_layers
from hpmoe.backend_ascend.simulator.reproduce import hyperparallel
from hpmoe.reference.contract import config_testing


def _distinct(ids) -> bool:
  return bool((np.diff(np.sort(ids, axis=-1), axis=-1) > 0).all())


@pytest.mark.parametrize('ranks', [4, 8, 16])
def test_balanced_slices_are_equal(ranks):
  # Given the sizes of the published table, when tokens are dealt, then every
  # slice (source, expert) has the same rows and no token an expert twice.
  config = hyperparallel.config(ranks)
  ids = moe_layer.balanced(config)
  assert _distinct(ids)
  for of_rank in ids:
    counts = np.bincount(of_rank.ravel(), minlength=config.num_experts)
    assert set(counts) == {4096 * 8 // config.num_experts}


@pytest.mark.parametrize('ratio', [1.0, 2.25, 3.5, 6.0])
def test_the_hot_rank_receives_its_ratio(ratio):
  # Given the sizes of the repository's measurement, when rank 0 is to be hot,
  # then it receives that many times the mean, and the others share the rest.
  config = config_testing.make_config(r=8, t=4096, e=48, k=8, d=5120, f=1792)
  case = hyperparallel.cases(config, 'system', ratio)['forward']
  ids = case.topk_ids()
  assert _distinct(ids)
  expert_rows = compiled_layers.rows(config, ids).reshape(8, -1)
  rank_rows = expert_rows.sum(1)
  assert rank_rows[0] / rank_rows.mean() == pytest.approx(ratio, rel=1e-3)
  # Slots are dealt in turn, so experts of one rank differ by little.
  assert np.ptp(expert_rows[1:]) <= 0.01 * expert_rows[1:].mean() + 8
  assert np.ptp(expert_rows[0]) <= 0.01 * expert_rows[0].mean() + 8


def test_a_rank_cannot_receive_more_than_its_experts_can():
  config = config_testing.make_config(r=8, t=64, e=16, k=8, d=32, f=16)
  with pytest.raises(ValueError, match='ratio: expected experts of one rank'):
    compiled_layers.hot(config, 6.0)
