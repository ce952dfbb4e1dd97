"""The backward lowering against a brute-force reading of its regions."""

import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.backend_ascend.taskflow import lower_backward
from hpmoe.backend_ascend.taskflow import lowering_testing as testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

Kind = layout.Kind
ORDERS = flow_lib.WEIGHT_GRAD_ORDERS
WEIGHT_GRADS = (Kind.DOWN_WEIGHT_GRAD, Kind.GATE_UP_WEIGHT_GRAD)
lower = functools.partial(testing.lower, direction='backward')
every_grain = pytest.mark.parametrize('grain', testing.GRAINS)
every_shape = pytest.mark.parametrize('shape', testing.SHAPES)
every_placement = pytest.mark.parametrize('placement', testing.PLACEMENTS)
# One task a weight gradient, or chains of which the last link may be cut.
every_chain = pytest.mark.parametrize('chain_rows', [None, 8])


# Of every shape each pair of the three; `make sweep` runs the other half.
@pytest.mark.parametrize(
  'grain, placement, chain_rows',
  halved_testing.halved(
    testing.GRAINS, testing.PLACEMENTS, [None, 8], odd=True
  ),
)
@every_shape
def test_every_reader_waits_for_every_writer_it_overlaps(
  shape, grain, placement, chain_rows
):
  flow = lower(shape, grain, placement, chain_rows=chain_rows)
  pairs = testing.check_every_reader_waits_for_every_writer_it_overlaps(flow)
  assert pairs > len(flow.tasks) / 2


@every_chain
@every_placement
@every_grain
@every_shape
def test_thresholds_are_the_sum_of_signals(shape, grain, placement, chain_rows):
  testing.check_thresholds_are_the_sum_of_signals(
    lower(shape, grain, placement, chain_rows=chain_rows)
  )


@every_chain
@every_placement
@every_grain
@every_shape
def test_written_regions_tile_their_spaces(shape, grain, placement, chain_rows):
  testing.check_written_regions_tile_their_spaces(
    lower(shape, grain, placement, chain_rows=chain_rows)
  )


@pytest.mark.parametrize('order', ORDERS)
@every_chain
@every_grain
def test_queues_hold_every_task_once_in_producer_first_order(
  grain, chain_rows, order
):
  testing.check_queues_hold_every_task_once_in_producer_first_order(
    lower(
      'rank_per_expert',
      grain,
      chain_rows=chain_rows,
      order=flow_lib.WEIGHT_GRAD_ORDERS[order],
    )
  )


@pytest.mark.parametrize('chain_rows, links', [(None, 1), (4, 3), (8, 2)])
@every_grain
def test_task_counts_follow_from_the_shape(grain, chain_rows, links):
  flow = lower('ragged', grain, put_rows=2, chain_rows=chain_rows)
  # R=2, L=2, C=min(R*T, N)=10 -> 12 rows in 3 blocks; slices of T=5 rows;
  # D=9 is 3 tiles wide, F=5 is 2, 2F is 4.
  counts = np.bincount(flow.tasks['kind'], minlength=len(Kind))
  kinds = layout.kinds(direction=layout.Direction.BACKWARD, relay=False)
  counts = [counts[kind] for kind in kinds]
  returns = 2 * 2 * (3 if grain == 'row_block' else 2 * 3)
  assert counts == [
    2 * 4 * 3,
    12 * 2,
    4 * links * 6,
    12,
    12 * 3,
    4 * links * 12,
    returns,
    2 * 2,
    2 * 2,
  ]


@pytest.mark.parametrize('chain_rows', [4, 8])
@pytest.mark.parametrize('kind', WEIGHT_GRADS)
def test_a_chain_sums_every_row_of_its_expert_once_and_in_order(
  kind, chain_rows
):
  # Given the tiles of one kind, when the rows that each chain reads are put
  # end to end, link by link, then they are 0, 1, ..., C - 1, and each link but
  # the first reads what the one before it wrote.
  flow = lower('ragged', chain_rows=chain_rows)
  chains = {}
  for task in np.flatnonzero(flow.tasks['kind'] == kind):
    t = flow.tasks[task]
    place = (t['expert'], t['row_block'], t['col_block'])
    chains.setdefault(place, []).append(task)
  assert len(chains) == 4 * (6 if kind == Kind.DOWN_WEIGHT_GRAD else 12)
  for chain in chains.values():
    assert list(flow.tasks['peer'][chain]) == list(range(len(chain)))
    rows, written = [], None
    for task in chain:
      (left, right, before), (write,) = testing.regions_of(flow, task)
      for read in (left, right):
        assert read['row_end'] - read['row_begin'] <= chain_rows
      assert (left['row_begin'], left['row_end']) == (
        right['row_begin'],
        right['row_end'],
      )
      rows += range(left['row_begin'], left['row_end'])
      if written is None:
        assert before['row_begin'] == before['row_end']
      else:
        assert before == written
      written = write
    assert rows == list(range(12))


@pytest.mark.parametrize('grain', testing.GRAINS)
def test_weight_gradients_stand_next_to_the_input_gradient_or_last(grain):
  # Given one cube core, when its queue is read, then 'interleaved' has the
  # weight gradients of expert l before the input gradient of expert l + 1.
  is_grad = {}
  for order in ORDERS:
    flow = lower(
      'ragged', grain, order=flow_lib.WEIGHT_GRAD_ORDERS[order], num_aic=1
    )
    run = flow.tasks[flow.queue_tasks[: flow.queues['count'][0]]]
    is_grad[order] = np.isin(run['kind'], WEIGHT_GRADS)
  last = is_grad['last']
  assert not last[: np.flatnonzero(last)[0]].any()
  assert last[np.flatnonzero(last)[0] :].all()
  assert np.abs(np.diff(is_grad['interleaved'].astype(int))).sum() > 2


def test_options_out_of_range_are_named():
  with pytest.raises(ValueError, match='chain_rows: expected'):
    flow_lib.Options(chain_rows=0)


def test_a_policy_that_the_backend_does_not_compute_is_refused():
  with pytest.raises(ValueError, match='policy: expected float32 or bfloat16'):
    lower_backward.lower_backward(
      testing.SHAPES['ragged'],
      precision.PrecisionPolicy().golden(),
      flow_lib.Options(),
    )
