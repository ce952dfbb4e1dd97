"""Folders of Hugging Face: every tensor in its place, every fault named."""

import json
import pathlib
import re
import shutil

import ml_dtypes
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import golden_testing as golden
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import expert_layout
from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.checkpoint import model_testing
from hpmoe.models.checkpoint import weights as weights_lib

DEEPSEEK, QWEN, MIXTRAL, STACKED, GPT, MXFP4 = (
  model_testing.TESTDATA / name for name in model_testing.FOLDERS
)

_WIDE = dict(
  hidden_size=136, num_hidden_layers=1, dtype='bfloat16', head_dim=72
)


class TestRead:
  @pytest.mark.parametrize(
    'folder, layer, prefix, names',
    [
      (DEEPSEEK, 1, 'mlp', ('gate_proj', 'up_proj', 'down_proj')),
      (QWEN, 0, 'mlp', ('gate_proj', 'up_proj', 'down_proj')),
      (MIXTRAL, 1, 'block_sparse_moe', ('w1', 'w3', 'w2')),
    ],
  )
  def test_experts_are_stacked(self, folder, layer, prefix, names):
    # given a folder that transformers wrote
    files = model_testing.tensors(folder)
    # when
    weights = hf_folder.read(folder).load()
    # then
    prefix = f'model.layers.{layer}.{prefix}.experts'
    gate_up, down = weights[f'{prefix}.w_gate_up'], weights[f'{prefix}.w_down']
    width = gate_up.shape[2] // 2
    for e in range(4):
      gate, up, out = (files[f'{prefix}.{e}.{n}.weight'] for n in names)
      np.testing.assert_array_equal(gate_up[e, :, :width], gate.T)
      np.testing.assert_array_equal(gate_up[e, :, width:], up.T)
      np.testing.assert_array_equal(down[e], out.T)

  def test_stacked_files_hold_the_same_model(self):
    listed_weights, stacked = (
      hf_folder.read(f).load() for f in (MIXTRAL, STACKED)
    )
    assert not set(model_testing.tensors(STACKED)) & {
      name for name in model_testing.tensors(MIXTRAL) if 'experts' in name
    }
    model_testing.assert_same(listed_weights, stacked)

  def test_gates_and_ups_by_turns(self):
    files, weights = model_testing.tensors(GPT), hf_folder.read(GPT).load()
    block = 'model.layers.1.mlp'
    for file_name, name in (
      ('experts.gate_up_proj', 'experts.w_gate_up'),
      ('experts.gate_up_proj_bias', 'experts.b_gate_up'),
      ('experts.down_proj', 'experts.w_down'),
      ('experts.down_proj_bias', 'experts.b_down'),
      ('router.bias', 'router.bias'),
    ):
      want = files[f'{block}.{file_name}']
      if 'gate_up' in name:
        want = np.concatenate([want[..., 0::2], want[..., 1::2]], axis=-1)
      np.testing.assert_array_equal(weights[f'{block}.{name}'], want)

  def test_mxfp4_is_what_transformers_makes_of_it(self):
    codes = model_testing.tensors(MXFP4)
    name = 'model.layers.0.mlp.experts.gate_up_proj'
    assert name not in codes
    assert codes[f'{name}_blocks'].dtype == np.uint8
    plain, coded = hf_folder.read(GPT), hf_folder.read(MXFP4)
    model_testing.assert_same(coded.load(), plain.load())
    assert 'quantization_config' not in coded.fields

  def test_a_dtype_that_is_asked_for(self):
    rounded = hf_folder.read(QWEN, 'bfloat16')
    name = 'model.norm.weight'
    want = model_testing.tensors(QWEN)[name].astype(ml_dtypes.bfloat16)
    assert rounded.fields['dtype'] == 'bfloat16'
    assert rounded.read(name).tobytes() == want.tobytes()

  def test_float16_is_widened(self, tmp_path):
    # given a folder in float16
    files = {
      name: tensor.astype(np.float16)
      for name, tensor in model_testing.tensors(QWEN).items()
    }
    model_testing.write_folder(tmp_path / 'f16', QWEN, files, dtype='float16')
    # when
    weights = hf_folder.read(tmp_path / 'f16')
    # then
    assert weights.fields['dtype'] == 'float32'
    want = files['model.norm.weight'].astype(np.float32)
    np.testing.assert_array_equal(weights.read('model.norm.weight'), want)

  def test_no_shared_experts(self, tmp_path):
    # given what transformers saves of them: matrices without rows
    files = {
      name: tensor[:0] if 'shared_experts' in name else tensor
      for name, tensor in model_testing.tensors(DEEPSEEK).items()
    }
    assert any('shared_experts' in name for name in files)
    folder = model_testing.write_folder(
      tmp_path / 'none', DEEPSEEK, files, n_shared_experts=0
    )
    assert not [n for n in hf_folder.read(folder).load() if 'shared' in n]

  def test_a_tied_head_that_is_repeated(self, tmp_path):
    files = model_testing.tensors(QWEN)
    files['lm_head.weight'] = files['model.embed_tokens.weight']
    folder = model_testing.write_folder(tmp_path / 'same', QWEN, files)
    assert 'lm_head.weight' not in hf_folder.read(folder).specs
    files['lm_head.weight'] = files['lm_head.weight'] + 1
    with pytest.raises(ValueError, match='lm_head.weight: expected the bits'):
      hf_folder.read(
        model_testing.write_folder(tmp_path / 'other', QWEN, files)
      )


