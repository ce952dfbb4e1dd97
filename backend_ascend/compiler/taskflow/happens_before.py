"""Which tasks of an image happen before which: readers and vector clocks.

Three kinds of file use it.  Traces and plots of the simulator read the waits,
signals and queue positions of an image from here.  Coverage of signals, planted
faults and the checking mode that starts at a task ask `Clocks.before` which
tasks are done when another starts.  Tests of proofs and of race detection
compare with these clocks: those two take the rule of puts from
`image/put_law.h`, and this file implements the rule a second time, in another
language and with no shared code.

A wait depends on every task that signals its event.  Which of them signal under
a given routing is not in the tables of an image.  Unless the caller passes the
signals that were made, every possible signal counts.
"""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout

_PUTS = layout.select_kinds(*layout.PUTS)


@dataclasses.dataclass(frozen=True)
class Clocks:
  """Clocks of all tasks.

  Attributes:
    queue: `[tasks]` i32, the queue of each.
    position: `[tasks]` i32, where in it.
    predecessor: `[tasks]` i32, the task before it in its queue, or -1.
    done_counts: `[tasks, queues]` i32, how many tasks of each queue are done
      when the task starts; a put counts as soon as it is sent.
    waiters: put to the first task of each queue that waits for its signals.
  """

  queue: np.ndarray
  position: np.ndarray
  predecessor: np.ndarray
  done_counts: np.ndarray
  waiters: dict[int, np.ndarray]

  def before(self, first, second) -> np.ndarray:
    """Returns whether tasks `first` are done when tasks `second` start."""
    first, second = np.broadcast_arrays(first, second)
    is_done = np.array(self._is_started(first, second))
    order = np.argsort(first, axis=None, kind='stable')
    tasks, begins = np.unique(first.flat[order], return_index=True)
    for task, indices in zip(tasks, np.split(order, begins[1:])):
      if (waiters := self.waiters.get(int(task))) is not None:
        after = second.flat[indices][:, None]
        is_awaited = self._is_started(waiters, after) | (waiters == after)
        is_done.flat[indices] = is_awaited.any(axis=1)
    return is_done

  def _is_started(self, first, second) -> np.ndarray:
    return self.done_counts[second, self.queue[first]] > self.position[first]


def ranges(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
  """Returns begin[0] .. begin[0] + count[0], begin[1] ..., end to end."""
  begin, count = np.asarray(begin, np.int64), np.asarray(count, np.int64)
  ends = np.cumsum(count)
  return np.arange(count.sum()) + np.repeat(begin - (ends - count), count)


def list_signals(image: image_lib.Image) -> np.ndarray:
  """Returns `[s, 2]` i64 of (task, event): every possible signal."""
  tasks, table = image.tables['tasks'], image.tables['signals']
  owner = np.repeat(np.arange(len(tasks)), tasks['signal_count'])
  entries = table[ranges(tasks['signal_begin'], tasks['signal_count'])]
  events = ranges(entries['event'], entries['span'])
  return np.stack([np.repeat(owner, entries['span']), events], axis=1)


def list_waits(image: image_lib.Image) -> np.ndarray:
  """Returns `[w, 2]` i64 of (task, event)."""
  tasks, table = image.tables['tasks'], image.tables['waits']
  owner = np.repeat(np.arange(len(tasks)), tasks['wait_count'])
  entries = table[ranges(tasks['wait_begin'], tasks['wait_count'])]
  return np.stack([owner, entries['event'].astype(np.int64)], axis=1)


def group_pairs(pairs: np.ndarray, groups: int) -> list[np.ndarray]:
  """Returns for each i in [0, groups) the second of all pairs (i, second)."""
  pairs = pairs[np.argsort(pairs[:, 0], kind='stable')]
  return np.split(
    pairs[:, 1], np.searchsorted(pairs[:, 0], np.arange(1, groups))
  )


def locate_tasks(
  image: image_lib.Image,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns `[tasks]` i32: queue, place in it, and the task before or -1."""
  queues, tasks = image.tables['queues'], image.tables['queue_tasks']
  queue = np.empty(len(tasks), np.int32)
  position, before = np.empty_like(queue), np.empty_like(queue)
  entries = tasks[ranges(queues['begin'], queues['count'])].astype(np.int64)
  index = ranges(np.zeros(len(queues)), queues['count'])
  queue[entries] = np.repeat(np.arange(len(queues)), queues['count'])
  position[entries] = index
  before[entries] = np.where(index > 0, np.roll(entries, 1), -1)
  return queue, position, before


def compute_clocks(
  image: image_lib.Image, signalled: np.ndarray | None = None
) -> Clocks:
  """Returns the clocks of a parsed image.

  Args:
    image: the parsed image.
    signalled: `[s, 2]` (task, event), the signals that are made; None: every
      possible signal.

  Raises:
    ValueError: some task can never start.
  """
  num_tasks = len(image.tables['tasks'])
  num_events = len(image.tables['events'])
  queue, position, before = locate_tasks(image)
  signalled = list_signals(image) if signalled is None else signalled
  pending = np.bincount(signalled[:, 1], minlength=num_events)
  signals_of = group_pairs(signalled, num_tasks)
  waits_of = group_pairs(list_waits(image), num_tasks)
  # The tasks to look at again once an event is complete, by event.
  blocked_tasks: list[list[int]] = [[] for _ in range(num_events)]
  after = np.full(num_tasks, -1)
  after[before[before >= 0]] = np.flatnonzero(before >= 0)
  width = len(image.tables['queues'])
  done_counts = np.zeros((num_tasks, width), np.int32)
  events = np.zeros((num_events, width), np.int32)
  ready, num_done = list(np.flatnonzero(before < 0)), 0
  while ready:
    task = ready.pop()
    unmet = [event for event in waits_of[task] if pending[event]]
    if unmet:
      blocked_tasks[unmet[0]].append(task)
      continue
    clock, previous = done_counts[task], before[task]
    if previous >= 0:
      clock[:] = done_counts[previous]
      clock[queue[task]] = position[task]
    for event in waits_of[task]:
      np.maximum(clock, events[event], out=clock)
    for event in signals_of[task]:
      np.maximum(events[event], clock, out=events[event])
      own_position = events[event, queue[task]]
      events[event, queue[task]] = max(own_position, position[task] + 1)
      pending[event] -= 1
      if not pending[event]:
        ready.extend(blocked_tasks[event])
    if after[task] >= 0:
      ready.append(after[task])
    num_done += 1
  if num_done < num_tasks:
    raise ValueError(
      f'image: expected a flow that ends, got one whose {num_tasks - num_done} '
      f'last of {num_tasks} tasks never start'
    )
  waiters = _waiters(image, signals_of, (queue, position))
  return Clocks(queue, position, before, done_counts, waiters)


def _waiters(image, signals_of, locations) -> dict[int, np.ndarray]:
  """Returns `Clocks.waiters`, the first of each queue: others come later."""
  queue, position = locations
  waiters_of = group_pairs(
    list_waits(image)[:, ::-1], len(image.tables['events'])
  )
  empty = np.zeros(0, np.int64)
  waiters = {}
  for put in np.flatnonzero(np.isin(image.tables['tasks']['kind'], _PUTS)):
    tasks = np.concatenate([empty, *(waiters_of[e] for e in signals_of[put])])
    tasks = tasks[np.argsort(position[tasks], kind='stable')]
    _, first = np.unique(queue[tasks], return_index=True)
    waiters[int(put)] = tasks[first]
  return waiters
