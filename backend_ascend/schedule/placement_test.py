"""A scheduler's answer is checked before it becomes queues."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.schedule import orders
from hpmoe.backend_ascend.schedule import placement
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.backend_ascend.taskflow import lower_forward
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision


@pytest.fixture(scope='module')
def flow():
  return lower_forward.lower_forward(
    config_testing.sized(r=2, t=8, e=4, k=2, d=8, f=4),
    precision.PrecisionPolicy(),
    flow_lib.Options('row_block', 4, 4, num_aic=3, num_aiv=2),
  )


def test_round_robin_deals_evenly(flow):
  # Given 3 AIC and 2 AIV per rank, when the tasks are dealt, then the loads of
  # the cores of a unit differ by at most one task.
  placed = placement.place(flow, orders.in_order(flow))
  for rank in range(2):
    for unit in layout.Unit:
      loads = placed.queues['count'][
        (placed.queues['rank'] == rank) & (placed.queues['unit'] == unit)
      ]
      assert loads.max() - loads.min() <= 1
      assert loads.sum() > 0


def test_more_cores_than_tasks_leaves_empty_queues(flow):
  options = dataclasses.replace(flow.options, num_aic=500, num_aiv=500)
  wide = dataclasses.replace(flow, options=options)
  placed = placement.place(wide, orders.in_order(wide))
  assert len(placed.queues) == 2 * 1000
  assert (placed.queues['count'] == 0).any()
  assert placed.queues['count'].max() == 1


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
