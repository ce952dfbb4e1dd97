"""Decoders: caches, published sizes, MoE layers by name, refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models.jax import cache as cache_lib
from hpmoe.models.jax import decoder
from hpmoe.models.jax import model_testing
from hpmoe.models.jax import moe as moe_lib
from hpmoe.reference.contract import precision


def forward(name: str, moe: str = 'framework', **options):
  config, params, tokens = model_testing.model(name)
  run = functools.partial(decoder.forward, config=config, moe=moe, **options)
  return model_testing.jit(run)(params, tokens=jnp.asarray(tokens))


class TestCache:
  @pytest.mark.parametrize(
    'name',
    ['deepseek_yarn', 'gpt_plain', 'next_plain', 'qwen35_plain']
    + ['sparse_few', 'glm5_few', 'gemma_keys'],
  )
  @pytest.mark.few(1)
  def test_token_by_token_is_all_at_once(self, name):
    # Given.
    config, params, tokens = model_testing.model(name)
    whole, _ = forward(name)

    @model_testing.jit
    def step(tokens, cache):
      return decoder.forward(
        params, config, tokens, moe='framework', cache=cache
      )

    # When: five tokens, then one at a time, in a cache that is too large.
    cache = cache_lib.empty(config, 2, 11, 'float64')
    parts = []
    for begin, end in ((0, 5), (5, 6), (6, 7), (7, 8)):
      logits, aux = step(jnp.asarray(tokens[:, begin:end]), cache)
      cache = aux.cache
      parts.append(logits)
    # Then.
    assert int(cache.length) == 8
    np.testing.assert_allclose(
      jnp.concatenate(parts, axis=1), whole, rtol=0, atol=1e-12
    )

  def test_mla_keeps_the_compressed_vector_only(self):
    config = config_lib.load('deepseek_v3')
    cache = jax.eval_shape(
      lambda: cache_lib.empty(config, 1, 100, jnp.bfloat16)
    )
    size = sum(array.size for array in cache.layers[0].values())
    assert size == 100 * (512 + 64)

  def test_a_full_cache_is_refused(self):
    config, params, tokens = model_testing.model('qwen3_window')
    cache = cache_lib.empty(config, 2, 7, 'float64')
    with pytest.raises(ValueError, match='cache: .*room for 8 tokens, got 7'):
      decoder.forward(params, config, jnp.asarray(tokens), cache=cache)


class TestSizes:
  @pytest.mark.parametrize('name', config_lib.names())
  @pytest.mark.few(5)
  def test_every_configuration_traces(self, name):
    # Without a layer, and two layers of each kind: tracing takes its time.
    config = config_lib.load(name)
    config = dataclasses.replace(
      config, num_hidden_layers=config.first_k_dense_replace + 2
    )
    params = parameters.parameter_shapes(config)
    tokens = jax.ShapeDtypeStruct((2, 64), jnp.int32)
    run = functools.partial(
      decoder.forward,
      config=config,
      moe=lambda x, *_: x,
      mtp=bool(config.num_nextn_predict_layers),
    )
    logits, aux = jax.eval_shape(run, params, tokens=tokens)
    assert logits.shape == (2, 64, config.vocab_size)
    assert logits.dtype == jnp.dtype(config.dtype)
    layers = config.num_hidden_layers
    assert len(aux.hidden_states) == layers + 1
    mtp = parameters.mtp_layers(config)
    assert tuple(aux.routed) == (*config.moe_layers(), *mtp)


class TestLayers:
  @pytest.mark.parametrize('ranks', [1, 2])
  def test_routing_is_what_the_layer_is_given(self, ranks):
    inputs, policies = {}, []

    def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
      inputs.update(x=x, topk_ids=topk_ids, topk_weights=topk_weights)
      inputs.update(w_gate_up=w_gate_up, w_down=w_down)
      policies.append(policy)
      return 2 * x

    @model_testing.jit
    def run(params, tokens):
      _, aux = decoder.forward(params, config, tokens, moe=layer, ranks=ranks)
      return inputs, aux.routed[0]

    # Given, when.
    config, params, tokens = model_testing.model('mixtral_plain', 'float32')
    config = dataclasses.replace(config, num_hidden_layers=1)
    inputs, routed = jax.device_get(run(params, tokens))
    # Then.
    assert inputs['w_gate_up'].shape == (ranks, 8 // ranks, 32, 32)
    assert inputs['w_down'].shape == (ranks, 8 // ranks, 16, 32)
    assert policies == [precision.PrecisionPolicy()]
    for name in ('x', 'topk_ids', 'topk_weights'):
      assert inputs[name].shape[:2] == (ranks, 16 // ranks)
      np.testing.assert_array_equal(inputs[name], getattr(routed, name))
    np.testing.assert_array_equal(routed.y, 2 * routed.x)
    loads = np.bincount(np.ravel(routed.topk_ids), minlength=8)
    np.testing.assert_array_equal(routed.loads, loads)

  @pytest.mark.parametrize(
    'name, message',
    [
      ('ascend', 'expects an Ascend NPU, got none'),
      ('cuda', "expected one of .*'oracle'.*'ascend'.* got 'cuda'"),
      ('os:', "got 'os:'"),
      ('no_such_module:f', 'expected to import .*no_such_module'),
      ('os.path:no_such', 'expected to import .*no_such'),
      ('os.path:sep', 'expected .* to be a function, got str'),
    ],
  )
  def test_a_name_that_is_none(self, name, message):
    with pytest.raises(ValueError, match=f'^moe: .*{message}') as error:
      moe_lib.find_layer(name)
    assert '\n' not in str(error.value)

  def test_a_function_of_the_user(self):
    assert moe_lib.find_layer('hpmoe.models.jax.moe:oracle') is moe_lib.oracle

  @pytest.mark.parametrize(
    'moe, expected',
    [
      ('host', "'framework' for experts with biases"),
      (lambda x, *rest: x, None),
      (lambda x, i, w, up, down, policy: x, r'a layer\(.*, b_down\) -> y, got'),
    ],
  )
  def test_experts_with_biases(self, moe, expected):
    config, params, tokens = model_testing.model('gpt_full')
    run = functools.partial(decoder.forward, config=config, moe=moe)
    if expected is None:
      jax.eval_shape(run, params, tokens=tokens)
      return
    with pytest.raises(ValueError, match=f'^moe: expected {expected}'):
      jax.eval_shape(run, params, tokens=tokens)

  @pytest.mark.parametrize(
    'damage, actual',
    [
      (lambda x: (x,), 'tuple'),
      (lambda x: x[:, 1:], r'float64 \[1, 15, 32\]'),
      (lambda x: x.astype(jnp.bfloat16), r'bfloat16 \[1, 16, 32\]'),
    ],
  )
  def test_what_is_no_y(self, damage, actual):
    config, params, tokens = model_testing.model('gpt_full')
    expected = r'expected y float64 \[1, 16, 32\] of x \[R, T, D\], .*'
    # Of several lines: JAX adds its own.
    refusal = f'(?m)^<lambda>: {expected}, got {actual}$'
    moe = lambda x, *_: damage(x)
    run = functools.partial(decoder.forward, config=config, moe=moe)
    with pytest.raises(ValueError, match=refusal):
      jax.eval_shape(run, params, tokens=tokens)

  def test_framework_knows_no_policy_of_tests(self):
    policy = precision.PrecisionPolicy(activation='absolute')
    with pytest.raises(ValueError, match="policy: .* got 'absolute'"):
      moe_lib.framework(None, None, None, None, None, policy)


class TestRefusals:
  @pytest.mark.parametrize(
    'changes, message',
    [
      (dict(tokens=jnp.zeros(4, jnp.int32)), r'tokens: .* int32 \[4\]'),
      (dict(tokens=jnp.zeros((2, 4))), r'tokens: .* float64 \[2, 4\]'),
      (dict(ranks=3), 'ranks: .* 16 tokens and of 8 experts, got 3'),
      (dict(ranks=0), 'ranks: .* got 0'),
      (dict(mtp=True), 'mtp: .* got 0 and no cache'),
      (dict(drop='model.norm.weight'), r'model.norm.weight: .*\[32\].*nothing'),
      (dict(bad='lm_head.weight'), r'lm_head.weight: .*\[48, 32\], got \[3\]'),
    ],
  )
  def test_an_argument_is_named(self, changes, message):
    config, params, tokens = model_testing.model('mixtral_plain')
    options = dict(changes)
    params.pop(options.pop('drop', None), None)
    if bad := options.pop('bad', None):
      params[bad] = jnp.zeros(3)
    tokens = options.pop('tokens', jnp.asarray(tokens))
    with pytest.raises(ValueError, match=f'^{message}'):
      decoder.forward(params, config, tokens, **options)