# Of golden configurations with weights of seed 0, by transformers 5.23 or 5.24.
GOLDEN = {
  'hy_v3': 'hy_plain',
  'qwen3_vl_moe': 'vision_text',
  'glm_moe_dsa': 'glm5_index',
  'qwen3_5_moe': 'qwen35_whole',
  'qwen3_next': 'next_listed',
  'ernie4_5_moe': 'ernie_plain',
  'granitemoe': 'granite_plain',
  'hunyuan_v1_moe': 'hunyuan_plain',
  'gemma4_text': 'gemma_keys',
}


class TestOtherNames:
  @pytest.mark.parametrize('folder, golden_name', GOLDEN.items())
  def test_weights_under_the_names_of_a_family(self, folder, golden_name):
    parameters = hf_folder.read(model_testing.TESTDATA / folder).load()
    weights = golden.weights(golden_name, 0)
    assert parameters.keys() == weights.keys()
    for name, value in weights.items():
      np.testing.assert_array_equal(
        parameters[name].astype(np.float64), value, name
      )

  @pytest.mark.parametrize(
    'folder',
    ['hy_v3', 'glm_moe_dsa', 'qwen3_next', 'ernie4_5_moe', 'granitemoe']
    + ['hunyuan_v1_moe', 'gemma4_text'],
  )
  def test_are_written_under_them(self, tmp_path, folder):
    source = model_testing.TESTDATA / folder
    convert.write(tmp_path / 'back', convert.read(source))
    back = model_testing.tensors(tmp_path / 'back')
    files = model_testing.tensors(source)
    assert back.keys() == files.keys()
    for name, tensor in files.items():
      np.testing.assert_array_equal(back[name].astype(tensor.dtype), tensor)

  def test_a_bias_of_a_router_beside_it(self, tmp_path):
    weights = golden.weights('minimax_part', 0)
    config = golden.config('minimax_part')
    convert.write(
      tmp_path / 'm2', weights_lib.of_parameters(config, weights, {})
    )
    name = 'model.layers.1.block_sparse_moe.e_score_correction_bias'
    assert name in model_testing.tensors(tmp_path / 'm2')
    parameters = hf_folder.read(tmp_path / 'm2', 'float64').load()
    model_testing.assert_same(parameters, weights)

  def test_gemma_beside_towers(self, tmp_path):
    # given the names of Gemma4ForConditionalGeneration
    source = model_testing.TESTDATA / 'gemma4_text'
    text = model_testing.tensors(source)
    files = {
      name.replace('model.', 'model.language_model.', 1): text[name]
      for name in text
    }
    tower = {'model.vision_tower.a': np.ones(3), 'model.embed_vision.b': [1.0]}
    files |= {name: np.asarray(value) for name, value in tower.items()}
    fields = model_testing.read_fields(source)
    holder = dict(model_type='gemma4', text_config=fields)
    (tmp_path / 'gemma4').mkdir()
    model_testing.save(tmp_path / 'gemma4/model.safetensors', files)
    (tmp_path / 'gemma4/config.json').write_text(json.dumps(holder))
    # then
    weights = hf_folder.read(tmp_path / 'gemma4')
    model_testing.assert_same(weights.load(), hf_folder.read(source).load())
    # and what is written is text alone
    convert.write(tmp_path / 'text', weights)
    back = model_testing.tensors(tmp_path / 'text')
    assert back.keys() == text.keys()
    fields = model_testing.read_fields(tmp_path / 'text')
    assert fields['model_type'] == 'gemma4_text'

  @pytest.mark.parametrize('layers', ['layers', 'blocks'])
  def test_text_beside_a_tower(self, tmp_path, layers):
    # given
    weights = golden.weights('kimi_whole', 0)
    weights = {n: value.astype(np.float32) for n, value in weights.items()}
    config = golden.config('kimi_whole')
    convert.write(
      tmp_path / 'text', weights_lib.of_parameters(config, weights, {})
    )
    text = model_testing.tensors(tmp_path / 'text')
    files = {  # as published, or saved by transformers 5.24
      f'language_model.{name.replace("model.layers.", f"model.{layers}.")}': a
      for name, a in text.items()
    }
    tower = {'vision_tower.a': np.ones(3), 'model.mm_projector.b': np.ones(2)}
    fields = golden.CONFIGS['kimi_whole'] | {
      'architectures': ['KimiK25ForConditionalGeneration']
    }
    (tmp_path / 'whole').mkdir()
    model_testing.save(tmp_path / 'whole/model.safetensors', files | tower)
    (tmp_path / 'whole/config.json').write_text(json.dumps(fields))
    # then
    parameters = hf_folder.read(tmp_path / 'whole').load()
    model_testing.assert_same(parameters, weights)

  def test_stacked_experts_of_either_order(self, tmp_path, seed):
    # given experts [E, in, out], as published, of widths that tell
    fields = model_testing.read_fields(model_testing.TESTDATA / 'qwen3_vl_moe')
    fields['text_config']['moe_intermediate_size'] = 24
    weights = model_testing.parameters(config_lib.from_hf(fields), seed)
    stacked = dict(w_gate_up='gate_up_proj', w_down='down_proj')
    family = config_lib.FAMILIES['qwen3_vl_moe_text']
    files = {}
    for name, value in weights.items():
      for part, file_part in stacked.items():
        name = name.replace(part, file_part)
      files[expert_layout.rename(family, name)] = value
    (tmp_path / 'vl').mkdir()
    model_testing.save(tmp_path / 'vl/model.safetensors', files)
    (tmp_path / 'vl/config.json').write_text(json.dumps(fields))
    # then
    model_testing.assert_same(hf_folder.read(tmp_path / 'vl').load(), weights)

  def test_the_text_of_a_model_of_pictures_is_one_of_text(self, tmp_path):
    source = model_testing.TESTDATA / 'qwen3_vl_moe'
    convert.write(tmp_path / 'text', convert.read(source))
    assert (
      model_testing.read_fields(tmp_path / 'text')['model_type'] == 'qwen3_moe'
    )
    text = convert.read(tmp_path / 'text')
    model_testing.assert_same(text.load(), convert.read(source).load())
    assert not [
      n for n in model_testing.tensors(tmp_path / 'text') if 'vis' in n
    ]


