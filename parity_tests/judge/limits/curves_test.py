"""Each activation: float64, its derivatives, and errors within the bounds."""

import numpy as np
import pytest

from hpmoe.parity_tests.judge import activations_testing
from hpmoe.parity_tests.judge.limits import curves
from hpmoe.parity_tests.judge.limits.bounds import activation_bounds
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference import swiglu
from hpmoe.reference import swiglu_grad
from hpmoe.reference.contract import precision

NAMES = tuple(curves.CURVES)
# Both signs, near 0, where GELUs saturate, and beyond.
SPAN = np.linspace(-12, 12, 24001)
GATES = np.float32([*SPAN, 0.0, 1e-8, -1e-8, 1e-30, 60, -60, 500, -500])


def policy_of(name: str) -> precision.PrecisionPolicy:
  return precision.PrecisionPolicy(activation=name)


@pytest.mark.parametrize('name', NAMES)
def test_slopes_and_bends_are_derivatives(name):
  curve, h = curves.CURVES[name], 1e-5
  z = SPAN[np.abs(SPAN) > 1e-3]
  for whole, part in ((curve.act, curve.slope), (curve.slope, curve.bend)):
    difference = (whole(z + h) - whole(z - h)) / (2 * h)
    np.testing.assert_allclose(difference, part(z), atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize('step', [1e-3, 0.3, 3.0])
@pytest.mark.parametrize('name', NAMES)
def test_a_gate_that_is_off_moves_no_more_than_is_said(name, step):
  curve = curves.CURVES[name]
  e = np.full_like(SPAN, step)
  for function, bound_move in (
    (curve.act, curve.act_moved),
    (curve.slope, curve.slope_moved),
  ):
    for move in np.linspace(-step, step, 21):
      distance = np.abs(function(SPAN + move) - function(SPAN))
      assert (distance <= bound_move(SPAN, e) * (1 + 1e-12) + 1e-15).all()


def compute_shares(name: str, formulas) -> tuple[float, float]:
  """Returns the largest error over bound, of act and of its slope."""
  policy, gate = policy_of(name), bounded_values.exact(GATES)
  golden = (
    activation_bounds.bound_act(policy, gate),
    activation_bounds.bound_slope(policy, gate),
  )

  def divide(actual: np.ndarray, right: bounded_values.Bounded) -> float:
    error = np.abs(actual.astype(np.float64) - right.value)
    with np.errstate(invalid='ignore', divide='ignore'):
      return float(np.nanmax(np.where(error == 0, 0, error / right.bound())))

  act, slope = (divide(f(GATES), g) for f, g in zip(formulas, golden))
  return act, slope


def oracle_of(name: str):
  policy = policy_of(name)
  return (
    lambda z: np.asarray(swiglu.act(policy, z)),
    lambda z: np.asarray(swiglu_grad._SLOPES[name](policy, z)),
  )


@pytest.mark.parametrize('build', [oracle_of, activations_testing.FORMULAS.get])
@pytest.mark.parametrize('name', NAMES)
def test_right_formulas_are_within_the_bounds(name, build):
  assert max(compute_shares(name, build(name))) <= 1


@pytest.mark.parametrize(
  'right, wrong', [(n, m) for n in NAMES for m in NAMES if n != m]
)
def test_another_activation_is_beyond_the_bounds(right, wrong):
  assert max(compute_shares(right, activations_testing.FORMULAS[wrong])) > 50


def test_what_a_formula_leaves_of_the_bounds():
  # The bounds are no looser than ten times what textbooks' formulas err by.
  for name in ('geglu', 'geglu_tanh', 'glu'):
    act, slope = compute_shares(name, activations_testing.FORMULAS[name])
    assert min(act, slope) > 0.1, (name, act, slope)
