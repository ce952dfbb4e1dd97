"""The lowerings against a brute-force reading of their regions."""

import dataclasses
import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import emit
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_backward
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import memory
from hpmoe.reference.contract import precision

Buffer = layout.Buffer
Form = layout.Form
Kind = layout.Kind
ORDERS = granularity.WEIGHT_GRAD_ORDERS
WEIGHT_GRADS = (Kind.DOWN_WEIGHT_GRAD, Kind.GATE_UP_WEIGHT_GRAD)
RELAYED = {
  'forward': (Buffer.X_RELAYED, Buffer.EXPERT_IN),
  'backward': (Buffer.DY_RELAYED, Buffer.D_EXPERT_OUT),
}
LOWER = (lower_forward.lower_forward, lower_backward.lower_backward)
lower = testing.lower
backward = functools.partial(lower, direction='backward')
every_direction = pytest.mark.parametrize('direction', testing.COMPILE)
every_grain = pytest.mark.parametrize('grain', testing.GRAINS)


@pytest.mark.parametrize(
  'direction, shape, grain, placement, chain_rows, relay, order',
  halved_testing.covering(
    testing.COMPILE,
    testing.SHAPES,
    testing.GRAINS,
    testing.PLACEMENTS,
    # One task a weight gradient, or chains of which the last link may be cut.
    (None, 8),
    (False, True),
    ORDERS,
  ),
)
@pytest.mark.few(4)
def test_every_flow_is_sound(
  direction, shape, grain, placement, chain_rows, relay, order
):
  # Given a lowered flow, then every reader waits for every writer that it
  # overlaps, thresholds are the sums of signals, writes tile their spaces,
  # queues have every task in producer-first order, and proofs agree.
  flow = lower(
    shape,
    grain,
    placement,
    direction,
    chain_rows=chain_rows,
    put_rows=3 if relay else None,
    relay=relay,
    order=ORDERS[order],
  )
  check_is_sound(flow)
  assert proofs.require(image_lib.serialize(flow)).tasks == len(flow.tasks)


@pytest.mark.parametrize('chain_rows', [None, 8])
def test_tiles_of_weight_gradients_have_a_height_of_their_own(chain_rows):
  # Given 5 rows, which divide no weight's, then tiles have them but the last.
  flow = backward('ragged', chain_rows=chain_rows, weight_rows=5)
  check_is_sound(flow)
  assert proofs.require(image_lib.serialize(flow)).tasks == len(flow.tasks)
  sizes = flow.config.dims()
  for kind, rows in zip(WEIGHT_GRADS, (sizes['F'], sizes['D'])):
    tasks = flow.tasks[flow.tasks['kind'] == kind]
    heights = tasks['row_end'] - tasks['row_begin']
    assert set(heights) == {min(5, rows - begin) for begin in range(0, rows, 5)}


def check_is_sound(flow) -> None:
  pairs = testing.check_every_reader_waits_for_every_writer_it_overlaps(flow)
  assert pairs > len(flow.tasks) / 2
  testing.check_thresholds_are_the_sum_of_signals(flow)
  testing.check_written_regions_tile_their_spaces(flow)
  testing.check_queues_hold_every_task_once_in_producer_first_order(flow)


def test_row_events_count_the_rows_of_their_partition():
  # 'ragged': T=5 tokens, K=2, token block 4 -> partitions of 8 and 2 slots.
  flow = lower('ragged', 'row_block')
  return_events = flow.events[flow.events['buffer'] == layout.Buffer.RETURNED]
  assert list(return_events['threshold']) == [8, 2, 8, 2]
  arrival_events = flow.events[flow.events['buffer'] == layout.Buffer.EXPERT_IN]
  assert set(arrival_events['threshold']) == {4}


def counts_of(flow, direction) -> list[int]:
  counts = np.bincount(flow.tasks['kind'], minlength=len(Kind))
  return [
    counts[k] for k in layout.select_kinds(direction=direction, relay=False)
  ]


