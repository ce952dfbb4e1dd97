"""A shard judged by one of the processes that mpiexec started.

MPI is not called: each rank reads its number from the environment and writes to
a folder of the job, on one machine.  mpiexec kills all ranks if one exits with
a code other than 0, and does not name it.  So the process that mpiexec started
only waits while a fork of it judges; if the fork dies or takes too long, the
shard's file says so.
"""

from collections.abc import Callable, Mapping
import ctypes
import dataclasses
import os
import pathlib
import select
import signal
import sys
import tempfile
import time
import traceback

from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.judge.distributed import shards

# Variables of the rank, the number of ranks, and the number of ranks on this
# machine: MPICH and Intel MPI; Open MPI.
_NAMES = (
  ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALNRANKS'),
  (
    'OMPI_COMM_WORLD_RANK',
    'OMPI_COMM_WORLD_SIZE',
    'OMPI_COMM_WORLD_LOCAL_SIZE',
  ),
)
# Programs that start the ranks of a machine, by their names in /proc.
_STARTERS = (
  'hydra_pmi_proxy',
  'mpiexec',
  'mpirun',
  'orted',
  'prted',
  'prterun',
)
_POLL_S = 0.02
# Seconds between the starts of processes, in addition to their time limit.
_GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


@dataclasses.dataclass(frozen=True)
class Job:
  """One of the processes of a job.

  Attributes:
    shard: the shard that this process judges.
    folder: the folder to which all processes write.
  """

  shard: shards.Shard
  folder: pathlib.Path

  @property
  def file(self) -> pathlib.Path:
    """The file that this process writes."""
    return self.shard.file(self.folder)


def find_job(environment: Mapping[str, str] = os.environ) -> Job | None:
  """Returns the job of this process; None: there is only one process.

  Raises:
    ValueError: its ranks are on several machines.
  """
  for rank, size, local in _NAMES:
    if rank not in environment or environment.get(size, '1') == '1':
      continue
    shard = shards.Shard(int(environment[rank]), int(environment[size]))
    starter = _starter()
    if starter is None or environment.get(local) != str(shard.count):
      raise ValueError(
        f'mpiexec: expected its {shard.count} processes on one machine, got '
        f'{environment.get(local, "no number")} here: on several, start each '
        'with --shard=r/R --parts=FOLDER, then check with --merge=FOLDER'
      )
    return Job(shard, pathlib.Path(tempfile.gettempdir()) / starter)
  return None


def _starter() -> str | None:
  """Returns a name that is unique to this start of the ranks, or None."""
  process = os.getppid()
  while process > 1:
    words = pathlib.Path(f'/proc/{process}/stat').read_text().rpartition(')')
    fields = words[2].split()
    if words[0].partition('(')[2].startswith(_STARTERS):
      return f'hpmoe-shards-{os.getuid()}-{process}-{fields[19]}'
    process = int(fields[1])
  return None


def run_in_fork(job: Job, judge: Callable[[], None], timeout_s: float) -> None:
  """Runs `judge` in a fork; if it fails, the file of the job says why.

  Args:
    job: the job of this process.
    judge: writes the file of the job; its fork ends with this process.
    timeout_s: time limit in seconds.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  child = os.fork()
  if not child:
    _run_and_end(job, judge)
  process_end = os.pidfd_open(child)
  is_late = not select.select([process_end], [], [], timeout_s)[0]
  os.close(process_end)
  _end(child)
  code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  for half in job.folder.glob(shards.half_written(job.file, '*')):
    half.unlink()
  if not job.file.exists():
    reason = processes.describe_ending(None if is_late else code, timeout_s)
    shards.write(job.file, dict(error=reason))


def _end(child: int) -> None:
  """Ends a fork and the processes that it started."""
  try:
    os.killpg(child, signal.SIGKILL)
  except ProcessLookupError:  # it had no time to make a group of its own
    os.kill(child, signal.SIGKILL)


def _run_and_end(job: Job, judge: Callable[[], None]) -> None:
  code = 1
  try:
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    judge()
    code = 0
  except (ValueError, RuntimeError) as error:
    shards.write(job.file, dict(error=str(error)))
  except BaseException:  # of ours: its place is what helps
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(job: Job, timeout_s: float) -> None:
  """Waits until every shard has a file; a late shard gets one that says so.

  Args:
    job: the job of any shard.
    timeout_s: time limit of each shard in seconds.
  """
  deadline = time.monotonic() + timeout_s + _GRACE_S
  for index in range(job.shard.count):
    path = shards.Shard(index, job.shard.count).file(job.folder)
    while not path.exists():
      if time.monotonic() > deadline:
        reason = processes.describe_ending(None, timeout_s)
        shards.write(path, dict(error=reason))
      time.sleep(_POLL_S)
