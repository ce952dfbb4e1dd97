"""Two processes as torchrun starts them, each with an NPU that is the twin.

HPMOE_TORCH_PYTHON names a Python whose torch is taken, behind our packages.
"""

import os
import subprocess
import sys

import numpy as np

from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.frontends import msrun_testing

_JOB = """
import sys
sys.path.append(sys.argv[2])
from hpmoe.backend_ascend.frontends.npus import torch_npus_testing
torch_npus_testing.main(sys.argv[1])
"""


def _packages() -> str:
  path_command = (
    'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))'
  )
  process = subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], '-c', path_command],
    check=True,
    capture_output=True,
    text=True,
  )
  return process.stdout.strip()


def _job(folder, twin) -> list[subprocess.Popen]:
  """Starts both, with what torchrun tells its processes."""
  environment = (
    os.environ
    | twin.environment
    | dict(
      PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path),
      MASTER_ADDR='127.0.0.1',
      MASTER_PORT=str(msrun_testing.free_port()),
      WORLD_SIZE='2',
      OMP_NUM_THREADS='1',
    )
  )
  command = [sys.executable, '-c', _JOB, str(folder), _packages()]
  return [
    subprocess.Popen(
      command,
      env=environment | dict(RANK=str(rank), LOCAL_RANK=str(rank)),
      stdout=subprocess.PIPE,
      text=True,
    )
    for rank in range(2)
  ]


def test_two_processes_have_the_layer_and_its_gradient(tmp_path):
  # Given two processes whose devices are the twin, when each has its slabs,
  # then together they have the bits of the twin in one process.
  with rehearsal.Rehearsal(2) as twin:
    for process in _job(tmp_path, twin):
      output, _ = process.communicate(timeout=120)
      assert process.returncode == 0 and output.strip() == 'refused'
    assert not [e.text for r in twin.reports for e in r.errors]
    # Forward, and for the gradient both passes.
    assert twin.ran == [[0, 1]] * 3
  want = layer_testing.run_both_passes(
    *layer_testing.case(), launch=twin_runtime.launch
  )
  for key, value in want.items():
    slabs = [np.load(tmp_path / f'{key}.{rank}.npy') for rank in range(2)]
    assert np.any(value != 0), key
    assert np.array_equal(np.stack(slabs), value), key
