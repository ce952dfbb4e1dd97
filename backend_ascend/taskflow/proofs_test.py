"""Sound flows are proved; every kind of broken one is refused, and named."""

import dataclasses
import itertools
import zlib

import numpy as np
import pytest

from backend_ascend import compiler
from backend_ascend.taskflow import flow as flow_lib
from backend_ascend.taskflow import image as image_lib
from backend_ascend.taskflow import layout
from backend_ascend.taskflow import proofs
from reference import config as config_lib
from reference import precision

Kind = layout.Kind
Buffer = layout.Buffer
RULES = ('unit', 'regions', 'progress', 'event', 'once', 'order')
SHAPES = {
    'one_rank': config_lib.MoEConfig(1, 8, 2, 1, 8, 4),
    'ragged': config_lib.MoEConfig(2, 5, 4, 2, 9, 5),
    'k_is_e': config_lib.MoEConfig(2, 4, 4, 4, 8, 4),
    'rank_per_expert': config_lib.MoEConfig(4, 6, 4, 2, 8, 6),
}
GRAINS = flow_lib.EVENT_GRAINS
both_grains = pytest.mark.parametrize('grain', GRAINS)


def lower(shape='ragged', grain='row_block', placement='combine', **options):
  options = dict(row_block=4, col_block=3, num_aic=2, num_aiv=3) | options
  return compiler.compile_forward(
      SHAPES[shape],
      precision.PrecisionPolicy(placement=placement),
      flow_lib.Options(event_grain=grain, **options),
  ).flow


def prove(flow) -> proofs.ProofReport:
  return proofs.prove(image_lib.serialize(flow))


def copy(flow) -> flow_lib.Flow:
  """Returns a flow whose tables may be written without harm."""
  tables = {name: getattr(flow, name).copy() for name in layout.TABLES}
  return dataclasses.replace(flow, **tables)


def of_kind(flow, kind) -> np.ndarray:
  return np.flatnonzero(flow.tasks['kind'] == kind)


def waits_of(flow, task) -> slice:
  t = flow.tasks[task]
  return slice(t['wait_begin'], int(t['wait_begin']) + int(t['wait_count']))


def signals_of(flow, task) -> slice:
  t = flow.tasks[task]
  begin = int(t['signal_begin'])
  return slice(begin, begin + int(t['signal_count']))


def regions_of(flow, task):
  """Returns (reads, writes) of a task, as views."""
  t = flow.tasks[task]
  begin, reads = int(t['region_begin']), int(t['read_count'])
  end = begin + reads + int(t['write_count'])
  return flow.regions[begin : begin + reads], flow.regions[begin + reads : end]


def drop_waits(flow, task, keep) -> int:
  """Keeps the waits for which keep(event) holds; returns how many went."""
  where = waits_of(flow, task)
  waits = flow.waits[where].copy()
  kept = waits[[bool(keep(int(w['event']))) for w in waits]]
  flow.waits[where.start : where.start + len(kept)] = kept
  flow.tasks['wait_count'][task] = len(kept)
  return len(waits) - len(kept)


def queue_lists(flow) -> list[list[int]]:
  return [
      list(flow.queue_tasks[q['begin'] : int(q['begin']) + int(q['count'])])
      for q in flow.queues
  ]


def with_queues(flow, lists) -> flow_lib.Flow:
  """Returns the flow with other queue contents, cores set to match."""
  flow = copy(flow)
  count = np.array([len(tasks) for tasks in lists])
  flow.queues['begin'] = np.cumsum(count) - count
  flow.queues['count'] = count
  for queue, tasks in zip(flow.queues, lists):
    flow.tasks['core'][tasks] = queue['core']
  order = np.concatenate([np.array(tasks, int) for tasks in lists])
  return dataclasses.replace(flow, queue_tasks=order.astype('<u4'))


