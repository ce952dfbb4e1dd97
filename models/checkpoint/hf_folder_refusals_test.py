"""Damaged folders of Hugging Face: each fault is named, and nothing written."""

from collections.abc import Callable
import json
import re
import shutil

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.checkpoint import model_testing

DEEPSEEK, QWEN, MIXTRAL, _, _, MXFP4 = (
  model_testing.TESTDATA / name for name in model_testing.FOLDERS
)


def _tensors(change: Callable) -> Callable:
  """Returns damage that changes the tensors of a folder's first file."""

  def damage(folder):
    path = sorted(folder.glob('*.safetensors'))[0]
    tensors = safetensors_numpy.load_file(path)
    change(tensors)
    model_testing.save(path, tensors)

  return damage


def _config(**fields) -> Callable:
  def damage(folder):
    text = json.dumps(model_testing.read_fields(folder) | fields)
    (folder / 'config.json').write_text(text)

  return damage


def _drop_tensor(name: str) -> Callable:
  return _tensors(lambda tensors: tensors.pop(name))


def _file(name: str, change: Callable[[bytes], bytes] | None) -> Callable:
  """Returns damage that changes the bytes of a file, or removes it."""

  def damage(folder):
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if change is not None:
      (folder / name).write_bytes(change(content))

  return damage


def _all_bad(tensors) -> None:
  del tensors['model.norm.weight'], tensors['lm_head.weight']
  tensors['model.extra'] = np.zeros(3, np.float32)
  tensors['model.embed_tokens.weight'] = np.zeros((3, 4), np.float32)
  name = 'model.layers.0.input_layernorm.weight'
  tensors[name] = tensors[name].astype(np.int32)


def _set(name, index, value) -> Callable:
  def change(tensors):
    tensors[name] = tensors[name].copy()
    tensors[name][index] = value

  return _tensors(change)


_CODED = 'model.layers.0.mlp.experts.down_proj'
_FLAT = np.zeros((4, 32, 16), np.int8)
_THIRD = 'model-00003-of-00004.safetensors'
_HEADER = (20).to_bytes(8, 'little') + b'{"a":{"dtype":"F32"}' + bytes(9)
_INDEX = hf_folder.INDEX
FAULTS = [
  (MXFP4, _drop_tensor(f'{_CODED}_scales'), f'1 missing: {_CODED}_scales'),
  (
    MXFP4,
    _drop_tensor(f'{_CODED}_blocks'),
    f'1 missing: {_CODED}; 1 unexpected: {_CODED}_scales',
  ),
  (
    MXFP4,
    _tensors(lambda t: t.update({f'{_CODED}_blocks': _FLAT})),
    f'1 misshapen: {_CODED}_blocks (expected [4, 32, 1, 16], got [4, 32, 16]); '
    f'1 mistyped: {_CODED}_blocks (expected uint8, got int8)',
  ),
  (
    MXFP4,
    _set(f'{_CODED}_scales', (2, 7, 0), 255),
    'experts.w_down: expected finite weights, got nan at [2, 0, 7], 32 of 4096',
  ),
  (
    MIXTRAL,
    _tensors(_all_bad),
    '2 missing: model.norm.weight, lm_head.weight; 1 unexpected: model.extra; '
    '1 misshapen: model.embed_tokens.weight (expected [48, 16], got [3, 4]); '
    '1 mistyped: model.layers.0.input_layernorm.weight (expected float32, got '
    'int32)',
  ),
  (
    MIXTRAL,
    _tensors(lambda tensors: tensors.clear()),
    '41 missing: model.embed_tokens.weight, .* and 39 more',
  ),
  (DEEPSEEK, _file(_THIRD, None), f"expected 4 shards, got none of ['{_THIRD}"),
  (DEEPSEEK, _file(_THIRD, lambda b: b[:-1]), f'{_THIRD}: expected .* bytes,'),
  (DEEPSEEK, _file(_INDEX, lambda _: b'{'), f'{_INDEX}: expected JSON, got'),
  (
    DEEPSEEK,
    _file(_INDEX, lambda _: b'{"weight_map": {"a": "../b"}}'),
    'expected weight_map, of names to names of files',
  ),
  (
    DEEPSEEK,
    _tensors(lambda tensors: tensors.popitem()),
    f'expected the tensors that {_INDEX} lists, got others',
  ),
  (
    MIXTRAL,
    _file(hf_folder.SINGLE, lambda _: bytes(5)),
    'expected a safetensors file, got a header of 0 bytes',
  ),
  (
    MIXTRAL,
    _file(hf_folder.SINGLE, lambda _: _HEADER),
    'expected a safetensors header, got',
  ),
  (
    MIXTRAL,
    _file(hf_folder.SINGLE, None),
    'expected weights in one of .*, got none',
  ),
  (MIXTRAL, _config(model_type='llama'), "expected one of .* got 'llama'"),
  (
    MIXTRAL,
    _config(architectures=['LlamaForCausalLM']),
    "architectures: expected one of .* got 'LlamaForCausalLM'",
  ),
  (
    MIXTRAL,
    _file('config.json', None),
    'expected a folder with config.json, got none',
  ),
  (
    MIXTRAL,
    _config(dtype='bfloat16'),
    "model.embed_tokens.weight: expected values that config.json's bfloat16 "
    'has, got float32; --dtype=bfloat16 rounds them, --dtype=float32 keeps',
  ),
  (
    MIXTRAL,
    _set('model.norm.weight', 5, np.nan),
    'model.norm.weight: expected finite weights, got nan at [5], 1 of 16',
  ),
  (
    QWEN,
    _set('model.layers.1.mlp.experts.3.up_proj.weight', (2, 7), -np.inf),
    'model.layers.1.mlp.experts.w_gate_up: expected finite weights, got -inf '
    'at [3, 7, 10], 1 of 1024',
  ),
]


class TestRefuses:
  @pytest.mark.parametrize('like, damage, text', FAULTS)
  def test_in_one_line_and_writes_nothing(self, tmp_path, like, damage, text):
    # given a folder with one fault
    shutil.copytree(like, tmp_path / 'in')
    damage(tmp_path / 'in')
    # when
    with pytest.raises(ValueError) as error:
      convert.write(tmp_path / 'out', convert.read(tmp_path / 'in'))
    # then
    pattern = re.escape(text).replace(r'\.\*', '.*')
    assert re.search(pattern, str(error.value)), error.value
    assert '\n' not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['in']
