"""Folders of Megatron-LM and MindFormers, compared with Hugging Face's."""

import dataclasses
import io
import os
import pathlib
import pickle
import shutil

import numpy as np
import pytest

from hpmoe.models.checkpoint import model_testing
from hpmoe.models.checkpoint import safetensors_file
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.compare.weights import mindformers_testing
from hpmoe.parity_tests.compare.weights import torch_dist
from hpmoe.parity_tests.compare.weights import weight_diff
from hpmoe.parity_tests.compare.weights import weight_report
from hpmoe.parity_tests.compare.weights import weight_sides
from hpmoe.parity_tests.compare.weights import weight_testing
from hpmoe.parity_tests.compare.weights import wrong_testing

# Written by Megatron-LM: megatron_torch_testing.py.
_CHECKPOINT = pathlib.Path(__file__).with_name('testdata') / 'torch_dist'
SMALL = dict(
  vocab_size=16,
  hidden_size=16,
  moe_intermediate_size=8,
  head_dim=4,
  num_experts=4,
  norm_topk_prob=True,
)


def _compare(left, right) -> weight_diff.Result:
  sides = (
    weight_sides.open_side('left_model', str(left), str(right)),
    weight_sides.open_side('right_model', str(right), str(left)),
  )
  return weight_diff.compare(*sides)


class TestMegatron:
  def test_a_checkpoint_has_the_weights_of_its_folder(self, tmp_path):
    left = weight_testing.write_folder(tmp_path / 'left', **SMALL)
    for result in (_compare(left, _CHECKPOINT), _compare(_CHECKPOINT, left)):
      assert (result.kind, result.verdict) == ('same', 'pass')
      assert result.extra == ((), ())

  def test_the_latest_of_a_run_is_read(self, tmp_path):
    left = weight_testing.write_folder(tmp_path / 'left', **SMALL)
    shutil.copytree(_CHECKPOINT, tmp_path / 'run/iter_0000020')
    (tmp_path / 'run/latest_checkpointed_iteration.txt').write_text('20')
    assert _compare(left, tmp_path / 'run').kind == 'same'

  def test_a_wrong_folder_is_named(self, tmp_path):
    # given a folder whose experts of layer 1 are in another order
    left = weight_testing.write_folder(tmp_path / 'left', **SMALL)

    def move(tensors):
      wrong_testing.move_experts(tensors, [0, 2, 1, 3])

    wrong = weight_testing.write_changed(left, tmp_path / 'wrong', move)
    # then
    lines = weight_report.list_lines(_compare(wrong, _CHECKPOINT))
    assert len(lines) == 1 and 'experts 1 and 2 are exchanged' in lines[0]

  def test_a_block_that_is_cut_is_a_line(self, tmp_path, capsys):
    left = weight_testing.write_folder(tmp_path / 'left', **SMALL)
    shutil.copytree(_CHECKPOINT, tmp_path / 'cut')
    for file in (tmp_path / 'cut').glob('*.distcp'):
      file.write_bytes(file.read_bytes()[:-2000])
    words = [f'--left_model={left}', f'--right_model={tmp_path / "cut"}']
    assert main.main(['compare', *words]) == cli.WRONG_REQUEST
    assert '.distcp' in capsys.readouterr().err

  @pytest.mark.parametrize('change', ['twice', 'outside'])
  def test_blocks_that_do_not_fill_a_tensor_once_are_refused(self, change):
    # given a tensor of two blocks, of which one lies elsewhere, so that as many
    # elements are read
    tensor = next(
      t
      for t in torch_dist.read_index(_CHECKPOINT).values()
      if len(t.blocks) == 2
    )
    first, second = tensor.blocks
    offsets = {
      'twice': first.offsets,
      'outside': tuple(i + 1 for i in second.offsets),
    }
    moved_block = dataclasses.replace(second, offsets=offsets[change])
    wrong = dataclasses.replace(tensor, blocks=(first, moved_block))
    # then it is not read, and the right one is
    with pytest.raises(ValueError, match='blocks of .* that do not overlap'):
      wrong.read()
    assert tensor.read().shape == tensor.shape

  def test_nothing_of_its_metadata_is_run(self, tmp_path):
    class Harmful:
      def __reduce__(self):
        return os.mkdir, (str(tmp_path / 'made'),)

    content = io.BytesIO()
    pickle.dump(Harmful(), content)
    left = weight_testing.write_folder(tmp_path / 'left', **SMALL)
    (tmp_path / 'bad').mkdir()
    (tmp_path / 'bad/.metadata').write_bytes(content.getvalue())
    with pytest.raises(ValueError, match=r'posix\.mkdir, which is no tensor'):
      _compare(left, tmp_path / 'bad')
    assert not (tmp_path / 'made').exists()

  def test_its_metadata_change_no_dtype(self, tmp_path):
    # given metadata that give a dtype, which all modules share, 8 bytes
    state = b"(I3\nS'>'\nNNNI8\nI8\nI0\nt"
    path = tmp_path / '.metadata'
    path.write_bytes(b'ctorch\nbfloat16\n' + state + b'b.')
    # then they are refused
    with pytest.raises(ValueError, match='expected metadata of torch'):
      torch_dist.read_index(tmp_path)
    assert safetensors_file.BFLOAT16.itemsize == 2


