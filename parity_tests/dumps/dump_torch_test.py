"""Dumps that the real msprobe writes of transformers' Qwen3-MoE, judged.

`make test-torch` runs it; HPMOE_TORCH_PYTHON names a Python that has torch,
transformers and mindstudio-probe.
"""

import os
import pathlib
import subprocess

import pytest

from hpmoe.parity_tests.dumps import dump_check

_SCRIPT = pathlib.Path(__file__).with_name('dump_torch_testing.py')


def _judge(folder: pathlib.Path, bug: str):
  subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], '-I', _SCRIPT, folder / 'dump', bug],
    check=True,
  )
  return dump_check.check_dump(str(folder / 'dump'))


def test_a_right_run_passes_forward_and_backward(tmp_path):
  rows = _judge(tmp_path, 'none')
  assert [(row.direction, row.verdict) for row in rows] == [
    ('both', 'pass'),
    ('both', 'pass'),
  ]


@pytest.mark.parametrize(
  ('bug', 'stage'),
  [('lose_expert', 'y'), ('weigh_twice', 'y'), ('cut_gradient', 'dx')],
)
def test_a_bug_is_found_in_its_layer(tmp_path, bug, stage):
  # A bug inside of the experts, whose dumped inputs are as they came.
  first, second = _judge(tmp_path, bug)
  assert first.verdict == 'pass'
  assert second.verdict == 'fail'
  assert second.to_json()['first_failure'] == stage
