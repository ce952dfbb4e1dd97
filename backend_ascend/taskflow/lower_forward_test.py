"""The forward lowering against a brute-force reading of its regions."""

import itertools

import numpy as np
import pytest

from backend_ascend import compiler
from backend_ascend.taskflow import flow as flow_lib
from backend_ascend.taskflow import layout
from backend_ascend.taskflow import lower_forward
from reference import config as config_lib
from reference import precision

SHAPES = {
    'one_rank': config_lib.MoEConfig(1, 8, 2, 1, 8, 4),
    'ragged': config_lib.MoEConfig(2, 5, 4, 2, 9, 5),
    'k_is_e': config_lib.MoEConfig(2, 4, 4, 4, 8, 4),
    'rank_per_expert': config_lib.MoEConfig(4, 6, 4, 2, 8, 6),
}
GRAINS = flow_lib.EVENT_GRAINS
PLACEMENTS = precision.PLACEMENTS


def lower(shape, grain, placement='combine', **options):
  options = dict(row_block=4, col_block=3, num_aic=2, num_aiv=3) | options
  return compiler.compile_forward(
      SHAPES[shape],
      precision.PrecisionPolicy(placement=placement),
      flow_lib.Options(event_grain=grain, **options),
  ).flow


def regions(flow, task):
  """Returns (reads, writes) of one task."""
  begin, reads = int(task['region_begin']), int(task['read_count'])
  end = begin + reads + int(task['write_count'])
  return flow.regions[begin : begin + reads], flow.regions[begin + reads : end]


