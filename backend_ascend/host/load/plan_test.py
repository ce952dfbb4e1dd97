"""The launch plan: every routed row has one address."""

import ctypes

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.backend_ascend.host.ranks import rank_testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

LAYERS = {
  'one_of_everything': config_testing.make_config(r=1, t=1, e=1, k=1, d=1, f=1),
  'one_rank': config_testing.make_config(r=1, t=9, e=5, k=2, d=4, f=4),
  'two_ranks': config_testing.make_config(r=2, t=7, e=6, k=3, d=4, f=4),
  'all_experts': config_testing.make_config(r=2, t=5, e=4, k=4, d=4, f=4),
  'four_ranks': config_testing.make_config(r=4, t=13, e=16, k=4, d=4, f=4),
}


def walked(config, ids) -> dict[str, np.ndarray]:
  """Returns counts, row_base and row_of_slot by walking rows in order."""
  r, e, l = (config.dims()[c] for c in 'REL')
  counts, row_of_slot = np.zeros((r, e), np.int32), np.zeros_like(ids)
  rows = [0] * r
  for expert in range(e):
    for slot in map(tuple, np.argwhere(ids == expert)):
      counts[slot[0], expert] += 1
      row_of_slot[slot] = rows[expert // l]
      rows[expert // l] += 1
  of_owner = counts.T.reshape(r, l * r)  # by expert, then source
  base = np.cumsum(of_owner, axis=1, dtype=np.int32) - of_owner
  row_base = base.reshape(e, r).T
  return dict(counts=counts, row_base=row_base, row_of_slot=row_of_slot)


class TestPlan:
  @pytest.mark.parametrize('routing', testing.ROUTINGS)
  @pytest.mark.parametrize('layer', LAYERS)
  def test_rows_are_in_rank_token_slot_order(self, layer, routing):
    # Given a routing, when it is planned, then every table equals the walk.
    config = LAYERS[layer]
    ids = testing.make_ids(config, routing, testing.rng(layer, routing))
    plan = runtime.route(testing.compile_layer(config), ids)
    for name, table in walked(config, ids).items():
      assert (getattr(plan, name) == table).all(), name


class TestRefusals:
  CONFIG = config_testing.make_config(r=2, t=6, e=4, k=2, d=4, f=4)

  def refusal(self, config, ids, **options) -> str:
    with pytest.raises(ValueError) as error:
      runtime.route(testing.compile_layer(config, **options), ids)
    return str(error.value)

  def ids(self):
    return testing.make_ids(self.CONFIG, 'uniform', testing.rng('refusals'))

  @pytest.mark.parametrize('bad', [-1, 4, 2**31 - 1, -(2**31)])
  def test_id_out_of_range_is_named_by_rank_token_and_slot(self, bad):
    ids = self.ids()
    ids[1, 3, 1] = bad
    assert self.refusal(self.CONFIG, ids) == (
      f'topk_ids: expected ids in [0, 4), got {bad} at rank 1, token 3, slot 1'
    )

  def test_ids_of_another_dtype(self):
    ids = self.ids().astype(np.int64)
    assert self.refusal(self.CONFIG, ids) == (
      'topk_ids: expected dtype int32, got int64'
    )

  def test_expert_named_twice_by_a_token(self):
    ids = self.ids()
    ids[1, 5] = 2
    assert self.refusal(self.CONFIG, ids) == (
      'topk_ids: expected distinct experts for a token, got expert 2 twice '
      'at rank 1, token 5'
    )

  def test_more_rows_than_a_rank_holds(self):
    # Given all tokens on rank 1, 24 rows, when N is 23, then it is refused,
    # and with N = 24 it is not.
    ids = np.broadcast_to(np.int32([3, 2]), (2, 6, 2)).copy()
    config = testing.with_capacity(self.CONFIG, 23)
    assert self.refusal(config, ids) == (
      'topk_ids: expected at most num_rows=23 rows on rank 1, got 24'
    )
    config = testing.with_capacity(self.CONFIG, 24)
    plan = runtime.route(testing.compile_layer(config), ids)
    assert plan.counts.sum() == 24

  def test_more_rows_than_an_expert_holds(self):
    # Given 12 rows for expert 3, when C is 8, then it is refused; the block
    # of 12 takes them.
    ids = np.broadcast_to(np.int32([3, 2]), (2, 6, 2)).copy()
    assert self.refusal(self.CONFIG, ids, row_block=4, expert_capacity=8) == (
      'topk_ids: expected at most expert_capacity=8 rows for expert 2, got 12'
    )
    runtime.route(
      testing.compile_layer(self.CONFIG, row_block=4, expert_capacity=12), ids
    )


def _writable(table: np.ndarray) -> np.ndarray:
  """Returns a table of a routing, which Python may not write, to be spoilt."""
  words = (ctypes.c_int32 * table.size).from_address(table.ctypes.data)
  return np.ctypeslib.as_array(words)


def _swap(table):
  table[[0, -1]] = table[[-1, 0]]


def _early(table):
  table[-1] -= 1


def _lose_first(table):
  table[0] = -1


def _far(table):
  table[0] = 2**31 - 1


class TestBijection:
  """A launch checks the tables that its own puts read."""

  CONFIG = config_testing.make_config(r=2, t=6, e=4, k=2, d=4, f=4)
  # A slot of another expert, or that is no slot; a row that another has.
  SPOILT_TABLES = (
    ('slice_slots', _swap, 'slot'),
    ('slice_slots', _far, 'slot'),
    ('row_base', _early, 'row'),
    ('row_base', _far, 'row'),
    ('counts', _early, 'row'),
  )

  def case(self):
    image = testing.compile_layer(self.CONFIG)
    inputs = testing.make_inputs(self.CONFIG, precision.PrecisionPolicy())
    # Neighbouring slots go to different experts, and no slice is empty.
    experts = np.arange(24, dtype=np.int32).reshape(2, 6, 2) % 4
    inputs['topk_ids'] = experts
    return image, inputs

  @pytest.mark.parametrize(
    ('relay', 'table', 'spoil', 'noun'),
    [
      *((False, *row) for row in SPOILT_TABLES),
      (True, 'copy_rows', _swap, 'copy'),
      (True, 'copy_rows', _lose_first, 'copy'),
      (True, 'copy_slots', _swap, 'copy'),
      (True, 'copy_slots', _far, 'copy'),
      (True, 'relayed_counts', _early, 'row'),
    ],
  )
  def test_threads_refuse_a_broken_table(self, relay, table, spoil, noun):
    _, inputs = self.case()
    image = testing.compile_layer(self.CONFIG, relay=relay)
    plan = runtime.route(image, inputs['topk_ids'])
    runtime.run(image, inputs, plan=plan)
    spoil(_writable(getattr(plan, table)))

    with pytest.raises(runtime.BrokenError, match=f'plan: .* every {noun} '):
      runtime.run(image, inputs, plan=plan)

  @pytest.mark.parametrize(('table', 'spoil', 'noun'), SPOILT_TABLES)
  def test_ranks_refuse_a_broken_table(self, table, spoil, noun):
    image, inputs = self.case()
    counts = runtime.route(image, inputs['topk_ids']).counts
    wire = rank_testing.Wire(np.random.default_rng(0))
    own_inputs = rank_testing.split(inputs, 1)
    plan = _native.Routing(image, own_inputs['topk_ids'], rank=1, counts=counts)
    end = rank_testing.Loopback(wire, 1, 2)
    rank_runtime.RankLaunch(image, own_inputs, counts, end, plan=plan)
    spoil(_writable(getattr(plan, table)))

    with pytest.raises(runtime.BrokenError, match=f'plan: .* every {noun} '):
      rank_runtime.RankLaunch(image, own_inputs, counts, end, plan=plan)

  def test_tables_are_read_only(self):
    image, inputs = self.case()
    plan = runtime.route(image, inputs['topk_ids'])
    with pytest.raises(ValueError, match='read-only'):
      plan.counts[0] = 1

  def test_a_plan_of_another_granularity_is_good_as_far_as_it_fits(self):
    # Given 12 rows of an expert, planned where there is room for 12,
    image, inputs = self.case()
    inputs['topk_ids'] = np.broadcast_to(np.int32([3, 2]), (2, 6, 2)).copy()
    plan = runtime.route(image, inputs['topk_ids'])
    other = testing.compile_layer(self.CONFIG, row_block=3, num_aiv=1)
    runtime.run(other, inputs, plan=plan)
    small = testing.compile_layer(self.CONFIG, row_block=4, expert_capacity=8)

    with pytest.raises(ValueError, match='plan: expected at most 8 rows for'):
      runtime.run(small, inputs, plan=plan)

  def test_a_plan_of_another_image_is_a_wrong_request(self):
    image, inputs = self.case()
    other = config_testing.make_config(r=2, t=5, e=4, k=2, d=4, f=4)
    ids = testing.make_ids(other, 'uniform', testing.rng('other'))
    plan = runtime.route(testing.compile_layer(other), ids)

    with pytest.raises(ValueError, match="plan: expected one of this image's"):
      runtime.run(image, inputs, plan=plan)
