"""What MindSpore itself writes and reads."""

import mindspore
import ml_dtypes
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import mindspore_file
from hpmoe.models.checkpoint import model_testing
from hpmoe.models.checkpoint import weights as weights_lib

# MindSpore gave the name to a type of its own, which JAX does not know.
np.sctypeDict['bfloat16'] = ml_dtypes.bfloat16


@pytest.fixture
def model(seed):
  """Returns a config and its parameters, bfloat16 and float32."""
  config = config_lib.load('deepseek_tiny')
  return config, model_testing.parameters(config, seed)


def _bits(tensor: mindspore.Tensor) -> bytes:
  return tensor.asnumpy().tobytes()


class TestMindSpore:
  def test_loads_what_we_write(self, tmp_path, model):
    # given
    config, made = model
    weights = weights_lib.of_parameters(config, made)
    convert.write(tmp_path / 'out', weights, 'mindspore')
    # when
    loaded = mindspore.load_checkpoint(str(tmp_path / 'out/model.ckpt'))
    # then
    assert set(loaded) == set(made)
    for name, array in made.items():
      assert loaded[name].shape == array.shape
      assert str(loaded[name].dtype).lower() == str(array.dtype)
      assert _bits(loaded[name]) == array.tobytes()

  @pytest.mark.parametrize('crc', [False, True])
  def test_writes_what_we_read(self, tmp_path, model, crc):
    # given
    _, made = model
    saved = [
      dict(name=name, data=mindspore.Tensor(array))
      for name, array in made.items()
    ]
    path = str(tmp_path / 'a.ckpt')
    # when
    mindspore.save_checkpoint(saved, path, crc_check=crc)
    index = mindspore_file.read_index(path)
    # then
    got = {name: stored.read() for name, stored in index.items()}
    model_testing.assert_same(got, made)

  def test_bytes_are_the_same(self, tmp_path):
    made = {
      'b.w': np.array([[1], [-2]], np.int16),
      'c': np.array([1.0], ml_dtypes.bfloat16),
    }
    saved = [
      dict(name=name, data=mindspore.Tensor(array))
      for name, array in made.items()
    ]
    mindspore.save_checkpoint(saved, str(tmp_path / 'theirs.ckpt'))
    specs = {name: array for name, array in made.items()}
    mindspore_file.write(tmp_path / 'ours.ckpt', specs, made.__getitem__)
    ours, theirs = (
      (tmp_path / f'{name}.ckpt').read_bytes() for name in ('ours', 'theirs')
    )
    assert ours == theirs

  def test_a_scalar_comes_back(self, tmp_path):
    scalar = mindspore.Tensor(np.float32(2.5))
    path = str(tmp_path / 'a.ckpt')
    mindspore.save_checkpoint([dict(name='s', data=scalar)], path)
    got = mindspore_file.read_index(path)['s'].read()
    assert got.shape == () and got == np.float32(2.5)
