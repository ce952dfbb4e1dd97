"""Folders of `.ckpt` files, which MindSpore writes and reads."""

import json
import shutil

import mindspore
import ml_dtypes
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import mindspore_folder
from hpmoe.models.checkpoint import model_testing
from hpmoe.models.checkpoint import weights as weights_lib

NORM = 'model.norm.weight'
# MindSpore gave the name to a type of its own, which JAX does not know.
np.sctypeDict['bfloat16'] = ml_dtypes.bfloat16


@pytest.fixture
def model(seed):
  """Returns a config and its parameters, bfloat16 and float32."""
  config = config_lib.load('deepseek_tiny')
  return config, model_testing.parameters(config, seed)


def test_mindspore_loads_what_we_write(tmp_path, model):
  # given
  config, params = model
  weights = weights_lib.of_parameters(config, params)
  convert.write(tmp_path / 'out', weights, 'mindspore')
  # when
  checkpoint = mindspore.load_checkpoint(str(tmp_path / 'out/model.ckpt'))
  # then
  assert set(checkpoint) == set(params)
  for name, array in params.items():
    assert checkpoint[name].shape == array.shape
    assert str(checkpoint[name].dtype).lower() == str(array.dtype)
    assert checkpoint[name].asnumpy().tobytes() == array.tobytes()


@pytest.mark.parametrize('name', model_testing.FOLDERS[:3])
def test_gives_the_same_tensors(tmp_path, name):
  # given a folder of transformers, and its copy
  folder = model_testing.TESTDATA / name
  convert.write(tmp_path / 'copy', convert.read(folder), 'mindspore')
  assert convert.format_of(tmp_path / 'copy') == 'mindspore'
  # when it comes back
  convert.write(tmp_path / 'back', convert.read(tmp_path / 'copy'))
  # then
  model_testing.assert_same(
    model_testing.tensors(tmp_path / 'back'), model_testing.tensors(folder)
  )


def test_shards(tmp_path, model):
  # given
  config, params = model
  weights = weights_lib.of_parameters(config, params)
  # when
  mindspore_folder.write(tmp_path, weights, 300_000)
  (tmp_path / 'config.json').write_text(json.dumps(config.to_hf()))
  # then
  files = sorted(tmp_path.glob('*.ckpt'))
  assert files[1].name == f'model-00002-of-{len(files):05d}.ckpt'
  model_testing.assert_same(convert.read(tmp_path).load(), params)
  # and one that is lost is named
  files[1].unlink()
  with pytest.raises(ValueError, match=f"got none of .'{files[1].name}'"):
    convert.read(tmp_path)


def _cut(folder):
  file = folder / mindspore_folder.SINGLE
  file.write_bytes(file.read_bytes()[:-1])


def _without_norm(folder):
  file = str(folder / mindspore_folder.SINGLE)
  checkpoint = mindspore.load_checkpoint(file)
  others_left = [
    dict(name=n, data=t) for n, t in checkpoint.items() if n != NORM
  ]
  mindspore.save_checkpoint(others_left, file)


def _nan(folder):
  file = str(folder / mindspore_folder.SINGLE)
  checkpoint = mindspore.load_checkpoint(file)
  checkpoint[NORM] = mindspore.Tensor(np.full(16, np.nan, np.float32))
  mindspore.save_checkpoint(
    [dict(name=n, data=checkpoint[n]) for n in checkpoint], file
  )


@pytest.mark.parametrize(
  'damage, text',
  [
    (_cut, 'model.ckpt: expected a checkpoint of MindSpore, got Failed to'),
    (_without_norm, f'1 missing: {NORM}'),
    (_nan, f'{NORM}: expected finite weights, got nan'),
  ],
)
def test_a_fault_is_told_in_one_line(tmp_path, damage, text):
  # given
  source = convert.read(model_testing.TESTDATA / 'mixtral')
  convert.write(tmp_path / 'in', source, 'mindspore')
  damage(tmp_path / 'in')
  # when
  with pytest.raises(ValueError, match=text) as error:
    convert.write(tmp_path / 'out', convert.read(tmp_path / 'in'))
  # then
  assert '\n' not in str(error.value)
  shutil.rmtree(tmp_path / 'in')
  assert not list(tmp_path.iterdir())


def test_a_tensor_that_mindspore_cannot_read(tmp_path, model):
  config, params = model
  name = next(iter(params))
  weights = weights_lib.of_parameters(config, params)
  large = np.lib.stride_tricks.as_strided(params[name], (2**30,), (0,))
  weights.specs[name] = large
  with pytest.raises(ValueError, match=f'{name}: expected at most 2147418112 '):
    mindspore_folder.write(tmp_path, weights)
