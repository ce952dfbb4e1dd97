"""Tests of dispatch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import dispatch
from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import config_testing

# Two ranks of two experts; expert 1 gets nothing, rank 1 more than rank 0.
CONFIG = config_testing.make_config(r=2, t=2, e=4, k=2, d=3, f=1, n=7)
IDS = jnp.array([[[3, 0], [2, 3]], [[0, 3], [2, 0]]], jnp.int32)
# (source rank, token, slot) of each row of each rank, by hand.
ROWS = (
  ((0, 0, 1), (1, 0, 0), (1, 1, 1)),
  ((0, 1, 0), (1, 1, 0), (0, 0, 0), (0, 1, 1), (1, 0, 1)),
)
run = jax.jit(dispatch.dispatch, static_argnums=0)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int32'])
def test_rows_are_copied_and_the_tail_is_zero(dtype):
  # Given: -0.0 and infinities, which a sum would not keep.
  x = test_util.generator('dispatch').normal(size=(2, 2, 3)) * 100
  x[0, 0] = (-0.0, 1, 2) if dtype == 'int32' else (-0.0, np.inf, -np.inf)
  x = jnp.asarray(x).astype(dtype)
  # When.
  out = np.asarray(run(CONFIG, token_order.plan(CONFIG, IDS), IDS, x))
  # Then.
  expected = np.zeros((2, 7, 3), x.dtype)
  for owner, rows in enumerate(ROWS):
    for row, (rank, token, _) in enumerate(rows):
      expected[owner, row] = x[rank, token]
  assert out.dtype == x.dtype
  assert out.tobytes() == expected.tobytes()
