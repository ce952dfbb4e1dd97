"""The layer with shared experts and slots that are not used, as DeepSeek-V3's.

`testdata/deepseek.npz` is what the layer in transformers computes in float64;
`tools/make_deepseek_golden.py` makes it.
"""

import functools
import pathlib

import jax
import numpy as np
import pytest

from hpmoe.reference import differentiable
from hpmoe.reference import layer
from hpmoe.reference import test_util
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

FILE = pathlib.Path(__file__).resolve().parent / 'testdata/deepseek.npz'
# Two shared experts of width 3.
CONFIG = config_lib.MoEConfig(
  num_ranks=2,
  num_tokens=5,
  num_experts=4,
  top_k=2,
  d_model=6,
  d_ff=3,
  d_shared=6,
)
# Of the largest element: some sums cancel.
MOST_OFF = 1e-12


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


@pytest.mark.parametrize(
  'placement',
  ['combine', pytest.param('before_down', marks=pytest.mark.slow)],
)
def test_it_computes_what_transformers_does(placement):
  with np.load(FILE) as held:
    golden = dict(held)
  assert (golden['topk_ids'] == -1).sum() == 3
  policy = precision.PrecisionPolicy('float64', 'float64', placement)

  with test_util.x64():
    inputs = {name: golden[name] for name in tensors.inputs(CONFIG)}
    y, grads = _both(policy, golden['dy'], inputs)

  assert _is_near(y, golden['y'])
  for name, grad in grads.items():
    if name != 'topk_ids':
      expected = golden['dx' if name == 'x' else f'd_{name}']
      assert _is_near(grad, expected), name
  assert not np.asarray(grads['topk_weights'])[golden['topk_ids'] < 0].any()


def test_shared_experts_that_the_layer_has_not_are_refused():
  inputs = test_util.random_inputs(
    CONFIG, precision.PrecisionPolicy(), test_util.generator('shared')
  )
  plain = config_lib.MoEConfig(**{**vars(CONFIG), 'd_shared': 0})
  with pytest.raises(ValueError, match='^w_shared_.*: expected only x, topk_'):
    layer.forward(plain, precision.PrecisionPolicy(), **inputs)
  del inputs['w_shared_down']
  message = r'^w_shared_down: expected float32 \[2, 6, 6\], got nothing'
  with pytest.raises(ValueError, match=message):
    layer.forward(CONFIG, precision.PrecisionPolicy(), **inputs)


def test_a_width_below_zero_is_refused():
  with pytest.raises(ValueError, match='d_shared: expected an integer, 0 for'):
    config_lib.MoEConfig(**{**vars(CONFIG), 'd_shared': -1})
