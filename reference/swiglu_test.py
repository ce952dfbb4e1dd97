"""Tests of swiglu."""

import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import swiglu
from hpmoe.reference import test_util
from hpmoe.reference.contract import precision


def policy_of(**fields: str) -> precision.PrecisionPolicy:
  return precision.PrecisionPolicy(**fields)


def test_gate_columns_come_first():
  # Given: gate so great that silu(gate) is gate, and up that names its column.
  gate_up = jnp.array([[100.0, 200, 1, 2]])
  # When, then.
  np.testing.assert_array_equal(
    swiglu.swiglu(policy_of(), gate_up), [[100, 400]]
  )


@pytest.mark.parametrize('gate', [-1e30, -100.0, -1.0, -0.0, 0.0, 1.0, 1e30])
def test_silu_of_extremes_is_finite(gate):
  # When.
  out = swiglu.swiglu(policy_of(), jnp.array([gate, 1.0]))
  # Then: three operations and an exp of two ULP.
  with np.errstate(over='ignore'):
    exact = gate / (1 + np.exp(-np.float64(gate)))
  bound = 4 * np.finfo(np.float32).eps * abs(exact)
  assert abs(float(out[0]) - exact) <= max(bound, np.finfo(np.float32).tiny)


def test_absolute_has_no_exp():
  out = swiglu.swiglu(
    policy_of(activation='absolute'), jnp.array([[-3.0, 2.0, 5.0, 7.0]])
  )
  np.testing.assert_array_equal(out, [[15, 14]])


def test_weight_is_applied_before_the_one_rounding():
  # Given: |gate| * up and its product with the weight both round in bfloat16.
  policy = policy_of(
    storage='bfloat16', placement='before_down', activation='absolute'
  )
  rng = test_util.generator('one rounding')
  gate_up = jnp.asarray(rng.normal(size=(64, 16)), jnp.bfloat16)
  weight = jnp.asarray(rng.random(64), jnp.float32)
  # When.
  out = swiglu.swiglu(policy, gate_up, weight)
  # Then.
  gate, up = np.split(np.asarray(gate_up).astype(np.float32), 2, axis=-1)
  weight = np.asarray(weight)[:, None]
  once = (abs(gate) * up * weight).astype(jnp.bfloat16)
  twice = (abs(gate) * up).astype(jnp.bfloat16).astype(np.float32) * weight
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(out, once)
  assert (once != twice.astype(jnp.bfloat16)).any()


def test_odd_columns():
  with pytest.raises(ValueError, match='gate_up: expected .* got 3'):
    swiglu.swiglu(policy_of(), jnp.ones((2, 3)))
