"""Tests of layer_grad: its interface, and jax.grad.

`layer_property_test` checks every stage against a serial loop, and
`published_test` both passes against transformers.
"""

import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import differentiable
from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import layer_property_test as serial
from hpmoe.reference import stages
from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = serial.SHAPES['plain']
BFLOAT16 = precision.PrecisionPolicy('bfloat16')
AWKWARD = ('empty experts', 'one rank gets all', 'K = E')
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

forward_jit = jax.jit(layer.forward, static_argnums=(0, 1))
run = serial.run


@pytest.mark.parametrize('policy', [BFLOAT16, precision.PrecisionPolicy()])
def test_the_plain_forward_refuses_to_be_differentiated(policy):
  # JAX would return zeros: the oracle's GEMM moves bits.
  inputs, _ = inputs_of('refuses', policy=policy)

  def loss(x):
    out = layer.forward(CONFIG, policy, **(inputs | dict(x=x)))
    return out['y'].astype(jnp.float32).sum()

  with pytest.raises(TypeError, match='expected not to be differentiated'):
    jax.grad(loss)(inputs['x'])


def inputs_of(name, config=CONFIG, policy=BFLOAT16, integer=False):
  """Returns random inputs and dy, seeded by `name`."""
  rng = test_util.generator(name)
  skew = serial.SKEW.get(name, 0.0)
  inputs = test_util.random_inputs(config, policy, rng, skew, integer)
  dims = inputs['x'].shape
  values = rng.integers(-3, 4, dims) if integer else rng.normal(size=dims)
  return inputs, jnp.asarray(values, policy.storage)


class TestBackward:
  @pytest.mark.parametrize('policy', serial.POLICIES, ids=serial.named)
  def test_every_tensor_has_its_shape_and_dtype(self, policy):
    with test_util.x64(policy.storage == 'float64'):
      inputs, dy = inputs_of('shapes', policy=policy)
      both = functools.partial(serial.both, CONFIG, policy)
      out = jax.eval_shape(both, inputs, dy)
    names = {*tensors.PLAN, *tensors.STAGES, *tensors.GRADS}
    assert set(out) == {*names, 'dy', *inputs}
    for name in names:
      dims = tensors.SPECS[name].dims(**CONFIG.dims())
      assert out[name].shape == dims, name
      assert out[name].dtype == policy.dtype(name), name

  def test_one_trace_per_config_and_policy(self):
    # Given.
    chex.clear_trace_counter()
    traced = chex.assert_max_traces(serial.both, n=1)
    once = jax.jit(traced, static_argnums=(0, 1))
    # When, then: other values, an equal policy, the same trace.
    for name in ('first', 'second'):
      equal = precision.PrecisionPolicy('bfloat16')
      once(CONFIG, equal, *inputs_of(name))
    with pytest.raises(AssertionError):
      other = precision.PrecisionPolicy('bfloat16', activation='absolute')
      once(CONFIG, other, *inputs_of('third'))

  @ONE_PLACEMENT
  def test_jit_and_eager_give_the_same_bits(self, placement):
    policy = precision.PrecisionPolicy('bfloat16', placement=placement)
    given = CONFIG, policy, *inputs_of('same bits')
    chex.assert_trees_all_equal(run(*given), serial.both(*given))

  @pytest.mark.parametrize('placement', precision.PLACEMENTS)
  def test_it_reads_only_what_it_says(self, placement):
    policy = precision.PrecisionPolicy('bfloat16', placement=placement)
    inputs, dy = inputs_of('reads')
    forward = inputs | forward_jit(CONFIG, policy, **inputs)
    names = layer_grad.reads(CONFIG, policy)
    kept = {name: forward[name] for name in names}
    jax.eval_shape(lambda a: layer_grad.backward(CONFIG, policy, a, dy), kept)
    for name in names:
      less = {other: kept[other] for other in names if other != name}
      match = f'^{name}: expected .*, got nothing'
      with pytest.raises(ValueError, match=match):
        layer_grad.backward(CONFIG, policy, less, dy)

  @pytest.mark.parametrize('change', ['shape', 'dtype'])
  def test_dy_of_another_shape_or_wider(self, change):
    inputs, dy = inputs_of('dy')
    forward = inputs | forward_jit(CONFIG, BFLOAT16, **inputs)
    bad = dy[1:] if change == 'shape' else dy.astype(jnp.float32)
    with pytest.raises(ValueError, match='^dy: expected bfloat16 .*, got '):
      layer_grad.backward(CONFIG, BFLOAT16, forward, bad)

  def test_an_empty_expert_has_exactly_zero_gradient(self):
    # Given: every token goes to expert 0 of eight.
    config = serial.SHAPES['empty experts']
    inputs, dy = inputs_of('empty experts', config)
    # When.
    out = run(config, BFLOAT16, inputs, dy)
    # Then.
    for name in ('d_w_gate_up', 'd_w_down'):
      per_expert = np.asarray(out[name]).astype(np.float32)
      per_expert = per_expert.reshape(config.num_experts, -1)
      assert per_expert[0].any() and not per_expert[1:].any(), name


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
    with test_util.x64():
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

  def test_grad_under_jit_traces_once(self):
    # Given.
    chex.clear_trace_counter()

    def grad(inputs, dy):
      def loss(x):
        y = differentiable.layer(CONFIG, BFLOAT16, **inputs | {'x': x})
        return jnp.vdot(dy, y)

      return jax.grad(loss)(inputs['x'])

    step = jax.jit(chex.assert_max_traces(grad, n=1))
    for name in ('first', 'second'):
      inputs, dy = inputs_of(name)
      # When.
      dx = step(inputs, dy)
      # Then.
      np.testing.assert_array_equal(dx, run(CONFIG, BFLOAT16, inputs, dy)['dx'])


