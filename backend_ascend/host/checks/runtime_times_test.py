"""Times of real launches agree with what waits for what."""

import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing

Modes = modes_lib.Modes
CONFIG = config_testing.make_config(r=4, t=33, e=8, k=3, d=40, f=24)
BLOCKS = dict(row_block=16, col_block=16, num_aic=3, num_aiv=5)
MODES = (
  Modes(times=True),
  Modes(times=True, permute=1, trace=True),
  Modes(times=True, late_puts=True, races=True),
  Modes(times=True, guards=True),
)
both_passes = pytest.mark.parametrize('direction', layout.Direction)


@functools.cache
def case(direction) -> testing.Case:
  return testing.make_case(direction, CONFIG, **BLOCKS)


def launches(layer: testing.Case):
  for modes in MODES:
    for threads in (1, 3):
      yield runtime.run(
        layer.image,
        layer.inputs,
        threads=threads,
        modes=modes,
        plan=layer.routing,
      )


def queues(layer: testing.Case):
  tables = layer.image.tables
  for queue in tables['queues']:
    yield tables['queue_tasks'][queue['begin'] :][: queue['count']]


class TestTimes:
  @both_passes
  def test_every_task_ran_once_after_what_it_waits_for(self, direction):
    # And a thread does one at a time.
    layer = case(direction)
    tables = layer.image.tables
    _, signals = runtime.inspect(layer.image, layer.routing)
    for result in launches(layer):
      times = result.times
      counters = np.zeros(len(tables['events']))
      np.maximum.at(counters, signals[:, 1], times.end[signals[:, 0]])
      for task, row in enumerate(tables['tasks']):
        waits = tables['waits'][row['wait_begin'] :][: row['wait_count']]
        assert (counters[waits['event']] <= times.start[task]).all(), task
      assert (times.start >= 0).all() and (times.end >= times.start).all()
      assert times.total == times.end.max()
      for thread in np.unique(times.thread):
        own_tasks = np.flatnonzero(times.thread == thread)
        own_tasks = own_tasks[
          np.lexsort((times.end[own_tasks], times.start[own_tasks]))
        ]
        assert (times.start[own_tasks][1:] >= times.end[own_tasks][:-1]).all()

  @both_passes
  def test_a_worker_runs_its_queue_in_order_and_waits_only_in_its_turn(
    self, direction
  ):
    layer = case(direction)
    tasks = layer.image.tables['tasks']
    # A put that is delivered late leaves its worker's order.
    times = runtime.run(
      layer.image, layer.inputs, modes=Modes(times=True)
    ).times
    for queue in queues(layer):
      free = np.concatenate([[0], times.end[queue][:-1]])
      assert (times.start[queue] >= free).all()
      assert (times.wait_times[queue] >= 0).all()
      assert (times.wait_times[queue] <= times.start[queue] - free).all()
    assert (times.wait_times[tasks['wait_count'] == 0] == 0).all()

  def test_little_work_is_one_threads(self):
    layer = case(layout.Direction.FORWARD)
    for _ in range(20):
      times = runtime.run(layer.image, layer.inputs, modes=MODES[0]).times
      assert (times.thread == 0).all()

  def test_a_single_thread_finds_consumers_blocked(self):
    # The first scan meets every worker; those of GEMMs wait for puts.
    layer = case(layout.Direction.FORWARD)
    times = runtime.run(
      layer.image, layer.inputs, threads=1, modes=Modes(times=True)
    ).times
    kinds = layer.image.tables['tasks']['kind']
    assert (times.wait_times[kinds == layout.Kind.GATE_UP] > 0).any()
    assert (times.thread == 0).all()

  @both_passes
  def test_bits_stay_and_there_are_none_unless_asked_for(self, direction):
    layer = case(direction)
    result = runtime.run(layer.image, layer.inputs, modes=Modes(times=True))
    assert not testing.differing(result.outputs, layer.right)
    assert runtime.run(layer.image, layer.inputs).times is None
