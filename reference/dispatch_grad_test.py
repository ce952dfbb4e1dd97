"""Tests of dispatch_grad."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import dispatch_grad
from hpmoe.reference import movement
from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


@functools.partial(jax.jit, static_argnums=0)
def run(policy, weights, dy):
  plan = token_order.plan(CONFIG, IDS)
  moves = movement.by_address(CONFIG, plan, IDS)
  return dispatch_grad.dispatch_grad(policy, moves, weights, dy)


# Owner 0 holds expert 0 of slots (0,0,1), (0,1,0); owner 1 expert 2 of (0,0,0).
CONFIG = config_testing.sized(r=2, t=1, e=4, k=2, d=3, f=1, n=3)
IDS = jnp.array([[[2, 0]], [[0, 1]]], jnp.int32)
WEIGHTS = jnp.array([[[0.3, 0.7]], [[1.1, 0.9]]], jnp.float32)
# Source (rank, slot) of every row, owner by owner, in token order.
SOURCES = [[(0, 1), (1, 0), (1, 1)], [(0, 0)]]


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
@pytest.mark.parametrize('placement', precision.PLACEMENTS)
def test_rows_are_weighted_where_combine_was(placement, storage):
  # Given.
  policy = precision.PrecisionPolicy(storage, placement=placement)
  rng = test_util.generator(placement)
  dy = jnp.asarray(rng.normal(size=(2, 1, 3)), storage)
  # When.
  weights = None if placement in tensors.EARLY else WEIGHTS
  out = run(policy, weights, dy)
  # Then: one product in float32, one rounding; zero past the last row.
  expected = np.zeros((2, 3, 3), np.float32)
  for owner, rows in enumerate(SOURCES):
    for row, (rank, slot) in enumerate(rows):
      weight = np.asarray(WEIGHTS)[rank, 0, slot]
      if weights is None:
        weight = np.float32(1)
      expected[owner, row] = weight * np.asarray(dy)[rank, 0].astype('float32')
  assert out.dtype == storage
  np.testing.assert_array_equal(out, expected.astype(out.dtype))


def test_weight_grad_of_a_slot_reads_its_own_row():
  # Given: rows that name their place, and dy that picks one column.
  returned = jnp.arange(12, dtype=jnp.float32).reshape(2, 1, 2, 3)
  dy = jnp.array([[[0.0, 1, 0]], [[0, 0, 2]]])
  # When.
  policy = precision.PrecisionPolicy('float32')
  out = dispatch_grad.combine_weight_grad(policy, dy, returned)
  # Then.
  np.testing.assert_array_equal(out, [[[1, 4]], [[16, 22]]])
