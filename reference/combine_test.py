"""Tests of combine."""

import jax
import numpy as np
import pytest

from hpmoe.reference import combine
from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

run = jax.jit(combine.combine, static_argnums=(0, 1))
run_return = jax.jit(combine.return_rows, static_argnums=0)


def test_a_row_past_the_capacity_is_nan():
  # Given, by hand: owner 0 holds expert 0 three times, then expert 1; owner 1
  # holds expert 2, then expert 3 three times; there is room for three rows.
  config = config_testing.make_config(r=2, t=2, e=4, k=2, d=1, f=1, n=3)
  ids = np.array([[[3, 0], [2, 3]], [[0, 3], [1, 0]]], np.int32)
  # When.
  plan = jax.jit(token_order.plan, static_argnums=0)(config, ids)
  out = np.asarray(run_return(config, plan, ids, np.ones((2, 3, 1))))
  # Then.
  np.testing.assert_array_equal(
    np.isnan(out[..., 0]),
    [[[False, False], [False, False]], [[False, True], [True, False]]],
  )


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
@pytest.mark.parametrize('stage', ['y', 'dx'])
@pytest.mark.parametrize('weighted', [True, False])
@pytest.mark.parametrize('top_k', [1, 2, 5])
def test_bits_equal_an_ordered_loop(top_k, weighted, stage, storage):
  # Given: real data, on which order and fused multiply-adds show.
  policy = precision.PrecisionPolicy(storage)
  rng = test_util.generator(f'{top_k} {stage}')
  rows = rng.normal(size=(2, 7, top_k, 33)).astype(storage)
  weights = rng.random((2, 7, top_k)).astype('float32')
  # When.
  out = run(policy, stage, rows, weights if weighted else None)
  # Then.
  rows = rows.astype(np.float32)
  if weighted:
    rows = weights[..., None] * rows
  total = np.zeros((2, 7, 33), np.float32)
  for slot in range(top_k):
    total = total + rows[:, :, slot]
  assert out.dtype == storage
  np.testing.assert_array_equal(out, total.astype(out.dtype))
