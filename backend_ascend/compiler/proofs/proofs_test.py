"""Sound flows are proved; every kind of broken one is refused, and named."""

import dataclasses
import itertools
import zlib

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

Kind = layout.Kind
Buffer = layout.Buffer
RULES = ('unit', 'regions', 'progress', 'event', 'once', 'order')
DIRECTIONS = ('forward', 'backward')
WEIGHT_GRADS = (Kind.DOWN_WEIGHT_GRAD, Kind.GATE_UP_WEIGHT_GRAD)
PUTS = layout.select_kinds(*layout.PUTS)
WHOLE_ROWS = (
  *(Kind.SWIGLU_GRAD, Kind.TOPK_WEIGHT_GRAD),
  *(Kind.NORM, Kind.NORM_GRAD),
)
COUNTED = (Kind.RETURN, Kind.RETURN_GRAD, Kind.RELAY, Kind.RELAY_GRAD)
LAST = (
  *(Kind.COMBINE, Kind.COMBINE_GRAD, Kind.TOPK_WEIGHT_GRAD),
  Kind.GAIN_GRAD,
)
lower = testing.lower
regions_of = testing.regions_of
both_grains = pytest.mark.parametrize('grain', testing.GRAINS)
both_directions = pytest.mark.parametrize('direction', DIRECTIONS)


def lower_kind(kind, grain='row_block', **options) -> flow_lib.Flow:
  """Returns a flow that has the kind; weight gradients are chains of three."""
  path = layout.PATH_OF_KIND[kind]
  relay = path == layout.Path.RELAYED
  shape = 'sublayer' if path == layout.Path.OF_SUBLAYER else 'ragged'
  options = dict(chain_rows=4, relay=relay) | options
  direction = DIRECTIONS[layout.DIRECTION_OF_KIND[kind]]
  return lower(shape, grain, direction=direction, **options)


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


def with_wait(flow, task, event) -> flow_lib.Flow:
  """Returns the flow with one more wait of a task."""
  added = np.array([(event, flow.events['threshold'][event])], layout.WAIT)
  waits = np.concatenate([flow.waits, flow.waits[waits_of(flow, task)], added])
  flow = copy(dataclasses.replace(flow, waits=waits))
  flow.tasks['wait_count'][task] += 1
  flow.tasks['wait_begin'][task] = len(waits) - flow.tasks['wait_count'][task]
  return flow


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
  @pytest.mark.parametrize(
    'grain, direction, row_block, put, cores',
    halved_testing.covering(
      testing.GRAINS,
      DIRECTIONS,
      (1, 3, 64),
      ((1, 2), (3, 1), (9, 9)),
      ((1, 1), (3, 5), (24, 48)),
    ),
  )
  def test_are_proved_at_odd_tile_sizes_on_any_cores(
    self, grain, direction, row_block, put, cores
  ):
    rows = dict(row_block=row_block, chain_rows=2 * row_block, col_block=100)
    rows |= dict(zip(('put_rows', 'token_block', 'num_aic'), (*put, cores[0])))
    flow = lower('ragged', grain, direction=direction, num_aiv=cores[1], **rows)
    report = proofs.require(image_lib.serialize(flow))
    checked = {rule.name: rule.checked for rule in report.rules}
    assert list(checked) == list(RULES) and report.violations == ()
    n = len(flow.tasks)
    assert report.tasks == checked['unit'] == checked['regions'] == n
    assert checked['progress'] == checked['once'] == n
    assert report.events == checked['event'] == len(flow.events)
    assert checked['order'] >= np.sum(flow.tasks['wait_count'] > 0)

  @both_directions
  def test_are_proved_when_capacity_cuts_the_slices(self, direction):
    assert prove(
      lower('rank_per_expert', direction=direction, expert_capacity=4)
    ).proved

  @pytest.mark.parametrize('kind', [Kind.RETURN, Kind.RETURN_GRAD])
  def test_are_proved_whatever_the_order_of_a_tasks_signals(self, kind):
    flow = copy(lower_kind(kind))
    for task in of_kind(flow, kind):
      where = signals_of(flow, task)
      flow.signals[where] = flow.signals[where][::-1].copy()
    assert prove(flow).proved


