"""Parameters have the names and sizes that the published models have."""

import dataclasses
import math

import jax.numpy as jnp
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import golden_testing as golden
from hpmoe.models import parameters


def count(config: config_lib.ModelConfig) -> int:
  shapes = parameters.parameter_shapes(config).values()
  return sum(math.prod(shape.shape) for shape in shapes)


class TestPublishedSizes:
  @pytest.mark.parametrize(
    'name, published',
    [
      # The papers' tables and model cards; Pangu's is 0.14 % below ours.
      ('deepseek_v3', 671e9),
      ('qwen3_30b_a3b', 30.5e9),
      ('qwen3_235b_a22b', 235e9),
      ('mixtral_8x7b', 46.7e9),
      ('pangu_ultra_moe', 718e9),
    ],
  )
  def test_the_number_of_parameters(self, name, published):
    config = config_lib.load(name)
    model = dataclasses.replace(config, num_nextn_predict_layers=0)
    assert abs(count(model) - published) < 2e-3 * published

  def test_the_mtp_head_of_deepseek_v3(self):
    # 14 B with the embeddings and the head that it shares: the model's card.
    config = config_lib.load('deepseek_v3')
    model = dataclasses.replace(config, num_nextn_predict_layers=0)
    shared = 2 * config.vocab_size * config.hidden_size
    size = count(config) - count(model) + shared
    assert round(size / 1e9) in (13, 14)


class TestNames:
  def test_queries_of_mla_that_are_not_compressed_have_no_bias(self):
    config = config_lib.load('deepseek_tiny')
    config = dataclasses.replace(config, q_lora_rank=None, attention_bias=True)
    biases = {n for n in parameters.parameter_shapes(config) if 'bias' in n}
    assert 'model.layers.0.self_attn.o_proj.bias' in biases
    assert 'model.layers.0.self_attn.q_proj.bias' not in biases

  def test_what_is_shared_is_not_a_parameter(self):
    config = config_lib.load('deepseek_tiny')
    config = dataclasses.replace(
      config, tie_word_embeddings=True, num_nextn_predict_layers=1
    )
    shapes = parameters.parameter_shapes(config)
    shared = parameters.shared_parameters(config)
    assert set(shared) == {
      'lm_head.weight',
      'model.layers.4.embed_tokens.weight',
      'model.layers.4.shared_head.head.weight',
    }
    assert not set(shared) & set(shapes)
    assert set(shared.values()) <= set(shapes)

  @pytest.mark.parametrize('dtype', ['bfloat16', 'float32', 'float64'])
  def test_the_router_bias_is_not_narrowed(self, dtype):
    config = config_lib.load('deepseek_tiny')
    for name, shape in parameters.parameter_shapes(config, dtype).items():
      bias = parameters.is_router_bias(name)
      wide = jnp.promote_types(dtype, 'float32')
      assert shape.dtype == (wide if bias else jnp.dtype(dtype)), name


class TestIndexer:
  def test_its_parameters_are_kept_and_have_no_gradient(self):
    shapes = parameters.parameter_shapes(
      golden.config('glm5_index'), 'bfloat16'
    )
    of_one = [n for n in shapes if 'layers.1.self_attn.indexer.' in n]
    assert len(of_one) == 5
    assert not any(map(parameters.has_gradient, of_one))
    k_norm = shapes['model.layers.1.self_attn.indexer.k_norm.weight']
    assert (k_norm.shape, k_norm.dtype) == ((8,), jnp.float32)
