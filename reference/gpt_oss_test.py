"""The layer with biases and a clamped activation, as GPT-OSS has it.

`testdata/gpt_oss.npz` is what the experts in transformers compute in float64;
`tools/make_gpt_oss_golden.py` makes it.
"""

import functools
import pathlib

import jax
import numpy as np
import pytest

from hpmoe.reference import differentiable
from hpmoe.reference import layer
from hpmoe.reference import swiglu
from hpmoe.reference import swiglu_grad
from hpmoe.reference import test_util
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

FILE = pathlib.Path(__file__).resolve().parent / 'testdata/gpt_oss.npz'
CONFIG = config_lib.MoEConfig(
  num_ranks=2,
  num_tokens=5,
  num_experts=4,
  top_k=2,
  d_model=6,
  d_ff=3,
  bias=True,
)
GPT_OSS = precision.activation_of('gpt_oss')
# Of the largest element: some sums cancel.
MOST_OFF = 1e-12


@functools.cache
def _golden() -> dict[str, np.ndarray]:
  with np.load(FILE) as held:
    return dict(held)


def _is_near(got, expected) -> bool:
  off = np.abs(np.asarray(got) - expected).max()
  return off <= MOST_OFF * np.abs(expected).max()


@functools.partial(jax.jit, static_argnums=0)
def _both(policy, dy, arrays):
  """Returns y and the gradients of the layer's inputs."""

  def loss(arrays):
    inputs = [arrays[name] for name in tensors.inputs(CONFIG)]
    y = differentiable.layer(CONFIG, policy, *inputs)
    return (y * dy).sum(), y

  grads, y = jax.grad(loss, has_aux=True, allow_int=True)(arrays)
  return y, grads


@pytest.mark.parametrize('placement', precision.PLACEMENTS)
def test_it_computes_what_transformers_does(placement):
  golden = _golden()
  policy = precision.PrecisionPolicy('float64', 'float64', placement, **GPT_OSS)

  with test_util.x64():
    inputs = {name: golden[name] for name in tensors.inputs(CONFIG)}
    y, grads = _both(policy, golden['dy'], inputs)

  assert _is_near(y, golden['y'])
  for name, grad in grads.items():
    if name != 'topk_ids':
      expected = golden['dx' if name == 'x' else f'd_{name}']
      assert _is_near(grad, expected), name


def test_gates_and_ups_of_the_golden_are_on_both_sides_of_the_limit():
  golden = _golden()
  ids = golden['topk_ids'].reshape(-1)
  weights, bias = (golden[f'{n}_gate_up'] for n in 'wb')
  rows = np.repeat(golden['x'].reshape(-1, CONFIG.d_model), 2, axis=0)
  weights, bias = (a.reshape(4, *a.shape[2:])[ids] for a in (weights, bias))
  gate_up = np.einsum('nd,ndf->nf', rows, weights) + bias
  for half in np.split(gate_up, 2, axis=-1):
    assert (half > 7).any() and (half < -7).any() and (abs(half) < 7).any()


def test_a_value_at_the_limit_is_not_clamped():
  # Gates below, at and above the limit of 7, and ups likewise.
  policy = precision.PrecisionPolicy(
    activation='absolute', limit=7.0, offset=1.0
  )
  gate_up = np.float32([[-9, 7, 8, 2, -7, 7.5, 7, -8]])

  out = swiglu.swiglu(policy, gate_up)
  grad = swiglu_grad.swiglu_grad(policy, gate_up, np.ones((1, 4), np.float32))

  np.testing.assert_array_equal(out, [[9 * -6, 7 * 8, 7 * 8, 2 * -6]])
  np.testing.assert_array_equal(grad, [[6, 8, 0, -6, 9, 0, 7, 0]])


def test_a_bias_that_the_layer_has_not_is_refused():
  golden = _golden()
  inputs = {name: golden[name] for name in tensors.INPUTS}
  policy = precision.PrecisionPolicy('float64', 'float64')
  with test_util.x64():
    with pytest.raises(ValueError, match=r'^b_down: expected float64 \[2, 2'):
      layer.forward(CONFIG, policy, **inputs, b_gate_up=golden['b_gate_up'])
    plain = config_lib.MoEConfig(**{**vars(CONFIG), 'bias': False})
    with pytest.raises(ValueError, match='^b_down: expected only x, topk_ids'):
      layer.forward(plain, policy, **inputs, b_down=golden['b_down'])


@pytest.mark.parametrize(
  'form, message',
  [
    ('gelu', r"activation: expected one of \['swiglu'.* got 'gelu'"),
    ('swiglu:beta=1', r"expected \['alpha'.* after swiglu:, got 'beta=1'"),
    ('swiglu:limit=x', "got 'limit=x'"),
  ],
)
def test_an_activation_that_nobody_knows_is_refused(form, message):
  with pytest.raises(ValueError, match=message):
    precision.activation_of(form)


@pytest.mark.parametrize(
  'field, value', [('alpha', 0.0), ('limit', -1.0), ('offset', float('inf'))]
)
def test_a_number_out_of_range_is_refused(field, value):
  with pytest.raises(ValueError, match=f'^{field}: expected a .* number'):
    precision.PrecisionPolicy(**{field: value})


def test_the_form_says_what_differs():
  assert precision.PrecisionPolicy(limit=10).form == 'swiglu:limit=10'
  found = precision.PrecisionPolicy(**GPT_OSS).form
  assert precision.FORMS['gpt_oss'] == found