def without_task(flow, task) -> flow_lib.Flow:
  lists = [
      [t - (t > task) for t in map(int, tasks) if t != task]
      for tasks in queue_lists(flow)
  ]
  tasks = np.delete(flow.tasks, task)
  return with_queues(dataclasses.replace(flow, tasks=tasks), lists)


def named(report, rule, task_a=None, task_b=None) -> proofs.Violation:
  """Returns the one violation of a rule that names these tasks."""
  assert not report.proved
  outcome = {r.name: r.proved for r in report.rules}
  assert not outcome[rule], report.rules
  found = [
      v
      for v in report.violations
      if v.rule == rule
      and (task_a is None or v.task_a == task_a)
      and (task_b is None or v.task_b == task_b)
  ]
  assert found, '\n'.join(v.text for v in report.violations)
  assert found[0].text.startswith(rule + ': ')
  assert '\n' not in found[0].text
  return found[0]


def refused_rules(report) -> set[str]:
  return {rule.name for rule in report.rules if not rule.proved}


class TestSoundFlows:

  @pytest.mark.parametrize('cores', [(1, 1), (3, 5), (24, 48)])
  @pytest.mark.parametrize('placement', precision.PLACEMENTS)
  @both_grains
  @pytest.mark.parametrize('shape', SHAPES)
  def test_are_proved(self, shape, grain, placement, cores):
    flow = lower(shape, grain, placement, num_aic=cores[0], num_aiv=cores[1])
    report = proofs.require(image_lib.serialize(flow))
    assert [rule.name for rule in report.rules] == list(RULES)
    assert report.violations == ()
    checked = {rule.name: rule.checked for rule in report.rules}
    n = len(flow.tasks)
    assert report.tasks == checked['unit'] == checked['regions'] == n
    assert checked['progress'] == checked['once'] == n
    assert report.events == checked['event'] == len(flow.events)
    assert checked['order'] >= np.sum(flow.tasks['kind'] != Kind.DISPATCH)

  @pytest.mark.parametrize('row_block', [1, 3, 64])
  @pytest.mark.parametrize('put_rows, token_block', [(1, 2), (3, 1), (9, 9)])
  @both_grains
  def test_are_proved_at_odd_tile_sizes(
      self, grain, put_rows, token_block, row_block
  ):
    assert prove(
        lower(
            'ragged',
            grain,
            row_block=row_block,
            put_rows=put_rows,
            token_block=token_block,
            col_block=100,
        )
    ).proved

  def test_are_proved_when_capacity_cuts_the_slices(self):
    assert prove(lower('rank_per_expert', expert_capacity=4)).proved

  def test_are_proved_whatever_the_order_of_a_tasks_signals(self):
    flow = copy(lower('rank_per_expert'))
    for task in of_kind(flow, Kind.RETURN):
      where = signals_of(flow, task)
      flow.signals[where] = flow.signals[where][::-1].copy()
    assert prove(flow).proved


class TestUnit:

  def test_an_aiv_task_on_an_aic_queue(self):
    flow = lower()
    lists = queue_lists(flow)
    aic, aiv = 0, 2
    assert flow.queues[aic]['unit'] == layout.Unit.AIC
    task = next(t for t in lists[aiv] if flow.tasks['kind'][t] == Kind.SWIGLU)
    lists[aiv].remove(task)
    lists[aic].append(task)
    report = prove(with_queues(flow, lists))
    violation = named(report, 'unit', task_a=task)
    assert 'swiglu(rank 0' in violation.text
    assert 'on an AIC queue' in violation.text
    assert violation.region.buffer == 'activation'

  @pytest.mark.parametrize('kind', list(Kind))
  def test_a_kind_that_says_the_other_unit(self, kind):
    flow = copy(lower())
    task = of_kind(flow, kind)[0]
    flow.tasks['unit'][task] = 1 - flow.tasks['unit'][task]
    report = prove(flow)
    named(report, 'unit', task_a=task)
    assert refused_rules(report) == {'unit'}