class TestRoundTrip:
  @pytest.mark.parametrize('folder', [DEEPSEEK, QWEN, MIXTRAL, GPT])
  def test_gives_the_same_tensors(self, tmp_path, folder):
    # given a folder of transformers
    convert.write(tmp_path / 'back', convert.read(folder))
    # then
    assert convert.format_of(tmp_path / 'back') == 'hf'
    model_testing.assert_same(
      model_testing.tensors(tmp_path / 'back'), model_testing.tensors(folder)
    )
    assert model_testing.read_fields(
      tmp_path / 'back'
    ) == model_testing.read_fields(folder)
    before, after = (
      (f / 'generation_config.json').read_bytes()
      for f in (folder, tmp_path / 'back')
    )
    assert before == after

  def test_files_of_text_travel_with_the_weights(self, tmp_path):
    shutil.copytree(QWEN, tmp_path / 'in')
    (tmp_path / 'in/additional_chat_templates').mkdir()
    names = ('additional_chat_templates/tools.jinja', 'added_tokens.json')
    for name in names:
      (tmp_path / 'in' / name).write_text(name)
    convert.write(tmp_path / 'out', convert.read(tmp_path / 'in'))
    for name in names:
      assert (tmp_path / 'out' / name).read_text() == name

  @pytest.mark.parametrize('name', ['deepseek_tiny', 'mixtral_tiny'])
  def test_a_model_in_memory_in_shards(self, tmp_path, seed, name):
    # given
    config = config_lib.load(name)
    params = model_testing.parameters(config, seed)
    # when
    (tmp_path / 'hf').mkdir()
    hf_folder.write(
      tmp_path / 'hf', weights_lib.of_parameters(config, params), 300_000
    )
    (tmp_path / 'hf/config.json').write_text(json.dumps(config.to_hf()))
    # then
    shards = sorted(p.name for p in tmp_path.glob('hf/*.safetensors'))
    assert len(shards) > 1
    assert shards[0] == f'model-00001-of-{len(shards):05d}.safetensors'
    model_testing.assert_same(hf_folder.read(tmp_path / 'hf').load(), params)

  def test_an_mtp_head_and_what_it_shares(self, tmp_path, seed):
    # given a model with a head that predicts one token further
    config = config_lib.load('deepseek_tiny')
    fields = config.to_hf() | {'num_nextn_predict_layers': 1}
    config = config_lib.from_hf(fields)
    params = model_testing.parameters(config, seed)
    # when
    out = tmp_path / 'hf'
    convert.write(out, weights_lib.of_parameters(config, params))
    # then published files hold its copies of embeddings and head, and so do we
    last = f'model.layers.{config.num_hidden_layers}'
    files = model_testing.tensors(out)
    np.testing.assert_array_equal(
      files[f'{last}.shared_head.head.weight'], files['lm_head.weight']
    )
    model_testing.assert_same(convert.read(out).load(), params)


