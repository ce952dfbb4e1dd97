"""Tests of layer; `layer_property_test` checks its values."""

import chex
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
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16', 'float64'])
  def test_every_tensor_has_its_shape_and_dtype(self, storage):
    with test_util.x64(storage == 'float64'):
      # Given.
      policy = precision.PrecisionPolicy(
        storage, 'float64' if storage == 'float64' else 'float32'
      )
      # When.
      out = jax.eval_shape(
        lambda **inputs: layer.forward(CONFIG, policy, **inputs),
        **inputs_of('shapes', policy),
      )
    # Then.
    assert set(out) == {*tensors.PLAN, *tensors.STAGES}
    for name, value in out.items():
      spec = tensors.SPECS[name]
      assert value.shape == spec.dims(**CONFIG.dims()), name
      assert value.dtype == policy.dtype(name), name

  def test_one_trace_per_config_and_policy(self):
    # Given.
    chex.clear_trace_counter()
    traced = chex.assert_max_traces(layer.forward, n=1)
    run = jax.jit(traced, static_argnums=(0, 1))
    # When, then: other values, the same trace.
    for name in ('first', 'second'):
      run(CONFIG, POLICY, **inputs_of(name))
    equal = config_testing.sized(r=2, t=3, e=4, k=2, d=8, f=6)
    run(equal, precision.PrecisionPolicy('bfloat16'), **inputs_of('third'))
    with pytest.raises(AssertionError):
      run(CONFIG, precision.PrecisionPolicy(), **inputs_of('fourth'))

  def test_jit_and_eager_give_the_same_bits(self):
    inputs = inputs_of('same bits')
    jitted = jax.jit(layer.forward, static_argnums=(0, 1))
    chex.assert_trees_all_equal(
      jitted(CONFIG, POLICY, **inputs),
      layer.forward(CONFIG, POLICY, **inputs),
    )

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

  @pytest.mark.parametrize('name', tensors.INPUTS)
  @pytest.mark.parametrize('change', ['shape', 'dtype'])
  def test_shape_and_dtype(self, name, change):
    inputs = inputs_of('changed')
    value = inputs[name]
    inputs[name] = value[1:] if change == 'shape' else value.astype('float16')
    with pytest.raises(ValueError, match=f'^{name}: expected .*, got '):
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

  def test_ids(self):
    inputs = inputs_of('ids')
    inputs['topk_ids'] = jnp.full_like(inputs['topk_ids'], 4)
    with pytest.raises(ValueError, match='^topk_ids: expected ids in .0, 4'):
      checks.check_inputs(CONFIG, POLICY, inputs)

  def test_capacity(self):
    small = config_testing.sized(r=2, t=3, e=4, k=2, d=8, f=6, n=5)
    with pytest.raises(ValueError, match='^capacity: expected at least'):
      checks.check_inputs(small, POLICY, inputs_of('capacity'))