def _flip(flow, task):
  flow.tasks['unit'][task] = 1 - flow.tasks['unit'][task]


def _read_another_link(flow, task):
  assert flow.tasks['peer'][task] == 2
  regions_of(flow, task)[0]['group'][2] -= 1


def _narrow_write(flow, task):
  regions_of(flow, task)[1]['col_end'] -= 1


def _lower_row_event(flow, task):
  event = flow.waits['event'][waits_of(flow, task).start]
  flow.waits['threshold'][flow.waits['event'] == event] -= 1
  flow.events['threshold'][event] -= 1


def _lower(wait, event):
  def change(flow, task):
    at = waits_of(flow, task).start
    flow.events['threshold'][flow.waits['event'][at]] -= event
    flow.waits['threshold'][at] -= wait

  return change


def _other_home(flow, task):
  flow.signals['rank'][signals_of(flow, task).start] ^= 1


def _count_tasks(flow, task):
  at = signals_of(flow, task).start
  flow.signals['amount'][at] += 2
  flow.signals['span'][at] = 1


def _count_twice(flow, task):
  where = signals_of(flow, task)
  flow.signals[where.start + 1] = flow.signals[where.start]


def _leave_a_partition_out(flow, task):
  flow.signals['span'][signals_of(flow, task).start] -= 1


def _set(field, value):
  def change(flow, task):
    flow.tasks[field][task] = value

  return change


DISPATCHES = (Kind.DISPATCH, Kind.DISPATCH_GRAD)
FIRST_READERS = (Kind.GATE_UP, Kind.COMBINE, Kind.DOWN_GRAD, Kind.COMBINE_GRAD)
ALL = layout.STAGE_OF_KIND  # a tensor whose violation must be told
# (rule, kinds, which of their tasks, change, words, buffer of the violation).
BROKEN = {
  'unit': ('unit', Kind, 0, _flip, '', None),
  'link': ('regions', WEIGHT_GRADS, -1, _read_another_link, 'link 2', ALL),
  'write': ('regions', Kind, 0, _narrow_write, ' writes ', None),
  # The write region is whole, the columns are not.
  'whole': (
    *('regions', WHOLE_ROWS, 0, _set('col_begin', 1)),
    *('writes whole rows: expected columns 0:', None),
  ),
  'none': ('regions', [Kind.DOWN], 0, _set('write_count', 0), '', None),
  'row': ('event', FIRST_READERS, 0, _lower_row_event, 'of the part', None),
  **{
    f'low {wait}{event}': (
      *('event', [Kind.SWIGLU], 0, _lower(wait, event)),
      *('threshold: expected', None),
    )
    for wait, event in ((0, 1), (1, 0), (1, 1))
  },
  'home': ('event', DISPATCHES, 0, _other_home, '', None),
  'amount': ('event', DISPATCHES, 0, _count_tasks, '', None),
  'twice': ('event', COUNTED, 0, _count_twice, 'got it twice', None),
  'span': ('event', PUTS, 0, _leave_a_partition_out, 'over all part', None),
}


BOTH_GRAINS = ('low 01', 'low 10', 'low 11', 'home', 'amount')
# Readers of an event are named, or nobody who is wrong for certain.
OF_READERS = ('row', 'amount')


@pytest.mark.parametrize(
  'broken, kind, grain',
  [
    (name, kind, grain)
    for name, row in BROKEN.items()
    for kind in row[1]
    for grain in testing.GRAINS
    if grain == 'row_block' or name in BOTH_GRAINS
  ],
)
def test_a_broken_task_is_named(broken, kind, grain):
  rule, _, at, change, words, buffer = BROKEN[broken]
  flow = copy(lower_kind(kind, grain))
  task = of_kind(flow, kind)[at]
  change(flow, task)
  report = prove(flow)
  named(report, rule, None if broken in OF_READERS else task)
  told = [v for v in report.violations if v.rule == rule and words in v.text]
  assert told and (broken in OF_READERS or {v.task_a for v in told} >= {task})
  assert buffer is None or told[0].region.buffer == buffer[kind]
  assert broken != 'unit' or refused_rules(report) == {'unit'}


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


