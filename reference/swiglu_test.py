"""Tests of swiglu and swiglu_grad."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import swiglu
from hpmoe.reference import swiglu_grad
from hpmoe.reference import test_util
from hpmoe.reference.contract import precision


def policy_of(**fields: str) -> precision.PrecisionPolicy:
  return precision.PrecisionPolicy(**fields)


@pytest.mark.parametrize('gate', [-1e30, -100.0, -1.0, -0.0, 0.0, 1.0, 1e30])
def test_silu_of_extremes_is_finite(gate):
  # When.
  out = swiglu.swiglu(policy_of(), jnp.array([gate, 1.0]))
  # Then: three operations and an exp of two ULP.
  with np.errstate(over='ignore'):
    exact = gate / (1 + np.exp(-np.float64(gate)))
  bound = 4 * np.finfo(np.float32).eps * abs(exact)
  assert abs(float(out[0]) - exact) <= max(bound, np.finfo(np.float32).tiny)


@pytest.mark.parametrize('backward', [False, True])
def test_weight_is_applied_before_the_one_rounding(backward):
  # Given: |gate| * up, or its gradient, and the product with the weight both
  # round in bfloat16.
  policy = policy_of(
    storage='bfloat16', placement='before_down', activation='absolute'
  )
  rng = test_util.generator('one rounding')
  gate_up = jnp.asarray(rng.normal(size=(64, 16)), jnp.bfloat16)
  d_act = jnp.asarray(rng.normal(size=(64, 8)), jnp.bfloat16)
  weight = jnp.asarray(rng.random(64), jnp.float32)
  gate, up = np.split(np.asarray(gate_up).astype(np.float32), 2, axis=-1)
  scale = np.asarray(weight)[:, None]
  narrow = lambda a: a.astype(jnp.bfloat16)
  # When.
  if backward:
    run = jax.jit(swiglu_grad.swiglu_grad, static_argnums=0)
    out = run(policy, gate_up, d_act, weight)
    g = np.asarray(d_act).astype(np.float32) * scale
    grad_of = lambda g: np.concatenate(
      [g * up * np.sign(gate), g * abs(gate)], -1
    )
    once, twice = grad_of(g), grad_of(narrow(g).astype(np.float32))
  else:
    out = swiglu.swiglu(policy, gate_up, weight)
    product = abs(gate) * up
    once, twice = product * scale, narrow(product).astype(np.float32) * scale
  # Then.
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(out, narrow(once))
  assert (narrow(once) != narrow(twice)).any()


def test_odd_columns():
  with pytest.raises(ValueError, match='gate_up: expected .* got 3'):
    swiglu.swiglu(policy_of(), jnp.ones((2, 3)))
  with pytest.raises(ValueError, match='gate_up: expected .*, 4, got 3'):
    swiglu_grad.swiglu_grad(policy_of(), jnp.ones((2, 3)), jnp.ones((2, 2)))


# Both signs, both extremes, and -1.278 where silu' is 0.
GATES = np.float32([*np.linspace(-30, 30, 4001), -1.2784645, 1e30, -1e30, -0.0])


def slopes(function, policy) -> np.ndarray:
  """Returns d_gate of `GATES` where up and d_activation are 1: silu'."""
  gate_up = jnp.stack([GATES, np.ones_like(GATES)], axis=-1)
  d_act = jnp.ones((GATES.size, 1), jnp.float32)
  return np.asarray(function(policy, gate_up, d_act))[:, 0]


def test_slope_of_silu_has_the_error_of_its_operations():
  # When.
  actual = slopes(swiglu_grad.swiglu_grad, policy_of())
  # Then: units of 2^-24, exp off by four of them, and what each term of the
  # slope, sigmoid + gate * sigmoid * complement, goes through.
  gate = GATES.astype(np.float64)
  with np.errstate(over='ignore'):
    sigmoid, complement = 1 / (1 + np.exp(-gate)), 1 / (1 + np.exp(gate))
  slope_term = gate * sigmoid * complement
  of_sigmoid, of_complement = 2 + 4 * complement, 2 + 4 * sigmoid
  units = (of_sigmoid + 2) * (sigmoid + abs(slope_term))
  units += (of_complement + 1) * abs(slope_term)
  bound = 1.001 * 2.0**-24 * units + np.finfo(np.float32).tiny
  assert (abs(actual - (sigmoid + slope_term)) <= bound).all()


def test_slope_jitted_and_not_has_the_same_bits():
  jitted = jax.jit(swiglu_grad.swiglu_grad, static_argnums=0)
  np.testing.assert_array_equal(
    slopes(jitted, policy_of()), slopes(swiglu_grad.swiglu_grad, policy_of())
  )


def test_row_weight_grad_reads_the_unweighted_unrounded_activation():
  # Given: gate * up = 1 + 2^-8 + 2^-16, which bfloat16 cannot hold.
  policy = policy_of(storage='bfloat16', activation='absolute')
  above = 1 + 2.0**-7
  gate_up = jnp.array([[above, above]], jnp.bfloat16)
  # When.
  out = swiglu_grad.row_weight_grad(policy, gate_up, jnp.array([[3.0]]))
  # Then.
  assert out.dtype == jnp.float32
  assert out.item() == 3 * above**2
