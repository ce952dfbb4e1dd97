"""The forward lowering against a brute-force reading of its regions."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.taskflow import emit
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.backend_ascend.taskflow import lower_forward
from hpmoe.backend_ascend.taskflow import lowering_testing as testing
from hpmoe.reference.contract import memory
from hpmoe.reference.contract import precision

lower = testing.lower
every_grain = pytest.mark.parametrize('grain', testing.GRAINS)
every_shape = pytest.mark.parametrize('shape', testing.SHAPES)


@pytest.mark.parametrize('placement', testing.PLACEMENTS)
@every_grain
@every_shape
def test_every_reader_waits_for_every_writer_it_overlaps(
  shape, grain, placement
):
  flow = lower(shape, grain, placement)
  pairs = testing.check_every_reader_waits_for_every_writer_it_overlaps(flow)
  assert pairs > len(flow.tasks) / 2


@every_grain
@every_shape
def test_thresholds_are_the_sum_of_signals(shape, grain):
  testing.check_thresholds_are_the_sum_of_signals(lower(shape, grain))


def test_one_rank_counts_rows_too():
  flow = lower('one_rank', 'row_block')
  arrived = flow.events['buffer'] == layout.Buffer.EXPERT_IN
  assert (flow.events['mode'][arrived] == layout.Mode.COUNT_ROWS).all()


def test_row_events_count_the_rows_of_their_partition():
  # 'ragged': T=5 tokens, K=2, token block 4 -> partitions of 8 and 2 slots.
  flow = lower('ragged', 'row_block')
  returned = flow.events[flow.events['buffer'] == layout.Buffer.RETURNED]
  assert list(returned['threshold']) == [8, 2, 8, 2]
  arrived = flow.events[flow.events['buffer'] == layout.Buffer.EXPERT_IN]
  assert set(arrived['threshold']) == {4}


@every_grain
def test_task_counts_follow_from_the_shape(grain):
  flow = lower('ragged', grain, put_rows=2)
  # R=2, L=2, C=min(R*T, N)=10 -> 12 rows in 3 blocks; slices of T=5 rows.
  counts = np.bincount(flow.tasks['kind'], minlength=len(layout.Kind))
  kinds = layout.kinds(direction=layout.Direction.FORWARD, relay=False)
  counts = [counts[kind] for kind in kinds]
  returns = 2 * 2 * (3 if grain == 'row_block' else 2 * 3)
  assert counts == [2 * 4 * 3, 12 * 4, 12, 12 * 3, returns, 2 * 2]


@every_grain
def test_vector_tiles_can_be_smaller_than_gemm_tiles(grain):
  # Given vector tiles of 2 rows beside GEMM tiles of 4, when the flow is
  # lowered, then only SwiGLU and, at grain row_block, the puts home are finer.
  fine, coarse = lower('ragged', grain, vector_rows=2), lower('ragged', grain)
  pairs = testing.check_every_reader_waits_for_every_writer_it_overlaps(fine)
  assert pairs > len(fine.tasks) / 2
  testing.check_thresholds_are_the_sum_of_signals(fine)
  testing.check_written_regions_tile_their_spaces(fine)
  counts = [np.bincount(f.tasks['kind'], minlength=6) for f in (fine, coarse)]
  halved = [layout.Kind.SWIGLU]
  if grain == 'row_block':
    halved.append(layout.Kind.RETURN)
  expected = counts[1].copy()
  expected[halved] *= 2
  assert list(counts[0]) == list(expected)


@every_grain
def test_queues_hold_every_task_once_in_producer_first_order(grain):
  testing.check_queues_hold_every_task_once_in_producer_first_order(
    lower('rank_per_expert', grain)
  )


def test_dispatch_destinations_rotate_with_the_rank():
  flow = lower('rank_per_expert', 'row_block')
  first = [
    int(flow.tasks['peer'][flow.tasks['rank'] == rank][0]) for rank in range(4)
  ]
  assert first == [0, 1, 2, 3]


@pytest.mark.parametrize(
  'field, value',
  [
    ('event_grain', 'tile'),
    ('row_block', 0),
    ('col_block', -1),
    ('vector_rows', 48),
    ('num_aic', 70000),
  ],
)
def test_options_out_of_range_are_named(field, value):
  with pytest.raises(ValueError, match=f'{field}: expected'):
    flow_lib.Options(**{field: value})


def test_a_policy_that_the_backend_does_not_compute_is_refused():
  with pytest.raises(ValueError, match='policy: expected float32 or bfloat16'):
    lower_forward.lower_forward(
      testing.SHAPES['ragged'],
      precision.PrecisionPolicy().golden(),
      flow_lib.Options(),
    )


def test_more_tasks_than_memory_holds_are_refused_at_once(monkeypatch):
  # Given memory for a flow, but not for its list of tasks, then it is refused
  # before any is made; one that fits is not.
  config = testing.SHAPES['ragged']
  large = dataclasses.replace(config, num_tokens=1 << 24)
  monkeypatch.setattr(memory, 'available', lambda: 1 << 28)
  layer = precision.PrecisionPolicy(), flow_lib.Options(row_block=16)

  assert len(lower_forward.lower_forward(config, *layer).tasks)
  with pytest.raises(ValueError, match='^num_tokens: .* list of tasks fits'):
    lower_forward.lower_forward(large, *layer)


@every_shape
@pytest.mark.parametrize('relay', (False, True))
def test_at_least_so_many_tasks_are_made(shape, relay):
  config = testing.SHAPES[shape]
  options = flow_lib.Options(row_block=16, relay=relay)
  policy = precision.PrecisionPolicy()
  made = lower_forward.lower_forward(config, policy, options)
  least = emit._least_tasks(config.dims(), made.options)
  assert len(made.tasks) / 3 <= least <= len(made.tasks)


@every_grain
@every_shape
def test_written_regions_tile_their_spaces(shape, grain):
  testing.check_written_regions_tile_their_spaces(lower(shape, grain))
