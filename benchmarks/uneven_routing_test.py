"""Uneven routing in modelled time: experts go where other batches say."""

import numpy as np

from benchmarks import uneven_routing
from hpmoe.backend_ascend.simulator.tune import levers
from hpmoe.parity_tests.case import text_router
from hpmoe.reference.contract import presets

PRESET = presets.get('small:experts=16')
CONFIG = presets.config(PRESET, 4, 64)


def test_a_row_says_what_other_batches_are_worth():
  # Given a small layer under a power law, then its hottest rank is less hot
  # with experts placed, and the schedule is faster than the published one.
  row = uneven_routing.time_distribution('zipf', 3, PRESET, CONFIG)
  cells = dict(zip(uneven_routing.COLUMNS, row, strict=True))
  assert float(cells['placed']) < float(cells['hottest rank of mean'])
  assert float(cells['tuned, placed']) < float(cells['published, ms'])


def test_the_batch_that_is_timed_places_nothing():
  layer = uneven_routing.make_layer('zipf', 3, PRESET, CONFIG)
  loads = layer.loads['zipf']
  counts = np.bincount(layer.cases['zipf'].ravel(), minlength=16)
  assert loads.sum() == 2 * counts.sum()
  assert not (loads == 2 * counts).all()
  correlation = np.corrcoef(loads, counts)[0, 1]
  assert correlation > 0.9
  placed_layer = levers.apply_levers(layer, ['placement'])
  batches = text_router.count_other_batches('zipf', PRESET, CONFIG, 3)
  assert (batches.sum(axis=0) == loads).all() and len(batches) == 2
  assert placed_layer.config.capacity < layer.config.capacity