@every_grain
def test_task_counts_follow_from_the_shape(grain):
  # R=2, L=2, C=min(R*T, N)=10 -> 12 rows in 3 blocks; slices of T=5 rows;
  # D=9 is 3 tiles wide, F=5 is 2, 2F is 4.
  way = layout.Direction
  returns = 2 * 2 * (3 if grain == 'row_block' else 2 * 3)
  counts = counts_of(lower('ragged', grain, put_rows=2), way.FORWARD)
  assert counts == [2 * 4 * 3, 12 * 4, 12, 12 * 3, returns, 2 * 2]
  for chain_rows, links in ((None, 1), (4, 3), (8, 2)):
    flow = backward('ragged', grain, put_rows=2, chain_rows=chain_rows)
    down, gate_up = 4 * links * 6, 4 * links * 12
    assert counts_of(flow, way.BACKWARD) == [
      *(2 * 4 * 3, 12 * 2, down, 12, 12 * 3, gate_up, returns, 2 * 2, 2 * 2)
    ]


@every_grain
def test_vector_tiles_can_be_smaller_than_gemm_tiles(grain):
  # Given vector tiles of 2 rows beside GEMM tiles of 4, when the flow is
  # lowered, then only SwiGLU and, at grain row_block, the puts home are finer.
  fine, coarse = lower('ragged', grain, vector_rows=2), lower('ragged', grain)
  check_is_sound(fine)
  counts, expected = (np.bincount(x.tasks['kind']) for x in (fine, coarse))
  expected[Kind.SWIGLU] *= 2
  expected[Kind.RETURN] *= 2 if grain == 'row_block' else 1
  assert list(counts) == list(expected)


def test_dispatch_destinations_rotate_with_the_rank():
  flow = lower('rank_per_expert', 'row_block')
  first = [
    int(flow.tasks['peer'][flow.tasks['rank'] == rank][0]) for rank in range(4)
  ]
  assert first == [0, 1, 2, 3]


@pytest.mark.parametrize('chain_rows', [4, 8])
@pytest.mark.parametrize('kind', WEIGHT_GRADS)
def test_a_chain_sums_every_row_of_its_expert_once_and_in_order(
  kind, chain_rows
):
  # Given the tiles of one kind, when the rows that each chain reads are put
  # end to end, link by link, then they are 0, 1, ..., C - 1, and each link but
  # the first reads what the one before it wrote.
  flow = backward('ragged', chain_rows=chain_rows)
  chains = {}
  for task in np.flatnonzero(flow.tasks['kind'] == kind):
    t = flow.tasks[task]
    place = (t['expert'], t['row_block'], t['col_block'])
    chains.setdefault(place, []).append(task)
  assert len(chains) == 4 * (6 if kind == Kind.DOWN_WEIGHT_GRAD else 12)
  for chain in chains.values():
    assert list(flow.tasks['peer'][chain]) == list(range(len(chain)))
    rows, previous_write = [], None
    for task in chain:
      (left, right, before), (write,) = testing.regions_of(flow, task)
      for read in (left, right):
        assert read['row_end'] - read['row_begin'] <= chain_rows
      assert (left['row_begin'], left['row_end']) == (
        right['row_begin'],
        right['row_end'],
      )
      rows += range(left['row_begin'], left['row_end'])
      if previous_write is None:
        assert before['row_begin'] == before['row_end']
      else:
        assert before == previous_write
      previous_write = write
    assert rows == list(range(12))


@every_grain
def test_weight_gradients_stand_next_to_the_input_gradient_or_last(grain):
  # Given one cube core, when its queue is read, then 'interleaved' has the
  # weight gradients of expert l before the input gradient of expert l + 1.
  is_grad = {}
  for order in ORDERS:
    flow = backward(
      'ragged', grain, order=granularity.WEIGHT_GRAD_ORDERS[order], num_aic=1
    )
    run = flow.tasks[flow.queue_tasks[: flow.queues['count'][0]]]
    is_grad[order] = np.isin(run['kind'], WEIGHT_GRADS)
  last = is_grad['last']
  assert not last[: np.flatnonzero(last)[0]].any()
  assert last[np.flatnonzero(last)[0] :].all()
  assert np.abs(np.diff(is_grad['interleaved'].astype(int))).sum() > 2


