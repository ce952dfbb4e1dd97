"""Derives events, waits and signals from the regions that tasks touch.

A buffer's row view is cut into partitions; a partition is an event.  A task
that writes into a partition signals its event; a task that reads from one
waits for it.  The threshold is the sum of all signals, so passing it means
that every writer of the partition has written.
"""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout

View = layout.View
Mode = layout.Mode


@dataclasses.dataclass(frozen=True)
class Partition:
  """The cut of one buffer, the same on every rank.

  Attributes:
    buffer: layout.Buffer.
    groups: groups of the row view.
    rows: rows of one group.
    part_rows: rows of one partition; the last one may be cut.
    is_put: whether puts fill it; their rows can be counted.
    fold: how many groups of the sender view land in one group of the row
      view.  A put may land anywhere in that group.
    onward: whether it may land anywhere in later groups of its rank, too.
  """

  buffer: int
  groups: int
  rows: int
  part_rows: int
  is_put: bool = False
  fold: int = 1
  onward: bool = False

  @property
  def parts(self) -> int:
    return -(-self.rows // self.part_rows)


def _event_table(
  partitions, num_ranks: int, count_rows: bool
) -> tuple[np.ndarray, dict[int, int]]:
  """Returns the events without task thresholds, and each buffer's first."""
  tables, first, begin = [], {}, 0
  for p in partitions:
    rank, group, part = np.indices(
      (num_ranks, p.groups, p.parts), dtype=np.int32
    ).reshape(3, -1)
    table = np.zeros(rank.size, layout.EVENT)
    table['rank'], table['group'], table['part'] = rank, group, part
    table['buffer'], table['part_rows'] = p.buffer, p.part_rows
    if count_rows and p.is_put:
      table['mode'] = Mode.COUNT_ROWS
      table['threshold'] = np.minimum(p.part_rows, p.rows - part * p.part_rows)
    tables.append(table)
    first[int(p.buffer)] = begin
    begin += rank.size
  return np.concatenate(tables), first


def _find_events(p: Partition, first: int, regions: np.ndarray):
  """Returns (first event, number of events) per region of buffer p."""
  group = regions['group']
  begin = regions['row_begin'] // p.part_rows
  end = -(-regions['row_end'] // p.part_rows)
  is_sender = regions['view'] == View.SENDER
  group = np.where(is_sender, group // p.fold, group)
  begin = np.where(is_sender, 0, begin)
  end = np.where(is_sender, p.parts, end)
  event = first + (regions['rank'] * p.groups + group) * p.parts + begin
  return event.astype(np.int32), (end - begin).astype(np.int32)


def _spread(regions: np.ndarray, num_ranks: int):
  """Returns (index, region) with regions of any rank repeated per rank."""
  any_rank = regions['rank'] == layout.ANY_RANK
  if not any_rank.any():
    return np.arange(len(regions)), regions
  index, lane = _repeat_index(np.where(any_rank, num_ranks, 1))
  spread = regions[index]
  spread['rank'] = np.where(any_rank[index], lane, spread['rank'])
  return index, spread


def _repeat_index(times: np.ndarray):
  """Returns (index, how many of that index came before), index repeated."""
  index = np.repeat(np.arange(len(times)), times)
  return index, np.arange(len(index)) - np.repeat(
    np.cumsum(times) - times, times
  )


def _spread_onward(p: Partition, regions: np.ndarray):
  """Returns (index, region) with regions repeated for every later group."""
  if not p.onward:
    return np.arange(len(regions)), regions
  index, lane = _repeat_index(p.groups - regions['group'])
  spread = regions[index]
  spread['group'] += lane.astype(np.int32)
  return index, spread


def _expand(owner, event, count):
  """Returns (owner, event), one entry per event of a run of events."""
  if (count == 1).all():
    return owner, event
  ends = np.cumsum(count)
  offset = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - count, count)
  return np.repeat(owner, count), np.repeat(event, count) + offset


def _waits(batch, partitions, first):
  """Returns (task of the batch, event) for everything the batch reads."""
  owners, events = [], []
  for reads in batch.reads.T:
    p = partitions.get(int(reads['buffer'][0]))
    if p is None:
      continue
    event, count = _find_events(p, first[int(p.buffer)], reads)
    owner, event = _expand(np.arange(len(reads)), event, count)
    owners.append(owner)
    events.append(event)
  return _by_owner(owners, events, np.int32)


def _by_owner(owners, values, empty):
  """Concatenates and sorts by owner, keeping the order inside one."""
  if not owners:
    return np.zeros(0, np.int64), np.zeros(0, empty)
  owner, values = np.concatenate(owners), np.concatenate(values)
  if len(owners) > 1:
    order = np.argsort(owner, kind='stable')
    owner, values = owner[order], values[order]
  return owner, values


def _signals(batch, partitions, first, num_ranks, count_rows):
  """Returns (task of the batch, layout.SIGNAL) for everything it writes."""
  owners, signals = [], []
  for writes in batch.writes.T:
    p = partitions.get(int(writes['buffer'][0]))
    if p is None:
      continue
    owner, writes = _spread(writes, num_ranks)
    index, writes = _spread_onward(p, writes)
    owner = owner[index]
    event, span = _find_events(p, first[int(p.buffer)], writes)
    rank = writes['rank']
    per_row = count_rows and p.is_put
    if not per_row:
      index, event = _expand(np.arange(len(writes)), event, span)
      owner, rank, span = owner[index], rank[index], 1
    table = np.zeros(len(event), layout.SIGNAL)
    table['event'], table['span'], table['rank'] = event, span, rank
    table['amount'] = layout.PER_ROW if per_row else 1
    owners.append(owner)
    signals.append(table)
  return _by_owner(owners, signals, layout.SIGNAL)


def _slices(owner, n: int):
  """Returns (begin, count) of every task's slice of a sorted owner list."""
  count = np.bincount(owner, minlength=n)
  return np.cumsum(count) - count, count


def _check_count(name: str, count, dtype) -> None:
  """Refuses a list that the task's descriptor cannot count."""
  limit = np.iinfo(dtype).max
  if count.size and count.max() > limit:
    raise ValueError(
      f'row_block: expected at most {limit} {name}s of a task, got '
      f'{count.max()}; larger row blocks make fewer'
    )


def derive(batches, partitions, num_ranks: int, count_rows: bool) -> dict:
  """Returns the tables tasks, waits, signals, regions and events.

  Args:
    batches: `lower_forward.Batch` per kind, in dependency order.
    partitions: how written buffers are cut; a buffer not listed has no event.
    num_ranks: R.
    count_rows: whether events filled by puts count rows instead of tasks.
  """
  table, first = _event_table(partitions, num_ranks, count_rows)
  partitions = {int(p.buffer): p for p in partitions}
  tasks, waits, signals, regions = [], [], [], []
  begin = {'wait': 0, 'signal': 0, 'region': 0}
  for batch in batches:
    n = len(batch.tasks)
    task = batch.tasks
    wait_owner, event = _waits(batch, partitions, first)
    signal_owner, signal = _signals(
      batch, partitions, first, num_ranks, count_rows
    )
    for name, owner in (('wait', wait_owner), ('signal', signal_owner)):
      start, count = _slices(owner, n)
      _check_count(name, count, task.dtype[name + '_count'])
      task[name + '_begin'] = begin[name] + start
      task[name + '_count'] = count
      begin[name] += len(owner)
    region = np.concatenate([batch.reads, batch.writes], axis=1)
    task['region_begin'] = begin['region'] + np.arange(n) * region.shape[1]
    task['read_count'] = batch.reads.shape[1]
    task['write_count'] = batch.writes.shape[1]
    begin['region'] += region.size
    tasks.append(task)
    waits.append(event)
    signals.append(signal)
    regions.append(region.reshape(-1))
  signal = np.concatenate(signals)
  is_constant = signal['amount'] != layout.PER_ROW
  total = np.bincount(
    signal['event'][is_constant],
    weights=signal['amount'][is_constant],
    minlength=len(table),
  ).astype(np.int32)
  by_task = table['mode'] == Mode.COUNT_TASKS
  table['threshold'] = np.where(by_task, total, table['threshold'])
  event = np.concatenate(waits)
  wait = np.zeros(len(event), layout.WAIT)
  wait['event'], wait['threshold'] = event, table['threshold'][event]
  return dict(
    tasks=np.concatenate(tasks),
    waits=wait,
    signals=signal,
    regions=np.concatenate(regions),
    events=table,
  )
