"""A scheduler's answer is checked before it becomes queues."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.orders import orders
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision


@pytest.fixture(scope='module')
def flow():
  return lower_forward.lower_forward(
    config_testing.make_config(r=2, t=8, e=4, k=2, d=8, f=4),
    precision.PrecisionPolicy(),
    granularity.Options('row_block', 4, 4, num_aic=3, num_aiv=2),
  )


@pytest.mark.parametrize('aic, aiv', [(3, 2), (500, 500)])
def test_round_robin_deals_evenly(flow, aic, aiv):
  # Given AIC and AIV per rank, perhaps more than tasks, when these are dealt,
  # then the loads of the cores of a unit differ by at most one task.
  options = dataclasses.replace(flow.options, num_aic=aic, num_aiv=aiv)
  wide = dataclasses.replace(flow, options=options)
  queues = placement.place(wide, orders.in_order(wide)).queues
  assert len(queues) == 2 * (aic + aiv)
  for rank in range(2):
    for unit in layout.Unit:
      own_queues = (queues['rank'] == rank) & (queues['unit'] == unit)
      loads = queues['count'][own_queues]
      assert loads.max() - loads.min() <= 1
      assert loads.sum() > 0


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda p: (p.core + 3, p.order), 'core: expected'),
    (lambda p: (p.core[1:], p.order), 'core: expected shape'),
    (lambda p: (p.core, p.order * 0), 'order: expected a permutation'),
  ],
)
def test_a_wrong_placement_is_refused(flow, change, message):
  core, order = change(orders.in_order(flow))
  with pytest.raises(ValueError, match=message):
    placement.place(flow, placement.Placement(np.asarray(core), order))
