"""The layer equals what transformers computes in float64, both passes.

`testdata/gpt_oss.npz` is of GPT-OSS's experts, with biases and a clamped
activation; `testdata/deepseek.npz` of DeepSeek-V3's layer, with shared experts
and slots that are not used.  Both were made by
`tools/make_layer_golden.py`, as it is at 0a52017.  `testdata/llama4.npz` is of
Llama4TextMoe in the same way, its router's scores given.
"""

import dataclasses
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
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

FILES = pathlib.Path(__file__).resolve().parent / 'testdata'
GPT_OSS = config_testing.make_config(r=2, t=5, e=4, k=2, d=6, f=3, bias=True)
# Two shared experts of width 3.
DEEPSEEK = dataclasses.replace(GPT_OSS, bias=False, d_shared=6)
# One shared expert, as wide as the others.
LLAMA4 = dataclasses.replace(GPT_OSS, bias=False, d_shared=3)
FORM = precision.activation_of('gpt_oss')
# Of the largest element: some sums cancel.
MOST_OFF = 1e-12
_SLOW = pytest.mark.slow


@functools.cache
def _golden(name: str) -> dict[str, np.ndarray]:
  with np.load(FILES / f'{name}.npz') as arrays:
    return dict(arrays)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compute_output_and_grads(config, policy, dy, arrays):
  """Returns y and the gradients of the layer's inputs."""

  def loss(arrays):
    inputs = [arrays[name] for name in tensors.inputs(config)]
    y = differentiable.layer(config, policy, *inputs)
    return (y * dy).sum(), y

  grads, y = jax.grad(loss, has_aux=True, allow_int=True)(arrays)
  return {'y': y} | grads


@pytest.mark.parametrize(
  'name, placement',
  [('llama4', 'input')]
  + [('gpt_oss', placement) for placement in precision.ALIKE_PLACEMENTS]
  + [('deepseek', 'combine')]
  + [
    pytest.param('deepseek', placement, marks=_SLOW)
    for placement in precision.ALIKE_PLACEMENTS
    if placement != 'combine'
  ],
)
@pytest.mark.few(2)
def test_it_computes_what_transformers_does(name, placement):
  config, form = dict(
    gpt_oss=(GPT_OSS, FORM), deepseek=(DEEPSEEK, {}), llama4=(LLAMA4, {})
  )[name]
  golden = _golden(name)
  policy = precision.PrecisionPolicy('float64', 'float64', placement, **form)

  inputs = {tensor: golden[tensor] for tensor in tensors.inputs(config)}
  outputs = _compute_output_and_grads(config, policy, golden['dy'], inputs)

  for tensor in outputs.keys() - {'topk_ids'}:
    expected = golden[{'y': 'y', 'x': 'dx'}.get(tensor, f'd_{tensor}')]
    error = np.abs(np.asarray(outputs[tensor]) - expected).max()
    assert error <= MOST_OFF * np.abs(expected).max(), tensor
  unused = golden['topk_ids'] == tensors.UNUSED
  assert unused.sum() == (3 if name == 'deepseek' else 0)
  assert not np.asarray(outputs['topk_weights'])[unused].any()


def test_gates_and_ups_of_the_golden_are_on_both_sides_of_the_limit():
  golden = _golden('gpt_oss')
  ids = golden['topk_ids'].reshape(-1)
  weights, bias = (golden[f'{n}_gate_up'] for n in 'wb')
  rows = np.repeat(golden['x'].reshape(-1, GPT_OSS.d_model), 2, axis=0)
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


@pytest.mark.parametrize(
  'config, changes, missing, message',
  [
    (GPT_OSS, {}, 'b_down', r'^b_down: expected float32 \[2, 2, 6\], got noth'),
    (GPT_OSS, {'bias': False}, '', '^b_.*: expected only x, topk_ids'),
    (DEEPSEEK, {}, 'w_shared_down', r'^w_shared_down: .*\[2, 6, 6\], got noth'),
    (DEEPSEEK, {'d_shared': 0}, '', '^w_shared_.*: expected only x, topk_ids'),
  ],
)
def test_parts_of_another_layer_are_refused(config, changes, missing, message):
  policy = precision.PrecisionPolicy()
  rng = test_util.generator('parts')
  inputs = test_util.random_inputs(config, policy, rng)
  inputs.pop(missing, None)
  with pytest.raises(ValueError, match=message):
    layer.forward(dataclasses.replace(config, **changes), policy, **inputs)


@pytest.mark.parametrize(
  'form, message',
  [
    ('gelu', r"activation: expected one of 'swiglu'.* got 'gelu'"),
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
  form = precision.PrecisionPolicy(**FORM).form
  assert precision.FORMS['gpt_oss'] == form


def test_a_width_below_zero_is_refused():
  with pytest.raises(ValueError, match='d_shared: expected an integer, 0 for'):
    config_lib.MoEConfig(**{**vars(DEEPSEEK), 'd_shared': -1})
