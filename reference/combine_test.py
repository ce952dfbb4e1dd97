"""Tests of combine and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import combine
from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

run = jax.jit(combine.combine, static_argnums=0)
run_grad = jax.jit(combine.combine_grad, static_argnums=0)
run_return = jax.jit(combine.return_rows, static_argnums=0)


class TestReturnRows:
  # Rows that name their place: 10 * owner + row.
  ROWS = jnp.array([[[0], [1], [2], [3]], [[10], [11], [12], [13]]])
  IDS = jnp.array([[[3, 0], [2, 3]], [[0, 3], [1, 0]]], jnp.int32)

  def test_every_slot_gets_its_row(self):
    # Given, by hand: owner 0 holds expert 0 three times, then expert 1; owner 1
    # holds expert 2, then expert 3 three times.
    config = config_testing.sized(r=2, t=2, e=4, k=2, d=1, f=1, n=4)
    # When.
    out = run_return(
      config,
      token_order.plan(config, self.IDS),
      self.IDS,
      self.ROWS.astype(jnp.bfloat16),
    )
    # Then.
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
      out[..., 0], [[[11, 0], [10, 12]], [[1, 13], [3, 2]]]
    )

  def test_a_row_past_the_capacity_is_nan(self):
    # Given: room for three rows of four.
    config = config_testing.sized(r=2, t=2, e=4, k=2, d=1, f=1, n=3)
    # When.
    out = run_return(
      config,
      token_order.plan(config, self.IDS),
      self.IDS,
      self.ROWS[:, :3].astype(jnp.float32),
    )
    # Then.
    np.testing.assert_array_equal(
      np.isnan(out[..., 0]),
      [[[False, False], [False, False]], [[False, True], [True, False]]],
    )


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
@pytest.mark.parametrize('placement', [*precision.PLACEMENTS, 'backward'])
@pytest.mark.parametrize('top_k', [1, 2, 5])
def test_bits_equal_an_ordered_loop(top_k, placement, storage):
  # Given: real data, on which order and fused multiply-adds show.
  backward = placement == 'backward'
  weighted = placement == 'combine'
  placement = 'combine' if backward else placement
  policy = precision.PrecisionPolicy(storage, placement=placement)
  rng = test_util.generator(f'{top_k} {placement}')
  rows = jnp.asarray(rng.normal(size=(2, 7, top_k, 33)), storage)
  weights = jnp.asarray(rng.random((2, 7, top_k)), jnp.float32)
  # When.
  if backward:
    out = run_grad(policy, rows)
  else:
    out = run(policy, rows, weights if weighted else None)
  # Then.
  rows = np.asarray(rows).astype(np.float32)
  if weighted:
    rows = np.asarray(weights)[..., None] * rows
  total = np.zeros((2, 7, 33), np.float32)
  for slot in range(top_k):
    total = total + rows[:, :, slot]
  assert out.dtype == storage
  np.testing.assert_array_equal(out, total.astype(out.dtype))


def test_slot_order_shows():
  # Given: a sum that only slot order makes 1.
  rows = jnp.array([1e30, -1e30, 1.0]).reshape(1, 1, 3, 1)
  policy, ones = precision.PrecisionPolicy(), jnp.ones((1, 1, 3))
  # When, then.
  for back, expected in ((slice(None), 1), (slice(None, None, -1), 0)):
    assert run(policy, rows[:, :, back], ones).item() == expected
    assert run_grad(policy, rows[:, :, back]).item() == expected
