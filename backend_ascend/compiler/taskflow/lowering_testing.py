"""What holds of every lowered flow, by a brute-force reading of its regions."""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.orders import orders
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

SHAPES = {
  'one_rank': config_testing.make_config(r=1, t=8, e=2, k=1, d=8, f=4),
  'ragged': config_testing.make_config(r=2, t=5, e=4, k=2, d=9, f=5),
  'k_is_e': config_testing.make_config(r=2, t=4, e=4, k=4, d=8, f=4),
  'rank_per_expert': config_testing.make_config(r=4, t=6, e=4, k=2, d=8, f=6),
}
# Beside them: not every test is of such a flow.
SUBLAYER = dataclasses.replace(SHAPES['ragged'], sublayer=True)
GRAINS = granularity.EVENT_GRAINS
RELAYED = (layout.Buffer.X_RELAYED, layout.Buffer.DY_RELAYED)
ARRIVAL_BUFFERS = (layout.Buffer.EXPERT_IN, layout.Buffer.D_EXPERT_OUT)
PLACEMENTS = precision.LAUNCHED_PLACEMENTS
COMPILE = {
  'forward': compiler.compile_forward,
  'backward': compiler.compile_backward,
}


def lower(
  shape: str = 'ragged',
  grain: str = 'row_block',
  placement: str = 'combine',
  direction: str = 'forward',
  **options,
) -> flow_lib.Flow:
  """Returns a placed flow of small, awkward tiles."""
  options = dict(row_block=4, col_block=3, num_aic=2, num_aiv=3) | options
  config = SUBLAYER if shape == 'sublayer' else SHAPES[shape]
  placement = 'combine' if config.sublayer else placement
  return COMPILE[direction](
    config,
    precision.PrecisionPolicy(placement=placement),
    granularity.Options(event_grain=grain, **options),
  ).flow


def regions_of(flow, task):
  """Returns (reads, writes) of a task, as views."""
  t = flow.tasks[task]
  begin, reads = int(t['region_begin']), int(t['read_count'])
  end = begin + reads + int(t['write_count'])
  return flow.regions[begin : begin + reads], flow.regions[begin + reads : end]


def landing_groups(flow, region):
  """Returns every (rank, group) of the row view that a write may reach."""
  dims = flow.config.dims()
  if region['view'] == layout.View.ROWS:
    return {(int(region['rank']), int(region['group']))}
  is_arrival = region['buffer'] in ARRIVAL_BUFFERS
  if is_arrival and flow.options.relay:
    groups = range(int(region['group']), dims['L'])
    return {(int(region['rank']), group) for group in groups}
  if is_arrival or region['buffer'] in RELAYED:
    return {(int(region['rank']), int(region['group']) // dims['R'])}
  ranks = (
    range(dims['R'])
    if region['rank'] == layout.ANY_RANK
    else [int(region['rank'])]
  )
  return {(rank, 0) for rank in ranks}


def may_overlap(flow, write, read) -> bool:
  """Returns whether a write may touch an element that the read touches."""
  if write['buffer'] != read['buffer']:
    return False
  if (int(read['rank']), int(read['group'])) not in landing_groups(flow, write):
    return False
  columns = (
    write['col_begin'] < read['col_end']
    and read['col_begin'] < write['col_end']
  )
  if write['view'] == layout.View.SENDER:
    return columns and read['row_begin'] < read['row_end']
  return (
    columns
    and write['row_begin'] < read['row_end']
    and read['row_begin'] < write['row_end']
  )


def _events(flow, task, table: str) -> set[int]:
  """Returns the events that a task waits for or signals."""
  name = table[:-1]
  begin = int(flow.tasks[task][name + '_begin'])
  entries = getattr(flow, table)[
    begin : begin + int(flow.tasks[task][name + '_count'])
  ]
  spans = entries['span'] if table == 'signals' else np.ones(len(entries), int)
  return {
    event
    for entry, span in zip(entries, spans)
    for event in range(entry['event'], entry['event'] + span)
  }


def check_every_reader_waits_for_every_writer_it_overlaps(flow) -> int:
  """Looks at each (writer, reader) pair that may overlap, one by one.

  The writer must signal an event that the reader waits for, and stand before
  it in queue order.

  Returns:
    how many pairs there are.
  """
  tasks = range(len(flow.tasks))
  writers = [(t, w) for t in tasks for w in regions_of(flow, t)[1]]
  signalled = [_events(flow, t, 'signals') for t in tasks]
  order = np.argsort(orders.sequence(flow))
  pairs = 0
  for reader in tasks:
    waited_events = _events(flow, reader, 'waits')
    for read in regions_of(flow, reader)[0]:
      for writer, write in writers:
        if not may_overlap(flow, write, read):
          continue
        pairs += 1
        names = flow.tasks[reader], flow.tasks[writer]
        assert waited_events & signalled[writer], names
        assert order[writer] < order[reader], names
  return pairs


def check_thresholds_are_the_sum_of_signals(flow) -> None:
  total = np.zeros(len(flow.events), int)
  for signal in flow.signals[flow.signals['amount'] > 0]:
    assert signal['span'] == 1
    total[signal['event']] += signal['amount']
  by_task = flow.events['mode'] == layout.Mode.COUNT_TASKS
  np.testing.assert_array_equal(
    flow.events['threshold'][by_task], total[by_task]
  )
  assert (total[~by_task] == 0).all()
  assert by_task.all() == (flow.options.event_grain == 'expert')
  np.testing.assert_array_equal(
    flow.waits['threshold'], flow.events['threshold'][flow.waits['event']]
  )


def check_queues_hold_every_task_once_in_producer_first_order(flow) -> None:
  assert sorted(flow.queue_tasks) == list(range(len(flow.tasks)))
  order = np.argsort(orders.sequence(flow))
  for queue in flow.queues:
    run = flow.queue_tasks[queue['begin'] : queue['begin'] + queue['count']]
    assert (flow.tasks['rank'][run] == queue['rank']).all()
    assert (flow.tasks['unit'][run] == queue['unit']).all()
    assert (flow.tasks['core'][run] == queue['core']).all()
    assert (np.diff(order[run]) > 0).all()


def check_written_regions_tile_their_spaces(flow) -> None:
  """Paints every write into an array: each element once."""
  canvas = {
    (int(s['buffer']), int(s['rank'])): np.zeros(
      (s['groups'], s['rows'], s['cols']), int
    )
    for s in flow.spaces
  }
  for task in range(len(flow.tasks)):
    for w in regions_of(flow, task)[1]:
      space = canvas[int(w['buffer']), int(w['rank'])]
      assert w['row_end'] <= space.shape[1]
      assert w['col_end'] <= space.shape[2]
      space[
        w['group'], w['row_begin'] : w['row_end'], w['col_begin'] : w['col_end']
      ] += 1
  for painted in canvas.values():
    assert (painted == 1).all()
