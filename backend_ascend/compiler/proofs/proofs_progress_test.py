"""The rule of progress: no cycle, and every threshold is reachable."""

import numpy as np

from hpmoe.backend_ascend.compiler.proofs import proofs_testing
from hpmoe.backend_ascend.compiler.taskflow import layout


class TestProgress:
  def test_two_queues_that_wait_for_each_other(self):
    # Given one core of each unit, when down of a block stands before its
    # gate/up, then swiglu waits for gate/up and down for swiglu.
    flow = proofs_testing.lower('one_rank', num_aic=1, num_aiv=1)
    lists = proofs_testing.queue_lists(flow)
    down = proofs_testing.of_kind(flow, layout.Kind.DOWN)[0]
    lists[0].remove(down)
    lists[0].insert(0, down)
    violation = proofs_testing.find_violation(
      proofs_testing.prove(proofs_testing.with_queues(flow, lists)), 'progress'
    )
    pair = {violation.task_a, violation.task_b}
    kinds = {int(flow.tasks['kind'][t]) for t in pair}
    assert kinds == {layout.Kind.DOWN, layout.Kind.SWIGLU}
    assert down in pair
    assert 'progress: cycle' in violation.text
    assert violation.region.buffer in ('activation', 'gate_up')

  def test_a_consumer_before_its_producer_on_one_core(self):
    flow = proofs_testing.lower('one_rank', num_aic=1, num_aiv=1)
    lists = proofs_testing.queue_lists(flow)
    combine = proofs_testing.of_kind(flow, layout.Kind.COMBINE)[0]
    returns = set(proofs_testing.of_kind(flow, layout.Kind.RETURN))
    first = next(i for i, t in enumerate(lists[1]) if t in returns)
    lists[1].remove(combine)
    lists[1].insert(first, combine)
    violation = proofs_testing.find_violation(
      proofs_testing.prove(proofs_testing.with_queues(flow, lists)),
      'progress',
      combine,
    )
    assert violation.task_b in returns
    assert 'progress: cycle' in violation.text
    assert violation.region.buffer == 'returned'

  @proofs_testing.both_directions
  @proofs_testing.both_grains
  def test_a_threshold_that_signals_cannot_reach(self, grain, direction):
    flow = proofs_testing.copy(
      proofs_testing.lower(
        'ragged', grain, 'before_down', direction, chain_rows=4
      )
    )
    for kind in np.unique(flow.tasks['kind']):
      task = proofs_testing.of_kind(flow, kind)[0]
      if flow.tasks['wait_count'][task] == 0:
        assert kind in (
          layout.Kind.DISPATCH,
          layout.Kind.DISPATCH_GRAD,
        )
        continue
      raised_flow = proofs_testing.copy(flow)
      wait = raised_flow.waits[proofs_testing.waits_of(raised_flow, task)]
      event, sum_of_signals = int(wait['event'][0]), int(wait['threshold'][0])
      wait['threshold'][0] += 1
      report = proofs_testing.prove(raised_flow)
      violation = proofs_testing.find_violation(report, 'progress', task_a=task)
      assert violation.event == event
      assert (
        f'expected {sum_of_signals + 1}, all signals add up to {sum_of_signals}'
        in (violation.text)
      )
      proofs_testing.find_violation(report, 'event', task_a=task)

  def test_an_unreachable_threshold_is_not_called_a_cycle(self):
    # Given combine before a return that it waits for, when its threshold is
    # beyond all signals too, then reordering would not help: it says so.
    flow = proofs_testing.copy(
      proofs_testing.lower('one_rank', num_aic=1, num_aiv=1)
    )
    lists = proofs_testing.queue_lists(flow)
    combine = proofs_testing.of_kind(flow, layout.Kind.COMBINE)[0]
    flow.waits['threshold'][proofs_testing.waits_of(flow, combine)] += 1
    lists[1].remove(combine)
    lists[1].insert(0, combine)
    violation = proofs_testing.find_violation(
      proofs_testing.prove(proofs_testing.with_queues(flow, lists)),
      'progress',
      combine,
    )
    assert 'unreachable threshold' in violation.text