class TestRegions:

  @pytest.mark.parametrize('placement', precision.PLACEMENTS)
  @both_grains
  def test_every_read_that_is_not_declared(self, grain, placement):
    # Given each kind's declared reads of written buffers, when one loses its
    # last row, then the task that still reads it is named.
    sound = lower('ragged', grain, placement)
    seen = 0
    for kind in Kind:
      task = of_kind(sound, kind)[0]
      for index, read in enumerate(regions_of(sound, task)[0]):
        if read['buffer'] < Buffer.EXPERT_IN:
          continue
        flow = copy(sound)
        regions_of(flow, task)[0]['row_end'][index] -= 1
        report = prove(flow)
        violation = named(report, 'regions', task_a=task)
        assert ' reads ' in violation.text
        assert refused_rules(report) == {'regions'}
        seen += 1
    assert seen == 6 + (placement == 'before_down')

  @pytest.mark.parametrize('kind', list(Kind))
  def test_a_write_that_the_tile_does_not_say(self, kind):
    flow = copy(lower())
    task = of_kind(flow, kind)[0]
    regions_of(flow, task)[1]['col_end'] -= 1
    violation = named(prove(flow), 'regions', task_a=task)
    assert ' writes ' in violation.text

  def test_a_task_that_declares_no_write(self):
    flow = copy(lower())
    task = of_kind(flow, Kind.DOWN)[0]
    flow.tasks['write_count'][task] = 0
    named(prove(flow), 'regions', task_a=task)


class TestProgress:

  def test_two_queues_that_wait_for_each_other(self):
    # Given one core of each unit, when down of a block stands before its
    # gate/up, then swiglu waits for gate/up and down for swiglu.
    flow = lower('one_rank', num_aic=1, num_aiv=1)
    lists = queue_lists(flow)
    down = of_kind(flow, Kind.DOWN)[0]
    lists[0].remove(down)
    lists[0].insert(0, down)
    violation = named(prove(with_queues(flow, lists)), 'progress')
    pair = {violation.task_a, violation.task_b}
    kinds = {int(flow.tasks['kind'][t]) for t in pair}
    assert kinds == {Kind.DOWN, Kind.SWIGLU}
    assert down in pair
    assert 'progress: cycle' in violation.text
    assert violation.region.buffer in ('activation', 'gate_up')

  def test_a_consumer_before_its_producer_on_one_core(self):
    flow = lower('one_rank', num_aic=1, num_aiv=1)
    lists = queue_lists(flow)
    combine = of_kind(flow, Kind.COMBINE)[0]
    returns = set(of_kind(flow, Kind.RETURN))
    first = next(i for i, t in enumerate(lists[1]) if t in returns)
    lists[1].remove(combine)
    lists[1].insert(first, combine)
    violation = named(prove(with_queues(flow, lists)), 'progress', combine)
    assert violation.task_b in returns
    assert 'progress: cycle' in violation.text
    assert violation.region.buffer == 'returned'

  @both_grains
  def test_a_threshold_that_signals_cannot_reach(self, grain):
    flow = copy(lower('ragged', grain))
    for kind in (Kind.GATE_UP, Kind.SWIGLU, Kind.DOWN, Kind.COMBINE):
      task = of_kind(flow, kind)[0]
      raised = copy(flow)
      wait = raised.waits[waits_of(raised, task)]
      event, had = int(wait['event'][0]), int(wait['threshold'][0])
      wait['threshold'][0] += 1
      report = prove(raised)
      violation = named(report, 'progress', task_a=task)
      assert violation.event == event
      assert f'expected {had + 1}, all signals add up to {had}' in (
          violation.text
      )
      named(report, 'event', task_a=task)

  def test_an_unreachable_threshold_is_not_called_a_cycle(self):
    # Given combine before a return that it waits for, when its threshold is
    # beyond all signals too, then reordering would not help: it says so.
    flow = copy(lower('one_rank', num_aic=1, num_aiv=1))
    lists = queue_lists(flow)
    combine = of_kind(flow, Kind.COMBINE)[0]
    flow.waits['threshold'][waits_of(flow, combine)] += 1
    lists[1].remove(combine)
    lists[1].insert(0, combine)
    violation = named(prove(with_queues(flow, lists)), 'progress', combine)
    assert 'unreachable threshold' in violation.text

  def test_a_signal_that_never_comes(self):
    flow = copy(lower())
    writer = of_kind(flow, Kind.SWIGLU)[0]
    flow.tasks['signal_count'][writer] = 0
    report = prove(flow)
    violation = named(report, 'progress')
    assert flow.tasks['kind'][violation.task_a] == Kind.DOWN
    assert 'unreachable threshold' in violation.text


