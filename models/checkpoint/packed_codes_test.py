"""Folders in NVFP4, packed integers and 8 bits with scales of rows."""

import numpy as np
import pytest

from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.checkpoint import model_testing
from hpmoe.models.checkpoint import packed_codes_testing as testing


@pytest.mark.parametrize('name', testing.DRAWS)
class TestCodes:
  def test_weights_are_products_of_codes_and_scales(self, tmp_path, seed, name):
    folder, _, plain = testing.write_folders(
      tmp_path, seed, testing.DRAWS[name]
    )
    read = hf_folder.read(folder)
    assert 'quantization_config' not in read.fields
    model_testing.assert_same(read.load(), hf_folder.read(plain).load())

  def test_scales_of_another_shape_are_named(self, tmp_path, seed, name):
    folder, files, _ = testing.write_folders(
      tmp_path, seed, testing.DRAWS[name]
    )
    prefix = 'model.layers.0.self_attn.q_proj.'
    scale = next(n for n in files if n.startswith(f'{prefix}') and 'scale' in n)
    files[scale] = np.ones((7, 3), files[scale].dtype)
    model_testing.save(folder / 'model.safetensors', files)
    with pytest.raises(ValueError, match=rf'{scale} \(expected .*7'):
      hf_folder.read(folder)


@pytest.mark.parametrize('group', [-1, 7])
def test_a_group_without_a_scale_is_named(tmp_path, seed, group):
  folder, files, _ = testing.write_folders(tmp_path, seed, testing.draw_gptq)
  groups = files['model.layers.0.self_attn.q_proj.g_idx'].copy()
  groups[0] = group
  files['model.layers.0.self_attn.q_proj.g_idx'] = groups
  model_testing.save(folder / 'model.safetensors', files)
  with pytest.raises(ValueError, match=rf'q_proj\.g_idx: .* got .*{group}'):
    hf_folder.read(folder).load()


@pytest.mark.parametrize('end', ['weight_zero_point', 'weight_g_idx'])
def test_zero_points_and_other_orders_are_refused(tmp_path, seed, end):
  folder, files, _ = testing.write_folders(tmp_path, seed, testing.draw_int4)
  files[f'model.layers.0.self_attn.q_proj.{end}'] = np.zeros(4, np.int32)
  model_testing.save(folder / 'model.safetensors', files)
  with pytest.raises(ValueError, match='int8 without zero points, got quant_m'):
    hf_folder.read(folder)
