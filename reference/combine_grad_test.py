"""Tests of combine_grad."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import combine_grad
from hpmoe.reference import test_util
from hpmoe.reference.contract import precision

run = jax.jit(combine_grad.combine_grad, static_argnums=0)


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
@pytest.mark.parametrize('placement', precision.PLACEMENTS)
@pytest.mark.parametrize('top_k', [1, 2, 5])
def test_bits_equal_an_ordered_loop(top_k, placement, storage):
  # Given: real data, on which order shows.
  policy = precision.PrecisionPolicy(storage, placement=placement)
  rng = test_util.generator(f'{top_k}')
  d_returned = jnp.asarray(rng.normal(size=(2, 7, top_k, 33)), storage)
  # When.
  out = run(policy, d_returned)
  # Then.
  rows = np.asarray(d_returned).astype(np.float32)
  total = np.zeros((2, 7, 33), np.float32)
  for slot in range(top_k):
    total = total + rows[:, :, slot]
  assert out.dtype == storage
  np.testing.assert_array_equal(out, total.astype(out.dtype))


def test_slot_order_shows():
  # Given: a sum that only slot order makes 1.
  rows = jnp.array([1e30, -1e30, 1.0]).reshape(1, 1, 3, 1)
  # When, then.
  policy = precision.PrecisionPolicy()
  assert run(policy, rows).item() == 1
  assert run(policy, rows[:, :, ::-1]).item() == 0
