"""Tests of swiglu_grad."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reference import precision
from reference import swiglu_grad
from reference import test_util


def policy_of(**fields: str) -> precision.PrecisionPolicy:
  return precision.PrecisionPolicy(**fields)


def test_product_swaps_gate_and_up():
  out = swiglu_grad.swiglu_grad(
      policy_of(activation='product'),
      jnp.array([[-3.0, 2.0, 5.0, 7.0]]),
      jnp.array([[2.0, -1.0]]),
  )
  np.testing.assert_array_equal(out, [[10, -7, -6, -2]])


def slope(gate: float) -> float:
  """Returns silu'(gate): an exact sum of sigmoids rounded in float64."""
  if gate > 700:
    return 1.0
  small = math.exp(-abs(gate))  # 1 - sigmoid(|gate|) is small / (1 + small).
  great, rest = 1 / (1 + small), small / (1 + small)
  sigmoid, complement = (great, rest) if gate > 0 else (rest, great)
  exact = 1 + fractions.Fraction(gate) * fractions.Fraction(complement)
  return float(fractions.Fraction(sigmoid) * exact)


# silu' is 0 at -1.278.
GATES = [-1e30, -100, -20, -1.2784645, -0.5, -0.0, 0, 0.5, 20, 100, 1e30]


@pytest.mark.parametrize('gate', GATES)
def test_slope_of_silu_at_extremes(gate):
  # Given.
  gate = float(np.float32(gate))
  # When: up is 1, so d_gate is silu'(gate).
  gate_up = jnp.array([gate, 1.0], jnp.float32)
  out = swiglu_grad.swiglu_grad(policy_of(), gate_up, jnp.ones(1))
  # Then: two sigmoids of six roundings each and two more operations; the sum
  # in the middle cancels near -1.278, so its terms are taken absolute.
  sigmoid = 1 / (1 + math.exp(min(-gate, 700)))
  terms = sigmoid * (1 + abs(gate) / (1 + math.exp(min(gate, 700))))
  bound = 15 * 2.0**-24 * terms + np.finfo(np.float32).tiny
  assert abs(float(out[0]) - slope(gate)) <= bound


def test_the_weight_multiplies_before_the_one_rounding():
  # Given: g * up and its product with the weight both round in bfloat16.
  policy = policy_of(
      storage='bfloat16', placement='before_down', activation='product'
  )
  rng = test_util.generator('one rounding')
  gate_up = jnp.asarray(rng.normal(size=(64, 16)), jnp.bfloat16)
  d_activation = jnp.asarray(rng.normal(size=(64, 8)), jnp.bfloat16)
  weight = jnp.asarray(rng.random(64), jnp.float32)
  # When.
  run = jax.jit(swiglu_grad.swiglu_grad, static_argnums=0)
  out = run(policy, gate_up, d_activation, weight)
  # Then.
  gate, up = np.split(np.asarray(gate_up).astype(np.float32), 2, axis=-1)
  g = np.asarray(d_activation).astype(np.float32)
  g = g * np.asarray(weight)[:, None]
  once = np.concatenate([g * up, g * gate], axis=-1).astype(jnp.bfloat16)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(out, once)
  g = g.astype(jnp.bfloat16).astype(np.float32)
  twice = np.concatenate([g * up, g * gate], axis=-1).astype(jnp.bfloat16)
  assert (once != twice).any()


def test_row_weight_grad_reads_the_unweighted_unrounded_activation():
  # Given: gate * up = 1 + 2^-8 + 2^-16, which bfloat16 cannot hold.
  policy = policy_of(storage='bfloat16', activation='product')
  above = 1 + 2.0**-7
  gate_up = jnp.array([[above, above]], jnp.bfloat16)
  # When.
  out = swiglu_grad.row_weight_grad(policy, gate_up, jnp.array([[3.0]]))
  # Then.
  assert out.dtype == jnp.float32
  assert out.item() == 3 * above**2


@pytest.mark.parametrize(
    'placement, weight', [('combine', jnp.ones(2)), ('before_down', None)]
)
def test_placement_and_weight_must_agree(placement, weight):
  with pytest.raises(ValueError, match=f'row_weight: expected .*{placement}'):
    swiglu_grad.swiglu_grad(
        policy_of(placement=placement),
        jnp.ones((2, 4)),
        jnp.ones((2, 2)),
        weight,
    )


def test_columns():
  with pytest.raises(ValueError, match='gate_up: expected .*, 4, got 3'):
    swiglu_grad.swiglu_grad(policy_of(), jnp.ones((2, 3)), jnp.ones((2, 2)))