class TestFloat8:
  @pytest.fixture
  def quantised(self, tmp_path, seed) -> tuple[pathlib.Path, dict]:
    """Returns a folder, and its tensors; no width is a multiple of a block."""
    config = config_lib.from_hf(model_testing.read_fields(QWEN) | _WIDE)
    params = model_testing.parameters(config, seed)
    convert.write(tmp_path / 'bf16', weights_lib.of_parameters(config, params))
    files = model_testing.tensors(tmp_path / 'bf16')
    rng = np.random.default_rng(seed)
    for name in [n for n in files if n.endswith('_proj.weight')]:
      rows, columns = files[name].shape
      files[name] = files[name].astype(ml_dtypes.float8_e4m3fn)
      blocks = (-(-rows // 128), -(-columns // 128))
      scale = rng.uniform(0.5, 2, blocks).astype(np.float32)
      files[name + '_scale_inv'] = scale
    quantised = dict(quant_method='fp8', weight_block_size=[128, 128])
    fields = _WIDE | dict(quantization_config=quantised)
    return model_testing.write_folder(
      tmp_path / 'f8', QWEN, files, **fields
    ), files

  @pytest.mark.parametrize(
    'name, tensor',
    [
      ('self_attn.o_proj.weight', 'self_attn.o_proj.weight'),
      ('mlp.experts.w_down', 'mlp.experts.1.down_proj.weight'),
    ],
  )
  def test_is_the_product_of_weight_and_scale(self, quantised, name, tensor):
    folder, files = quantised
    read = hf_folder.read(folder)
    assert 'quantization_config' not in read.fields
    actual = read.read(f'model.layers.0.{name}')
    weight = files[f'model.layers.0.{tensor}']
    scale = files[f'model.layers.0.{tensor}_scale_inv']
    assert weight.shape[0] % 128 and weight.shape[0] > 128
    rows, columns = np.indices(weight.shape)
    want = weight.astype(np.float32) * scale[rows // 128, columns // 128]
    actual = actual[1].T if 'experts' in name else actual
    np.testing.assert_array_equal(actual, want.astype(ml_dtypes.bfloat16))

  def test_without_its_scale(self, quantised):
    folder, files = quantised
    del files['model.layers.0.self_attn.o_proj.weight_scale_inv']
    model_testing.save(folder / 'model.safetensors', files)
    with pytest.raises(ValueError, match='1 missing: .*o_proj.weight_scale_i'):
      hf_folder.read(folder)

  def test_another_way_to_quantise_is_refused(self, quantised):
    folder, _ = quantised
    fields = model_testing.read_fields(folder)
    fields |= dict(quantization_config={'quant_method': 'awq'})
    (folder / 'config.json').write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="blocks of weights, got 'awq'"):
      hf_folder.read(folder)

  def test_scales_that_are_powers_of_two_alone(self, quantised):
    # given scales in a byte each, and the same in float32
    folder, files = quantised
    for name in [n for n in files if n.endswith('_scale_inv')]:
      files[name] = np.exp2(np.round(np.log2(files[name])))
    model_testing.save(folder / 'model.safetensors', files)
    want = hf_folder.read(folder).load()
    powers = {
      name: tensor.astype(ml_dtypes.float8_e8m0fnu)
      if name.endswith('_scale_inv')
      else tensor
      for name, tensor in files.items()
    }
    assert {t.dtype.name for t in powers.values()} >= {'float8_e8m0fnu'}
    model_testing.save(folder / 'model.safetensors', powers)
    # then
    model_testing.assert_same(hf_folder.read(folder).load(), want)

  def test_experts_of_a_layer_in_one_tensor(self, quantised):
    # given the experts' weights and scales stacked, as transformers 5 has them;
    # gates and ups lie in one block
    folder, files = quantised
    for name in [n for n in files if n.endswith('gate_proj.weight_scale_inv')]:
      files[name.replace('gate_proj', 'up_proj')] = files[name]
    model_testing.save(folder / 'model.safetensors', files)
    want = hf_folder.read(folder).load()
    prefix = 'model.layers.0.mlp.experts.'
    stacked = {n: t for n, t in files.items() if not n.startswith(prefix)}
    for end in ('', '_scale_inv'):
      parts = {
        part: np.stack(
          [files[f'{prefix}{e}.{part}_proj.weight{end}'] for e in range(4)]
        )
        for part in ('gate', 'up', 'down')
      }
      gate_up = np.concatenate([parts['gate'], parts['up']], axis=1)
      gate_up = parts['gate'] if end else gate_up
      stacked[f'{prefix}gate_up_proj{end}'] = gate_up
      stacked[f'{prefix}down_proj{end}'] = parts['down']
    model_testing.save(folder / 'model.safetensors', stacked)
    # then
    model_testing.assert_same(hf_folder.read(folder).load(), want)


class TestDtypes:
  def _bfloat16(self, folder) -> dict[str, np.ndarray]:
    config = config_lib.from_hf(
      model_testing.read_fields(QWEN) | {'dtype': 'bfloat16'}
    )
    params = model_testing.parameters(config, 0)
    convert.write(folder, weights_lib.of_parameters(config, params))
    return model_testing.tensors(folder)

  @pytest.mark.parametrize('dtype', ['float8_e8m0fnu', 'float8_e5m2'])
  def test_a_buffer_in_eight_bits_is_no_error(self, tmp_path, dtype):
    files = self._bfloat16(tmp_path / 'a')
    want = hf_folder.read(tmp_path / 'a').load()
    buffer = np.ones(4, getattr(ml_dtypes, dtype))
    name = 'model.layers.0.self_attn.rotary_emb.inv_freq'
    model_testing.save(tmp_path / 'a/model.safetensors', files | {name: buffer})
    model_testing.assert_same(hf_folder.read(tmp_path / 'a').load(), want)

  def test_weights_in_five_bits_of_exponent_are_themselves(self, tmp_path):
    files = self._bfloat16(tmp_path / 'a')
    name = 'model.layers.0.self_attn.q_proj.weight'
    files[name] = files[name].astype(ml_dtypes.float8_e5m2)
    model_testing.save(tmp_path / 'a/model.safetensors', files)
    read = hf_folder.read(tmp_path / 'a').read(name)
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, files[name].astype(read.dtype))

  def test_a_dtype_that_is_not_known_is_named_with_its_tensor(self, tmp_path):
    self._bfloat16(tmp_path / 'a')
    header = b'{"a.b":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    content = len(header).to_bytes(8, 'little') + header + bytes(1)
    (tmp_path / 'a/model.safetensors').write_bytes(content)
    with pytest.raises(ValueError, match=r'a\.b of F4, expected F64, F32'):
      hf_folder.read(tmp_path / 'a')

  def test_a_norm_in_float32_is_read_if_it_need_not_be_rounded(self, tmp_path):
    # given a file in bfloat16 with one norm in float32
    files = self._bfloat16(tmp_path / 'a')
    want = hf_folder.read(tmp_path / 'a').load()
    files['model.norm.weight'] = files['model.norm.weight'].astype(np.float32)
    model_testing.save(tmp_path / 'a/model.safetensors', files)
    model_testing.assert_same(hf_folder.read(tmp_path / 'a').load(), want)
    # when its values are others
    files['model.norm.weight'][3] += 2.0**-20
    model_testing.save(tmp_path / 'a/model.safetensors', files)
    # then it says how to read them
    with pytest.raises(ValueError, match=r'norm.weight: .*--dtype=bfloat16 ro'):
      hf_folder.read(tmp_path / 'a').load()
    rounded = hf_folder.read(tmp_path / 'a', 'bfloat16').load()
    model_testing.assert_same(rounded, want)


# What `quantization_config` says, and the end of a tensor's name, as published.
QUANTISED = [
  (
    dict(quant_method='awq', bits=4),
    'qweight',
    "'awq' (4 bits) in config.json",
  ),
  (
    dict(quant_method='gptq', bits=8),
    'qweight',
    "'gptq' (8 bits) in config.json",
  ),
  (
    dict(quant_method='compressed-tensors', format='pack-quantized'),
    'weight_packed',
    "'compressed-tensors' (pack-quantized) in config.json",
  ),
  (
    dict(quant_method='modelopt', quant_algo='NVFP4'),
    'weight_scale_2',
    "'modelopt' (NVFP4) in config.json",
  ),
  (dict(quant_method='fp8'), 'weight_scale', "'fp8' in config.json"),
  (None, 'weight_scale_2', "'modelopt' (NVFP4) in hf_quant_config.json"),
]


class TestQuantised:
  @pytest.mark.parametrize('options, end, text', QUANTISED)
  def test_a_method_that_is_not_read_is_named(
    self, tmp_path, options, end, text
  ):
    # given a folder with packed weights
    files = model_testing.tensors(QWEN)
    name = 'model.layers.0.self_attn.q_proj.'
    files[name + end] = files.pop(name + 'weight')
    model_testing.write_folder(
      tmp_path / 'q', QWEN, files, quantization_config=options
    )
    if options is None:
      content = dict(quantization=dict(quant_algo='NVFP4'))
      path = tmp_path / 'q/hf_quant_config.json'
      path.write_text(json.dumps(content))
    # then
    refusal = f'got quant_method {text}; dequantise them first'
    with pytest.raises(ValueError, match=re.escape(refusal)) as error:
      hf_folder.read(tmp_path / 'q')
    assert len(str(error.value)) - len(str(tmp_path)) < 300

  def test_weights_in_float_are_read_whatever_the_method(self, tmp_path):
    files = model_testing.tensors(QWEN)
    options = dict(quant_method='bitsandbytes', load_in_8bit=True)
    model_testing.write_folder(
      tmp_path / 'q', QWEN, files, quantization_config=options
    )
    want = hf_folder.read(QWEN).load()
    model_testing.assert_same(hf_folder.read(tmp_path / 'q').load(), want)
