"""The JAX front end in the place of the oracle's layer: the same function."""

import functools

import jax
import numpy as np
import pytest

from hpmoe.backend_ascend.frontends import jax_layer
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.reference import differentiable
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=10, num_experts=4, top_k=2, d_model=12, d_ff=8
)
POLICIES = [
  precision.PrecisionPolicy(storage, placement=placement, activation='absolute')
  for storage, placement in [
    ('float32', 'combine'),
    ('bfloat16', 'before_down'),
  ]
]


def value_and_grads(layer, policy):
  """Returns a jitted function of (dy, *inputs) to y and its four gradients."""

  @jax.jit
  def run(dy, x, ids, *floats):
    call = functools.partial(layer, CONFIG, policy)
    y, pull = jax.vjp(lambda x, *f: call(x, ids, *f), x, *floats)
    return y, *pull(dy)

  return run


def named(policy):
  return f'{policy.storage}-{policy.placement}'


@pytest.mark.parametrize('policy', POLICIES, ids=named)
def test_exact_data_gives_the_oracle_s_values_and_gradients(policy):
  oracle = value_and_grads(differentiable.layer, policy)
  backend = value_and_grads(jax_layer.layer, policy)
  for routing in testing.ROUTINGS:
    # Given: small integers, every sum of which is exact.
    inputs = testing.make_inputs(CONFIG, policy, routing, exact=True)
    dy = testing.make_inputs(CONFIG, policy, exact=True, name='dy')['x']
    # When.
    want = oracle(dy, *inputs.values())
    got = backend(dy, *inputs.values())
    # Then.
    names = ('y', *(n for n in tensors.INPUTS if n != 'topk_ids'))
    for name, a, b in zip(names, got, want, strict=True):
      assert a.dtype == b.dtype, name
      np.testing.assert_array_equal(a, b, err_msg=f'{routing} {name}')
      assert np.any(np.asarray(a) != 0), name