class TestEvent:

  @pytest.mark.parametrize(
      'kind', [k for k in Kind if k != Kind.COMBINE]
  )
  @both_grains
  def test_a_removed_signal(self, grain, kind):
    # A row signal missing from one dispatch task breaks the lemma that the
    # counter is full only when all rows of the partition have landed.
    flow = copy(lower('ragged', grain))
    writer = of_kind(flow, kind)[-1]
    event = int(flow.signals[signals_of(flow, writer)]['event'][0])
    flow.tasks['signal_begin'][writer] += 1
    flow.tasks['signal_count'][writer] -= 1
    violation = named(prove(flow), 'event', task_a=writer)
    assert violation.event == event
    assert violation.region.buffer == layout.STAGE_OF_KIND[kind]
    reader = flow.waits[waits_of(flow, violation.task_b)]
    assert event in reader['event']

  def test_a_signal_for_one_of_two_partitions_written(self):
    # Given a tile that grows over the next row block, when it signals the
    # event of its own block only, then the other block's is missed.
    flow = copy(lower())
    writer = of_kind(flow, Kind.DOWN)[0]
    own = int(flow.signals['event'][signals_of(flow, writer)][0])
    regions_of(flow, writer)[1]['row_end'] += 4
    violation = named(prove(flow), 'event', task_a=writer)
    assert violation.event == own + 1

  @pytest.mark.parametrize('lowered', ['wait', 'event', 'both'])
  @both_grains
  def test_a_lowered_threshold(self, grain, lowered):
    flow = copy(lower('ragged', grain))
    task = of_kind(flow, Kind.SWIGLU)[0]
    wait = waits_of(flow, task).start
    event = int(flow.waits['event'][wait])
    if lowered != 'event':
      flow.waits['threshold'][wait] -= 1
    if lowered != 'wait':
      flow.events['threshold'][event] -= 1
    report = prove(flow)
    violation = named(report, 'event', task_a=task)
    assert violation.event == event
    assert flow.tasks['kind'][violation.task_b] == Kind.GATE_UP
    assert 'threshold: expected' in violation.text
    assert 'event' in refused_rules(report)

  def test_a_lowered_threshold_of_a_row_event(self):
    flow = copy(lower())
    wait = waits_of(flow, of_kind(flow, Kind.GATE_UP)[0]).start
    event = int(flow.waits['event'][wait])
    flow.waits['threshold'][flow.waits['event'] == event] -= 1
    flow.events['threshold'][event] -= 1
    violation = named(prove(flow), 'event')
    assert violation.event == event
    assert 'rows of the partition' in violation.text

  @pytest.mark.parametrize('kind', [Kind.DISPATCH, Kind.GATE_UP])
  @both_grains
  def test_a_signal_to_the_wrong_event(self, grain, kind):
    flow = copy(lower('ragged', grain, row_block=2))
    writer, other = of_kind(flow, kind)[[0, -1]]
    at, to = signals_of(flow, writer).start, signals_of(flow, other).start
    event = int(flow.signals['event'][at])
    assert event != flow.signals['event'][to]
    flow.signals[at] = flow.signals[to]
    violation = named(prove(flow), 'event', task_a=writer)
    assert violation.event in (event, flow.signals['event'][to])
    missing = [
        v for v in prove(flow).violations if 'does not signal' in v.text
    ]
    assert [v.event for v in missing] == [event]

  @pytest.mark.parametrize('field', ['rank', 'amount'])
  @both_grains
  def test_a_signal_of_the_wrong_home_or_amount(self, grain, field):
    flow = copy(lower('ragged', grain))
    writer = of_kind(flow, Kind.DISPATCH)[0]
    at = signals_of(flow, writer).start
    if field == 'rank':
      flow.signals['rank'][at] = 1 - flow.signals['rank'][at]
    else:
      flow.signals['amount'][at] += 2
      flow.signals['span'][at] = 1
    report = prove(flow)
    assert 'event' in refused_rules(report)
    if field == 'rank':
      named(report, 'event', task_a=writer)

  def test_a_row_counted_twice(self):
    flow = copy(lower('rank_per_expert'))
    task = of_kind(flow, Kind.RETURN)[0]
    where = signals_of(flow, task)
    flow.signals[where.start + 1] = flow.signals[where.start]
    violation = [
        v for v in prove(flow).violations if 'got it twice' in v.text
    ]
    assert [v.task_a for v in violation] == [task]

  def test_a_row_signal_that_leaves_partitions_out(self):
    flow = copy(lower())
    task = of_kind(flow, Kind.DISPATCH)[0]
    flow.signals['span'][signals_of(flow, task).start] -= 1
    violation = named(prove(flow), 'event', task_a=task)
    assert 'over all partitions' in violation.text

  def test_a_row_signal_of_a_task_that_sends_no_row_there(self):
    # Given a GEMM task that counts rows of expert_in, though it sends none,
    # when proved, then it is named: such counts would fill the event early.
    flow = copy(lower())
    task = of_kind(flow, Kind.GATE_UP)[0]
    put = flow.signals[signals_of(flow, of_kind(flow, Kind.DISPATCH)[0])]
    flow.tasks['signal_begin'][task] = len(flow.signals)
    flow.tasks['signal_count'][task] = 1
    flow = dataclasses.replace(
        flow, signals=np.concatenate([flow.signals, put])
    )
    report = prove(flow)
    assert any(
        v.task_a == task and 'rows that the task sends' in v.text
        for v in report.violations
    )

  def test_partitions_that_do_not_cut_the_buffer(self):
    flow = copy(lower())
    event = np.flatnonzero(flow.events['buffer'] == Buffer.GATE_UP)[1]
    assert flow.events['part'][event] == 1
    flow.events['part'][event] = 2
    violation = named(prove(flow), 'event')
    assert 'expected the partitions 0, 1, ...' in violation.text
    assert violation.region.buffer == 'gate_up'


