"""A launch as Chrome's trace JSON, which Perfetto opens.

A rank is a process, which Perfetto shows with its number; a worker is a track
and a task is a slice.  If workers share a few threads, the threads form another
process.  The arrow of an event goes from the task that completed it to the
first task that started after it.
"""

import collections.abc
import dataclasses
import itertools
import json
import os

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.trace import timeline

MOST_ARROWS = 20_000
_ARROW = 'event'  # name and category
ARROW_RULE = (
  'one arrow for each event, from the task that filled it to the first task '
  'that began after it; of more than the most, those whose task had waited '
  'longest'
)
_COORDINATES = (
  'expert',
  'peer',
  'row_begin',
  'row_end',
  'col_begin',
  'col_end',
  'row_block',
  'col_block',
)


@dataclasses.dataclass(frozen=True)
class Arrow:
  """One event: `[arrows]` i64 each, tasks by number."""

  event: np.ndarray
  signaller: np.ndarray
  waiter: np.ndarray
  left_out: int


def arrows(times: timeline.Timeline, max_arrows: int = MOST_ARROWS) -> Arrow:
  """Returns at most `max_arrows` arrows by ARROW_RULE, by event."""
  waiter, event = happens_before.list_waits(times.image).T
  first = np.full(len(times.image.tables['events']), timeline.NO_TASK, np.int64)
  by_start = np.argsort(-times.start[waiter], kind='stable')
  first[event[by_start]] = waiter[by_start]
  signaller = timeline.last_signaller(times)
  candidates = np.flatnonzero(
    (first != timeline.NO_TASK) & (signaller != timeline.NO_TASK)
  )
  waiting_times = times.wait_times[first[candidates]]
  selected = np.sort(
    candidates[np.argsort(-waiting_times, kind='stable')[:max_arrows]]
  )
  return Arrow(
    selected,
    signaller[selected],
    first[selected],
    len(candidates) - len(selected),
  )


def _nanoseconds(seconds: np.ndarray) -> np.ndarray:
  # Both ends of a slice are rounded before their difference is taken, so that
  # neighbours never overlap.
  return np.rint(seconds * 1e9).astype(np.int64)


def _format_us(nanoseconds: int) -> str:
  return f'{nanoseconds // 1000}.{nanoseconds % 1000:03}'


def _name_track(pid: int, kind: str, name: str, tid: int | None = None):
  record = {'ph': 'M', 'pid': pid} | ({} if tid is None else {'tid': tid})
  yield json.dumps(record | {'name': f'{kind}_name', 'args': {'name': name}})
  order = {'sort_index': pid if tid is None else tid}
  yield json.dumps(record | {'name': f'{kind}_sort_index', 'args': order})


def _tracks(times: timeline.Timeline) -> collections.abc.Iterator[str]:
  queues = times.image.tables['queues']
  for rank in np.unique(queues['rank']):
    yield from _name_track(int(rank), 'process', 'rank')
  for queue, tid in zip(queues, _tid_of_queue(times)):
    name = f'{layout.Unit(queue["unit"]).name} {queue["core"]}'
    yield from _name_track(int(queue['rank']), 'thread', name, int(tid))
  if times.thread is not None:
    pid = _threads_pid(times)
    yield from _name_track(pid, 'process', 'threads, number')
    for thread in np.unique(times.thread).tolist():
      yield from _name_track(pid, 'thread', f'thread {thread}', thread + 1)


def _tid_of_queue(times: timeline.Timeline) -> np.ndarray:
  """Returns the track of each queue: its place in its rank, from 1."""
  queues = times.image.tables['queues']
  firsts = np.searchsorted(queues['rank'], queues['rank'])
  return np.arange(len(queues)) - firsts + 1


def _tid_of_task(times: timeline.Timeline) -> np.ndarray:
  return _tid_of_queue(times)[happens_before.locate_tasks(times.image)[0]]


def _threads_pid(times: timeline.Timeline) -> int:
  return times.image.config.num_ranks


def _slices(times: timeline.Timeline) -> collections.abc.Iterator[str]:
  tasks = times.tasks
  names = [kind.name.lower() for kind in layout.Kind]
  units = [unit.name for unit in layout.Unit]
  start, end = _nanoseconds(times.start), _nanoseconds(times.end)
  waiting_times = _nanoseconds(times.wait_times)
  tid = _tid_of_task(times)
  columns = [tasks[name].tolist() for name in _COORDINATES]
  thread = None if times.thread is None else (times.thread + 1).tolist()
  of_threads = _threads_pid(times)
  rows = zip(
    tasks['kind'].tolist(),
    tasks['unit'].tolist(),
    tasks['rank'].tolist(),
    tid.tolist(),
    start.tolist(),
    end.tolist(),
    waiting_times.tolist(),
    *columns,
  )
  for task, row in enumerate(rows):
    kind, unit, rank, track, begin, finish, wait, *place = row
    tile = ','.join(f'"{n}":{v}' for n, v in zip(_COORDINATES, place))
    slice_ = (
      f'{{"ph":"X","name":"{names[kind]}","cat":"{units[unit]}",'
      f'"ts":{_format_us(begin)},"dur":{_format_us(finish - begin)},'
    )
    wait_us = _format_us(wait)
    args = f'"args":{{"task":{task},"rank":{rank},{tile},"waited_us":{wait_us}'
    yield f'{slice_}"pid":{rank},"tid":{track},{args}}}}}'
    if thread is not None:
      yield f'{slice_}"pid":{of_threads},"tid":{thread[task]},{args}}}}}'


def _flows(
  times: timeline.Timeline, arrows_: Arrow
) -> collections.abc.Iterator[str]:
  tasks = times.tasks
  start, end = _nanoseconds(times.start), _nanoseconds(times.end)
  tid = _tid_of_task(times)
  # An arrow's ends belong to the slices that are open at their times.
  leaves = np.maximum(start[arrows_.signaller], end[arrows_.signaller] - 1)
  for phase, bound, task, nanosecond_ends in (
    ('s', '', arrows_.signaller, leaves),
    ('f', '"bp":"e",', arrows_.waiter, start[arrows_.waiter]),
  ):
    for event, task_number, nanoseconds in zip(
      arrows_.event, task, nanosecond_ends.tolist()
    ):
      yield (
        f'{{"ph":"{phase}",{bound}"id":{event},"name":"{_ARROW}",'
        f'"cat":"{_ARROW}","ts":{_format_us(nanoseconds)},"pid":{tasks["rank"][task_number]},'
        f'"tid":{tid[task_number]}}}'
      )


def write(
  path: str | os.PathLike[str],
  times: timeline.Timeline,
  most_arrows: int = MOST_ARROWS,
) -> Arrow:
  """Writes the trace and returns the arrows that it shows.

  Raises:
    OSError: the file cannot be written.
  """
  arrows_ = arrows(times, most_arrows)
  about = dict(
    origin=times.origin,
    layer=dataclasses.asdict(times.image.config),
    direction=times.image.direction.name.lower(),
    tasks=len(times.start),
    total_s=times.total,
    arrows=len(arrows_.event),
    arrows_left_out=arrows_.left_out,
    arrow_rule=ARROW_RULE,
  )
  records = itertools.chain(
    _tracks(times), _slices(times), _flows(times, arrows_)
  )
  with open(path, 'w', encoding='utf-8') as f:
    f.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},')
    f.write('"traceEvents":[')
    separator = '\n'
    for record in records:
      f.write(separator + record)
      separator = ',\n'
    f.write('\n]}\n')
  return arrows_
