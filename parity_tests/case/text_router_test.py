"""Text embedding: distinct unit rows, stable bits, skewed routing."""

import zlib

import numpy as np
import pytest

from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import text_router
from hpmoe.reference.contract import presets


class TestEmbed:
  def test_rows_have_mean_0_rms_1_and_are_distinct(self):
    # given: four bytes again and again, so that only positions tell tokens.
    config = presets.config(presets.get('tiny'), 2)
    x = text_router.embed(config, b'abab').astype(np.float64)
    np.testing.assert_allclose(x.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose((x**2).mean(-1), 1, rtol=1e-6)
    rows = x.reshape(-1, config.d_model)
    assert len(np.unique(rows, axis=0)) == len(rows)

  def test_near_bytes_matter_and_far_ones_do_not(self):
    # given: texts that differ in byte 4 only.
    config = presets.config(presets.get('tiny'), 1, 10)
    first, second = (
      text_router.embed(config, text)[0]
      for text in (b'0123456789', b'0123x56789')
    )
    differ = (first != second).any(-1)
    np.testing.assert_array_equal(np.flatnonzero(differ), [4, 5, 6, 7])

  def test_short_text_starts_again_and_says_so(self, caplog):
    config = presets.config(presets.get('tiny'), 2)
    with caplog.at_level('INFO', logger='absl'):
      text_router.embed(config, b'short')
    assert 'text has 5 bytes, 32 are needed' in caplog.text

  def test_bits_are_these(self):
    config = presets.config(presets.get('tiny'), 2)
    x = text_router.embed(config, b'These bits are the same everywhere.')
    scores = text_router.gate_scores(config, x)
    assert zlib.crc32(x.tobytes()) == 1079242714
    assert zlib.crc32(scores.tobytes()) == 4111654052

  def test_width_one_has_no_nan(self):
    config = presets.config(presets.get('tiny'), 1)
    x = text_router._normalize(np.full((config.num_tokens, 1), 9))
    assert not x.any()


class TestGateScores:
  def test_product_is_exact(self):
    config = presets.config(presets.get('small'), 1, 32)
    x = text_router.embed(config, text_router.read_text())
    gate = text_router._draw_table(
      0, 'gate', (config.d_model, config.num_experts), 127
    )
    x_int = np.rint(x * 256.0).astype(np.int64)
    exact = x_int @ gate
    scale = 256 * 127 * np.sqrt(config.d_model / 3)
    actual = text_router.gate_scores(config, x)
    assert (exact / scale).astype(np.float32).tobytes() == actual.tobytes()

  def test_scores_are_of_order_one(self):
    config = presets.config(presets.get('small'), 4)
    x = text_router.embed(config, text_router.read_text())
    assert 0.7 < text_router.gate_scores(config, x).std() < 1.4


class TestRoute:
  @pytest.mark.parametrize('name', ['small', 'deepseek_v3_tiny'])
  def test_real_text_is_skewed_within_its_groups(self, name):
    preset = presets.get(name)
    config = presets.config(preset, 4)
    x = text_router.embed(config, text_router.read_text())
    scores = text_router.gate_scores(config, x)
    routed = text_router.route(config, preset.router, scores)
    skew = routings.measure_skew(config, routed.topk_ids)
    assert skew['max_over_mean_expert'] > 1.5
    total = routed.topk_weights.sum(-1)
    np.testing.assert_allclose(total, preset.router.scale, rtol=1e-5)
    # Of groups, those that limit the choice; a softmax has one.
    size = config.num_experts // preset.router.num_groups
    for token in (routed.topk_ids // size).reshape(-1, config.top_k):
      assert len(set(token.tolist())) <= preset.router.top_groups

  def test_nan_score_is_an_error_that_names_the_token(self):
    config = presets.config(presets.get('tiny'), 2)
    scores = np.zeros((2, 16, 8), np.float32)
    scores[1, 3, 0] = np.nan
    with pytest.raises(ValueError, match='rank 1, token 3'):
      text_router.route(config, presets.Router(), scores)


class TestRead:
  def test_shipped_text_is_long_enough_for_every_preset(self):
    assert len(text_router.read_text()) > 8 * 1024

  @pytest.mark.parametrize(
    ('name', 'message'),
    [
      ('absent', 'a readable file'),
      ('.', 'a readable file'),
      ('empty', 'at least one byte'),
    ],
  )
  def test_no_text(self, tmp_path, name, message):
    (tmp_path / 'empty').write_bytes(b'')
    with pytest.raises(ValueError, match=f'text: expected {message}'):
      text_router.read_text(tmp_path / name)


class TestOtherBatches:
  CONFIG = presets.config(presets.get('small'), 2, 256)

  @pytest.mark.parametrize('name', ['zipf', 'skewed', 'text'])
  def test_are_as_popular_and_other_tokens(self, name):
    preset = presets.get('small')
    ids = text_router.topk_ids(name, preset, self.CONFIG, 5)
    rows = routings.count_rows(self.CONFIG, ids)
    batches = text_router.count_other_batches(name, preset, self.CONFIG, 5)
    assert batches.shape == (2, self.CONFIG.num_experts)
    for batch in batches:
      assert batch.sum() == rows.sum() and (batch != rows).any()
      assert np.corrcoef(batch, rows)[0, 1] > 0.8
    assert (batches[0] != batches[1]).any()

  def test_there_are_none_past_the_text_or_of_other_routings(self):
    preset = presets.get('small')
    long = presets.config(preset, 2, 4096)
    for name, config in (('text', long), ('balanced', self.CONFIG)):
      batches = text_router.count_other_batches(name, preset, config)
      assert batches.shape == (0, config.num_experts)