@every_direction
@every_grain
def test_only_the_way_to_the_experts_differs(grain, direction):
  # Given the same layer with relay and without, when what puts of slices and
  # relays write and signal is left out, then the tasks are the same.
  flows = [
    testing.lower('ragged', grain, direction=direction, relay=relay)
    for relay in (False, True)
  ]
  arrive = layout.select_kinds(Form.SLICE_PUT, Form.RELAY_TILE)
  rest = []
  for flow in flows:
    tasks = flow.tasks[~np.isin(flow.tasks['kind'], arrive)]
    coordinates = [n for n in tasks.dtype.names if '_begin' not in n]
    rest.append(tasks[[n for n in coordinates if n != 'core']])
  np.testing.assert_array_equal(*rest)
  kinds = [set(map(int, np.unique(flow.tasks['kind']))) for flow in flows]
  way = layout.Direction[direction.upper()]
  for flow_kinds, relay in zip(kinds, (False, True)):
    assert flow_kinds == set(
      map(int, layout.select_kinds(direction=way, relay=relay))
    )


@every_direction
def test_a_relay_waits_for_its_row_block_and_counts_into_later_experts(
  direction,
):
  # R=2, L=2, C=12 in 3 blocks of 4 rows.
  relayed, expert_rows = RELAYED[direction]
  flow = lower(
    'ragged', 'row_block', 'before_down', direction, put_rows=3, relay=True
  )
  (relay,) = layout.select_kinds(
    Form.RELAY_TILE, direction=layout.Direction[direction.upper()]
  )
  tasks = flow.tasks[flow.tasks['kind'] == relay]
  assert len(tasks) == 2 * 2 * 3
  for task in tasks:
    (wait,) = flow.waits[task['wait_begin'] :][: task['wait_count']]
    event = flow.events[wait['event']]
    assert event['buffer'] == relayed and event['rank'] == task['rank']
    assert (event['group'], event['part']) == (
      task['expert'] % 2,
      task['row_block'],
    )
    signals = flow.signals[task['signal_begin'] :][: task['signal_count']]
    counted_events = flow.events[signals['event']]
    assert (counted_events['buffer'] == expert_rows).all()
    assert list(counted_events['group']) == list(range(task['expert'] % 2, 2))
    assert (signals['span'] == 3).all()
    assert (signals['amount'] == layout.PER_ROW).all()


@pytest.mark.parametrize(
  'field, value',
  [
    ('event_grain', 'tile'),
    ('row_block', 0),
    ('col_block', -1),
    ('vector_rows', 48),
    ('num_aic', 70000),
    ('chain_rows', 0),
    ('relay', 1),
  ],
)
def test_options_out_of_range_are_named(field, value):
  with pytest.raises(ValueError, match=f'{field}: expected'):
    granularity.Options(**{field: value})


@pytest.mark.parametrize('lowering', LOWER)
def test_a_policy_that_the_backend_does_not_compute_is_refused(lowering):
  golden = precision.PrecisionPolicy().golden()
  with pytest.raises(ValueError, match='policy: expected float32 or bfloat16'):
    lowering(testing.SHAPES['ragged'], golden, granularity.Options())


def test_more_tasks_than_memory_holds_are_refused_at_once(monkeypatch):
  # Given memory for a flow, but not for its list of tasks, then it is refused
  # before any is made; one that fits is not.
  config = testing.SHAPES['ragged']
  large = dataclasses.replace(config, num_tokens=1 << 24)
  monkeypatch.setattr(memory, 'available', lambda: 1 << 28)
  layer = precision.PrecisionPolicy(), granularity.Options(row_block=16)

  assert len(lower_forward.lower_forward(config, *layer).tasks)
  with pytest.raises(ValueError, match='^num_tokens: .* list of tasks fits'):
    lower_forward.lower_forward(large, *layer)


@pytest.mark.parametrize('shape', testing.SHAPES)
@pytest.mark.parametrize('relay', (False, True))
def test_at_least_so_many_tasks_are_made(shape, relay):
  config = testing.SHAPES[shape]
  options = granularity.Options(row_block=16, relay=relay)
  policy = precision.PrecisionPolicy()
  flow = lower_forward.lower_forward(config, policy, options)
  lower_bound = emit._least_tasks(config.dims(), flow.options)
  assert len(flow.tasks) / 3 <= lower_bound <= len(flow.tasks)
