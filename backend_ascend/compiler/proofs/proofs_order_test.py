"""The rule of order: overlapping accesses are ordered; brute force agrees."""

import itertools
import zlib

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs_testing
from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision


class TestOrder:
  @pytest.mark.parametrize(
    'kind',
    [k for k in layout.Kind if layout.FORM_OF_KIND[k] != layout.Form.SLICE_PUT],
  )
  @pytest.mark.parametrize('index', [0, -1])
  @proofs_testing.both_grains
  def test_a_removed_wait(self, grain, index, kind):
    # Given many cores, so that no other task of the same core has waited,
    # when a task of a kind waits for nothing, then it is the reader and a
    # writer of what it reads is named.
    backward = layout.DIRECTION_OF_KIND[kind]
    placement = 'before_down' if backward else 'combine'
    flow = proofs_testing.copy(
      proofs_testing.lower_kind(
        kind, grain, placement=placement, num_aic=200, num_aiv=200
      )
    )
    task = proofs_testing.of_kind(flow, kind)[index]
    event = int(flow.waits['event'][proofs_testing.waits_of(flow, task).start])
    proofs_testing.drop_waits(flow, task, lambda _: False)
    report = proofs_testing.prove(flow)
    assert proofs_testing.refused_rules(report) == {'order'}
    violation = proofs_testing.find_violation(report, 'order', task_b=task)
    assert violation.event == event
    reader, writer = flow.tasks[task], flow.tasks[violation.task_a]
    kind_written = layout.Kind(int(writer['kind']))
    assert layout.STAGE_OF_KIND[kind_written] == violation.region.buffer
    assert kind in proofs_testing.LAST or writer['expert'] == reader['expert']
    assert layout.Kind(kind).name.lower() + '(rank' in violation.text

  @pytest.mark.parametrize('link', [1, 2])
  @pytest.mark.parametrize('kind', proofs_testing.WEIGHT_GRADS)
  @proofs_testing.both_grains
  def test_a_weight_gradient_accumulated_out_of_order(self, grain, kind, link):
    # Given a link that waits for its rows but not for the link before it,
    # when proved, then both links of the chain are named.
    flow = proofs_testing.copy(
      proofs_testing.lower_kind(kind, grain, num_aic=200, num_aiv=200)
    )
    target = proofs_testing.regions_of(
      flow, proofs_testing.of_kind(flow, kind)[0]
    )[1]['buffer'][0]
    chained = flow.events['buffer'] == target
    task = next(
      t
      for t in proofs_testing.of_kind(flow, kind)
      if flow.tasks['peer'][t] == link
    )
    assert proofs_testing.drop_waits(flow, task, lambda e: not chained[e]) == 1
    report = proofs_testing.prove(flow)
    assert proofs_testing.refused_rules(report) == {'order'}
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
    [
      (layout.Kind.GATE_UP, layout.Kind.DISPATCH),
      (layout.Kind.DOWN_GRAD, layout.Kind.DISPATCH_GRAD),
    ],
  )
  def test_a_row_event_orders_nothing_but_its_own_partition(self, kind, puts):
    # Given the first GEMM of partition 1 on the core that has waited for
    # partition 0, when it waits for nothing, then it is refused: the same tasks
    # send both, but partition 0 may be full before they have sent the rest.
    flow = proofs_testing.copy(proofs_testing.lower_kind(kind, num_aic=1))
    tasks = proofs_testing.of_kind(flow, kind)
    second = [t for t in tasks if flow.tasks['row_block'][t] == 1]
    for task in second:
      proofs_testing.drop_waits(flow, task, lambda _: False)
    violation = proofs_testing.find_violation(
      proofs_testing.prove(flow), 'order', task_b=second[0]
    )
    assert flow.tasks['kind'][violation.task_a] == puts

  @pytest.mark.parametrize(
    'kind', [layout.Kind.COMBINE, layout.Kind.COMBINE_GRAD]
  )
  @proofs_testing.both_grains
  def test_the_order_of_a_queue_completes_no_put(self, grain, kind):
    # Given puts home that stand before combine on the one core, when combine
    # waits for nothing, then it is refused, with a put and the rows named: a
    # put is complete only at the event that it adds to.
    flow = proofs_testing.copy(
      proofs_testing.lower(
        'one_rank',
        grain,
        direction=proofs_testing.DIRECTIONS[kind > layout.Kind.COMBINE],
        num_aic=1,
        num_aiv=1,
      )
    )
    tasks = proofs_testing.of_kind(flow, kind)
    for task in tasks:
      proofs_testing.drop_waits(flow, task, lambda _: False)
    report = proofs_testing.prove(flow)
    assert proofs_testing.refused_rules(report) == {'order'}
    violation = proofs_testing.find_violation(report, 'order', task_b=tasks[0])
    put = flow.tasks[violation.task_a]
    assert put['kind'] in (
      layout.Kind.RETURN,
      layout.Kind.RETURN_GRAD,
    )
    queue = [
      int(t) for tasks in proofs_testing.queue_lists(flow) for t in tasks
    ]
    assert queue.index(violation.task_a) < queue.index(tasks[0])
    (read, *_) = proofs_testing.regions_of(flow, tasks[0])[0]
    assert violation.region.buffer == layout.Buffer(read['buffer']).name.lower()
    assert (read['row_begin'], read['row_end']) == violation.region.rows


