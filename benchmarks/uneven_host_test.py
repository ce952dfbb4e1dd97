"""Ranks that map each other's memory run both sides in turn."""

import dataclasses

import numpy as np
import pytest

from benchmarks import uneven_host
from hpmoe.backend_ascend.host.load import expert_placement
from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import config_testing

CONFIG = config_testing.make_config(r=2, t=24, e=8, k=2, d=16, f=8)


@pytest.mark.parametrize('skew', uneven_host.SKEWS)
def test_a_factor_gives_the_hottest_rank_its_share(skew):
  config = uneven_host.SIZES['M']
  factor = uneven_host.find_factor(config, skew)
  for batch in (0, 1):
    ids = uneven_host.draw_ids(config, factor, batch)
    measured = routings.measure_skew(config, ids)['max_over_mean_rank']
    assert measured == pytest.approx(skew, abs=0.03)


def test_both_sides_run_in_turn_with_the_same_bits():
  ids = uneven_host.draw_ids(CONFIG, 20.0, 0)
  placement = expert_placement.place_by_loads(np.bincount(ids.ravel()), 2)
  sides = uneven_host.make_sides(CONFIG, ids, placement)
  seconds = uneven_host.time_in_turn(sides, 2)
  assert seconds.shape == (2, 2, 2) and (seconds > 0).all()
  processor, clock = np.moveaxis(seconds, -1, 0)
  assert (processor <= clock).all()


def test_results_that_differ_are_refused(monkeypatch):
  ids = uneven_host.draw_ids(CONFIG, 20.0, 0)
  placement = expert_placement.place_by_loads(np.bincount(ids.ravel()), 2)
  restore = expert_placement.PlacedLayer.restore

  def spoil(self, image):
    restored = restore(self, image)
    return restored | {'y': 2 * restored['y']} if 'y' in restored else restored

  monkeypatch.setattr(expert_placement.PlacedLayer, 'restore', spoil)
  with pytest.raises(RuntimeError, match='y: expected the same bits'):
    uneven_host.make_sides(dataclasses.replace(CONFIG), ids, placement)
