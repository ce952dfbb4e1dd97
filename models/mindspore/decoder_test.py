"""Decoders in MindSpore: caches, the Cell, MoE layers by name, refusals."""

import mindspore as ms
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models import parameters
from hpmoe.models.mindspore import cache as cache_lib
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import device
from hpmoe.models.mindspore import model_testing
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops


@pytest.fixture(autouse=True)
def _cpu():
  device.use('cpu', 'host')


class TestCache:
  @pytest.mark.parametrize(
    'name',
    ['next_plain', 'deepseek_yarn', 'gpt_plain', 'sparse_few', 'gemma_keys'],
  )
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
    actual = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(actual, ops.to_numpy(whole), rtol=0, atol=1e-12)

  def test_a_full_cache_is_refused(self):
    config, params, tokens = model_testing.model('qwen3_window')
    cache = cache_lib.empty(config, 2, 7, ms.float32)
    with pytest.raises(ValueError, match='cache: .*room for 8 tokens, got 7'):
      decoder.forward(params, config, tokens, cache=cache)


class TestCell:
  @pytest.mark.slow
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
    operands = [ms.ops.ones_like(ms.Tensor(x))] * (name == 'gated')
    actual = ops.to_numpy(getattr(ops, name)(ms.Tensor(x), *operands))
    assert actual.dtype == np.float32
    # One rounding, to nearest.
    np.testing.assert_allclose(actual, want, rtol=2**-24 * 1.01, atol=1e-44)


class TestRefused:
  """`models/jax/decoder_test.py` has the rest: what refuses is shared."""

  @pytest.mark.parametrize(
    'name, message',
    [
      ('ascend', 'expects an Ascend NPU, got none'),
      ('oracle', "expected one of .*'host'.* got 'oracle'"),
    ],
  )
  def test_a_layer_that_is_not_there(self, name, message):
    with pytest.raises(ValueError, match=f'^moe: .*{message}'):
      moe_lib.find_layer(name)

  def test_experts_with_biases(self):
    config, params, tokens = model_testing.model('gpt_full')
    decoder.forward(params, config, tokens, moe=lambda x, *rest: x)
    with pytest.raises(ValueError, match="^moe: expected 'framework' for exp"):
      decoder.forward(params, config, tokens, moe='host')

  def test_an_argument(self):
    config, params, tokens = model_testing.model('mixtral_plain')
    with pytest.raises(ValueError, match='tokens: expected integers'):
      decoder.forward(params, config, tokens.astype(ms.float32))
    with pytest.raises(ValueError, match='ranks: expected a divisor of 16'):
      decoder.forward(params, config, tokens, ranks=3)
    params['model.norm.weight'] = ms.ops.ones(3)
    with pytest.raises(ValueError, match=r'norm.weight: .* \[32\], got \[3\]'):
      decoder.forward(params, config, tokens)
