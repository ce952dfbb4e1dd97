"""Configurations are read as Hugging Face means them, or refused by name."""

import dataclasses
import json
import pathlib

import pytest

from hpmoe.models import config as config_lib

FILE = pathlib.Path(__file__).parent / 'testdata/family_defaults.json'
# By `tools/golden/make_family_defaults.py`.
REFERENCE = json.loads(FILE.read_text())
_GOLDEN = json.loads((FILE.parent / 'golden/configs.json').read_text())


# But one whose config.json only holds another's.
FAMILIES = [
  name for name, family in config_lib.FAMILIES.items() if family.holder != name
]
NAN, INF = float('nan'), float('inf')
CONTEXT = 'original_max_position_embeddings'
YARN = {'type': 'yarn', 'factor': 4.0, CONTEXT: 64}


def fields(name: str, **changes) -> dict:
  out = config_lib.load(name).to_hf() | changes
  return {key: value for key, value in out.items() if value != 'absent'}


class TestRoundTrip:
  @pytest.mark.parametrize('name', config_lib.names())
  def test_what_is_written_is_read(self, name):
    config = config_lib.load(name)
    text = json.dumps(config.to_hf())
    assert config_lib.from_hf(json.loads(text)) == config

  @pytest.mark.parametrize('name', config_lib.names())
  def test_transformers_5_writes_rope_in_one_field(self, name):
    file = fields(name)
    scaling = dict(file.pop('rope_scaling') or {'type': 'default'})
    scaling['rope_type'] = scaling.pop('type')
    scaling['rope_theta'] = file.pop('rope_theta')
    file['rope_parameters'] = scaling
    assert config_lib.from_hf(file) == config_lib.load(name)

  def test_both_forms_of_rope_that_agree(self):
    file = fields('deepseek_tiny', rope_scaling=YARN)
    both_forms = file | {'rope_parameters': YARN | {'rope_theta': 10000.0}}
    assert config_lib.from_hf(both_forms) == config_lib.from_hf(file)