class TestOnce:

  def test_an_element_written_twice(self):
    # Given a GEMM task whose tile and region both move onto its neighbour's,
    # when proved, then both writers and the common box are named.
    flow = copy(lower())
    task, other = of_kind(flow, Kind.DOWN)[[1, 0]]
    for table, rows in (
        (flow.tasks, (task, other)),
        (
            flow.regions,
            [
                flow.tasks['region_begin'][t] + flow.tasks['read_count'][t]
                for t in (task, other)
            ],
        ),
    ):
      for field in ('col_begin', 'col_end'):
        table[field][rows[0]] = table[field][rows[1]]
    report = prove(flow)
    assert refused_rules(report) == {'once'}
    violation = named(report, 'once', other, task)
    t = flow.tasks[other]
    assert violation.region == proofs.Region(
        'expert_out',
        'rows',
        int(t['rank']),
        0,
        (int(t['row_begin']), int(t['row_end'])),
        (int(t['col_begin']), int(t['col_end'])),
    )
    missing = named(report, 'once', None)
    assert missing.text.startswith('once: ')
    assert any('no task writes' in v.text for v in report.violations)

  @pytest.mark.parametrize('kind', list(Kind))
  @both_grains
  def test_a_missing_write(self, grain, kind):
    flow = lower('ragged', grain)
    task = of_kind(flow, kind)[1]
    write = regions_of(flow, task)[1][0]
    report = prove(without_task(flow, task))
    named(report, 'once')
    violation = next(
        v for v in report.violations if 'no task writes' in v.text
    )
    assert violation.region == proofs.Region(
        layout.STAGE_OF_KIND[kind],
        'sender' if write['view'] else 'rows',
        int(write['rank']),
        int(write['group']),
        (int(write['row_begin']), int(write['row_end'])),
        (int(write['col_begin']), int(write['col_end'])),
    )

  @pytest.mark.parametrize('expert', [0, 1])
  def test_a_whole_group_that_nobody_writes(self, expert):
    flow = lower()
    for task in reversed(of_kind(flow, Kind.SWIGLU)):
      if flow.tasks['expert'][task] == expert:
        flow = without_task(flow, task)
    violation = next(
        v for v in prove(flow).violations if 'no task writes' in v.text
    )
    assert violation.region == proofs.Region(
        'activation', 'rows', 0, expert, (0, 12), (0, 5)
    )

  def test_an_overlap_of_one_column(self):
    flow = copy(lower())
    task = of_kind(flow, Kind.GATE_UP)[1]
    flow.tasks['col_begin'][task] -= 1
    regions_of(flow, task)[1]['col_begin'] -= 1
    report = prove(flow)
    assert refused_rules(report) == {'once'}
    violation = named(report, 'once', task_b=task)
    assert violation.region.cols == (2, 3)

  def test_every_writer_under_a_tall_box(self):
    # Given a task that writes all three row blocks, when proved, then it is
    # named with the writer of each block, and nothing is called missing.
    flow = copy(lower())
    tall, *below = [
        t
        for t in of_kind(flow, Kind.GATE_UP)
        if flow.tasks['expert'][t] == 0 and flow.tasks['col_block'][t] == 0
    ]
    regions_of(flow, tall)[1]['row_end'] = 12
    found = [v for v in prove(flow).violations if v.rule == 'once']
    assert [(v.task_a, v.task_b) for v in found] == [(tall, t) for t in below]
    assert [v.region.rows for v in found] == [(4, 8), (8, 12)]

  def test_a_buffer_without_a_space(self):
    flow = lower()
    spaces = flow.spaces[flow.spaces['buffer'] != Buffer.Y]
    report = prove(dataclasses.replace(flow, spaces=spaces))
    assert refused_rules(report) == {'once'}
    texts = [v.text for v in report.violations]
    assert 'once: spaces of y: expected one' in texts[0]
    assert any('has no space in that view' in text for text in texts)

  def test_a_buffer_written_in_two_views(self):
    flow = copy(lower())
    at = np.flatnonzero(flow.spaces['buffer'] == Buffer.EXPERT_IN)[0]
    rows = flow.spaces[at : at + 1].copy()
    rows['view'] = layout.View.ROWS
    rows['groups'], rows['rows'] = 2, 12
    spaces = np.concatenate([flow.spaces, rows])
    report = prove(dataclasses.replace(flow, spaces=spaces))
    assert 'spaces of expert_in: expected one' in named(report, 'once').text


