"""Tests of token_order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing

CONFIGS = {
  'several ranks': config_testing.make_config(r=2, t=5, e=6, k=3, d=1, f=1),
  'one rank': config_testing.make_config(r=1, t=4, e=3, k=2, d=1, f=1),
  'one expert a rank': config_testing.make_config(r=4, t=3, e=4, k=2, d=1, f=1),
  'K = E': config_testing.make_config(r=2, t=2, e=4, k=4, d=1, f=1),
  'one row': config_testing.make_config(r=1, t=1, e=2, k=1, d=1, f=1),
  'small capacity': config_testing.make_config(
    r=2, t=5, e=6, k=3, d=1, f=1, n=26
  ),
}
NAMES = sorted(CONFIGS)
plan = jax.jit(token_order.plan, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def everything(
  config: config_lib.MoEConfig, ids: jax.Array
) -> tuple[token_order.Plan, jax.Array]:
  """Returns plan and slot_of_row in one compilation."""
  out = token_order.plan(config, ids)
  return out, token_order.slot_of_row(config, out, ids)


def appended(
  config: config_lib.MoEConfig, ids: np.ndarray
) -> list[list[tuple[int, int, int]]]:
  """Returns the (source rank, token, slot) of every rank's rows, in order."""
  lists = [[] for _ in range(config.num_experts)]
  for r, t, k in np.argwhere(ids >= 0):
    lists[ids[r, t, k]].append((r, t, k))
  per_rank = config.num_experts // config.num_ranks
  return [
    sum(lists[r * per_rank : (r + 1) * per_rank], [])
    for r in range(config.num_ranks)
  ]


class TestPlan:
  def test_golden_routing_case(self):
    # Given: the published case of two ranks and four experts.
    config = config_testing.make_config(r=2, t=26, e=4, k=1, d=1, f=1)
    counts = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8]], jnp.int32)
    # When.
    base = token_order.row_bases(config, counts)
    # Then: rank 1 targets 1, 8, 3, 14.
    assert base.dtype == jnp.int32
    np.testing.assert_array_equal(base, [[0, 6, 0, 10], [1, 8, 3, 14]])
    _, end = token_order.expert_rows(config, counts)
    np.testing.assert_array_equal(end, [[6, 14], [10, 22]])

  @pytest.mark.parametrize(
    'skew, unused', [(0.0, 0.0), (0.3, 0.3), (9.0, 0.0), (0.3, 1.0)]
  )
  @pytest.mark.parametrize(
    'name, x64', halved_testing.halved(NAMES, [False, True])
  )
  def test_equals_appending_in_a_loop(self, name, skew, x64, unused):
    # Given.
    config = CONFIGS[name]
    ids = test_util.random_ids(config, test_util.generator(name), skew, unused)
    # When.
    with test_util.x64(x64):
      out, slots = everything(config, ids)
    out = jax.tree.map(np.asarray, out)
    # Then.
    assert {a.dtype for a in (*out, slots)} == {np.dtype('int32')}
    expected_slots = np.full((config.num_ranks, config.num_rows), ids.size)
    first = np.full((config.num_ranks, config.num_experts), -1)
    assert (out.row_of_slot[ids < 0] == -1).all()
    for owner, rows in enumerate(appended(config, ids)):
      for row, (r, t, k) in enumerate(rows):
        expert = ids[r, t, k]
        assert out.row_of_slot[r, t, k] == row
        if first[r, expert] < 0:
          first[r, expert] = row
        if row < config.num_rows:
          slot = np.ravel_multi_index((r, t, k), ids.shape)
          expected_slots[owner, row] = slot
    np.testing.assert_array_equal(slots, expected_slots)
    np.testing.assert_array_equal(
      np.where(first < 0, first, out.row_base), first
    )
    for r, e in np.ndindex(*first.shape):
      assert out.counts[r, e] == (ids[r] == e).sum()


class TestChecks:
  CONFIG = config_testing.make_config(r=2, t=3, e=4, k=2, d=1, f=1, n=6)
  IDS = np.array([[[0, 1], [2, 3], [1, 2]], [[3, 0], [0, 2], [2, 1]]], np.int32)

  def test_valid_ids_pass(self):
    checks.check_ids(self.CONFIG, self.IDS)
    checks.check_ids(self.CONFIG, np.full_like(self.IDS, -1))

  def test_overflow_names_rank_and_rows(self):
    # Given: six slots go to each rank; then one from 0 to 1.
    checks.check_capacity(self.CONFIG, plan(self.CONFIG, self.IDS).counts)
    ids = self.IDS.copy()
    ids[0, 0, 0] = 3
    # When, then.
    match = 'capacity: expected at least 7 rows, .*rank 1 gets, got 6'
    with pytest.raises(ValueError, match=match):
      checks.check_capacity(self.CONFIG, plan(self.CONFIG, ids).counts)
