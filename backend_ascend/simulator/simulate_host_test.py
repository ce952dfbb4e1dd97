"""A host in modelled time: its threads take tasks as the runtime's do."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.trace import sources
from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing

both_grains = pytest.mark.parametrize('grain', ['expert', 'row_block'])


def case(direction, grain='row_block') -> runtime_testing.Case:
  return runtime_testing.make_case(
    direction, testing.CONFIG, event_grain=grain, **testing.BLOCKS
  )


def run(layer, threads: int, **figures) -> simulate.Simulation:
  machine = machine_lib.load('host').with_figures(threads=threads, **figures)
  return simulate.simulate(layer.image, machine, layer.inputs['topk_ids'])


class TestThreads:
  @testing.both_passes
  @both_grains
  def test_one_thread_takes_tasks_in_the_order_of_a_real_launch(
    self, direction, grain
  ):
    layer = case(direction, grain)
    real = runtime.run(
      layer.image,
      layer.inputs,
      threads=1,
      modes=modes_lib.Modes(trace=True),
    )
    modelled = run(layer, 1)
    assert (np.argsort(modelled.start) == np.argsort(real.order)).all()

  @testing.both_passes
  def test_a_thread_runs_one_task_at_a_time(self, direction):
    layer = case(direction)
    for threads in (1, 2, 5):
      simulation = run(layer, threads)
      assert simulation.thread is not None
      assert set(simulation.thread) == set(range(threads))
      for thread in range(threads):
        tasks = np.flatnonzero(simulation.thread == thread)
        tasks = tasks[
          np.lexsort((simulation.end[tasks], simulation.start[tasks]))
        ]
        assert (simulation.start[tasks][1:] >= simulation.end[tasks][:-1]).all()
    alone = run(layer, 1, poll=0)
    busy = (alone.end - alone.start).sum()
    np.testing.assert_allclose(alone.total, busy, rtol=1e-9)

  @testing.both_passes
  @pytest.mark.parametrize('threads', [2, 5])
  def test_no_thread_is_idle_while_a_task_is_ready(self, direction, threads):
    layer = case(direction)
    simulation = run(layer, threads, poll=0)
    plan = runtime.route(layer.image, layer.inputs['topk_ids'])
    cores = timeline.Timeline(
      layer.image,
      sources.signals(layer.image, plan),
      simulation.start,
      simulation.end,
      simulation.wait_times,
      'as if each worker were a core',
    )
    released = timeline.released_by(cores)
    ready = np.where(released < 0, 0, simulation.end[released])
    late = np.flatnonzero(simulation.start > ready)
    assert late.size
    between = (ready[late] + simulation.start[late]) / 2
    runs = (simulation.start <= between[:, None]) & (
      between[:, None] < simulation.end
    )
    assert (runs.sum(axis=1) == threads).all()

  @testing.both_passes
  def test_a_look_at_a_worker_takes_its_time(self, direction):
    layer = case(direction)
    free, slow = run(layer, 1, poll=0), run(layer, 1, poll=1e-6)
    order = np.argsort(slow.start)
    gaps = slow.start[order[1:]] - slow.end[order[:-1]]
    looks = gaps / 1e-6
    np.testing.assert_allclose(looks, np.round(looks), atol=1e-4)
    assert slow.total - free.total >= looks.sum() * 0.999e-6 > 0
    # No worker has more than 16 tasks run at a time.
    assert (looks > 0.5).sum() >= len(order) // 16

  def test_ranks_share_one_memory_and_the_bound_holds(self):
    layer = case(layout.Direction.FORWARD)
    machine = machine_lib.load('host')
    simulation = run(layer, 2)
    by_name = {(r.name, r.rank): r.bytes for r in simulation.resources}
    for name in ('hbm', 'l2'):
      assert by_name[name, 0] > 0
      assert not any(by_name[name, rank] for rank in range(1, 4))
    # All that is read a second time, or written by another rank, is there.
    assert by_name['l2', 0] == pytest.approx(simulation.l2_bytes.sum())
    bound = simulate.bound(layer.image, machine, layer.inputs['topk_ids'])
    assert set(bound.parts) == {'threads', 'hbm', 'l2'}
    assert bound.seconds <= simulation.total
