"""Two processes of an msrun job compute what one does, bit for bit."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

from hpmoe.backend_ascend.frontends import layer_testing

# Run by each process: its slabs of what the file holds, and their gradients.
_JOB = """
import sys

import mindspore as ms
from mindspore import communication
import numpy as np

from hpmoe.backend_ascend.frontends import layer_testing as testing
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends import mindspore_parallel

ms.set_device('CPU')
ms.set_context(pynative_synchronize=True)
communication.init('mccl')
rank = communication.get_rank()
for name in ('float32-combine', 'bfloat16-before_down'):
  policy = testing.POLICIES[name]
  inputs, dy = testing.case(policy)
  slabs = [ms.Tensor(np.ascontiguousarray(a[rank])) for a in inputs.values()]
  cell = mindspore_parallel.ParallelMoELayer(
    testing.CONFIG, policy, testing.OPTIONS
  )
  y = cell(*slabs)
  pull = ms.ops.GradOperation(get_all=True, sens_param=True)
  grads = pull(cell)(*slabs, ms.Tensor(np.ascontiguousarray(dy[rank])))
  made = (y, *(g for i, g in enumerate(grads) if i != 1))
  for key, value in zip(('y', *testing.GRADS), made, strict=True):
    raw = mindspore_layer.to_numpy(value).view(np.uint8)
    np.save(f'{sys.argv[1]}/{name}.{key}.{rank}.npy', raw)
try:
  mindspore_parallel.ParallelMoELayer(
    testing.CONFIG.__class__(4, 8, 4, 2, 8, 8), policy
  )
except ValueError as error:
  assert str(error).startswith('config.num_ranks: expected 2'), error
  print('refused')
"""


def _free_port() -> int:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]


@pytest.mark.slow
def test_two_processes_have_the_bits_of_one(tmp_path):
  # Given.
  script = tmp_path / 'job.py'
  script.write_text(_JOB)
  bin_ = pathlib.Path(sys.executable).parent
  path = [str(bin_), os.environ['PATH']]
  # When: msrun starts plain `python`.
  ran = subprocess.run(
    [
      *(str(bin_ / 'msrun'), '--worker_num=2', '--local_worker_num=2'),
      *('--master_addr=127.0.0.1', f'--master_port={_free_port()}'),
      *('--join=True', '--cluster_time_out=120', f'--log_dir={tmp_path}'),
      *(str(script), str(tmp_path)),
    ],
    cwd=tmp_path,
    env=os.environ
    | dict(
      PATH=os.pathsep.join(path),
      PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path),
      GLOG_v='3',
    ),
    capture_output=True,
    text=True,
    timeout=300,
  )
  logs = '\n'.join(f.read_text() for f in tmp_path.glob('worker_*.log'))
  assert ran.returncode == 0, ran.stderr + logs
  assert logs.count('refused') == 2, logs
  # Then.
  for name in ('float32-combine', 'bfloat16-before_down'):
    policy = layer_testing.POLICIES[name]
    want = layer_testing.launched(*layer_testing.case(policy), policy)
    for key, value in want.items():
      got = [np.load(tmp_path / f'{name}.{key}.{r}.npy') for r in range(2)]
      assert np.any(value != 0), key
      assert b''.join(a.tobytes() for a in got) == value.tobytes(), (name, key)
