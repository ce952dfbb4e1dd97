"""A sub-layer is a dense sum over ranks, an RMS norm and one product."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import norm
from hpmoe.reference import test_util
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

POLICY = precision.PrecisionPolicy(epsilon=1e-5)
# Ranks, tokens of one.
SIZES = {'one rank': (1, 3), 'one token': (2, 1), 'three ranks': (3, 5)}


def _config(ranks, tokens):
  return config_testing.make_config(
    r=ranks, t=tokens, e=ranks, k=ranks, d=8, f=6, sublayer=True
  )


def _inputs(config):
  rng = test_util.generator(f'{config}')
  inputs = {}
  for name in tensors.inputs(config):
    dims = tensors.SPECS[name].dims(**config.dims())
    inputs[name] = rng.normal(size=dims).astype(np.float32)
  ids = np.arange(config.num_experts, dtype=np.int32)
  inputs['topk_ids'] = np.broadcast_to(ids, inputs['topk_ids'].shape).copy()
  inputs['topk_weights'][:] = 1
  dims = tensors.SPECS['gate_up'].dims(**config.dims())
  return inputs, rng.normal(size=dims).astype(np.float32)


def _dense(activation, w_down, w_norm, w_gate_up):
  """Returns `[E, R T, 2F]`; w_norm has a copy for each token `[R T, D]`."""
  y = jnp.einsum('enf,efd->nd', activation, w_down)
  x = y / jnp.sqrt(jnp.mean(y * y, -1, keepdims=True) + POLICY.epsilon)
  return jnp.einsum('nd,edg->eng', x * w_norm, w_gate_up)


@functools.partial(jax.jit, static_argnums=0)
def _run_passes(config, inputs, d_gate_up):
  outputs = layer.sublayer(config, POLICY, inputs)
  grads = layer_grad.backward(config, POLICY, inputs | outputs, d_gate_up)
  return outputs, grads


@jax.jit
def _dense_both(arrays, d_gate_up):
  right, back = jax.vjp(_dense, *arrays)
  return right, back(d_gate_up)


@pytest.mark.parametrize('sizes', SIZES)
@pytest.mark.few(2)
def test_is_dense_and_so_are_its_gradients(sizes):
  # given
  config = _config(*SIZES[sizes])
  inputs, d_gate_up = _inputs(config)

  # when
  outputs, grads = jax.device_get(_run_passes(config, inputs, d_gate_up))

  # then
  gain = np.repeat(inputs['w_norm'], config.num_tokens, axis=0)
  arrays = [
    np.asarray(a, np.float64)
    for a in (
      inputs['activation'],
      inputs['w_down'][:, 0],
      gain,
      inputs['w_gate_up'][:, 0],
    )
  ]
  dense = jax.device_get(_dense_both(arrays, d_gate_up.astype(np.float64)))
  right, (d_act, d_down, d_gain, d_in) = dense
  d_gain = d_gain.reshape(config.num_ranks, config.num_tokens, -1).sum(1)
  for actual, expected in (
    (outputs['gate_up'], right),
    (grads['d_activation'], d_act),
    (grads['d_w_down'][:, 0], d_down),
    (grads['d_w_norm'], d_gain),
    (grads['d_w_gate_up'][:, 0], d_in),
  ):
    chex.assert_trees_all_close(
      np.asarray(actual, np.float64), expected, rtol=3e-4, atol=3e-5
    )


@pytest.mark.parametrize(
  'row, expected',
  [(np.zeros(4), np.zeros(4)), (np.full(4, 1e30), np.zeros(4))],
  ids=['zeros', 'squares that overflow'],
)
def test_what_cannot_be_normed_is_zero(row, expected):
  y = row.astype(np.float32)[None, None]
  gain = np.ones((1, 4), np.float32)
  y_grad = np.ones_like(y)
  normed, grad = jax.jit(
    lambda *a: (norm.norm(POLICY, *a), norm.norm_grad(POLICY, y_grad, *a))
  )(y, gain)
  np.testing.assert_array_equal(normed, expected[None, None])
  assert np.isfinite(grad).all()


@pytest.mark.parametrize('placement', ['before_down', 'epilogue', 'returned'])
def test_weights_elsewhere_are_refused(placement):
  config = _config(2, 1)
  policy = precision.PrecisionPolicy(placement=placement)
  with pytest.raises(ValueError, match='placement: expected combine'):
    layer.sublayer(config, policy, _inputs(config)[0])


@pytest.mark.parametrize('fields', [dict(bias=True), dict(s=2)])
def test_a_sublayer_has_no_other_parts(fields):
  with pytest.raises(ValueError, match='sublayer: expected one without'):
    config_testing.make_config(
      r=1, t=1, e=1, k=1, d=1, f=1, sublayer=True, **fields
    )


def test_an_epsilon_that_no_image_names_is_refused():
  with pytest.raises(ValueError, match='epsilon: expected one of'):
    precision.PrecisionPolicy(epsilon=1e-4)
