"""Generation in JAX: caches, padding and company change no token."""

import dataclasses

import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import generation
from hpmoe.models import generation_testing
from hpmoe.models import init
from hpmoe.models import sampling
from hpmoe.models.jax import attention
from hpmoe.models.jax import stepper
from hpmoe.reference.contract import halved_testing

GREEDY = generation_testing.GREEDY


@pytest.fixture(scope='module')
def model():
  """Returns (config, parameters) of one layer whose logits differ widely."""
  config = dataclasses.replace(
    config_lib.load('mixtral_tiny'), num_hidden_layers=1, initializer_range=0.3
  )
  return config, init.init(config, 3)


def _generate(model, prompts, count=6, sampling_rule=GREEDY, **options):
  config, params = model
  steps = stepper.Stepper(params, config, 'framework')
  return generation.generate(
    steps, config, prompts, count, sampling_rule, **options
  )


PROMPT = [5, 9, 200]
PROMPTS = [PROMPT, [8] * 5, PROMPT]


# `make test` has each family in one framework.
@pytest.mark.slow
@pytest.mark.parametrize(
  'name', halved_testing.halved(generation_testing.FAMILIES)
)
def test_a_batch_is_one_at_a_time(name):
  generation_testing.check_batch_is_one_at_a_time(name, stepper.Stepper)


@pytest.mark.parametrize(
  'name', halved_testing.halved(generation_testing.FAMILIES)
)
@pytest.mark.few(1)
def test_greedy_is_the_reference(name):
  generation_testing.check_greedy_is_the_reference(name, stepper.Stepper)


def test_padding_counts_no_position():
  config = config_lib.load('mixtral_tiny')
  starts = np.array([0, 2], np.int32)
  positions = attention.find_positions(config, 0, 4, 4, 'float32', starts)
  cos = np.asarray(positions.rope.cos)
  np.testing.assert_array_equal(cos[1, 2:], cos[0, :2])
  assert (cos[0, 2:] != cos[0, :2]).any()


class TestGenerate:
  @pytest.mark.slow
  def test_draws_do_not_depend_on_company(self, model):
    rule = sampling.Sampling(temperature=2.0, seed=7)
    first, other, third = _generate(model, PROMPTS, sampling_rule=rule)
    assert first == third != other
    assert [first] == _generate(model, [PROMPT], sampling_rule=rule)

  def test_ends_at_the_end_of_text_and_others_go_on(self, model):
    # given one text's third token, which the other text has not
    config, params = model
    first, other, _ = _generate(model, PROMPTS)
    third = first[2]
    assert third not in [*first[:2], *other]
    # when it ends a text
    ends = dataclasses.replace(config, eos_token_id=(third,))
    assert _generate((ends, params), PROMPTS) == [first[:2], other, first[:2]]

  def test_ends_where_it_is_told(self, model):
    calls = []

    def goes_on(row, token):
      calls.append((row, token))
      return token is None or len(calls) < 3

    (text,) = _generate(model, [PROMPT], on_token=goes_on)
    assert calls == [*((0, token) for token in text), (0, None)]
    assert len(text) == 3

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
      _generate(model, [prompt], count)
