"""Decoders in MindSpore: caches, the Cell, MoE layers by name, refusals."""

import dataclasses

import mindspore as ms
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models import parameters
from hpmoe.models.mindspore import cache as cache_lib
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import model_testing
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import precision


@pytest.fixture(autouse=True)
def _cpu():
  ms.set_device('CPU')


class TestCache:
  @pytest.mark.parametrize('name', ['deepseek_yarn', 'gpt_plain'])
  @pytest.mark.few(1)
  def test_token_by_token_is_all_at_once(self, name):
    # Given.
    config, params, tokens = model_testing.model(name, 'float64')
    whole, _ = decoder.forward(params, config, tokens, moe='framework')
    # When: five tokens, then one at a time, in a cache that is too large.
    cache = cache_lib.empty(config, 2, 11, ms.float64)
    parts = []
    for begin, end in ((0, 5), (5, 6), (6, 7), (7, 8)):
      logits, aux = decoder.forward(
        params, config, tokens[:, begin:end], moe='framework', cache=cache
      )
      cache = aux.cache
      parts.append(ops.to_numpy(logits))
    # Then.
    assert cache.length == 8
    got = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(got, ops.to_numpy(whole), rtol=0, atol=1e-12)

  def test_a_full_cache_is_refused(self):
    config, params, tokens = model_testing.model('qwen3_window')
    cache = cache_lib.empty(config, 2, 7, ms.float32)
    with pytest.raises(ValueError, match='cache: .*room for 8 tokens, got 7'):
      decoder.forward(params, config, tokens, cache=cache)


class TestCell:
  def test_is_trained_by_every_parameter_with_a_gradient(self):
    # Given.
    config = config_lib.load('deepseek_tiny')
    params = init.init(config, dtype='float32')
    model = decoder.Decoder(config, params, moe='host', mtp=False)
    tokens = ms.Tensor(np.arange(16, dtype=np.int32).reshape(2, 8))
    weights = model.trainable_params()

    def loss(tokens):
      return decoder.next_token_loss(model(tokens), tokens)

    # When: a step along the gradient.
    before, grads = ms.value_and_grad(loss, None, weights)(tokens)
    for weight, grad in zip(weights, grads, strict=True):
      weight.set_data(weight - 0.05 * grad)
    after = loss(tokens)
    # Then: names are those of files; all that the tokens reach has moved.
    assert [p.name for p in model.get_parameters()] == list(params)
    biases = [name for name in params if parameters.is_router_bias(name)]
    assert biases and not {w.name for w in weights} & set(biases)
    assert float(after) < float(before)
    still = {
      weight.name
      for weight, grad in zip(weights, grads)
      if not np.any(ops.to_numpy(grad))
    }
    mtp = tuple(f'model.layers.{n}.' for n in parameters.mtp_layers(config))
    assert all(name.startswith(mtp) for name in still) if mtp else not still

  def test_is_the_function(self):
    config, params, tokens = model_testing.model('mixtral_plain')
    values = {name: ops.to_numpy(value) for name, value in params.items()}
    cell = decoder.Decoder(config, values, moe='framework')
    want, _ = decoder.forward(params, config, tokens, moe='framework')
    np.testing.assert_array_equal(
      ops.to_numpy(cell(tokens)), ops.to_numpy(want)
    )


class TestFunctions:
  @pytest.mark.parametrize(
    'name', ['gated', 'sigmoid', 'softmax', 'log_softmax']
  )
  def test_are_as_exact_as_float32(self, name):
    x = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32) * 5
    wide = x.astype(np.float64)
    shares = np.exp(wide - wide.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    want = dict(
      gated=wide / (1 + np.exp(-wide)),
      sigmoid=1 / (1 + np.exp(-wide)),
      softmax=shares,
      log_softmax=np.log(shares),
    )[name]
    more = [ms.ops.ones_like(ms.Tensor(x))] * (name == 'gated')
    got = ops.to_numpy(getattr(ops, name)(ms.Tensor(x), *more))
    assert got.dtype == np.float32
    # One rounding, to nearest.
    np.testing.assert_allclose(got, want, rtol=2**-24 * 1.01, atol=1e-44)


class TestLayers:
  @pytest.mark.parametrize('ranks', [1, 2])
  def test_routing_is_what_the_layer_is_given(self, ranks):
    given = {}

    def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
      given.update(x=x, topk_ids=topk_ids, topk_weights=topk_weights)
      given.update(w_gate_up=w_gate_up, w_down=w_down, policy=policy)
      return 2 * x

    # Given, when.
    config, params, tokens = model_testing.model('mixtral_plain')
    config = dataclasses.replace(config, num_hidden_layers=1)
    _, aux = decoder.forward(params, config, tokens, moe=layer, ranks=ranks)
    # Then.
    routed = aux.routed[0]
    assert given['w_gate_up'].shape == (ranks, 8 // ranks, 32, 32)
    assert given['w_down'].shape == (ranks, 8 // ranks, 16, 32)
    assert given['policy'] == precision.PrecisionPolicy()
    for name in ('x', 'topk_ids', 'topk_weights'):
      assert given[name].shape[:2] == (ranks, 16 // ranks)
      assert given[name] is getattr(routed, name)
    counted = np.bincount(np.ravel(routed.topk_ids.asnumpy()), minlength=8)
    np.testing.assert_array_equal(routed.loads.asnumpy(), counted)

  @pytest.mark.parametrize(
    'name, message',
    [
      ('ascend', 'expects an Ascend NPU, got none'),
      ('oracle', "expected one of .*'host'.* got 'oracle'"),
      ('os:', "got 'os:'"),
      ('no_such_module:f', 'expected to import .*no_such_module'),
      ('os.path:no_such', 'expected to import .*no_such'),
      ('os.path:sep', 'expected .* to be a function, got str'),
    ],
  )
  def test_a_name_that_is_none(self, name, message):
    with pytest.raises(ValueError, match=f'^moe: .*{message}') as caught:
      moe_lib.named(name)
    assert '\n' not in str(caught.value)


class TestRefused:
  @pytest.mark.parametrize(
    'moe, expected',
    [
      ('host', "'framework' for experts with biases"),
      (lambda x, *others: x, None),
      (lambda x, i, w, up, down, policy: x, r'a layer\(.*, b_down\) -> y, got'),
    ],
  )
  def test_experts_with_biases(self, moe, expected):
    config, params, tokens = model_testing.model('gpt_full')
    if expected is None:
      decoder.forward(params, config, tokens, moe=moe)
      return
    with pytest.raises(ValueError, match=f'^moe: expected {expected}'):
      decoder.forward(params, config, tokens, moe=moe)

  def test_a_parameter_of_another_shape(self):
    config, params, tokens = model_testing.model('mixtral_plain')
    params['model.norm.weight'] = ms.ops.ones(3)
    with pytest.raises(ValueError, match=r'norm.weight: .* \[32\], got \[3\]'):
      decoder.forward(params, config, tokens)

  def test_tokens_and_ranks(self):
    config, params, tokens = model_testing.model('mixtral_plain')
    with pytest.raises(ValueError, match='tokens: expected integers'):
      decoder.forward(params, config, tokens.astype(ms.float32))
    with pytest.raises(ValueError, match='ranks: expected a divisor of 16'):
      decoder.forward(params, config, tokens, ranks=3)
