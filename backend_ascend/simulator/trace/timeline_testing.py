"""Timelines for tests: a launch on this host, and made-up times."""

import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.backend_ascend.simulator.trace import sources
from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.reference.contract import config_testing

CONFIG = config_testing.make_config(r=4, t=33, e=8, k=3, d=40, f=24)
BLOCKS = dict(row_block=16, col_block=16, num_aic=3, num_aiv=5)


@functools.cache
def case(direction: layout.Direction) -> runtime_testing.Case:
  return runtime_testing.make_case(direction, CONFIG, **BLOCKS)


@functools.cache
def measured(direction=layout.Direction.FORWARD) -> timeline.Timeline:
  """Returns a launch on two threads."""
  layer = case(direction)
  return sources.measure(layer.image, layer.inputs, layer.routing, threads=2)


@functools.cache
def made_up(direction=layout.Direction.FORWARD) -> timeline.Timeline:
  """Returns times in whole seconds of cores that each have their own worker.

  Every task takes 0 to 3 seconds and begins as soon as it can.
  """
  layer = case(direction)
  image = layer.image
  signals = sources.signals(image, layer.routing)
  tasks = len(image.tables['tasks'])
  took = runtime_testing.rng('made_up', direction).integers(0, 4, tasks)
  start, end, wait_times = np.full((3, tasks), -1.0)
  waits = happens_before.list_waits(image)
  needed_by = [
    signals[np.isin(signals[:, 1], waits[waits[:, 0] == task, 1]), 0]
    for task in range(tasks)
  ]
  left = [
    list(image.tables['queue_tasks'][q['begin'] :][: q['count']])
    for q in image.tables['queues']
  ]
  free = np.zeros(len(left))
  while any(left):
    for worker, queue in enumerate(left):
      while queue:
        task = queue[0]
        needed_tasks = needed_by[task]
        if (end[needed_tasks] < 0).any():
          break
        ready = end[needed_tasks].max(initial=0.0)
        start[task] = max(ready, free[worker])
        wait_times[task] = start[task] - free[worker]
        free[worker] = end[task] = start[task] + took[task]
        queue.pop(0)
  return timeline.Timeline(image, signals, start, end, wait_times, 'made up')


both_sources = pytest.mark.parametrize('source', [measured, made_up])
both_passes = pytest.mark.parametrize('direction', layout.Direction)