class TestMeaning:
  def test_mixtral_has_no_head_dim_and_one_width(self):
    config = config_lib.from_hf(fields('mixtral_8x7b', head_dim='absent'))
    assert config.head_dim == 128
    assert config.moe_intermediate_size == config.intermediate_size == 14336

  @pytest.mark.parametrize('is_used, window', [(True, 64), (False, None)])
  def test_a_window_that_is_not_used_is_none(self, is_used, window):
    file = fields(
      'qwen3_moe_tiny', sliding_window=64, use_sliding_window=is_used
    )
    assert config_lib.from_hf(file).sliding_window == window

  @pytest.mark.parametrize('experts', [0, None])
  def test_no_shared_experts(self, experts):
    config = config_lib.from_hf(
      fields('deepseek_tiny', n_shared_experts=experts)
    )
    assert config.num_shared_experts == 0

  def test_a_greedy_router_ignores_groups(self):
    file = _GOLDEN['deepseek2_groups']
    config = config_lib.from_hf(file | {'topk_method': 'greedy'})
    assert (config.n_group, config.topk_group) == (1, 1)
    assert config.to_hf()['topk_method'] == 'greedy'
    limited = config_lib.from_hf(file)
    assert config_lib.from_hf(limited.to_hf()) == limited
    assert limited.n_group == 4

  def test_the_names_of_pangu_that_vllm_reads(self):
    file, family = fields('pangu_ultra_moe'), config_lib.FAMILIES
    for name, (other,) in family['pangu_ultra_moe'].also_named.items():
      file[other] = file.pop(family['pangu_ultra_moe'].renamed.get(name, name))
    assert config_lib.from_hf(file) == config_lib.load('pangu_ultra_moe')

  @pytest.mark.parametrize('model_type', FAMILIES)
  def test_a_single_weight_is_divided_by_itself_or_not(self, model_type):
    field, renamed = (
      'num_experts_per_tok',
      config_lib.FAMILIES[model_type].renamed,
    )
    file = TestAbsentKeys.SMALL[model_type] | {renamed.get(field, field): 1}
    without_key = ('mixtral', 'deepseek_v2', 'gpt_oss', 'granitemoe')
    if model_type not in (*without_key, 'ernie4_5_moe'):
      file = file | {'norm_topk_prob': True}
    config = config_lib.from_hf(file)
    unnormalised = ('deepseek_v2', 'kimi_k2', 'pangu_ultra_moe')
    assert config.normalizes_weights == (model_type not in unnormalised)

  def test_kimi_k2_is_deepseek_v3_but_for_a_single_weight(self):
    kimi = config_lib.FAMILIES['kimi_k2']
    as_deepseek = dataclasses.replace(kimi, normalizes_one=True)
    assert as_deepseek == config_lib.FAMILIES['deepseek_v3']
    assert not kimi.normalizes_one

  def test_windows_by_turns_unless_a_file_lists_them(self):
    config = config_lib.from_hf(_GOLDEN['gpt_plain'])
    assert list(map(config.has_window, range(2))) == [True, False]
    config = config_lib.from_hf(_GOLDEN['gpt_clamped'])
    assert list(map(config.has_window, range(2))) == [False, True]
    assert config_lib.from_hf(config.to_hf()) == config

  def test_the_megakernel_has_neither_biases_nor_geglu(self):
    families = config_lib.FAMILIES.items()
    left_out = [name for name, family in families if not family.is_launched]
    assert left_out == ['gpt_oss', 'gemma4_text', 'gemma4']

  def test_layers_of_gemma_without_a_window_have_sizes_of_their_own(self):
    raw = _GOLDEN['gemma_keys']
    config = config_lib.from_hf(raw)
    assert [config.head_width(n) for n in range(2)] == [8, 16]
    assert [config.count_key_heads(n) for n in range(2)] == [2, 1]
    assert config_lib.from_hf(config.to_hf()) == config
    # The last layer has none, whatever a file says; as in transformers.
    kinds = ['full_attention', 'sliding_attention']
    config = config_lib.from_hf(raw | {'layer_types': kinds})
    assert config.layer_types == ('full_attention',) * 2
    plain = config_lib.from_hf(raw | {'attention_k_eq_v': False})
    assert plain.count_key_heads(1) == 2
    # As transformers 5.24 writes these sizes.
    by_layer = {'1': {'head_dim': 16, 'num_key_value_heads': 1}}
    own_keys = ('global_head_dim', 'num_global_key_value_heads')
    raw = {name: value for name, value in raw.items() if name not in own_keys}
    config = config_lib.from_hf(raw | {'per_layer_config': by_layer})
    assert config == config_lib.from_hf(_GOLDEN['gemma_keys'])

  @pytest.mark.parametrize(
    'key, value, refusal',
    [
      ('enable_moe_block', None, 'expected True, got'),
      ('enable_moe_block', 'absent', 'expected True, got False'),
      ('hidden_size_per_layer_input', 'absent', 'expected 0, got 256'),
      ('use_bidirectional_attention', 'all', "expected 'vision', got 'all'"),
      ('num_global_key_value_heads', 3, 'expected a divisor of'),
      ('head_dim', 7, 'expected an even width'),
      ('per_layer_config', {'0': {'head_dim': 16}}, 'expected the same'),
      ('per_layer_config', {'1': {'window': 16}}, 'expected the same'),
      ('per_layer_config', 16, 'expected the same'),
      ('rope_parameters', {'rope_theta': 1e4}, 'expected an object for each'),
      (
        'rope_parameters',
        dict(sliding_attention={'factor': 2.0}, full_attention={}),
        "expected rope_type 'default' and rope_theta alone",
      ),
    ],
  )
  def test_what_gemma_is_refused_for(self, key, value, refusal):
    raw = _GOLDEN['gemma_keys'] | {key: value}
    raw = {name: v for name, v in raw.items() if v != 'absent'}
    with pytest.raises(ValueError, match=f'^{key}.*: {refusal}'):
      config_lib.from_hf(raw)

  def test_no_rope_is_yarn_of_gpt_oss(self):
    absent = config_lib.from_hf(_GOLDEN['gpt_plain'])
    null = _GOLDEN['gpt_plain'] | {'rope_scaling': None}
    assert config_lib.from_hf(null) == absent
    assert absent.rope_scaling == config_lib.RopeScaling(
      32.0, 4096, truncate=False
    )

  def test_a_list_says_which_layers_are_dense(self):
    raw = _GOLDEN['glm5_index'] | {'num_hidden_layers': 4}
    for kinds, experts in (
      (['dense', 'dense', 'sparse', 'sparse'], (2, 3)),
      (['sparse', 'dense', 'sparse', 'dense'], (0, 2)),
      (None, (3,)),
    ):
      config = config_lib.from_hf(raw | {'mlp_layer_types': kinds})
      assert config.moe_layers() == experts
      assert config_lib.from_hf(config.to_hf()) == config
    for kinds in (['dense'], ['dense', 'sparse', 'other', 'sparse'], 'dense'):
      with pytest.raises(ValueError, match='^mlp_layer_types: expected '):
        config_lib.from_hf(raw | {'mlp_layer_types': kinds})

  def test_the_text_of_a_model_of_pictures_is_a_qwen3_moe(self):
    config = config_lib.from_hf(_GOLDEN['vision_text'])
    assert config.model_type == 'qwen3_moe' and config.rope_theta == 5e6
    assert config_lib.from_hf(config.to_hf()) == config
    with pytest.raises(ValueError, match='^text_config: expected an object'):
      config_lib.from_hf({'model_type': 'qwen3_vl_moe'})

  def test_the_width_of_a_head_that_rotates(self):
    config = config_lib.from_hf(_GOLDEN['minimax_part'])
    assert config.rope_dim == 8 and config.head_dim == 12
    assert config_lib.from_hf(config.to_hf()) == config
    raw = {
      k: v for k, v in _GOLDEN['minimax_part'].items() if k != 'rotary_dim'
    }
    assert config_lib.from_hf(raw).rope_dim == 12
    for width in (0, 13, '8'):
      with pytest.raises(ValueError, match='^rotary_dim: expected 1 to head_d'):
        config_lib.from_hf(_GOLDEN['minimax_part'] | {'rotary_dim': width})
    with pytest.raises(ValueError, match='^attn_type_list: expected .1, 1'):
      config_lib.from_hf(_GOLDEN['minimax_part'] | {'attn_type_list': [1, 0]})

  def test_each_layer_has_an_indexer_of_its_own(self):
    raw = _GOLDEN['glm5_index']
    full = config_lib.from_hf(raw | {'indexer_types': ['full'] * 2})
    assert full == config_lib.from_hf(raw)
    with pytest.raises(ValueError, match="^indexer_types: expected .'full'"):
      config_lib.from_hf(raw | {'indexer_types': ['full', 'shared']})
    with pytest.raises(ValueError, match='^index_topk_freq: expected 1, got 4'):
      config_lib.from_hf(raw | {'index_topk_freq': 4})

  @pytest.mark.parametrize(
    'name', ['qwen3_llama3', 'qwen3_linear', 'olmoe_dynamic', 'glm_longrope']
  )
  def test_a_kind_of_rope_is_written_as_it_is_read(self, name):
    config = config_lib.from_hf(_GOLDEN[name])
    assert config.rope_scaling.kind == name.partition('_')[2]
    assert config_lib.from_hf(config.to_hf()) == config

  def test_each_fourth_layer_is_of_full_attention_unless_a_file_says(self):
    raw = _GOLDEN['next_plain'] | {'num_hidden_layers': 8}
    linear = lambda **changes: [
      config_lib.from_hf(raw | changes).is_linear(layer) for layer in range(8)
    ]
    assert linear(full_attention_interval=None) == [True, True, True, False] * 2
    assert linear() == [True, False] * 4
    kinds = ['full_attention'] + ['linear_attention'] * 7
    assert linear(layer_types=kinds) == [False] + [True] * 7
    for changes in (
      dict(full_attention_interval=0),
      dict(full_attention_interval=9),
      dict(layer_types=['linear_attention'] * 8),
      dict(layer_types=['sliding_attention'] * 8),
      dict(linear_num_value_heads=3),
      dict(linear_conv_kernel_dim=1),
    ):
      (name, _), *_ = changes.items()
      name = 'layer_types' if changes.get(name) == 9 else name
      with pytest.raises(ValueError, match=f'^{name}: expected '):
        config_lib.from_hf(raw | changes)

  def test_the_text_of_a_kimi_k25_is_a_kimi_k2(self):
    config = config_lib.from_hf(_GOLDEN['kimi_whole'])
    assert config.model_type == 'kimi_k2'
    assert config_lib.from_hf(config.to_hf()) == config

  def test_the_last_layer_with_experts(self):
    config = config_lib.from_hf(_GOLDEN['ernie_start'])
    assert config.moe_layers() == (1,) and config.rope_interleave
    assert config_lib.from_hf(config.to_hf()) == config
    raw = _GOLDEN['ernie_start'] | {'moe_layer_end_index': -1}
    assert config_lib.from_hf(raw).moe_layers() == (1, 2)
    with pytest.raises(ValueError, match='^moe_norm_min: expected 1e-12'):
      config_lib.from_hf(raw | {'moe_norm_min': 0.1})

  def test_one_number_for_each_layer(self):
    config = config_lib.from_hf(_GOLDEN['hunyuan_listed'])
    assert config.num_experts_per_tok == 2
    assert config_lib.from_hf(config.to_hf()) == config
    raw = _GOLDEN['hunyuan_listed'] | {'moe_topk': [2, 3]}
    with pytest.raises(ValueError, match='^moe_topk: expected the same number'):
      config_lib.from_hf(raw)

  def test_an_alpha_of_rope_where_a_family_has_one(self):
    config = config_lib.from_hf(_GOLDEN['hunyuan_alpha'])
    assert config.rope_scaling.alpha == 1000
    assert config_lib.from_hf(config.to_hf()) == config
    scaling = {'type': 'dynamic', 'factor': 2.0, 'alpha': 1000.0}
    with pytest.raises(ValueError, match="^rope_scaling: .* got 'alpha'"):
      config_lib.from_hf(_GOLDEN['olmoe_plain'] | {'rope_scaling': scaling})

  def test_the_text_of_a_qwen3_5_is_a_model_of_its_own(self):
    config = config_lib.from_hf(_GOLDEN['qwen35_whole'])
    assert config.model_type == 'qwen3_5_moe_text' and config.rope_dim == 4
    assert config_lib.from_hf(config.to_hf()) == config

  def test_layers_with_experts(self):
    assert config_lib.load('deepseek_v3').moe_layers() == tuple(range(3, 61))
    file = fields(
      'qwen3_moe_tiny',
      num_hidden_layers=7,
      decoder_sparse_step=2,
      mlp_only_layers=[3],
    )
    assert config_lib.from_hf(file).moe_layers() == (1, 5)

  def test_neighbours_rotate_unless_a_file_says_otherwise(self):
    file = fields('deepseek_tiny', rope_interleave='absent')
    assert config_lib.from_hf(file).rope_interleave
    file['rope_interleave'] = False
    assert not config_lib.from_hf(file).rope_interleave