def _write_mindformers(folder: pathlib.Path, path: pathlib.Path, family: str):
  """Writes a folder's tensors as MindFormers does; returns the path."""
  tensors = mindformers_testing.rename(
    weight_testing.make_config(family), model_testing.tensors(folder)
  )
  path.mkdir()
  tensors |= {'adam_m.output_layer.weight': np.ones((2, 2), np.float32)}
  model_testing.save(path / 'part0.safetensors', tensors)
  return path


class TestMindFormers:
  @pytest.mark.parametrize('family', ['qwen3_moe', 'deepseek_v3'])
  def test_a_right_conversion_passes(self, tmp_path, family):
    left = weight_testing.write_folder(tmp_path / 'left', family)
    right = _write_mindformers(left, tmp_path / 'right', family)
    result = _compare(left, right)
    assert (result.kind, result.verdict) == ('same', 'pass')
    assert result.extra == ((), ())

  @pytest.mark.parametrize(
    'name',
    [
      *('experts_permuted', 'expert_twice', 'router_permuted'),
      *('halves_swapped', 'transposed_square', 'norm_plus_one'),
      *('rope_halves', 'scales_misread'),
    ],
  )
  def test_a_wrong_one_is_named(self, tmp_path, name):
    change, text = wrong_testing.WRONG[name]
    left = weight_testing.write_folder(tmp_path / 'left')
    wrong = weight_testing.write_changed(left, tmp_path / 'wrong', change)
    right = _write_mindformers(wrong, tmp_path / 'right', 'qwen3_moe')
    result = _compare(left, right)
    assert result.verdict == 'fail'
    lines = '\n'.join(weight_report.list_lines(result))
    assert text.split('|')[-1].rstrip('$') in lines

  @pytest.mark.parametrize(
    ('change', 'text'),
    [
      (
        lambda w: np.stack(np.split(w, 2, -1), -1).reshape(w.shape),
        'gate and up by turns in right',
      ),
      (
        lambda w: np.concatenate(np.split(w, 2, -1)[::-1], -1),
        'gate and up are exchanged',
      ),
    ],
    ids=['interleaved', 'exchanged'],
  )
  def test_stacked_experts_in_another_layout(self, tmp_path, change, text):
    left = weight_testing.write_folder(tmp_path / 'left')
    right = _write_mindformers(left, tmp_path / 'right', 'qwen3_moe')
    file, key = right / 'part0.safetensors', 'decoder.layers.1.mlp.experts.'
    tensors = model_testing.tensors(right)
    tensors[f'{key}weight1'] = change(tensors[f'{key}weight1'])
    file.unlink()
    model_testing.save(file, tensors)
    (line,) = weight_report.list_lines(_compare(left, right))
    assert line.startswith('model.layers.1.mlp.experts: ') and text in line

  def test_an_expert_is_read_without_the_others(self, tmp_path, monkeypatch):
    # Given a folder whose experts are one matrix,
    left = weight_testing.write_folder(tmp_path / 'left')
    right = _write_mindformers(left, tmp_path / 'right', 'qwen3_moe')
    side = weight_sides.open_side('right_model', str(right), str(left))
    experts = side.files.index['model.layers.1.mlp.experts.gate_up_proj']
    whole = experts.read()
    # when one of them is read,
    num_bytes, plain = [], safetensors_file.StoredTensor.read

    def read(tensor):
      num_bytes.append(tensor.num_bytes)
      return plain(tensor)

    monkeypatch.setattr(safetensors_file.StoredTensor, 'read', read)
    expert = experts.row(1).read()
    # then no byte of another is.
    assert num_bytes == [expert.nbytes]
    assert np.array_equal(expert, whole[1])

  def test_two_tensors_of_one_parameter_are_refused(self, tmp_path):
    left = weight_testing.write_folder(tmp_path / 'left')
    right = _write_mindformers(left, tmp_path / 'right', 'qwen3_moe')
    router = np.ones((2, 2), np.float32)
    tensors = {'decoder.layers.1.mlp.router.weight.weight': router}
    model_testing.save(right / 'part1.safetensors', tensors)
    with pytest.raises(ValueError, match='one tensor for .*layers.1.mlp.gate'):
      _compare(left, right)

  def test_shards_of_ranks_are_refused(self, tmp_path):
    left = weight_testing.write_folder(tmp_path / 'left')
    for rank in range(2):
      (tmp_path / f'right/rank_{rank}').mkdir(parents=True)
    with pytest.raises(ValueError, match='got 2 ranks: merge them'):
      _compare(left, tmp_path / 'right')

  def test_a_merged_file_beside_ranks_is_read(self, tmp_path):
    left = weight_testing.write_folder(tmp_path / 'left')
    right = _write_mindformers(left, tmp_path / 'right', 'qwen3_moe')
    for rank in range(2):
      (right / f'rank_{rank}').mkdir()
      (right / f'rank_{rank}/part.ckpt').write_bytes(b'of one rank')
    assert _compare(left, right).kind == 'same'
