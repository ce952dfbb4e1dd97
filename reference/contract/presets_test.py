"""Presets are valid layers and are found by name."""

import numpy as np
import pytest

from hpmoe.reference.contract import presets


class TestPresets:
  @pytest.mark.parametrize('ranks', [1, 2, 4, 8])
  @pytest.mark.parametrize('name', presets.RUNS_HERE)
  def test_running_preset_suits_every_rank_count(self, name, ranks):
    config = presets.config(presets.get(name), ranks)
    if name in presets.ROUTED:
      assert config.num_experts % 8 == 0
      assert config.top_k <= config.num_experts // 2
    else:
      assert config.num_experts == config.top_k == ranks

  @pytest.mark.parametrize('name', presets.PRESETS)
  def test_defaults_of_compile_and_router_are_valid(self, name):
    preset = presets.get(name)
    config = presets.config(preset, preset.num_ranks)
    assert preset.name == name
    groups, rest = divmod(config.num_experts, preset.router.num_groups)
    assert not rest
    assert preset.router.top_groups * groups >= config.top_k

  def test_ep16_is_the_published_shape(self):
    preset = presets.get('ep16')
    dims = presets.config(preset, preset.num_ranks).dims()
    published = {'R': 16, 'E': 128, 'T': 4096, 'K': 8, 'D': 7168, 'F': 2048}
    assert published.items() <= dims.items()
    assert (preset.num_aic, preset.num_aiv) == (24, 48)
    assert not preset.runs_here

  @pytest.mark.parametrize(
    'name', ['deepseek_v3', 'qwen3_30b_a3b', 'mixtral_8x7b']
  )
  def test_scaled_preset_keeps_top_k_router_and_width_ratio(self, name):
    small, full = presets.get(f'{name}_tiny'), presets.get(name)
    assert (small.top_k, small.router) == (full.top_k, full.router)
    assert small.d_model * full.d_ff == full.d_model * small.d_ff

  @pytest.mark.parametrize(
    ('name', 'sizes', 'billions'),
    [
      # experts, layers of them: billions of weights as published
      ('qwen3_30b_a3b', (128, 48), 29),
      ('mixtral_8x7b', (8, 32), 45.1),
      ('deepseek_v3', (256, 58), 654),
      ('kimi_k2', (384, 60), 1015),
      ('glm_4_5', (160, 89), 336),
      ('gpt_oss_120b', (128, 36), 114.7),
    ],
  )
  def test_a_published_layer_has_the_weights_of_its_model(
    self, name, sizes, billions
  ):
    preset, (experts, layers) = presets.get(name), sizes
    assert preset.num_experts == experts
    weights = 3 * experts * preset.d_model * preset.d_ff * layers / 1e9
    assert weights == pytest.approx(billions, rel=0.01)
    assert presets.to_check(name).num_tokens == 64
    assert preset.num_tokens == 4096

  @pytest.mark.parametrize(('old', 'name'), presets._OLD_NAMES.items())
  def test_old_names_work(self, old, name):
    preset = presets.get(f'{old}:d_ff=24')
    assert preset.name == f'{old}:d_ff=24'
    assert preset.source == presets.get(name).source

  def test_config_takes_tokens_and_capacity(self):
    config = presets.config(presets.get('tiny'), 2, tokens=5, capacity=7)
    assert (config.num_tokens, config.num_rows) == (5, 7)

  def test_unknown_name_lists_the_known(self):
    with pytest.raises(ValueError, match=r"preset: .*'small'.*got 'smal'"):
      presets.get('smal')

  def test_sizes_after_the_name_replace_the_preset(self):
    preset = presets.get('tiny:experts=12:top_k=3:d_model=33:d_ff=17')
    dims = presets.config(preset, 4).dims()
    assert dict(E=12, K=3, D=33, F=17, T=16).items() <= dims.items()

  @pytest.mark.parametrize('size', ['experts', 'ranks=2', 'd_ff=-1', 'd_ff=x'])
  def test_wrong_sizes_are_named(self, size):
    with pytest.raises(ValueError, match=f'after tiny:, got .{size}'):
      presets.get(f'tiny:{size}')

  def test_sizes_may_be_numpy_integers(self):
    config = presets.config(presets.get('tiny'), np.int64(2), np.int16(300))
    assert config == presets.config(presets.get('tiny'), 2, 300)
    assert all(type(size) is int for size in config.dims().values())

  def test_a_fraction_is_refused(self):
    with pytest.raises(ValueError, match='num_tokens.*got 2.5'):
      presets.config(presets.get('tiny'), 2, tokens=2.5)

  def test_zero_tokens_are_refused(self):
    with pytest.raises(ValueError, match='num_tokens.*got 0'):
      presets.config(presets.get('tiny'), 2, tokens=0)
