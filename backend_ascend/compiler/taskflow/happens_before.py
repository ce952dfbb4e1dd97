"""What is known to be done when a task starts: vector clocks of an image.

A wait stands for every task that signals its event.  Which of them a routing
makes do so is not in the tables: where nobody says, all that may.

Puts obey the law of `image/put_law.h`.  Proofs and races have it from there;
here it is once more, in another language, so that `runtime_races_test.py` can
hold the races that are found against clocks that share no code with them.
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
    known: `[tasks, queues]` i32, how many tasks of each queue are done, or if
      they are puts sent, when the task starts.
    waiters: by put, the first task of each queue that waits for its signals.
  """

  queue: np.ndarray
  position: np.ndarray
  predecessor: np.ndarray
  known: np.ndarray
  waiters: dict[int, np.ndarray]

  def before(self, first, second) -> np.ndarray:
    """Returns whether tasks `first` are done when tasks `second` start."""
    first, second = np.broadcast_arrays(first, second)
    done = np.array(self._started(first, second))
    order = np.argsort(first, axis=None, kind='stable')
    tasks, begins = np.unique(first.flat[order], return_index=True)
    for task, at in zip(tasks, np.split(order, begins[1:])):
      if (waiters := self.waiters.get(int(task))) is not None:
        after = second.flat[at][:, None]
        told = self._started(waiters, after) | (waiters == after)
        done.flat[at] = told.any(axis=1)
    return done

  def _started(self, first, second) -> np.ndarray:
    return self.known[second, self.queue[first]] > self.position[first]


def ranges(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
  """Returns begin[0] .. begin[0] + count[0], begin[1] ..., end to end."""
  begin, count = np.asarray(begin, np.int64), np.asarray(count, np.int64)
  ends = np.cumsum(count)
  return np.arange(count.sum()) + np.repeat(begin - (ends - count), count)


def signals(image: image_lib.Image) -> np.ndarray:
  """Returns `[s, 2]` i64 of (task, event): every signal that may be made."""
  tasks, table = image.tables['tasks'], image.tables['signals']
  owner = np.repeat(np.arange(len(tasks)), tasks['signal_count'])
  used = table[ranges(tasks['signal_begin'], tasks['signal_count'])]
  events = ranges(used['event'], used['span'])
  return np.stack([np.repeat(owner, used['span']), events], axis=1)


def waits(image: image_lib.Image) -> np.ndarray:
  """Returns `[w, 2]` i64 of (task, event)."""
  tasks, table = image.tables['tasks'], image.tables['waits']
  owner = np.repeat(np.arange(len(tasks)), tasks['wait_count'])
  used = table[ranges(tasks['wait_begin'], tasks['wait_count'])]
  return np.stack([owner, used['event'].astype(np.int64)], axis=1)


def grouped(pairs: np.ndarray, groups: int) -> list[np.ndarray]:
  """Returns the second of all pairs whose first is i, for i in [0, groups)."""
  pairs = pairs[np.argsort(pairs[:, 0], kind='stable')]
  return np.split(
    pairs[:, 1], np.searchsorted(pairs[:, 0], np.arange(1, groups))
  )


def places(image: image_lib.Image) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def clocks(
  image: image_lib.Image, signalled: np.ndarray | None = None
) -> Clocks:
  """Returns the clocks of a parsed image.

  Args:
    image: the parsed image.
    signalled: `[s, 2]` (task, event), every signal that is made; None: all that
      may be.

  Raises:
    ValueError: some task can never start.
  """
  num_tasks = len(image.tables['tasks'])
  num_events = len(image.tables['events'])
  queue, position, before = places(image)
  signalled = signals(image) if signalled is None else signalled
  pending = np.bincount(signalled[:, 1], minlength=num_events)
  signals_of = grouped(signalled, num_tasks)
  waits_of = grouped(waits(image), num_tasks)
  # The tasks to look at again once an event is complete, by event.
  blocked: list[list[int]] = [[] for _ in range(num_events)]
  after = np.full(num_tasks, -1)
  after[before[before >= 0]] = np.flatnonzero(before >= 0)
  width = len(image.tables['queues'])
  known = np.zeros((num_tasks, width), np.int32)
  events = np.zeros((num_events, width), np.int32)
  ready, done = list(np.flatnonzero(before < 0)), 0
  while ready:
    task = ready.pop()
    unmet = [event for event in waits_of[task] if pending[event]]
    if unmet:
      blocked[unmet[0]].append(task)
      continue
    clock, previous = known[task], before[task]
    if previous >= 0:
      clock[:] = known[previous]
      clock[queue[task]] = position[task]
    for event in waits_of[task]:
      np.maximum(clock, events[event], out=clock)
    for event in signals_of[task]:
      np.maximum(events[event], clock, out=events[event])
      mine = events[event, queue[task]]
      events[event, queue[task]] = max(mine, position[task] + 1)
      pending[event] -= 1
      if not pending[event]:
        ready.extend(blocked[event])
    if after[task] >= 0:
      ready.append(after[task])
    done += 1
  if done < num_tasks:
    raise ValueError(
      f'image: expected a flow that ends, got one whose {num_tasks - done} '
      f'last of {num_tasks} tasks never start'
    )
  waiters = _waiters(image, signals_of, (queue, position))
  return Clocks(queue, position, before, known, waiters)


def _waiters(image, signals_of, places) -> dict[int, np.ndarray]:
  """Returns `Clocks.waiters`, the first of each queue: others come later."""
  queue, position = places
  waiters_of = grouped(waits(image)[:, ::-1], len(image.tables['events']))
  none = np.zeros(0, np.int64)
  waiters = {}
  for put in np.flatnonzero(np.isin(image.tables['tasks']['kind'], _PUTS)):
    found = np.concatenate([none, *(waiters_of[e] for e in signals_of[put])])
    found = found[np.argsort(position[found], kind='stable')]
    _, first = np.unique(queue[found], return_index=True)
    waiters[int(put)] = found[first]
  return waiters
