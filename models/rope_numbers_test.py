"""Frequencies of stretched rope against those of transformers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.models import rope_numbers

# By `ROPE_INIT_FUNCTIONS` of transformers 5.23.0 in float64, of the golden
# configurations: length of a text, frequencies, factor on cosines and sines.
CASES = [
  ('qwen3_llama3', 1, [1.0, 0.013042256043820465, 0.00125, 0.000125], 1.0),
  (
    'qwen3_linear',
    1,
    [0.4, 0.012649110640673516, 0.0004, 1.2649110640673518e-05],
    1.0,
  ),
  ('olmoe_dynamic', 5, [1.0, 0.1, 0.01, 0.001], 1.0),
  (
    'olmoe_dynamic',
    8,
    [1.0, 0.07094917059851918, 0.005033784808617781, 0.0003571428571428572],
    1.0,
  ),
  (
    'olmoe_dynamic',
    40,
    [1.0, 0.035688292775180416, 0.0012736542412069944, 4.545454545454547e-05],
    1.0,
  ),
  ('glm_longrope', 6, [1.0, 0.008333333333333333], 1.4698838123143017),
  (
    'glm_longrope',
    7,
    [0.6666666666666666, 0.0022222222222222222],
    1.4698838123143017,
  ),
  ('glm_shortrope', 8, [1.0, 0.008333333333333333], 1.224744871391589),
  (
    'glm_shortrope',
    17,
    [0.6666666666666666, 0.0022222222222222222],
    1.224744871391589,
  ),
]


class TestFrequencies:
  @pytest.mark.parametrize('name, length, turns, factor', CASES)
  def test_as_transformers(self, name, length, turns, factor):
    config = golden.config(name)
    frequencies = rope_numbers.frequencies(config, float(length))
    np.testing.assert_allclose(frequencies, turns, rtol=1e-14)
    amplitude = rope_numbers.amplitude(config.rope_scaling)
    assert amplitude == pytest.approx(factor, rel=1e-15)
    traced = rope_numbers.frequencies(config, jnp.float32(length), jnp)
    np.testing.assert_allclose(traced, turns, rtol=1e-6)

  def test_a_text_at_the_context_of_training_is_not_stretched(self):
    for name in ('olmoe_dynamic', 'glm_longrope'):
      config = golden.config(name)
      context = config.rope_scaling.original_max_position_embeddings
      short, long = (
        rope_numbers.frequencies(config, float(length))
        for length in (context, context + 1)
      )
      assert np.all(short[1:] > long[1:])
      plain = dataclasses.replace(config, rope_scaling=None)
      if name == 'olmoe_dynamic':
        np.testing.assert_array_equal(short, rope_numbers.frequencies(plain))
