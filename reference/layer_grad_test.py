"""Tests of layer_grad: its interface.

`layer_property_test` checks every stage against a serial loop, integers bit for
bit, and `published_test` both passes against the autograd of transformers.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import differentiable
from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import layer_property_test as serial
from hpmoe.reference import test_util
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = serial.SHAPES['plain']
BFLOAT16 = precision.PrecisionPolicy('bfloat16')
# Inputs that have a gradient, with the gradient's name.
GRADIENTS = dict(
  x='dx',
  topk_weights='d_topk_weights',
  w_gate_up='d_w_gate_up',
  w_down='d_w_down',
)

# What does not differ with it, and is dear to compile: `make sweep` has both.
ONE_PLACEMENT = pytest.mark.parametrize(
  'placement', ['before_down', pytest.param('combine', marks=pytest.mark.slow)]
)

run = serial.run


@pytest.mark.parametrize('policy', [BFLOAT16, precision.PrecisionPolicy()])
def test_the_plain_forward_refuses_to_be_differentiated(policy):
  # JAX would return zeros: the oracle's GEMM moves bits.
  inputs, _ = inputs_of('refuses', policy=policy)

  def loss(x):
    out = layer.forward(CONFIG, policy, **(inputs | dict(x=x)))
    return out['y'].astype(jnp.float32).sum()

  with pytest.raises(TypeError, match='expected not to be differentiated'):
    jax.eval_shape(jax.grad(loss), inputs['x'])


def inputs_of(name, policy=BFLOAT16):
  """Returns random inputs and dy, seeded by `name`."""
  rng = test_util.generator(name)
  inputs = test_util.random_inputs(CONFIG, policy, rng)
  dy = rng.normal(size=inputs['x'].shape).astype(policy.storage)
  return inputs, jnp.asarray(dy)


class TestBackward:
  @pytest.mark.parametrize('policy', serial.POLICIES, ids=serial.policy_id)
  def test_every_tensor_has_its_shape_and_dtype(self, policy):
    with test_util.x64(policy.storage == 'float64'):
      inputs, dy = inputs_of('shapes', policy=policy)
      run_passes = functools.partial(serial.run_passes, CONFIG, policy)
      out = jax.eval_shape(run_passes, inputs, dy)
    names = {*tensors.PLAN, *tensors.STAGES, *tensors.GRADS}
    assert set(out) == {*names, 'dy', *inputs}
    for name in names:
      dims = tensors.SPECS[name].dims(**CONFIG.dims())
      assert out[name].shape == dims, name
      assert out[name].dtype == policy.dtype(name), name

  def test_one_trace_per_config_and_policy(self):
    # Given.
    chex.clear_trace_counter()
    traced = chex.assert_max_traces(serial.run_passes, n=1)
    once = jax.jit(traced, static_argnums=(0, 1))
    # When, then: other values, an equal policy, the same trace.
    for name in ('first', 'second'):
      equal = precision.PrecisionPolicy('bfloat16')
      once.trace(CONFIG, equal, *inputs_of(name))
    with pytest.raises(AssertionError):
      other = precision.PrecisionPolicy('bfloat16', activation='absolute')
      once.trace(CONFIG, other, *inputs_of('third'))

  @ONE_PLACEMENT
  @pytest.mark.slow
  def test_jit_and_eager_give_the_same_bits(self, placement):
    policy = precision.PrecisionPolicy('bfloat16', placement=placement)
    arguments = CONFIG, policy, *inputs_of('same bits')
    chex.assert_trees_all_equal(run(*arguments), serial.run_passes(*arguments))

  @pytest.mark.parametrize('placement', precision.PLACEMENTS)
  def test_it_reads_only_what_it_says(self, placement):
    policy = precision.PrecisionPolicy('bfloat16', placement=placement)
    inputs, dy = inputs_of('reads')
    outputs = jax.eval_shape(
      functools.partial(layer.forward, CONFIG, policy), **inputs
    )
    forward = inputs | {
      n: np.empty(a.shape, a.dtype) for n, a in outputs.items()
    }
    names = layer_grad.reads(CONFIG, policy)
    arrays = {name: forward[name] for name in names}
    jax.eval_shape(lambda a: layer_grad.backward(CONFIG, policy, a, dy), arrays)
    for name in names:
      incomplete = {other: arrays[other] for other in names if other != name}
      match = f'^{name}: expected .*, got nothing'
      with pytest.raises(ValueError, match=match):
        layer_grad.backward(CONFIG, policy, incomplete, dy)
    for bad in (dy[1:], dy.astype(jnp.float32)):
      with pytest.raises(ValueError, match='^dy: expected bfloat16 .*, got '):
        layer_grad.backward(CONFIG, policy, arrays, bad)


@functools.partial(jax.jit, static_argnums=0)
def vjp(policy, inputs, dy):
  """Returns `layer`'s y and its gradients in the order of `tensors.INPUTS`."""
  arguments = [inputs[name] for name in tensors.INPUTS]
  function = functools.partial(differentiable.layer, CONFIG, policy)
  y, pull = jax.vjp(function, *arguments)
  grads = pull(dy)
  assert grads[1].dtype == jax.dtypes.float0
  return y, (grads[0], *grads[2:])


class TestLayer:
  @ONE_PLACEMENT
  def test_value_and_gradient_are_forward_and_backward(self, placement):
    # Given: narrow inputs under a golden policy.
    policy = precision.PrecisionPolicy('bfloat16', placement=placement)
    inputs, dy = inputs_of('vjp', policy=policy)
    golden = policy.golden()
    expected = run(CONFIG, golden, inputs, dy)
    # When.
    y, grads = vjp(golden, inputs, dy.astype(jnp.float64))
    # Then: gradients in the dtype of their argument, none for ids.
    np.testing.assert_array_equal(y, expected['y'])
    for name, grad in zip(GRADIENTS, grads, strict=True):
      assert grad.dtype == inputs[name].dtype, name
      expected_grad = expected[GRADIENTS[name]].astype(grad.dtype)
      np.testing.assert_array_equal(grad, expected_grad, err_msg=name)
