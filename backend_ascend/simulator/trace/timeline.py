"""When every task of a launch ran, modelled or measured, and what released it.

All that is drawn, written or summed up in this folder comes from one
`Timeline`, whoever made it.
"""

import dataclasses

from jaxtyping import Float
from jaxtyping import Int
import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout

NO_TASK = -1  # no task


@dataclasses.dataclass(frozen=True)
class Timeline:
  """When every task of one launch ran, in seconds since its start.

  Attributes:
    image: what was launched.
    signals: `[s, 2]` i32, (task, event) for each time that a task added to an
      event, as of `runtime.inspect`.
    start: `[tasks]` f64, when the task's waits were met and it began.
    end: `[tasks]` f64, when its work was done.
    wait_times: `[tasks]` f64, s that the worker idled until it could begin.
    origin: where the times are from, for titles: 'modelled, ascend_a3'.
    thread: `[tasks]` i32, the thread that ran it, where workers share a few
      threads; None where each worker is a core of its own.

  Raises:
    ValueError: a table is not of the image's tasks, a time is not finite or
      negative, a task ends before it starts, or two tasks of a worker overlap.
  """

  image: image_lib.Image
  signals: Int[np.ndarray, 's 2']
  start: Float[np.ndarray, ' tasks']
  end: Float[np.ndarray, ' tasks']
  wait_times: Float[np.ndarray, ' tasks']
  origin: str
  thread: Int[np.ndarray, ' tasks'] | None = None

  def __post_init__(self):
    tasks = len(self.image.tables['tasks'])
    for name in ('start', 'end', 'wait_times', 'thread'):
      values = getattr(self, name)
      if values is None:
        continue
      if values.shape != (tasks,):
        raise ValueError(f'{name}: expected [{tasks}], got {values.shape}')
      if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f'{name}: expected finite values from 0')
    early = np.flatnonzero(self.end < self.start)
    if early.size:
      raise ValueError(
        f'end: expected at least start, got {self.end[early[0]]} after '
        f'{self.start[early[0]]} for task {early[0]}'
      )
    _, _, before = happens_before.locate_tasks(self.image)
    followers = np.flatnonzero(before != NO_TASK)
    overlap = followers[self.start[followers] < self.end[before[followers]]]
    if overlap.size:
      raise ValueError(
        f'start: expected task {overlap[0]} after task {before[overlap[0]]} '
        f'of its worker, which ends at {self.end[before[overlap[0]]]}, got '
        f'{self.start[overlap[0]]}'
      )

  @property
  def tasks(self) -> np.ndarray:
    """`[tasks]` layout.TASK."""
    return self.image.tables['tasks']

  @property
  def total(self) -> float:
    """Seconds until the last task's end."""
    return float(self.end.max(initial=0.0))


def kinds(tasks: np.ndarray) -> list[layout.Kind]:
  """Returns the kinds that occur, in dependency order."""
  return [layout.Kind(k) for k in np.unique(tasks['kind'])]


def is_put(tasks: np.ndarray) -> np.ndarray:
  """Returns `[tasks]` bool, which tasks send rows."""
  puts = layout.select_kinds(layout.Form.SLICE_PUT, layout.Form.HOME_PUT)
  return np.isin(tasks['kind'], puts)


def _last(keys, times, tasks, size: int) -> np.ndarray:
  """Returns, for each key in [0, size), the task with the latest time."""
  last = np.full(size, NO_TASK, np.int64)
  by_time = np.argsort(times, kind='stable')
  last[keys[by_time]] = tasks[by_time]
  return last


def last_signaller(times: Timeline) -> Int[np.ndarray, ' events']:
  """Returns the task whose signal filled each event, or NONE.

  Thresholds are the sum of all signals, so it is the one that ended last.
  """
  task, event = times.signals.T
  size = len(times.image.tables['events'])
  return _last(event, times.end[task], task, size)


def _on_thread_before(times: Timeline) -> np.ndarray:
  """Returns the task before each one on its thread, or NONE."""
  before = np.full(len(times.start), NO_TASK, np.int64)
  if times.thread is None:
    return before
  order = np.lexsort((times.end, times.start, times.thread))
  is_same_thread = times.thread[order[1:]] == times.thread[order[:-1]]
  before[order[1:]] = np.where(is_same_thread, order[:-1], NO_TASK)
  return before


def released_by(times: Timeline) -> Int[np.ndarray, ' tasks']:
  """Returns the task after which each one could begin, or NONE.

  Of the last signallers of what it waits for, the task before it in its queue
  and the one before it on its thread, that which ended last.
  """
  tasks = len(times.start)
  waiter, event = happens_before.list_waits(times.image).T
  signaller = last_signaller(times)[event]
  _, _, in_queue_before = happens_before.locate_tasks(times.image)
  befores = [in_queue_before, _on_thread_before(times)]
  # Of equal ends the later in this list wins: a signal before a queue.
  after = np.concatenate([np.arange(tasks), np.arange(tasks), waiter])
  cause = np.concatenate([*befores, signaller])
  after, cause = after[cause != NO_TASK], cause[cause != NO_TASK]
  return _last(after, times.end[cause], cause, tasks)


def critical_path(times: Timeline) -> Int[np.ndarray, ' path']:
  """Returns tasks up to the last end, each released by the one before it."""
  released = released_by(times)
  path = [int(np.argmax(times.end))]
  while (before := int(released[path[-1]])) != NO_TASK:
    path.append(before)
  return np.array(path[::-1])