# As published: https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct has the
# first four, models that unsloth wrote the others.
PUBLISHED = (
  ('qwen3_moe_tiny', 'qkv_bias', False, True),
  ('qwen3_moe_tiny', 'shared_expert_intermediate_size', 0, 64),
  ('qwen3_moe_tiny', 'use_qk_norm', True, False),
  ('qwen3_moe_tiny', 'max_window_layers', 28, None),
  ('mixtral_tiny', 'unsloth_fixed', True, None),
  ('mixtral_tiny', 'unsloth_version', '2025.9.1', None),
  ('mixtral_tiny', '_attn_implementation_autoset', True, None),
  ('deepseek_tiny', 'attention_dropout', 0.1, None),
  ('deepseek_tiny', 'pruned_heads', {}, {'0': [1]}),
  ('deepseek_tiny', 'mlp_bias', False, True),
)


class TestKeysWithoutEffect:
  @pytest.mark.parametrize('name, key, value, other', PUBLISHED)
  def test_change_nothing(self, name, key, value, other):
    raw = fields(name)
    plain = config_lib.from_hf(raw)
    assert config_lib.from_hf(raw | {key: value}) == plain
    if other is not None:
      with pytest.raises(ValueError, match=f'^{key}: expected .*, got '):
        config_lib.from_hf(raw | {key: other})

  def test_a_family_that_computes_with_one_reads_it(self):
    raw = _GOLDEN['qwen2_plain'] | {'qkv_bias': True}
    assert config_lib.from_hf(raw).qkv_bias