def plain_gemm(config, policy, plan, rows, weights):
  """The grouped GEMM as JAX can differentiate it: a weight for every row."""
  del policy
  expert = token_order.expert_of_row(config, plan)
  ranks = jnp.arange(config.num_ranks)[:, None]
  held = jnp.where((expert >= 0)[..., None, None], weights[ranks, expert], 0)
  return jnp.einsum('rnx,rnxy->rny', rows, held, precision='highest')


def plain_stage(name, place, known):
  out = stages._gemm(plain_gemm, *tensors.GEMMS[name], place, known)
  if tensors.WEIGHTED[place.policy.placement] != name:
    return out
  return out * place.moves.row_weight(known['topk_weights'])[..., None]


def jax_grad(config, policy, inputs, dy):
  """Returns y and the gradients of `layer.forward` by reverse mode."""
  # JAX cannot go back through the loop of `expert_gemm` and a bitcast: it would
  # answer with zeros.  Its slope of abs at 0 is 1; the layer's is the sign, 0.
  # Everything else is the layer as it is.
  plain = {name: functools.partial(plain_stage, name) for name in tensors.GEMMS}
  with (
    mock.patch.dict(stages._STAGES, plain),
    mock.patch.object(jnp, 'abs', lambda x: x * jnp.sign(x)),
  ):

    @jax.jit
    def vjp(floats, dy):
      ids = inputs['topk_ids']
      y, pull = jax.vjp(
        lambda a: layer.forward(config, policy, topk_ids=ids, **a)['y'], floats
      )
      return y, pull(dy)[0]

    return vjp({name: inputs[name] for name in GRADIENTS}, dy)


def test_backward_takes_numpy_arrays_as_forward_does():
  config = serial.SHAPES['plain']
  inputs, dy = inputs_of('plain', config)
  forward = inputs | forward_jit(config, BFLOAT16, **inputs)
  forward = {name: np.asarray(a) for name, a in forward.items()}
  out = layer_grad.backward(config, BFLOAT16, forward, np.asarray(dy))
  right = run(config, BFLOAT16, inputs, dy)
  for name in GRADIENTS.values():
    np.testing.assert_array_equal(out[name], right[name], err_msg=name)


class TestAgainstJaxGrad:
  # Every shape at one placement and one shape at all: compilation is dear.
  # The shapes that are not awkward are in `make sweep`;
  # `layer_property_test` has the bits of all against a loop.
  @pytest.mark.parametrize(
    'name, placement',
    [('plain', placement) for placement in precision.PLACEMENTS[1:]]
    + [
      pytest.param(
        name,
        precision.PLACEMENTS[i % 2],
        marks=() if name in AWKWARD else pytest.mark.slow,
      )
      for i, name in enumerate(sorted(serial.SHAPES))
    ],
  )
  @pytest.mark.few(3)
  def test_integers_bit_for_bit(self, name, placement):
    # Given: small integers and no exp.
    config = serial.SHAPES[name]
    policy = precision.PrecisionPolicy(
      placement=placement, activation='absolute'
    )
    inputs, dy = inputs_of(name, config, policy, integer=True)
    # When.
    y, grads = jax_grad(config, policy, inputs, dy)
    out = run(config, policy, inputs, dy)
    # Then: all sums of absolute values are exact, and so is any order of them.
    positive = {k: abs(a) for k, a in inputs.items()}
    sizes = run(config, policy, positive, abs(dy))
    assert max(np.max(sizes[name]) for name in tensors.GRADS) < 2**24
    np.testing.assert_array_equal(out['y'], y)
    for given, gradient in GRADIENTS.items():
      np.testing.assert_array_equal(
        out[gradient], grads[given], err_msg=gradient
      )
      assert np.any(out[gradient]) or not np.any(sizes[gradient])
