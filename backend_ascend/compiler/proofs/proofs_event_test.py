"""The rule of events: who writes a partition signals it, readers wait."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs_testing
from hpmoe.backend_ascend.compiler.taskflow import layout


class TestEvent:
  @proofs_testing.both_directions
  @proofs_testing.both_grains
  def test_a_wait_for_a_counter_of_another_rank(self, grain, direction):
    # Given the last task of a rank, when it also waits for an event of another
    # rank, which is met anyway, then it is refused and named.
    flow = proofs_testing.copy(
      proofs_testing.lower(grain=grain, direction=direction)
    )
    task = int(flow.queue_tasks[-1])
    rank = flow.tasks['rank'][task]
    event = int(np.flatnonzero(flow.events['rank'] != rank)[0])
    flow = proofs_testing.with_wait(flow, task, event)
    report = proofs_testing.prove(flow)
    assert proofs_testing.refused_rules(report) == {'event'}
    violation = proofs_testing.find_violation(report, 'event', task_a=task)
    assert violation.event == event
    assert (
      f'expected a counter of its own rank, got one of rank {1 - rank}'
      in (violation.text)
    )

  @pytest.mark.parametrize(
    'kind', [k for k in layout.Kind if k not in proofs_testing.LAST]
  )
  @proofs_testing.both_grains
  def test_a_removed_signal(self, grain, kind):
    # A row signal missing from one dispatch task breaks the lemma that the
    # counter is full only when all rows of the partition have landed.
    flow = proofs_testing.copy(proofs_testing.lower_kind(kind, grain))
    writer = proofs_testing.of_kind(flow, kind)[0]
    event = int(
      flow.signals[proofs_testing.signals_of(flow, writer)]['event'][0]
    )
    flow.tasks['signal_begin'][writer] += 1
    flow.tasks['signal_count'][writer] -= 1
    violation = proofs_testing.find_violation(
      proofs_testing.prove(flow), 'event', task_a=writer
    )
    assert violation.event == event
    assert violation.region.buffer == layout.STAGE_OF_KIND[kind]
    reader = flow.waits[proofs_testing.waits_of(flow, violation.task_b)]
    assert event in reader['event']

  def test_a_signal_for_one_of_two_partitions_written(self):
    # Given a tile that grows over the next row block, when it signals the
    # event of its own block only, then the other block's is missed.
    flow = proofs_testing.copy(proofs_testing.lower())
    writer = proofs_testing.of_kind(flow, layout.Kind.DOWN)[0]
    own = int(flow.signals['event'][proofs_testing.signals_of(flow, writer)][0])
    proofs_testing.regions_of(flow, writer)[1]['row_end'] += 4
    violation = proofs_testing.find_violation(
      proofs_testing.prove(flow), 'event', task_a=writer
    )
    assert violation.event == own + 1

  @pytest.mark.parametrize(
    'kind',
    [
      layout.Kind.DISPATCH,
      layout.Kind.GATE_UP,
      layout.Kind.DISPATCH_GRAD,
      *proofs_testing.WEIGHT_GRADS,
    ],
  )
  @proofs_testing.both_grains
  def test_a_signal_to_the_wrong_event(self, grain, kind):
    flow = proofs_testing.copy(
      proofs_testing.lower_kind(kind, grain, row_block=2)
    )
    writer, other = proofs_testing.of_kind(flow, kind)[[0, -1]]
    own_signal, other_signal = (
      proofs_testing.signals_of(flow, writer).start,
      proofs_testing.signals_of(flow, other).start,
    )
    event = int(flow.signals['event'][own_signal])
    assert event != flow.signals['event'][other_signal]
    flow.signals[own_signal] = flow.signals[other_signal]
    violation = proofs_testing.find_violation(
      proofs_testing.prove(flow), 'event', task_a=writer
    )
    assert violation.event in (event, flow.signals['event'][other_signal])
    missing = [
      v
      for v in proofs_testing.prove(flow).violations
      if 'does not signal' in v.text
    ]
    assert [v.event for v in missing] == [event]

  @pytest.mark.parametrize(
    'put_kind, kind',
    [
      (layout.Kind.DISPATCH, layout.Kind.GATE_UP),
      (layout.Kind.DISPATCH_GRAD, layout.Kind.DOWN_GRAD),
      (layout.Kind.RETURN_GRAD, layout.Kind.COMBINE_GRAD),
    ],
  )
  def test_a_row_signal_of_a_task_that_sends_no_row_there(self, put_kind, kind):
    # Given a task that counts rows which others put, though it sends none,
    # when proved, then it is named: such counts would fill the event early.
    flow = proofs_testing.copy(proofs_testing.lower_kind(kind))
    task = proofs_testing.of_kind(flow, kind)[0]
    put = flow.signals[
      proofs_testing.signals_of(flow, proofs_testing.of_kind(flow, put_kind)[0])
    ][:1]
    flow.tasks['signal_begin'][task] = len(flow.signals)
    flow.tasks['signal_count'][task] = 1
    flow = dataclasses.replace(
      flow, signals=np.concatenate([flow.signals, put])
    )
    report = proofs_testing.prove(flow)
    assert any(
      v.task_a == task and 'rows that the task sends' in v.text
      for v in report.violations
    )

  def test_partitions_that_do_not_cut_the_buffer(self):
    flow = proofs_testing.copy(proofs_testing.lower())
    event = np.flatnonzero(flow.events['buffer'] == layout.Buffer.GATE_UP)[1]
    assert flow.events['part'][event] == 1
    flow.events['part'][event] = 2
    violation = proofs_testing.find_violation(
      proofs_testing.prove(flow), 'event'
    )
    assert 'expected the partitions 0, 1, ...' in violation.text
    assert violation.region.buffer == 'gate_up'