class TestRegions:
  @both_directions
  @pytest.mark.parametrize('placement', precision.LAUNCHED)
  @both_grains
  def test_every_read_that_is_not_declared(self, grain, placement, direction):
    # Given each kind's declared reads, when one loses a row or a column at
    # any of its four sides, then the task that still reads it is named.
    # A link in the middle of its chain sums two row blocks.
    sound = lower(
      'ragged', grain, placement, direction, row_block=2, chain_rows=4
    )
    seen = 0
    for kind in np.unique(sound.tasks['kind']):
      tasks = of_kind(sound, kind)
      if kind in WEIGHT_GRADS:
        tasks = tasks[sound.tasks['peer'][tasks] == 1]
      task = tasks[-1]
      for index in range(sound.tasks['read_count'][task]):
        for field in ('row_begin', 'row_end', 'col_begin', 'col_end'):
          flow = copy(sound)
          step = 1 if field.endswith('begin') else -1
          regions_of(flow, task)[0][field][index] += step
          report = prove(flow)
          violation = named(report, 'regions', task_a=task)
          assert ' reads ' in violation.text
          assert refused_rules(report) == {'regions'}
          seen += 1
    reads = {
      ('forward', 'combine'): 9,
      ('forward', 'before_down'): 10,
      ('forward', 'epilogue'): 10,
      ('backward', 'combine'): 18,
      ('backward', 'before_down'): 19,
      ('backward', 'epilogue'): 21,
    }
    assert seen == 4 * reads[direction, placement]


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

  @both_directions
  @both_grains
  def test_a_threshold_that_signals_cannot_reach(self, grain, direction):
    flow = copy(lower('ragged', grain, 'before_down', direction, chain_rows=4))
    for kind in np.unique(flow.tasks['kind']):
      task = of_kind(flow, kind)[0]
      if flow.tasks['wait_count'][task] == 0:
        assert kind in (Kind.DISPATCH, Kind.DISPATCH_GRAD)
        continue
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


