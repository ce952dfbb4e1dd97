"""Checkpoints that the real Megatron-LM saves on two ranks, compared.

`make test-torch` runs it; HPMOE_TORCH_PYTHON names a Python that has torch,
HPMOE_MEGATRON a folder of packages with megatron-core for it.
"""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from hpmoe.models.checkpoint import convert
from hpmoe.parity_tests.case import torch_file
from hpmoe.parity_tests.compare import scores
from hpmoe.parity_tests.compare.weights import weight_diff
from hpmoe.parity_tests.compare.weights import weight_report
from hpmoe.parity_tests.compare.weights import weight_sides
from hpmoe.parity_tests.compare.weights import weight_testing

_SCRIPT = pathlib.Path(__file__).with_name('megatron_torch_testing.py')
_TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12) * 5 % 48


def _save_and_compare(folder: pathlib.Path, bug: str) -> weight_diff.Result:
  weight_testing.write_folder(folder / 'left', norm_topk_prob=True)
  launch = ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2']
  subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], *launch, _SCRIPT, folder, bug],
    check=True,
    env=os.environ
    | dict(PYTHONPATH=os.environ['HPMOE_MEGATRON'], OMP_NUM_THREADS='1'),
  )
  left, right = str(folder / 'left'), str(folder / 'right')
  return weight_diff.compare(
    weight_sides.open_side('left_model', left),
    weight_sides.open_side('right_model', right, left),
  )


def test_a_right_checkpoint_has_the_same_weights_and_logits(tmp_path):
  result = _save_and_compare(tmp_path, 'none')
  assert (result.kind, result.verdict) == ('same', 'pass')
  # What Megatron-LM computes of them is what our decoder does.
  weights = convert.read(tmp_path / 'left', 'float64')
  logits = scores.compute_logits(weights.config, weights.load())(_TOKENS)
  expected = torch_file.read(tmp_path / 'logits.pt')
  np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize(
  ('bug', 'text'),
  [
    ('experts', 'experts 3 and 4 are exchanged, but the router is not'),
    ('halves', 'gate and up are exchanged'),
    ('interleaved', 'gate and up by turns in right'),
    ('transposed', 'down: '),
    ('router', "router's rows"),
    ('norm', "right is left's plus one"),
  ],
)
def test_a_wrong_conversion_is_named(tmp_path, bug, text):
  result = _save_and_compare(tmp_path, bug)
  (line,) = weight_report.list_lines(result)
  assert result.verdict == 'fail' and text in line
