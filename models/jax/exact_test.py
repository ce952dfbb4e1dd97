"""A one-layer model on exact data: the megakernel equals the oracle in bits.

Embeddings are 1 and -1, so that the norm before the layer changes nothing;
attention adds 0; experts of a pair have the same score, so that a token's two
weights are one half.  Whatever the experts then add is exact in float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models.jax import decoder
from hpmoe.models.jax import model_testing
from hpmoe.models.jax import moe as moe_lib
from hpmoe.reference.contract import stable_random

CONFIG = config_lib.ModelConfig(
  model_type='mixtral',
  vocab_size=24,
  hidden_size=32,
  intermediate_size=16,
  num_hidden_layers=1,
  num_attention_heads=2,
  num_key_value_heads=2,
  num_experts=8,
  num_experts_per_tok=2,
  rms_norm_eps=0.0,
)
BLOCK = 'model.layers.0.block_sparse_moe'


def exact_params(dtype: str) -> dict[str, jax.Array]:
  """Returns parameters for which the layer's sums are exact."""
  params = {}
  for name, spec in parameters.parameter_shapes(CONFIG).items():
    seed = stable_random.seed_of('exact', name)
    value = stable_random.integers(seed, spec.shape, 5) - 2
    if name.endswith('norm.weight'):
      value = np.ones(spec.shape)
    elif name == 'model.embed_tokens.weight':
      value = 2 * stable_random.integers(seed, spec.shape, 2) - 1
    elif name.endswith('o_proj.weight'):
      value = np.zeros(spec.shape)
    params[name] = value
  # Experts 2g and 2g + 1 like the signs of columns 8g to 8g + 7.
  gate = np.repeat(np.eye(4), 8, axis=1).repeat(2, axis=0)
  params[f'{BLOCK}.gate.weight'] = gate
  return {name: jnp.asarray(value, dtype) for name, value in params.items()}


def run(moe: str, ranks: int, dtype: str):
  """Returns logits, the layer's y, and gradients of an integer sum of y."""
  policy = dataclasses.replace(moe_lib.policy_of(dtype), activation='absolute')
  tokens = stable_random.integers(1, (4, 8), CONFIG.vocab_size)
  tokens = jnp.asarray(tokens, jnp.int32)
  dy = jnp.asarray(stable_random.integers(2, (32, 32), 3) - 1, dtype)

  def loss(params):
    logits, aux = decoder.forward(
      params, CONFIG, tokens, moe=moe, ranks=ranks, policy=policy
    )
    y = aux.routed[0].y
    return jnp.sum(y.reshape(dy.shape) * dy), (logits, y)

  grads, (logits, y) = model_testing.jit(jax.grad(loss, has_aux=True))(
    exact_params(dtype)
  )
  return {**grads, 'logits': logits, 'y': y}


class TestExact:
  @pytest.mark.parametrize('ranks', [1, 2])
  @pytest.mark.few(1)
  def test_host_is_the_oracle_bit_for_bit(self, ranks):
    oracle, host = (run(moe, ranks, 'float32') for moe in ('oracle', 'host'))
    for name, value in oracle.items():
      value, other = np.asarray(value), np.asarray(host[name])
      np.testing.assert_array_equal(
        value.view(np.uint32), other.view(np.uint32), name
      )
    for name in ('y', 'logits', 'model.embed_tokens.weight'):
      assert np.count_nonzero(oracle[name]), name
    for name in ('experts.w_gate_up', 'experts.w_down'):
      assert np.count_nonzero(oracle[f'{BLOCK}.{name}']), name

  def test_data_are_exact(self):
    # Everything is a multiple of one half, in float32 too.  In float64 softmax
    # may leave a weight an ulp beside it.
    narrow, wide = (run('oracle', 1, d) for d in ('float32', 'float64'))
    for name in ('y', f'{BLOCK}.experts.w_gate_up', f'{BLOCK}.experts.w_down'):
      want = np.rint(2 * np.asarray(wide[name])) / 2
      np.testing.assert_allclose(wide[name], want, rtol=0, atol=1e-9)
      np.testing.assert_array_equal(narrow[name], want, name)
    assert len(np.unique(np.abs(narrow['y']))) > 20
