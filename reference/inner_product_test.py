"""Tests of inner_product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import inner_product
from hpmoe.reference import test_util
from hpmoe.reference.contract import precision

run = jax.jit(inner_product.inner_product, static_argnums=0)


def halved(terms: np.ndarray) -> np.float32:
  """Returns the sum of float32 `terms` `[X]`, second half onto the first."""
  terms = list(terms)
  while len(terms) > 1:
    half = (len(terms) + 1) // 2
    for i in range(len(terms) - half):
      terms[i] = np.float32(terms[i] + terms[half + i])
    terms = terms[:half]
  return terms[0]


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
@pytest.mark.parametrize('length', [1, 2, 3, 7, 8, 300])
def test_bits_equal_a_loop_jitted_or_not(length, storage):
  # Given: real data, on which order and fused multiply-adds show.
  rng = test_util.generator(f'{length}')
  policy = precision.PrecisionPolicy(storage)
  a, b = (jnp.asarray(rng.normal(size=(5, length)), storage) for _ in '12')
  # When, then.
  terms = np.asarray(a).astype(np.float32) * np.asarray(b).astype(np.float32)
  expected = [halved(row) for row in terms]
  for function in (run, inner_product.inner_product):
    out = function(policy, a, b)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, expected)


def test_golden_keeps_float64():
  with test_util.x64():
    a = jnp.array([1.0, 2.0**-40])
    golden = precision.PrecisionPolicy().golden()
    assert run(golden, a, jnp.ones(2)).item() == 1 + 2.0**-40
