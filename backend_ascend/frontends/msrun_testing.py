"""An msrun job of a few processes on this machine, for tests."""

from collections.abc import Callable, Sequence
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np

from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.host.launch import runtime

# Run by each process: its slabs of cases, and their gradients.
_LAYER = """
import sys

import mindspore as ms
from mindspore import communication
import numpy as np

from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends import layer_testing as testing
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.reference.contract import config_testing

{make}

ms.set_device('CPU')
ms.set_context(pynative_synchronize=True)
communication.init('mccl')
rank = communication.get_rank()
pull = ms.ops.GradOperation(get_all=True, sens_param=True)


def refused(call, told):
  try:
    call()
  except ValueError as error:
    assert str(error).startswith(told), error
    print('refused')


for name in {policies}:
  policy = testing.POLICIES[name]
  inputs, dy = testing.case(policy)
  slabs = [ms.Tensor(np.ascontiguousarray(a[rank])) for a in inputs.values()]
  cell = make(testing.CONFIG, policy, testing.OPTIONS)
  y = cell(*slabs)
  grads = pull(cell)(*slabs, ms.Tensor(np.ascontiguousarray(dy[rank])))
  made = (y, *(g for i, g in enumerate(grads) if i != 1))
  for key, value in zip(('y', *testing.GRADS), made, strict=True):
    raw = mindspore_layer.to_numpy(value).view(np.uint8)
    np.save(f'{{sys.argv[1]}}/{{name}}.{{key}}.{{rank}}.npy', raw)
  refused(lambda: cell(slabs[0][:, :-1], *slabs[1:]), 'x: expected shape')
  getattr(cell, 'close', bool)()
four = config_testing.make_config(r=4, t=8, e=4, k=2, d=8, f=8)
call = lambda: make(four, policy, testing.OPTIONS)
refused(call, 'config.num_ranks: expected 2')
"""


def check_layer(
  make: str,
  policies: Sequence[str],
  folder: pathlib.Path,
  launch: Callable = runtime.launch,
) -> None:
  """Checks that a Cell in two processes has the bits of one launch.

  Args:
    make: Python that defines `make`, a function of config, policy and options
      to the Cell.
    policies: of `layer_testing.POLICIES`.
    folder: an empty one, for what the processes write.
    launch: of one process.
  """
  logs = run(_LAYER.format(make=make, policies=(*policies,)), folder)
  assert logs.count('refused') == 2 * (len(policies) + 1), logs
  for name in policies:
    policy = layer_testing.POLICIES[name]
    inputs, dy = layer_testing.case(policy)
    want = layer_testing.run_both_passes(inputs, dy, policy, launch=launch)
    for key, value in want.items():
      slabs = [
        np.load(folder / f'{name}.{key}.{rank}.npy') for rank in range(2)
      ]
      assert np.any(value != 0), key
      assert b''.join(a.tobytes() for a in slabs) == value.tobytes(), (
        name,
        key,
      )


def run(program: str, folder: pathlib.Path, processes: int = 2) -> str:
  """Runs a program in every process of a job, and returns what they print.

  Args:
    program: Python; its one argument is `folder`.
    folder: an empty one, for what the processes write.
    processes: of the job.

  Raises:
    AssertionError: the job failed; with the text of all processes.
  """
  script = folder / 'job.py'
  script.write_text(program)
  # msrun starts plain `python`.
  bin_ = pathlib.Path(sys.executable).parent
  ran = subprocess.run(
    [
      *(str(bin_ / 'msrun'), f'--worker_num={processes}'),
      *(f'--local_worker_num={processes}', '--master_addr=127.0.0.1'),
      *(f'--master_port={free_port()}', '--join=True'),
      *('--cluster_time_out=120', f'--log_dir={folder}'),
      *(str(script), str(folder)),
    ],
    cwd=folder,
    env=os.environ
    | dict(
      PATH=os.pathsep.join([str(bin_), os.environ['PATH']]),
      PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path),
      GLOG_v='3',
    ),
    capture_output=True,
    text=True,
    timeout=300,
  )
  logs = '\n'.join(f.read_text() for f in folder.glob('worker_*.log'))
  assert ran.returncode == 0, ran.stderr + logs
  return logs


def free_port() -> int:
  """Returns a port of this machine that nobody has."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]
