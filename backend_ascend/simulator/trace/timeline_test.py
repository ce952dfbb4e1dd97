"""What released a task, and the path to the last end."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing

NO_TASK = timeline.NO_TASK


def causes(times: timeline.Timeline, task: int) -> list[int]:
  """Returns all that must end before a task, by a dumb reading."""
  tables = times.image.tables
  row = tables['tasks'][task]
  waits = tables['waits'][row['wait_begin'] :][: row['wait_count']]
  tasks = [
    int(signaller)
    for signaller, event in times.signals
    if event in set(waits['event'])
  ]
  for queue in tables['queues']:
    queue_tasks = list(
      tables['queue_tasks'][queue['begin'] :][: queue['count']]
    )
    if task in queue_tasks[1:]:
      tasks.append(int(queue_tasks[queue_tasks.index(task) - 1]))
  if times.thread is not None:
    thread_tasks = np.flatnonzero(times.thread == times.thread[task])
    earlier = thread_tasks[times.end[thread_tasks] <= times.start[task]]
    tasks += [
      int(task_before) for task_before in earlier if task_before != task
    ]
  return tasks


class TestReleasedBy:
  @testing.both_sources
  @testing.both_passes
  def test_is_the_last_of_what_a_task_needs(self, source, direction):
    times = source(direction)
    released = timeline.released_by(times)
    for task in range(0, len(released), 7):
      needed_tasks = causes(times, task)
      if not needed_tasks:
        assert released[task] == NO_TASK
        continue
      assert released[task] in needed_tasks
      assert times.end[released[task]] == times.end[needed_tasks].max(), task
      assert times.end[released[task]] <= times.start[task]


class TestCriticalPath:
  @testing.both_passes
  def test_of_tasks_that_begin_as_soon_as_they_can_is_without_gaps(
    self, direction
  ):
    times = testing.made_up(direction)
    path = timeline.critical_path(times)
    assert times.start[path[0]] == 0
    assert (times.start[path[1:]] == times.end[path[:-1]]).all()
    assert times.end[path[-1]] == times.total


class TestTimeline:
  @pytest.mark.parametrize(
    ('name', 'change', 'text'),
    [
      ('start', lambda a: a[:-1], r'start: expected \[\d+\], got'),
      (
        'wait_times',
        lambda a: a - 1e9,
        'wait_times: expected finite values from 0',
      ),
      ('end', lambda a: a * np.nan, 'end: expected finite values from 0'),
      ('end', lambda a: a * 0, 'end: expected at least start, got'),
      ('end', lambda a: a + 9, r'start: expected task \d+ after task \d+ of'),
    ],
  )
  def test_refuses_times_that_cannot_be(self, name, change, text):
    times = testing.made_up()
    with pytest.raises(ValueError, match=text):
      dataclasses.replace(times, **{name: change(getattr(times, name))})
