"""Tests of layer; `layer_property_test` checks its values.

`layer_grad_test` has what holds of both passes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import layer
from hpmoe.reference import test_util
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = config_testing.sized(r=2, t=3, e=4, k=2, d=8, f=6)
POLICY = precision.PrecisionPolicy('bfloat16')


def inputs_of(
  name: str, policy: precision.PrecisionPolicy = POLICY
) -> dict[str, jax.Array]:
  return test_util.random_inputs(CONFIG, policy, test_util.generator(name))


class TestForward:
  def test_golden_reads_narrow_inputs(self):
    with test_util.x64():
      golden = jax.eval_shape(
        lambda **inputs: layer.forward(CONFIG, POLICY.golden(), **inputs),
        **inputs_of('narrow'),
      )
    assert golden['expert_in'].dtype == golden['y'].dtype == np.float64

  def test_golden_needs_x64(self):
    with test_util.x64(False), pytest.raises(ValueError, match='x64'):
      layer.forward(CONFIG, POLICY.golden(), **inputs_of('x64'))

  @pytest.mark.parametrize('name', ['x', 'w_gate_up', 'w_down'])
  def test_nothing_is_narrowed_silently(self, name):
    inputs = inputs_of('wide')
    inputs[name] = inputs[name].astype(jnp.float32)
    match = f'^{name}: expected bfloat16 .*, got float32 '
    with pytest.raises(ValueError, match=match):
      layer.forward(CONFIG, POLICY, **inputs)


class TestCheckInputs:
  def test_valid_inputs_pass(self):
    inputs = inputs_of('valid')
    checks.check_inputs(CONFIG, POLICY, inputs)
    checks.check_inputs(
      CONFIG, POLICY, {name: np.asarray(a) for name, a in inputs.items()}
    )

  @pytest.mark.parametrize('name', tensors.INPUTS)
  def test_missing(self, name):
    inputs = inputs_of('missing')
    del inputs[name]
    with pytest.raises(ValueError, match=f'^{name}: expected .* got nothing'):
      checks.check_inputs(CONFIG, POLICY, inputs)

  @pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
  @pytest.mark.parametrize('name', ['x', 'topk_weights', 'w_gate_up', 'w_down'])
  def test_not_finite(self, name, value):
    inputs = inputs_of('not finite')
    changed = np.array(inputs[name])
    changed.flat[-1] = value
    inputs[name] = changed
    last = [size - 1 for size in changed.shape]
    match = f'^{name}: expected finite values, got {value} at '
    with pytest.raises(ValueError, match=match) as error:
      checks.check_inputs(CONFIG, POLICY, inputs)
    assert str(error.value).endswith(f'at {last}')

  def test_capacity(self):
    small = config_testing.sized(r=2, t=3, e=4, k=2, d=8, f=6, n=5)
    with pytest.raises(ValueError, match='^capacity: expected at least'):
      checks.check_inputs(small, POLICY, inputs_of('capacity'))