class TestOrder:

  @pytest.mark.parametrize('kind', [k for k in Kind if k != Kind.DISPATCH])
  @both_grains
  def test_a_removed_wait(self, grain, kind):
    # Given many cores, so that no other task of the same core has waited,
    # when the first task of a kind waits for nothing, then it is the reader
    # and a writer of what it reads is named.
    flow = copy(lower('ragged', grain, num_aic=200, num_aiv=200))
    task = of_kind(flow, kind)[0]
    event = int(flow.waits['event'][waits_of(flow, task).start])
    drop_waits(flow, task, lambda _: False)
    report = prove(flow)
    assert refused_rules(report) == {'order'}
    violation = named(report, 'order', task_b=task)
    assert violation.event == event
    writers = np.flatnonzero(
        flow.tasks['kind']
        == {s: k for k, s in layout.STAGE_OF_KIND.items()}[
            violation.region.buffer
        ]
    )
    assert violation.task_a in writers
    assert layout.Kind(kind).name.lower() + '(rank' in violation.text

  def test_a_wait_for_the_wrong_event(self):
    flow = copy(lower('ragged', num_aic=200, num_aiv=200))
    task, other = of_kind(flow, Kind.SWIGLU)[:2]
    at, to = waits_of(flow, task).start, waits_of(flow, other).start
    flow.waits[at] = flow.waits[to]
    report = prove(flow)
    assert refused_rules(report) == {'order'}
    violation = named(report, 'order', task_b=task)
    writer = flow.tasks[violation.task_a]
    assert writer['kind'] == Kind.GATE_UP
    assert writer['row_begin'] == flow.tasks['row_begin'][task]

  @both_grains
  def test_waits_made_needless_by_program_order_may_go(self, grain):
    # Given one core per unit, when a task drops every wait that an earlier
    # task of its queue has, then the flow is still proved.
    flow = copy(lower('ragged', grain, num_aic=1, num_aiv=1))
    dropped = 0
    for tasks in queue_lists(flow):
      seen = set()
      for task in tasks:
        events = set(flow.waits['event'][waits_of(flow, task)])
        dropped += drop_waits(flow, task, lambda e, seen=seen: e not in seen)
        seen |= events
    assert dropped > 10
    assert prove(flow).proved

  @both_grains
  def test_waits_made_needless_by_other_waits_may_go(self, grain):
    # swiglu and return read the row header, which gate/up waited for.
    flow = copy(
        lower('ragged', grain, 'before_down', num_aic=200, num_aiv=200)
    )
    arrived = flow.events['buffer'] == Buffer.EXPERT_IN
    dropped = 0
    for kind in (Kind.SWIGLU, Kind.RETURN):
      for task in of_kind(flow, kind):
        dropped += drop_waits(flow, task, lambda e: not arrived[e])
    assert dropped >= len(of_kind(flow, Kind.SWIGLU))
    assert prove(flow).proved

  def test_a_row_event_orders_nothing_but_its_own_partition(self):
    # Given gate/up of partition 1 on the core that has waited for partition
    # 0, when it waits for nothing, then it is refused: the same tasks send
    # both, but partition 0 may be full before they have sent the rest.
    flow = copy(lower('ragged', num_aic=1))
    tasks = of_kind(flow, Kind.GATE_UP)
    second = [t for t in tasks if flow.tasks['row_block'][t] == 1]
    for task in second:
      drop_waits(flow, task, lambda _: False)
    violation = named(prove(flow), 'order', task_b=second[0])
    assert flow.tasks['kind'][violation.task_a] == Kind.DISPATCH

  def test_writers_that_happen_before_need_no_wait(self):
    # Given returns that stand before combine on the one core, when combine
    # waits for nothing, then it is proved: each writer is an ancestor.
    flow = copy(lower('one_rank', 'expert', num_aic=1, num_aiv=1))
    for task in of_kind(flow, Kind.COMBINE):
      drop_waits(flow, task, lambda _: False)
    assert prove(flow).proved


