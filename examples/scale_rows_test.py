"""An operator of CANN on the twin, to copy: scale_rows/ and its launch."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from hpmoe.backend_ascend.twin import twin_testing

OPERATOR = pathlib.Path(__file__).with_name('scale_rows')
HPMOE = [sys.executable, '-m', 'hpmoe.parity_tests.commands.main']

pytestmark = twin_testing.needs_clang()


def run_twin(folder, *words):
  command = [*HPMOE, 'twin', f'--op={folder}', *words]
  environment = {**os.environ, 'XDG_CACHE_HOME': str(folder / 'cache')}
  return subprocess.run(
    command, env=environment, capture_output=True, text=True
  )


@pytest.fixture
def operator(tmp_path):
  """A copy of the operator, with x beside its launch."""
  folder = tmp_path / 'scale_rows'
  shutil.copytree(OPERATOR, folder)
  x = np.arange(4 * 64, dtype=np.float32).reshape(4, 64)
  np.save(folder / 'x.npy', x)
  return folder


def test_the_operator_runs_by_its_launch(operator):
  launch = f'--launch={operator / "launch.json"}'
  run = run_twin(operator, launch, f'--out={operator / "out"}', '--mode=late')

  assert run.returncode == 0, run.stderr
  x, y = (np.load(operator / name) for name in ('x.npy', 'out/1.npy'))
  np.testing.assert_array_equal(y, x / 2)


def test_a_wait_that_is_left_out_is_reported(operator):
  source = operator / 'op_kernel/scale_rows.cpp'
  lines = source.read_text().splitlines(keepends=True)
  kept = [line for line in lines if 'PIPE_MTE3, PIPE_MTE2' not in line]
  assert len(lines) - len(kept) == 2
  source.write_text(''.join(kept))

  run = run_twin(operator, f'--launch={operator / "launch.json"}')

  assert run.returncode == 3
  assert 'expected SetFlag/WaitFlag<MTE3_MTE2> between' in run.stderr
