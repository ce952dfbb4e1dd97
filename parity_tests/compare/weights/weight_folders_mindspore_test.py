"""Checkpoints that MindSpore saved, compared with folders of Hugging Face."""

import mindspore as ms
import numpy as np
import pytest

from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import model_testing
from hpmoe.parity_tests.compare.weights import mindformers_testing
from hpmoe.parity_tests.compare.weights import weight_diff
from hpmoe.parity_tests.compare.weights import weight_report
from hpmoe.parity_tests.compare.weights import weight_sides
from hpmoe.parity_tests.compare.weights import weight_testing
from hpmoe.parity_tests.compare.weights import wrong_testing


def _compare(left, right) -> weight_diff.Result:
  return weight_diff.compare(
    weight_sides.open_side('left_model', str(left)),
    weight_sides.open_side('right_model', str(right), str(left)),
  )


@pytest.mark.parametrize('form', ['ckpt', 'safetensors'])
def test_files_of_mindformers(tmp_path, form):
  # given a model, and one whose experts were exchanged, as MindSpore saves it
  left = weight_testing.write_folder(tmp_path / 'left')
  wrong = weight_testing.write_changed(
    left, tmp_path / 'wrong', wrong_testing.permute_experts
  )
  for source, verdict in ((left, 'pass'), (wrong, 'fail')):
    right = tmp_path / f'{source.name}_saved/rank_0'
    right.mkdir(parents=True)
    tensors = mindformers_testing.rename(
      weight_testing.make_config('qwen3_moe'), model_testing.tensors(source)
    )
    content = [
      {'name': n, 'data': ms.Tensor(np.ascontiguousarray(a))}
      for n, a in tensors.items()
    ]
    ms.save_checkpoint(content, str(right / f'net.{form}'), format=form)
    # then
    result = _compare(left, right.parent)
    assert result.verdict == verdict
    lines = weight_report.list_lines(result)
    assert lines == [] or 'experts 3 and 4 are exchanged' in lines[0]


def test_our_own_folder(tmp_path):
  left = weight_testing.write_folder(tmp_path / 'left')
  convert.write(tmp_path / 'right', convert.read(left), 'mindspore')
  assert _compare(left, tmp_path / 'right').kind == 'same'
  assert _compare(tmp_path / 'right', left).kind == 'same'