class TestEvent:
  @both_directions
  @both_grains
  def test_a_wait_for_a_counter_of_another_rank(self, grain, direction):
    # Given the last task of a rank, when it also waits for an event of another
    # rank, which is met anyway, then it is refused and named.
    flow = copy(lower(grain=grain, direction=direction))
    task = int(flow.queue_tasks[-1])
    rank = flow.tasks['rank'][task]
    event = int(np.flatnonzero(flow.events['rank'] != rank)[0])
    flow = with_wait(flow, task, event)
    report = prove(flow)
    assert refused_rules(report) == {'event'}
    violation = named(report, 'event', task_a=task)
    assert violation.event == event
    assert (
      f'expected a counter of its own rank, got one of rank {1 - rank}'
      in (violation.text)
    )

  @pytest.mark.parametrize('kind', [k for k in Kind if k not in LAST])
  @both_grains
  def test_a_removed_signal(self, grain, kind):
    # A row signal missing from one dispatch task breaks the lemma that the
    # counter is full only when all rows of the partition have landed.
    flow = copy(lower_kind(kind, grain))
    writer = of_kind(flow, kind)[0]
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

  @pytest.mark.parametrize(
    'kind', [Kind.DISPATCH, Kind.GATE_UP, Kind.DISPATCH_GRAD, *WEIGHT_GRADS]
  )
  @both_grains
  def test_a_signal_to_the_wrong_event(self, grain, kind):
    flow = copy(lower_kind(kind, grain, row_block=2))
    writer, other = of_kind(flow, kind)[[0, -1]]
    at, to = signals_of(flow, writer).start, signals_of(flow, other).start
    event = int(flow.signals['event'][at])
    assert event != flow.signals['event'][to]
    flow.signals[at] = flow.signals[to]
    violation = named(prove(flow), 'event', task_a=writer)
    assert violation.event in (event, flow.signals['event'][to])
    missing = [v for v in prove(flow).violations if 'does not signal' in v.text]
    assert [v.event for v in missing] == [event]

  @pytest.mark.parametrize(
    'put_kind, kind',
    [
      (Kind.DISPATCH, Kind.GATE_UP),
      (Kind.DISPATCH_GRAD, Kind.DOWN_GRAD),
      (Kind.RETURN_GRAD, Kind.COMBINE_GRAD),
    ],
  )
  def test_a_row_signal_of_a_task_that_sends_no_row_there(self, put_kind, kind):
    # Given a task that counts rows which others put, though it sends none,
    # when proved, then it is named: such counts would fill the event early.
    flow = copy(lower_kind(kind))
    task = of_kind(flow, kind)[0]
    put = flow.signals[signals_of(flow, of_kind(flow, put_kind)[0])][:1]
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
  @pytest.mark.parametrize('kind', list(Kind))
  @both_grains
  def test_a_missing_write(self, grain, kind):
    flow = lower_kind(kind, grain)
    task = of_kind(flow, kind)[1]
    write = regions_of(flow, task)[1][0]
    report = prove(without_task(flow, task))
    named(report, 'once')
    violation = next(v for v in report.violations if 'no task writes' in v.text)
    assert violation.region == proofs.Region(
      layout.STAGE_OF_KIND[kind],
      'sender' if write['view'] else 'rows',
      int(write['rank']),
      int(write['group']),
      (int(write['row_begin']), int(write['row_end'])),
      (int(write['col_begin']), int(write['col_end'])),
    )

  @pytest.mark.parametrize('link', [0, 1, 2])
  @pytest.mark.parametrize('kind', WEIGHT_GRADS)
  def test_a_weight_gradient_accumulated_twice(self, kind, link):
    # Given a chain of three links, when one does the work of another once
    # more, then both are named, and the rows that nobody sums any more.
    flow = copy(lower_kind(kind))
    chain = [
      t
      for t in of_kind(flow, kind)
      if flow.tasks['expert'][t] == 1
      and flow.tasks['row_block'][t] == flow.tasks['col_block'][t] == 1
    ]
    task, other = chain[(link + 1) % 3], chain[link]
    flow.tasks['peer'][task] = link
    for index in (0, 1):
      regions_of(flow, task)[index][:] = regions_of(flow, other)[index]
    report = prove(flow)
    both = min(task, other), max(task, other)
    violation = named(report, 'once', *both)
    assert violation.region.buffer == layout.STAGE_OF_KIND[kind]
    assert violation.region.group == 3 + link
    assert violation.text.count(f'link {link},') == 2
    assert 'both write' in violation.text
    missing = [v for v in report.violations if 'no task writes' in v.text]
    assert [v.region.group for v in missing] == [3 + (link + 1) % 3]

  @pytest.mark.parametrize(
    'kind, group, rows, cols',
    [
      (Kind.SWIGLU, 0, (0, 12), (0, 5)),
      (Kind.SWIGLU, 1, (0, 12), (0, 5)),
      (Kind.DOWN_WEIGHT_GRAD, 1, (0, 5), (0, 9)),
      (Kind.GATE_UP_WEIGHT_GRAD, 1, (0, 9), (0, 10)),
    ],
  )
  def test_an_expert_that_nobody_writes(self, kind, group, rows, cols):
    # Given one task a tile, when those of an expert are gone, then all of its
    # rows, or its gradient, would keep what stood there.
    flow = lower_kind(kind, chain_rows=None)
    for task in reversed(of_kind(flow, kind)):
      if flow.tasks['expert'][task] == 2 + group:
        flow = without_task(flow, task)
    report = prove(flow)
    assert kind == Kind.SWIGLU or refused_rules(report) == {'once'}
    found = next(v for v in report.violations if 'no task writes' in v.text)
    stage = layout.STAGE_OF_KIND[kind]
    assert found.region == proofs.Region(stage, 'rows', 1, group, rows, cols)

  def test_an_overlap_of_one_column(self):
    flow = copy(lower())
    task = of_kind(flow, Kind.GATE_UP)[1]
    flow.tasks['col_begin'][task] -= 1
    reads, writes = regions_of(flow, task)
    reads['col_begin'][1] -= 1  # of w_gate_up
    writes['col_begin'] -= 1
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

  @pytest.mark.parametrize('kind', list(Kind))
  def test_a_buffer_without_a_space(self, kind):
    flow = lower_kind(kind)
    stage = layout.STAGE_OF_KIND[kind]
    spaces = flow.spaces[flow.spaces['buffer'] != Buffer[stage.upper()]]
    report = prove(dataclasses.replace(flow, spaces=spaces))
    assert refused_rules(report) == {'once'}
    texts = [v.text for v in report.violations if v.rule == 'once']
    assert f'once: spaces of {stage}: expected one' in texts[0]
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
  @pytest.mark.parametrize(
    'kind', [k for k in Kind if layout.FORM_OF_KIND[k] != layout.Form.SLICE_PUT]
  )
  @pytest.mark.parametrize('at', [0, -1])
  @both_grains
  def test_a_removed_wait(self, grain, at, kind):
    # Given many cores, so that no other task of the same core has waited,
    # when a task of a kind waits for nothing, then it is the reader and a
    # writer of what it reads is named.
    backward = layout.DIRECTION_OF_KIND[kind]
    placement = 'before_down' if backward else 'combine'
    flow = copy(
      lower_kind(kind, grain, placement=placement, num_aic=200, num_aiv=200)
    )
    task = of_kind(flow, kind)[at]
    event = int(flow.waits['event'][waits_of(flow, task).start])
    drop_waits(flow, task, lambda _: False)
    report = prove(flow)
    assert refused_rules(report) == {'order'}
    violation = named(report, 'order', task_b=task)
    assert violation.event == event
    reader, writer = flow.tasks[task], flow.tasks[violation.task_a]
    kind_written = layout.Kind(int(writer['kind']))
    assert layout.STAGE_OF_KIND[kind_written] == violation.region.buffer
    assert kind in LAST or writer['expert'] == reader['expert']
    assert layout.Kind(kind).name.lower() + '(rank' in violation.text

  @pytest.mark.parametrize('link', [1, 2])
  @pytest.mark.parametrize('kind', WEIGHT_GRADS)
  @both_grains
  def test_a_weight_gradient_accumulated_out_of_order(self, grain, kind, link):
    # Given a link that waits for its rows but not for the link before it,
    # when proved, then both links of the chain are named.
    flow = copy(lower_kind(kind, grain, num_aic=200, num_aiv=200))
    target = regions_of(flow, of_kind(flow, kind)[0])[1]['buffer'][0]
    chained = flow.events['buffer'] == target
    task = next(t for t in of_kind(flow, kind) if flow.tasks['peer'][t] == link)
    assert drop_waits(flow, task, lambda e: not chained[e]) == 1
    report = prove(flow)
    assert refused_rules(report) == {'order'}
    (violation,) = report.violations
    t, before = flow.tasks[task], flow.tasks[violation.task_a]
    assert violation.task_b == task
    assert before['kind'] == kind and before['peer'] == link - 1
    for field in ('rank', 'expert', 'row_begin', 'col_begin'):
      assert before[field] == t[field]
    assert f'link {link},' in violation.text
    assert f'link {link - 1},' in violation.text

  @pytest.mark.parametrize(
    'kind, puts',
    [(Kind.GATE_UP, Kind.DISPATCH), (Kind.DOWN_GRAD, Kind.DISPATCH_GRAD)],
  )
  def test_a_row_event_orders_nothing_but_its_own_partition(self, kind, puts):
    # Given the first GEMM of partition 1 on the core that has waited for
    # partition 0, when it waits for nothing, then it is refused: the same tasks
    # send both, but partition 0 may be full before they have sent the rest.
    flow = copy(lower_kind(kind, num_aic=1))
    tasks = of_kind(flow, kind)
    second = [t for t in tasks if flow.tasks['row_block'][t] == 1]
    for task in second:
      drop_waits(flow, task, lambda _: False)
    violation = named(prove(flow), 'order', task_b=second[0])
    assert flow.tasks['kind'][violation.task_a] == puts

  @pytest.mark.parametrize('kind', [Kind.COMBINE, Kind.COMBINE_GRAD])
  @both_grains
  def test_the_order_of_a_queue_completes_no_put(self, grain, kind):
    # Given puts home that stand before combine on the one core, when combine
    # waits for nothing, then it is refused, with a put and the rows named: a
    # put is complete only at the event that it adds to.
    flow = copy(
      lower(
        'one_rank',
        grain,
        direction=DIRECTIONS[kind > Kind.COMBINE],
        num_aic=1,
        num_aiv=1,
      )
    )
    tasks = of_kind(flow, kind)
    for task in tasks:
      drop_waits(flow, task, lambda _: False)
    report = prove(flow)
    assert refused_rules(report) == {'order'}
    violation = named(report, 'order', task_b=tasks[0])
    put = flow.tasks[violation.task_a]
    assert put['kind'] in (Kind.RETURN, Kind.RETURN_GRAD)
    queue = [int(t) for tasks in queue_lists(flow) for t in tasks]
    assert queue.index(violation.task_a) < queue.index(tasks[0])
    (read, *_) = regions_of(flow, tasks[0])[0]
    assert violation.region.buffer == Buffer(read['buffer']).name.lower()
    assert (read['row_begin'], read['row_end']) == violation.region.rows


