"""Configurations are read as Hugging Face means them, or refused by name."""

import dataclasses
import json

import pytest

from hpmoe.models import config as config_lib


def fields(name: str, **changed) -> dict:
  out = config_lib.load(name).to_hf() | changed
  return {key: value for key, value in out.items() if value != 'absent'}


class TestRoundTrip:
  @pytest.mark.parametrize('name', config_lib.names())
  def test_what_is_written_is_read(self, name):
    given = config_lib.load(name)
    text = json.dumps(given.to_hf())
    assert config_lib.from_hf(json.loads(text)) == given

  @pytest.mark.parametrize('name', config_lib.names())
  def test_transformers_5_writes_rope_in_one_field(self, name):
    given = fields(name)
    scaling = dict(given.pop('rope_scaling') or {'type': 'default'})
    scaling['rope_type'] = scaling.pop('type')
    scaling['rope_theta'] = given.pop('rope_theta')
    given['rope_parameters'] = scaling
    assert config_lib.from_hf(given) == config_lib.load(name)


class TestMeaning:
  def test_mixtral_has_no_head_dim_and_one_width(self):
    config = config_lib.from_hf(fields('mixtral_8x7b', head_dim='absent'))
    assert config.head_dim == 128
    assert config.moe_intermediate_size == config.intermediate_size == 14336

  @pytest.mark.parametrize('used, window', [(True, 64), (False, None)])
  def test_a_window_that_is_not_used_is_none(self, used, window):
    given = fields('qwen3_moe_tiny', sliding_window=64, use_sliding_window=used)
    assert config_lib.from_hf(given).sliding_window == window

  def test_layers_with_experts(self):
    assert config_lib.load('deepseek_v3').moe_layers() == tuple(range(3, 61))
    given = fields(
      'qwen3_moe_tiny',
      num_hidden_layers=7,
      decoder_sparse_step=2,
      mlp_only_layers=[3],
    )
    assert config_lib.from_hf(given).moe_layers() == (1, 5)

  def test_neighbours_rotate_unless_a_file_says_otherwise(self):
    given = fields('deepseek_tiny', rope_interleave='absent')
    assert config_lib.from_hf(given).rope_interleave
    given['rope_interleave'] = False
    assert not config_lib.from_hf(given).rope_interleave


class TestRefusals:
  @pytest.mark.parametrize(
    'name, field, value',
    [
      ('deepseek_tiny', 'model_type', 'llama'),
      ('deepseek_tiny', 'model_type', None),
      ('deepseek_tiny', 'hidden_size', 'absent'),
      ('deepseek_tiny', 'hidden_size', 0),
      ('deepseek_tiny', 'hidden_size', '128'),
      ('deepseek_tiny', 'hidden_size', True),
      ('deepseek_tiny', 'hidden_act', 'gelu'),
      ('deepseek_tiny', 'scoring_func', 'softmax'),
      ('deepseek_tiny', 'topk_method', 'greedy'),
      ('deepseek_tiny', 'n_routed_experts', 2),
      ('deepseek_tiny', 'n_group', 3),
      ('deepseek_tiny', 'n_group', 16),
      ('deepseek_tiny', 'topk_group', 5),
      ('deepseek_tiny', 'num_key_value_heads', 2),
      ('deepseek_tiny', 'qk_rope_head_dim', 15),
      ('deepseek_tiny', 'norm_topk_prob', 1),
      ('deepseek_tiny', 'num_nextn_predict_layers', 2),
      ('deepseek_tiny', 'q_lora_rank', 0),
      ('deepseek_tiny', 'rope_scaling', {'type': 'llama3', 'factor': 2}),
      ('deepseek_tiny', 'rope_scaling', {'type': 'yarn'}),
      ('deepseek_tiny', 'rope_scaling', {'type': 'yarn', 'factor': 'x'}),
      ('deepseek_tiny', 'rope_scaling', {'type': 'yarn', 'truncate': False}),
      ('deepseek_tiny', 'torch_dtype', 'float8_e4m3fn'),
      ('qwen3_moe_tiny', 'num_key_value_heads', 3),
      ('qwen3_moe_tiny', 'mlp_only_layers', [4]),
      ('qwen3_moe_tiny', 'mlp_only_layers', ['a']),
      ('qwen3_moe_tiny', 'rms_norm_eps', float('nan')),
      ('mixtral_tiny', 'num_local_experts', 'absent'),
      ('mixtral_tiny', 'num_experts_per_tok', 9),
      ('mixtral_tiny', 'sliding_window', 0),
    ],
  )
  def test_a_field_is_named(self, name, field, value):
    named = {'n_routed_experts': 'num_experts_per_tok', 'torch_dtype': 'dtype'}
    expected = named.get(field, field)
    with pytest.raises(ValueError, match=f'^{expected}[.:a-z]* ?expected '):
      config_lib.from_hf(fields(name, **{field: value}))

  def test_a_dataclass_is_checked_too(self):
    config = config_lib.load('qwen3_moe_tiny')
    with pytest.raises(ValueError, match='^hidden_size: expected >= 1, got -1'):
      dataclasses.replace(config, hidden_size=-1)

  @pytest.mark.parametrize('text', ['', '[]', '{', '\xff'])
  def test_a_file_that_is_no_configuration(self, tmp_path, text):
    path = tmp_path / 'config.json'
    path.write_bytes(text.encode('latin-1'))
    with pytest.raises(ValueError, match=f'^{path}: expected'):
      config_lib.load(str(path))

  def test_a_name_that_is_none(self):
    with pytest.raises(ValueError, match='^model: .*deepseek_tiny.*got .none.'):
      config_lib.load('none')