def reference(model_type: str) -> dict:
  """Returns the defaults of the keys that are read, under our first names."""
  family, out = config_lib.FAMILIES[model_type], {}
  for field in family.defaults:
    first = family.renamed.get(field, field)
    for name in (first, *family.also_named.get(field, ())):
      if name in REFERENCE[model_type]['defaults']:
        out[first] = REFERENCE[model_type]['defaults'][name]
  return out


def outcome(file: dict) -> config_lib.ModelConfig | str:
  try:
    return config_lib.from_hf(file)
  except ValueError as refusal:
    return str(refusal)


class TestAbsentKeys:
  # Small configurations with another value than the default for most keys.
  SMALL = {
    'deepseek_v2': _GOLDEN['deepseek2_groups'],
    'deepseek_v3': dict(fields('deepseek_tiny'), model_type='deepseek_v3'),
    'kimi_k2': dict(fields('deepseek_tiny'), model_type='kimi_k2'),
    'qwen3_moe': dict(
      fields('qwen3_moe_tiny'),
      use_sliding_window=True,
      sliding_window=3,
      norm_topk_prob=True,
    ),
    'mixtral': dict(
      fields('mixtral_tiny'), sliding_window=3, rms_norm_eps=1e-3
    ),
    'olmoe': dict(_GOLDEN['olmoe_bias'], rms_norm_eps=1e-3),
    'qwen2_moe': _GOLDEN['qwen2_sparse'],
    # One layer more than have a window where the file does not say.
    'dots1': dict(
      _GOLDEN['dots_groups'],
      sliding_window=3,
      num_hidden_layers=63,
      max_window_layers=63,
    ),
    'glm4_moe': _GOLDEN['glm_groups'],
    'gpt_oss': _GOLDEN['gpt_sliding'],
    'pangu_ultra_moe': dict(
      fields('pangu_ultra_moe'), router_enable_expert_bias=True
    ),
    'glm4_moe_lite': _GOLDEN['flash_plain'],
    'deepseek_v32': _GOLDEN['sparse_index'],
    'glm_moe_dsa': _GOLDEN['glm5_index'],
    'solar_open': _GOLDEN['solar_plain'],
    'hy_v3': _GOLDEN['hy_plain'],
    'minimax_m2': _GOLDEN['minimax_part'],
    'qwen3_next': dict(_GOLDEN['next_listed'], decoder_sparse_step=2),
    'qwen3_5_moe_text': _GOLDEN['qwen35_listed'],
    'ernie4_5_moe': _GOLDEN['ernie_start'],
    'granitemoe': _GOLDEN['granite_factors'],
    'hunyuan_v1_moe': _GOLDEN['hunyuan_tied'],
    'gemma4_text': _GOLDEN['gemma_keys']
    | dict(tie_word_embeddings=False, final_logit_softcapping=3.0),
    'qwen3_vl_moe_text': {
      name: value
      for name, value in _GOLDEN['vision_text']['text_config'].items()
      if name != 'rope_parameters'
    },
  }

  @pytest.mark.parametrize('model_type', FAMILIES)
  def test_each_means_what_the_reference_takes(self, model_type):
    small, defaults = self.SMALL[model_type], reference(model_type)
    for key, default in defaults.items():
      shortened = {k: v for k, v in small.items() if k != key}
      assert outcome(shortened) == outcome(small | {key: default}), key

  def test_a_width_of_heads_is_a_part_of_the_whole(self):
    for model_type in FAMILIES:
      family = config_lib.FAMILIES[model_type]
      head_dim = REFERENCE[model_type]['defaults'].get('head_dim')
      if 'head_dim' not in family.defaults or head_dim is not None:
        continue
      small = self.SMALL[model_type]
      shortened = {n: v for n, v in small.items() if n != 'head_dim'}
      config = config_lib.from_hf(shortened)
      heads = config.num_attention_heads
      assert config.head_dim * heads == config.hidden_size, model_type

  @pytest.mark.parametrize('model_type', FAMILIES)
  def test_all_at_once(self, model_type):
    # Nor is any key of the reference unknown here.
    whole = REFERENCE[model_type]['defaults'] | {'model_type': model_type}
    assert outcome({'model_type': model_type}) == outcome(whole)

  @pytest.mark.parametrize('model_type', FAMILIES)
  def test_the_table_has_no_key_that_the_reference_lacks(self, model_type):
    family = config_lib.FAMILIES[model_type]
    # Read with getattr, in one of two forms, or by the published code alone.
    special_keys = {
      *('head_dim', 'rope_scaling', 'moe_layer_freq', 'rope_interleave'),
      *('num_nextn_predict_layers', 'first_k_dense_replace'),
      *('partial_rotary_factor', 'rope_theta', 'window_rope_theta'),
    }
    assert len(reference(model_type)) >= len(
      set(family.defaults) - special_keys
    )


