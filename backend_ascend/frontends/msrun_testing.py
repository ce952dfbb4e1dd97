"""An msrun job of a few processes on this machine, for tests."""

import os
import pathlib
import socket
import subprocess
import sys


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
      *(f'--master_port={_free_port()}', '--join=True'),
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


def _free_port() -> int:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]