def landing_groups(flow, region):
  """Returns every (rank, group) of the row view that a write may reach."""
  dims = flow.config.dims()
  if region['view'] == layout.View.ROWS:
    return {(int(region['rank']), int(region['group']))}
  if region['buffer'] == layout.Buffer.EXPERT_IN:
    return {(int(region['rank']), int(region['group']) // dims['R'])}
  ranks = (
      range(dims['R'])
      if region['rank'] == layout.ANY_RANK
      else [int(region['rank'])]
  )
  return {(rank, 0) for rank in ranks}


def may_overlap(flow, write, read) -> bool:
  if write['buffer'] != read['buffer']:
    return False
  if (int(read['rank']), int(read['group'])) not in landing_groups(flow, write):
    return False
  columns = (
      write['col_begin'] < read['col_end']
      and read['col_begin'] < write['col_end']
  )
  if write['view'] == layout.View.SENDER:
    return columns
  return (
      columns
      and write['row_begin'] < read['row_end']
      and read['row_begin'] < write['row_end']
  )


@pytest.mark.parametrize('placement', PLACEMENTS)
@pytest.mark.parametrize('grain', GRAINS)
@pytest.mark.parametrize('shape', SHAPES)
def test_every_reader_waits_for_every_writer_it_overlaps(
    shape, grain, placement
):
  # Given a flow, when each (writer, reader) pair that may overlap is looked
  # at, one by one, then the writer signals an event that the reader waits for
  # and that cannot fire without it, and stands before it in queue order.
  flow = lower(shape, grain, placement)
  writers = []
  for index, task in enumerate(flow.tasks):
    writers += [(index, w) for w in regions(flow, task)[1]]
  signalled = {}
  for index, task in enumerate(flow.tasks):
    begin, count = int(task['signal_begin']), int(task['signal_count'])
    signalled[index] = {
        event
        for s in flow.signals[begin : begin + count]
        for event in range(s['event'], s['event'] + s['span'])
    }
  pairs = 0
  order = flow.wave * len(layout.Kind) + flow.tasks['kind']
  for reader, task in enumerate(flow.tasks):
    begin, count = int(task['wait_begin']), int(task['wait_count'])
    waited = set(flow.waits['event'][begin : begin + count])
    for read in regions(flow, task)[0]:
      for index, write in writers:
        if may_overlap(flow, write, read):
          pairs += 1
          assert waited & signalled[index], (task, flow.tasks[index])
          assert order[index] < order[reader], (task, flow.tasks[index])
  assert pairs > len(flow.tasks) / 2


@pytest.mark.parametrize('grain', GRAINS)
@pytest.mark.parametrize('shape', SHAPES)
def test_thresholds_are_the_sum_of_signals(shape, grain):
  flow = lower(shape, grain)
  total = np.zeros(len(flow.events), int)
  for signal in flow.signals[flow.signals['amount'] > 0]:
    assert signal['span'] == 1
    total[signal['event']] += signal['amount']
  by_task = flow.events['mode'] == layout.Mode.COUNT_TASKS
  np.testing.assert_array_equal(
      flow.events['threshold'][by_task], total[by_task]
  )
  assert (total[~by_task] == 0).all()
  assert by_task.all() == (grain == 'expert')
  np.testing.assert_array_equal(
      flow.waits['threshold'], flow.events['threshold'][flow.waits['event']]
  )


def test_one_rank_counts_rows_too():
  flow = lower('one_rank', 'row_block')
  arrived = flow.events['buffer'] == layout.Buffer.EXPERT_IN
  assert (flow.events['mode'][arrived] == layout.Mode.COUNT_ROWS).all()


def test_row_events_count_the_rows_of_their_partition():
  # 'ragged': T=5 tokens, K=2, token block 4 -> partitions of 8 and 2 slots.
  flow = lower('ragged', 'row_block')
  returned = flow.events[flow.events['buffer'] == layout.Buffer.RETURNED]
  assert list(returned['threshold']) == [8, 2, 8, 2]
  arrived = flow.events[flow.events['buffer'] == layout.Buffer.EXPERT_IN]
  assert set(arrived['threshold']) == {4}


@pytest.mark.parametrize('grain', GRAINS)
def test_task_counts_follow_from_the_shape(grain):
  flow = lower('ragged', grain, put_rows=2)
  # R=2, L=2, C=min(R*T, N)=10 -> 12 rows in 3 blocks; slices of T=5 rows.
  counts = np.bincount(flow.tasks['kind'], minlength=6)
  returns = 2 * 2 * (3 if grain == 'row_block' else 2 * 3)
  assert list(counts) == [2 * 4 * 3, 12 * 4, 12, 12 * 3, returns, 2 * 2]


@pytest.mark.parametrize('grain', GRAINS)
def test_queues_hold_every_task_once_in_producer_first_order(grain):
  flow = lower('rank_per_expert', grain)
  assert sorted(flow.queue_tasks) == list(range(len(flow.tasks)))
  key = flow.wave * 10 + flow.tasks['kind']
  for queue in flow.queues:
    run = flow.queue_tasks[queue['begin'] : queue['begin'] + queue['count']]
    assert (flow.tasks['rank'][run] == queue['rank']).all()
    assert (flow.tasks['unit'][run] == queue['unit']).all()
    assert (flow.tasks['core'][run] == queue['core']).all()
    assert (np.diff(key[run]) >= 0).all()


def test_dispatch_destinations_rotate_with_the_rank():
  flow = lower('rank_per_expert', 'row_block')
  first = [
      int(flow.tasks['peer'][flow.tasks['rank'] == rank][0])
      for rank in range(4)
  ]
  assert first == [0, 1, 2, 3]


@pytest.mark.parametrize(
    'field, value',
    [
        ('event_grain', 'tile'),
        ('row_block', 0),
        ('col_block', -1),
        ('num_aic', 70000),
    ],
)
def test_options_out_of_range_are_named(field, value):
  with pytest.raises(ValueError, match=f'{field}: expected'):
    flow_lib.Options(**{field: value})


def test_a_policy_that_the_backend_does_not_compute_is_refused():
  with pytest.raises(ValueError, match='policy: expected float32 or bfloat16'):
    lower_forward.lower_forward(
        SHAPES['ragged'],
        precision.PrecisionPolicy().golden(),
        flow_lib.Options(),
    )


@pytest.mark.parametrize(
    'shape, grain', list(itertools.product(SHAPES, GRAINS))
)
def test_written_regions_tile_their_spaces(shape, grain):
  # Given the spaces, when every write is painted into an array, then each
  # element has been painted exactly once.
  flow = lower(shape, grain)
  canvas = {
      (int(s['buffer']), int(s['rank'])): np.zeros(
          (s['groups'], s['rows'], s['cols']), int
      )
      for s in flow.spaces
  }
  for task in flow.tasks:
    for w in regions(flow, task)[1]:
      space = canvas[int(w['buffer']), int(w['rank'])]
      assert w['row_end'] <= space.shape[1]
      assert w['col_end'] <= space.shape[2]
      space[
          w['group'],
          w['row_begin'] : w['row_end'],
          w['col_begin'] : w['col_end'],
      ] += 1
  for painted in canvas.values():
    assert (painted == 1).all()