def races(flow) -> set[tuple[int, int]]:
  """Returns all unordered (writer, reader), by brute force."""
  image = image_lib.load(image_lib.serialize(flow))
  signals = happens_before.signals(image)
  # A row event is met by the rows that landed, not by all who may send.
  counts_tasks = flow.events['mode'] == layout.Mode.COUNT_TASKS
  clocks = happens_before.clocks(image, signals[counts_tasks[signals[:, 1]]])
  tasks = np.arange(len(flow.tasks))
  before = (clocks.known[:, clocks.queue] > clocks.position).T
  done = clocks.before(tasks[:, None], tasks[None, :])
  waits = [set(flow.waits['event'][waits_of(flow, t)]) for t in tasks]
  found = set()
  for reader, writer in itertools.permutations(tasks, 2):
    if done[writer, reader]:
      continue
    (w,) = regions_of(flow, writer)[1]
    for read in regions_of(flow, reader)[0]:
      sent = w['view'] == layout.View.SENDER
      place = int(read['rank']), int(read['group'])
      if (
        read['buffer'] != w['buffer']
        or place not in testing.landing_groups(flow, w)
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
        waiters = [t for t in tasks if set(event) & waits[t]]
        if not any(t == reader or before[t, reader] for t in waiters):
          found.add((writer, reader))
  return found


@pytest.mark.parametrize(
  'grain, direction, seed, cores',
  halved_testing.covering(
    testing.GRAINS, DIRECTIONS, range(6), ((1, 1), (2, 2))
  ),
)
def test_order_agrees_with_brute_force(grain, direction, seed, cores, request):
  # Given a flow from which some waits were dropped at random, when its races
  # are found pair by pair, then the proof refuses it iff there is one, and
  # names a true one.
  rng = np.random.default_rng(zlib.crc32(request.node.name.encode()))
  relay = seed >= 3
  flow = copy(
    testing.COMPILE[direction](
      config_testing.sized(r=2, t=2, e=4 if relay else 2, k=1, d=2, f=2),
      precision.PrecisionPolicy(placement='before_down'),
      granularity.Options(
        grain,
        2,
        2,
        num_aic=cores[0],
        num_aiv=cores[1],
        chain_rows=2,
        relay=relay,
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
