"""The lowering with relay against a brute-force reading of its regions."""

import numpy as np
import pytest

from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.backend_ascend.taskflow import lowering_testing as testing
from hpmoe.backend_ascend.taskflow.proofs import proofs

Buffer = layout.Buffer
Form = layout.Form
RELAYED = {
  'forward': (Buffer.X_RELAYED, Buffer.EXPERT_IN),
  'backward': (Buffer.DY_RELAYED, Buffer.D_EXPERT_OUT),
}
every_direction = pytest.mark.parametrize('direction', RELAYED)
every_grain = pytest.mark.parametrize('grain', testing.GRAINS)
every_shape = pytest.mark.parametrize('shape', testing.SHAPES)


def lower(shape, grain, direction) -> flow_lib.Flow:
  return testing.lower(
    shape, grain, 'before_down', direction, put_rows=3, relay=True
  )


@every_direction
@every_grain
@every_shape
def test_every_reader_waits_for_every_writer_it_overlaps(
  shape, grain, direction
):
  flow = lower(shape, grain, direction)
  pairs = testing.check_every_reader_waits_for_every_writer_it_overlaps(flow)
  assert pairs > len(flow.tasks) / 2
  testing.check_thresholds_are_the_sum_of_signals(flow)
  testing.check_written_regions_tile_their_spaces(flow)
  testing.check_queues_hold_every_task_once_in_producer_first_order(flow)


@every_direction
@every_grain
@every_shape
def test_is_proved(shape, grain, direction):
  flow = lower(shape, grain, direction)
  report = proofs.require(image_lib.serialize(flow))
  assert report.tasks == len(flow.tasks)


@every_direction
@every_grain
def test_only_the_way_to_the_experts_differs(grain, direction):
  # Given the same layer with relay and without, when what puts of slices and
  # relays write and signal is left out, then the tasks are the same.
  flows = [
    testing.lower('ragged', grain, direction=direction, relay=relay)
    for relay in (False, True)
  ]
  arrive = layout.kinds(Form.SLICE_PUT, Form.RELAY_TILE)
  rest = []
  for flow in flows:
    tasks = flow.tasks[~np.isin(flow.tasks['kind'], arrive)]
    coordinates = [n for n in tasks.dtype.names if '_begin' not in n]
    rest.append(tasks[[n for n in coordinates if n != 'core']])
  np.testing.assert_array_equal(*rest)
  kinds = [set(map(int, np.unique(flow.tasks['kind']))) for flow in flows]
  way = layout.Direction[direction.upper()]
  for had, relay in zip(kinds, (False, True)):
    assert had == set(map(int, layout.kinds(direction=way, relay=relay)))


@every_direction
def test_a_relay_waits_for_its_row_block_and_counts_into_later_experts(
  direction,
):
  # R=2, L=2, C=12 in 3 blocks of 4 rows.
  relayed, arrived = RELAYED[direction]
  flow = lower('ragged', 'row_block', direction)
  (relay,) = layout.kinds(
    Form.RELAY_TILE, direction=layout.Direction[direction.upper()]
  )
  tasks = flow.tasks[flow.tasks['kind'] == relay]
  assert len(tasks) == 2 * 2 * 3
  for task in tasks:
    (wait,) = flow.waits[task['wait_begin'] :][: task['wait_count']]
    event = flow.events[wait['event']]
    assert event['buffer'] == relayed and event['rank'] == task['rank']
    assert (event['group'], event['part']) == (
      task['expert'] % 2,
      task['row_block'],
    )
    signals = flow.signals[task['signal_begin'] :][: task['signal_count']]
    counted = flow.events[signals['event']]
    assert (counted['buffer'] == arrived).all()
    assert list(counted['group']) == list(range(task['expert'] % 2, 2))
    assert (signals['span'] == 3).all()
    assert (signals['amount'] == layout.PER_ROW).all()


def test_relay_is_a_bool():
  with pytest.raises(ValueError, match='relay: expected a bool, got 1'):
    flow_lib.Options(relay=1)
