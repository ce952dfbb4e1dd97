"""Sampling: the cache changes nothing, and draws follow the request."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models.jax import decoder
from hpmoe.models.jax import sampling

GREEDY = sampling.Sampling(temperature=0)


@pytest.fixture(scope='module')
def model():
  """Returns (config, parameters) of one layer whose logits differ widely."""
  config = dataclasses.replace(
    config_lib.load('mixtral_tiny'), num_hidden_layers=1, initializer_range=0.3
  )
  return config, init.init(config, 3)


def _tokens(model, prompt=(5, 9, 200), count=6, how=GREEDY):
  config, params = model
  return list(
    sampling.generate(params, config, list(prompt), count, how, 'framework')
  )


class TestGenerate:
  def test_the_best_token_of_the_model_without_a_cache(self, model):
    config, params = model
    tokens = [5, 9, 200, *_tokens(model)]
    logits, _ = decoder.forward(
      params, config, jnp.asarray([tokens]), moe='framework'
    )
    best = jnp.argmax(logits[0], axis=-1).tolist()
    assert tokens[3:] == best[2:-1]

  def test_the_same_seed_the_same_text(self, model):
    how = sampling.Sampling(temperature=2.0, seed=7)
    first = _tokens(model, how=how)
    assert first == _tokens(model, how=how)
    other = dataclasses.replace(how, seed=8)
    assert first != _tokens(model, how=other)

  def test_ends_at_the_end_of_text(self, model):
    config, params = model
    third = _tokens(model)[2]
    ends = dataclasses.replace(config, eos_token_id=(third,))
    got = _tokens((ends, params))
    assert len(got) <= 2 and third not in got

  @pytest.mark.parametrize(
    'prompt, count, text',
    [
      ([], 3, 'prompt: expected at least one token'),
      ([1], 0, 'tokens: expected at least 1, got 0'),
      ([258], 3, 'prompt: expected tokens below vocab_size=258, got 258'),
      ([1], 5000, 'tokens: expected at most'),
    ],
  )
  def test_refuses(self, model, prompt, count, text):
    with pytest.raises(ValueError, match=text):
      _tokens(model, prompt, count)


class TestDraw:
  LOGITS = jnp.array([1.0, 3.0, 2.0, 3.0], jnp.float32)

  def _drawn(self, how, count=400):
    keys = jax.random.split(jax.random.key(0), count)
    drawn = jax.vmap(lambda key: sampling.draw(self.LOGITS, how, key))(keys)
    return np.bincount(drawn, minlength=4)

  def test_greedy_takes_the_lower_of_two_best(self):
    assert self._drawn(GREEDY, 3).tolist() == [0, 3, 0, 0]

  @pytest.mark.parametrize(
    'top_k, kept', [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (9, [0, 1, 2, 3])]
  )
  def test_top_k_draws_from_the_best_alone(self, top_k, kept):
    drawn = self._drawn(sampling.Sampling(top_k=top_k))
    assert np.flatnonzero(drawn).tolist() == kept

  @pytest.mark.parametrize('temperature', [0.5, 1.0, 3.0])
  def test_temperature_divides_the_logits(self, temperature):
    drawn = self._drawn(sampling.Sampling(temperature), 4000)
    want = jax.nn.softmax(self.LOGITS / temperature)
    # Six deviations of a share of 4,000 draws: 4 shares, 3 cases, 2e-8 each.
    limit = 6 * np.sqrt(want * (1 - want) / 4000)
    assert (np.abs(drawn / 4000 - want) <= limit).all()

  @pytest.mark.parametrize(
    'wrong, text',
    [
      (dict(temperature=-1.0), 'temperature: expected 0 or more, got -1'),
      (dict(temperature=float('nan')), 'temperature: expected 0 or more'),
      (dict(top_k=-1), 'top_k: expected 0 or more, got -1'),
    ],
  )
  def test_refuses(self, wrong, text):
    with pytest.raises(ValueError, match=text):
      sampling.Sampling(**wrong)