def races(flow) -> set[tuple[int, int]]:
  """Returns all unordered (writer, reader), by brute force."""
  image = image_lib.load(image_lib.serialize(flow))
  signals = happens_before.list_signals(image)
  # A row event is met by the rows that landed, not by all who may send.
  counts_tasks = flow.events['mode'] == layout.Mode.COUNT_TASKS
  clocks = happens_before.compute_clocks(
    image, signals[counts_tasks[signals[:, 1]]]
  )
  tasks = np.arange(len(flow.tasks))
  before = (clocks.done_counts[:, clocks.queue] > clocks.position).T
  is_done = clocks.before(tasks[:, None], tasks[None, :])
  waits = [
    set(flow.waits['event'][proofs_testing.waits_of(flow, t)]) for t in tasks
  ]
  race_pairs = set()
  for reader, writer in itertools.permutations(tasks, 2):
    if is_done[writer, reader]:
      continue
    (w,) = proofs_testing.regions_of(flow, writer)[1]
    for read in proofs_testing.regions_of(flow, reader)[0]:
      is_sender = w['view'] == layout.View.SENDER
      place = int(read['rank']), int(read['group'])
      if (
        read['buffer'] != w['buffer']
        or place not in testing.landing_groups(flow, w)
        or min(w['col_end'], read['col_end'])
        <= max(w['col_begin'], read['col_begin'])
      ):
        continue
      begin, end = read['row_begin'], read['row_end']
      if not is_sender:
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
          race_pairs.add((writer, reader))
  return race_pairs


@pytest.mark.parametrize(
  'grain, direction, seed, cores',
  halved_testing.covering(
    testing.GRAINS, proofs_testing.DIRECTIONS, range(6), ((1, 1), (2, 2))
  ),
)
@pytest.mark.few(8)
def test_order_agrees_with_brute_force(grain, direction, seed, cores, request):
  # Given a flow from which some waits were dropped at random, when its races
  # are found pair by pair, then the proof refuses it iff there is one, and
  # names a true one.
  rng = np.random.default_rng(zlib.crc32(request.node.name.encode()))
  relay = seed >= 3
  flow = proofs_testing.copy(
    testing.COMPILE[direction](
      config_testing.make_config(r=2, t=2, e=4 if relay else 2, k=1, d=2, f=2),
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
    proofs_testing.drop_waits(flow, task, lambda _: rng.random() > rate)
  report = proofs_testing.prove(flow)
  expected = races(flow)
  assert proofs_testing.refused_rules(report) == (
    {'order'} if expected else set()
  )
  assert {(v.task_a, v.task_b) for v in report.violations} <= expected