class TestRefusals:
  @pytest.mark.parametrize(
    'name, field, value',
    [
      ('deepseek_tiny', 'model_type', 'llama'),
      ('deepseek_tiny', 'model_type', None),
      ('deepseek_tiny', 'hidden_size', 0),
      ('deepseek_tiny', 'hidden_size', None),
      ('deepseek_tiny', 'index_topk', 64),
      ('pangu_ultra_moe', 'topk_group', 2),
      ('deepseek_tiny', 'hidden_size', '128'),
      ('deepseek_tiny', 'hidden_size', True),
      ('deepseek_tiny', 'hidden_size', 10**400),
      ('deepseek_tiny', 'q_lora_rank', 2**31),
      ('deepseek_tiny', 'rms_norm_eps', 10**400),
      ('deepseek_tiny', 'rope_theta', 10**400),
      ('deepseek_tiny', 'rope_scaling', YARN | {'factor': 10**400}),
      ('deepseek_tiny', 'rope_scaling', YARN | {CONTEXT: 10**400}),
      ('deepseek_tiny', 'hidden_act', 'relu'),
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
      ('deepseek_tiny', 'rope_scaling', {'type': 'yarn', 'truncate': 1}),
      ('deepseek_tiny', 'rope_scaling', {'partial_rotary_factor': 0.5}),
      ('deepseek_tiny', 'rope_scaling', {'factor': 4.0}),
      ('deepseek_tiny', 'rope_scaling', {'rope_type': [], 'type': 'yarn'}),
      ('deepseek_tiny', 'rope_scaling', [4.0]),
      ('deepseek_tiny', 'rope_scaling', YARN | {'rope_type': 'default'}),
      ('deepseek_tiny', 'rope_scaling', YARN | {'rope_theta': 1e6}),
      ('deepseek_tiny', 'rope_parameters', YARN | {'factor': 8.0}),
      ('deepseek_tiny', 'rope_parameters', {'rope_theta': 1e6}),
      ('deepseek_tiny', 'rope_parameters', {'rope_type': 'default'}),
      ('deepseek_tiny', 'rope_theta', 1),
      ('deepseek_tiny', 'rope_theta', 0),
      ('deepseek_tiny', 'rope_theta', -1e4),
      ('deepseek_tiny', 'rope_theta', float('nan')),
      ('deepseek_tiny', 'torch_dtype', 'float8_e4m3fn'),
      ('qwen3_moe_tiny', 'num_key_value_heads', 3),
      ('qwen3_moe_tiny', 'mlp_only_layers', [4]),
      ('qwen3_moe_tiny', 'mlp_only_layers', ['a']),
      ('qwen3_moe_tiny', 'rms_norm_eps', float('nan')),
      ('mixtral_tiny', 'num_experts_per_tok', 9),
      ('mixtral_tiny', 'sliding_window', 0),
    ],
  )
  def test_a_field_is_named(self, name, field, value):
    file_keys = {
      'n_routed_experts': 'num_experts_per_tok',
      'torch_dtype': 'dtype',
    }
    expected = file_keys.get(field, field)
    file = fields(name, rope_scaling=YARN) | {field: value}
    with pytest.raises(ValueError, match=f'^{expected}[.:a-z_]* ?expected '):
      config_lib.from_hf(file)

  @pytest.mark.parametrize('key', ['rope_scaling', 'rope_parameters'])
  @pytest.mark.parametrize(
    'field, values',
    [
      ('factor', (0, 0.5, -4, NAN, INF)),
      ('original_max_position_embeddings', (0, -1, 16.5)),
      ('beta_slow', (0, -1, NAN)),
      ('beta_fast', (0.5, NAN, INF)),
      ('mscale', (-1, NAN)),
      ('mscale_all_dim', (-1, INF)),
      ('attention_factor', (0, -1, NAN)),
      ('rope_theta', (1e6, NAN, '1e4')),
    ],
  )
  def test_a_number_of_yarn_out_of_range(self, key, field, values):
    file = fields('deepseek_tiny', rope_scaling='absent')
    for value in values:
      with pytest.raises(ValueError, match=f'^{key}.{field}: expected .*got'):
        config_lib.from_hf(file | {key: YARN | {field: value}})
      if field != 'rope_theta' and value != 16.5:
        scaling = config_lib.RopeScaling(
          **{'factor': 4.0, CONTEXT: 64, field: value}
        )
        with pytest.raises(ValueError, match=f'^rope_scaling.{field}: exp'):
          dataclasses.replace(
            config_lib.load('deepseek_tiny'), rope_scaling=scaling
          )

  @pytest.mark.parametrize(
    'golden, field, value',
    [
      ('dots_groups', 'layer_types', ['full_attention', 'chunked_attention']),
      ('dots_groups', 'num_experts_per_tok', None),
      ('dots_groups', 'n_shared_experts', None),
      ('qwen2_plain', 'layer_types', ['sliding_attention'] * 2),
      ('olmoe_plain', 'clip_qkv', -1.0),
      ('deepseek2_groups', 'norm_topk_prob', True),
      ('deepseek2_groups', 'rope_interleave', False),
      ('deepseek2_groups', 'topk_method', 'noaux_tc'),
      ('deepseek2_groups', 'topk_method', None),
      ('deepseek2_groups', 'topk_group', None),
      ('deepseek2_groups', 'scoring_func', 'sigmoid'),
      ('glm_groups', 'partial_rotary_factor', 0.0),
      ('glm_groups', 'partial_rotary_factor', 1.5),
      ('glm_groups', 'partial_rotary_factor', '0.5'),
      ('glm_groups', 'head_dim', 10),
      ('gpt_plain', 'layer_types', ['full_attention']),
      ('gpt_plain', 'layer_types', ['full_attention', 'chunked_attention']),
      ('gpt_plain', 'layer_types', [1, 2]),
      ('gpt_plain', 'layer_types', 'full_attention'),
      ('gpt_plain', 'swiglu_limit', 0.0),
      ('gpt_plain', 'swiglu_alpha', -1.0),
      ('gpt_plain', 'swiglu_alpha', None),
      ('gpt_plain', 'num_experts', 7),
      ('gpt_plain', 'experts_per_token', 3),
    ],
  )
  def test_what_one_family_alone_has(self, golden, field, value):
    with pytest.raises(ValueError, match=f'^{field}: expected .* got '):
      config_lib.from_hf(_GOLDEN[golden] | {field: value})

  @pytest.mark.parametrize(
    'golden, field, value',
    [
      ('qwen3_llama3', 'low_freq_factor', 0.0),
      ('qwen3_llama3', 'low_freq_factor', 'absent'),
      ('qwen3_llama3', 'high_freq_factor', 1.0),
      ('qwen3_llama3', 'beta_fast', 32.0),
      ('qwen3_linear', 'factor', 0.5),
      ('olmoe_dynamic', 'factor', 'absent'),
      ('glm_longrope', 'short_factor', [1.0]),
      ('glm_longrope', 'short_factor', [1.0, 0.0]),
      ('glm_longrope', 'long_factor', [1.0, '2']),
      ('glm_longrope', 'original_max_position_embeddings', 1),
    ],
  )
  def test_a_number_of_another_kind_of_rope(self, golden, field, value):
    scaling = _GOLDEN[golden]['rope_scaling'] | {field: value}
    scaling = {n: v for n, v in scaling.items() if v != 'absent'}
    refusal = f'^rope_scaling.*{field}'
    with pytest.raises(ValueError, match=refusal) as error:
      config_lib.from_hf(_GOLDEN[golden] | {'rope_scaling': scaling})
    assert len(str(error.value)) < 300

  def test_layers_with_a_window_unless_a_file_lists_them(self):
    near, full = 'sliding_attention', 'full_attention'
    windows = dict(sliding_window=3, num_hidden_layers=3)
    dots = config_lib.from_hf(
      _GOLDEN['dots_groups'] | windows | {'max_window_layers': 1}
    )
    assert dots.layer_types == (full, near, near)
    changes = windows | {'max_window_layers': 2, 'use_sliding_window': True}
    qwen = config_lib.from_hf(_GOLDEN['qwen2_plain'] | changes)
    assert qwen.layer_types == (near, full, full)
    assert [qwen.has_window(n) for n in range(3)] == [True, False, False]

  def test_listed_layers_without_a_window(self):
    changes = {'layer_types': ['full_attention'] * 2, 'max_window_layers': 0}
    config = config_lib.from_hf(_GOLDEN['dots_groups'] | changes)
    assert config.sliding_window is None

  def test_parts_of_a_head_that_rotates_that_disagree(self):
    file = _GOLDEN['glm_yarn'] | {'partial_rotary_factor': 0.5}
    name = 'partial_rotary_factor'
    refusal = f'^rope_parameters.{name}: expected {name}=0.5, got 0.75$'
    with pytest.raises(ValueError, match=refusal):
      config_lib.from_hf(file)

  def test_two_names_of_a_field_that_disagree(self):
    file = fields('pangu_ultra_moe', n_routed_experts=8)
    with pytest.raises(ValueError, match='^n_routed_experts: .*experts=256'):
      config_lib.from_hf(file)

  def test_a_dataclass_is_checked_too(self):
    config = config_lib.load('qwen3_moe_tiny')
    with pytest.raises(ValueError, match='^hidden_size: expected >= 1, got -1'):
      dataclasses.replace(config, hidden_size=-1)
    with pytest.raises(ValueError, match='^vocab_size: expected <= 2147483647'):
      dataclasses.replace(config, vocab_size=10**400)

  @pytest.mark.parametrize(
    'text', ['', '[]', '{', '\xff', '{"hidden_size": 1' + '0' * 5000 + '}']
  )
  def test_a_file_that_is_no_configuration(self, tmp_path, text):
    path = tmp_path / 'config.json'
    path.write_bytes(text.encode('latin-1'))
    with pytest.raises(ValueError, match=f'^{path}: expected'):
      config_lib.load(str(path))

  def test_a_name_that_is_none(self):
    with pytest.raises(ValueError, match='^model: .*deepseek_tiny.*got .none.'):
      config_lib.load('none')