def happens_before(flow) -> np.ndarray:
  """Returns `[tasks, tasks]`, whether a precedes b, by brute force."""
  n = len(flow.tasks)
  before = np.zeros((n, n), bool)
  for tasks in queue_lists(flow):
    for a, b in itertools.pairwise(tasks):
      before[a, b] = True
  counts_tasks = flow.events['mode'] == layout.Mode.COUNT_TASKS
  for b in range(n):
    waited = {
        int(e)
        for e in flow.waits['event'][waits_of(flow, b)]
        if counts_tasks[e]
    }
    for a in range(n):
      signalled = set(flow.signals['event'][signals_of(flow, a)])
      before[a, b] |= bool(waited & signalled)
  for k in range(n):
    before |= before[:, k : k + 1] & before[k]
  return before


def races(flow) -> set[tuple[int, int]]:
  """Returns all unordered (writer, reader), by brute force."""
  before = happens_before(flow)
  np.testing.assert_array_equal(np.diag(before), False)
  r = flow.config.num_ranks
  waits = [
      set(flow.waits['event'][waits_of(flow, t)]) for t in range(len(before))
  ]
  found = set()
  for reader, writer in itertools.permutations(range(len(before)), 2):
    if before[writer, reader]:
      continue
    (w,) = regions_of(flow, writer)[1]
    for read in regions_of(flow, reader)[0]:
      sent = w['view'] == layout.View.SENDER
      fold = r if w['buffer'] == Buffer.EXPERT_IN else flow.config.num_experts
      if (
          read['buffer'] != w['buffer']
          or w['rank'] not in (read['rank'], layout.ANY_RANK)
          or (w['group'] // fold if sent else w['group']) != read['group']
          or min(w['col_end'], read['col_end'])
          <= max(w['col_begin'], read['col_begin'])
      ):
        continue
      begin, end = read['row_begin'], read['row_end']
      if not sent:
        begin = max(begin, w['row_begin'])
        end = min(end, w['row_end'])
      for row in range(begin, end):
        event = np.flatnonzero(
            (flow.events['buffer'] == read['buffer'])
            & (flow.events['rank'] == read['rank'])
            & (flow.events['group'] == read['group'])
            & (flow.events['part'] == row // flow.events['part_rows'])
        )
        waiters = [t for t in range(len(before)) if set(event) & waits[t]]
        if not any(t == reader or before[t, reader] for t in waiters):
          found.add((writer, reader))
  return found


@pytest.mark.parametrize('cores', [(1, 1), (2, 2)])
@pytest.mark.parametrize('seed', range(6))
@both_grains
def test_order_agrees_with_brute_force(grain, seed, cores, request):
  # Given a flow from which some waits were dropped at random, when its races
  # are found pair by pair, then the proof refuses it iff there is one, and
  # names a true one.
  rng = np.random.default_rng(zlib.crc32(request.node.name.encode()))
  flow = copy(
      compiler.compile_forward(
          config_lib.MoEConfig(2, 2, 2, 1, 2, 2),
          precision.PrecisionPolicy(placement='before_down'),
          flow_lib.Options(
              grain, 2, 2, num_aic=cores[0], num_aiv=cores[1]
          ),
      ).flow
  )
  rate = (0.03, 0.1, 0.3)[seed % 3]
  for task in range(len(flow.tasks)):
    drop_waits(flow, task, lambda _: rng.random() > rate)
  report = prove(flow)
  expected = races(flow)
  assert refused_rules(report) == ({'order'} if expected else set())
  assert {(v.task_a, v.task_b) for v in report.violations} <= expected


class TestReport:

  def test_require_raises_with_every_text(self):
    flow = copy(lower(num_aic=200, num_aiv=200))
    task = of_kind(flow, Kind.SWIGLU)[0]
    drop_waits(flow, task, lambda _: False)
    image = image_lib.serialize(flow)
    with pytest.raises(proofs.ProofError, match='order: gate_up') as error:
      proofs.require(image)
    report = error.value.report
    assert str(error.value) == '\n'.join(v.text for v in report.violations)
    assert report == proofs.prove(image)

  def test_at_most_max_violations_per_rule_are_reported(self):
    flow = copy(lower())
    flow.tasks['wait_count'] = 0
    flow.tasks['unit'] = 1 - flow.tasks['unit']
    for limit in (1, 3, 8):
      report = proofs.prove(image_lib.serialize(flow), limit)
      rules = [v.rule for v in report.violations]
      assert rules.count('unit') == rules.count('order') == limit
    with pytest.raises(ValueError, match='max_violations: expected at least'):
      proofs.prove(image_lib.serialize(flow), 0)

  def test_a_corrupt_image_is_not_proved(self):
    with pytest.raises(ValueError, match='image: expected at least'):
      proofs.prove(b'')
