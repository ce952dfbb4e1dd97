"""One rank of a job, and the keeper that watches it; see `mpi_job`.

    mpiexec -n R python -m hpmoe.parity_tests.ascend.mpi_worker JOB

The process that mpiexec starts is the keeper: it forks the rank and outlives
it.  The rank calls MPI, and MPI may block for ever, with the interpreter's lock
held; the keeper never calls MPI.  It notices a rank that died or does not go
on, tells the others through the job's folder and ends its own rank when another
one is lost.  And mpiexec never sees a rank die: MPICH's (5.0.2) kills all other
processes then, -disable-auto-cleanup or not.

What only the rank needs is imported after the fork: the keeper stays small, and
is there before anything can go wrong.
"""

import ctypes
import json
import mmap
import os
import pathlib
import signal
import struct
import sys
import time
from typing import Any

from hpmoe.parity_tests.ascend import mpi_drills
from hpmoe.parity_tests.ascend import mpi_job

# Time that a rank has after the deadline to report why it gives up, or after
# another rank was lost.
GRACE_S = 1.5
# MPICH 5.0.2 takes 5.4 MB of shared memory for each rank of a machine before
# the first window.
MPI_BYTES = 6 << 20
_PAGE = 4096
_TICK_S = 0.02
_PR_SET_PDEATHSIG = 1
_GAVE_UP = 3
_NOBODY = -2
_STARTS = ('starting', 'importing', 'reading its inputs')


def rank_of_process() -> int:
  """Returns the rank that the process manager gave this process."""
  for name in ('PMI_RANK', 'PMIX_RANK', 'OMPI_COMM_WORLD_RANK'):
    if name in os.environ:
      return int(os.environ[name])
  raise RuntimeError('mpi_worker: expected to be started by mpiexec, got none')


class Pulse:
  """What a rank is doing, in memory that it shares with its keeper."""

  _LAYOUT = struct.Struct('<qq64s')

  def __init__(self):
    self._memory = mmap.mmap(-1, self._LAYOUT.size)
    self._count = 0

  def beat(self, phase: str, needs: int | None = None) -> None:
    """Notes the phase that begins, and which rank it needs: `Ending.needs`."""
    self._count += 1
    peer = _NOBODY if needs is None else needs
    self._LAYOUT.pack_into(
      self._memory, 0, self._count, peer, phase.encode()[:64]
    )

  def read(self) -> tuple[int, str, int | None]:
    """Returns the count of beats, the phase in words, and the rank it needs."""
    count, peer, phase = self._LAYOUT.unpack_from(self._memory, 0)
    words = phase.rstrip(b'\0').decode() or 'starting'
    if peer >= 0:
      words += f' to rank {peer}'
    return count, words, None if peer == _NOBODY else peer


class Keeper:
  """Watches one rank's process until it ends."""

  def __init__(self, job: pathlib.Path, rank: int, pid: int, pulse: Pulse):
    self._job = job
    self._rank = rank
    self._pid = pid
    self._pulse = pulse
    request = mpi_job.read_request(job)
    self._num_ranks = request['num_ranks']
    self._deadline_s = request['deadline_s']
    self._patience = mpi_job.Patience(self._deadline_s + GRACE_S)
    self._lost_patience = mpi_job.Patience(GRACE_S)
    self._alone_patience = mpi_job.Patience(self._deadline_s + GRACE_S)
    self._segments: set[str] = set()

  def _name_lost_ranks(self) -> str:
    """Returns the names of the ranks that ended without being done."""
    return ', '.join(
      f'rank {ending.rank}'
      for ending in mpi_job.read_endings(self._job, self._num_ranks)
      if ending.outcome != mpi_job.SUCCESS
    )

  def _note_segments(self) -> None:
    names = mpi_job.list_segments(self._pid)
    if names <= self._segments:
      return
    self._segments |= names
    mark = dict(names=sorted(self._segments))
    mpi_job.write_mark(self._job, self._rank, 'segments', mark)

  def _verdict(self) -> mpi_job.Ending | None:
    """Returns the ending to report if the rank must be killed now."""
    beats, phase, needs = self._pulse.read()
    # A process that a signal stopped waits for no rank, whatever its call.
    if mpi_job.is_stopped(self._pid):
      phase, needs = f'stopped while {phase}', None
    needs = self._rank if needs is None else needs
    lost_ranks = self._name_lost_ranks()
    if lost_ranks and self._lost_patience.has_run_out(True):
      return self._ending(
        'stopped',
        f'did not go on after {lost_ranks} ended: it was {phase}',
        needs=needs,
      )
    sign = mpi_job.supervisor_sign(self._job)
    if self._alone_patience.has_run_out(sign) and sign is not None:
      return self._ending('stopped', 'was not waited for any more', ranks=())
    # An import has no beats, and takes long if many ranks start at once.
    starts = phase in _STARTS and mpi_job.read_cpu_times(self._pid)
    if self._patience.has_run_out((beats, starts)):
      return self._ending(
        'hung',
        f'did not go on for {self._deadline_s + GRACE_S:g} s: it was {phase}',
        needs=needs,
      )
    return None

  def _ending(self, outcome: str, text: str, ranks=None, needs=None):
    ranks = (self._rank,) if ranks is None else tuple(ranks)
    text = f'rank {self._rank} {text}'
    return mpi_job.Ending(self._rank, outcome, text, ranks, needs)

  def _read_status(self, status: int) -> mpi_job.Ending:
    error_mark = mpi_job.read_mark(self._job, self._rank, 'error')
    if error_mark:
      return mpi_job.Ending(self._rank, **error_mark)
    if not status:
      return self._ending(mpi_job.SUCCESS, 'is done', ranks=())
    reason = (
      f'was killed by signal {os.WTERMSIG(status)}'
      if os.WIFSIGNALED(status)
      else f'ended with exit status {os.waitstatus_to_exitcode(status)}'
    )
    return self._ending('died', f'{reason} while {self._pulse.read()[1]}')

  def watch(self) -> mpi_job.Ending:
    """Waits until the rank has ended, and returns how."""
    while True:
      pid, status = os.waitpid(self._pid, os.WNOHANG)
      if pid:
        return self._read_status(status)
      self._note_segments()
      verdict = self._verdict()
      if verdict:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return verdict
      mpi_job.find_rank_folder(self._job, self._rank).touch()
      time.sleep(_TICK_S)

  def linger(self) -> None:
    """Waits for the other ranks: mpiexec ends them when this process goes."""
    patience = mpi_job.Patience(self._deadline_s + 2 * GRACE_S)
    endings: list[mpi_job.Ending] = []
    while len(endings) < self._num_ranks and not patience.has_run_out(
      len(endings)
    ):
      time.sleep(_TICK_S)
      endings = mpi_job.read_endings(self._job, self._num_ranks)
    mpi_job.remove_segments(self._segments)


def _wait_for_ranks(job: pathlib.Path, request, pulse: Pulse) -> list[dict]:
  """Returns every rank's mark 'ready'.

  Raises:
    rank_runtime.RankError: a rank is lost, or none came for the deadline.
  """
  from hpmoe.backend_ascend.host.ranks import rank_runtime

  num_ranks = request['num_ranks']
  patience = mpi_job.Patience(request['deadline_s'])
  check = make_check(job, num_ranks)
  while True:
    pulse.beat('waiting for every rank to start', mpi_job.EVERY_RANK)
    check()
    marks = [mpi_job.read_mark(job, rank, 'ready') for rank in range(num_ranks)]
    if None not in marks:
      return [mark for mark in marks if mark]
    # Ranks that started have keepers, which report a lack of progress.
    missing = [
      rank
      for rank in range(num_ranks)
      if mpi_job.read_mark(job, rank, 'started') is None
    ]
    if missing and patience.has_run_out(missing):
      raise rank_runtime.RankError(
        f'{rank_runtime.name_ranks(missing)} did not start within '
        f'{request["deadline_s"]:g} s',
        missing,
      )
    time.sleep(_TICK_S)


def make_check(job: pathlib.Path, num_ranks: int, every_s: float = 0.05):
  """Returns a function that raises if another rank has ended badly.

  It raises RankLost if that rank died or had an error, and else
  DiagnosisRequest.
  """
  from hpmoe.backend_ascend.host.ranks import rank_runtime

  last = [time.monotonic()]

  def check() -> None:
    if time.monotonic() - last[0] < every_s:
      return
    last[0] = time.monotonic()
    bad = mpi_job.find_causes(mpi_job.read_endings(job, num_ranks))
    if bad and bad[0].outcome in ('died', 'error'):
      raise rank_runtime.RankLost(bad[0].text, bad[0].ranks)
    if bad:
      raise rank_runtime.DiagnosisRequest

  return check


def check_shared_memory(marks: list[dict]) -> None:
  """Checks that every rank's windows fit into its machine's memory.

  Writing to a segment that does not fit is a bus error, which names no cause;
  so this is checked before.

  Args:
    marks: the mark 'ready' of every rank.

  Raises:
    rank_runtime.RankError: the same on every rank.
  """
  from hpmoe.backend_ascend.host.ranks import rank_runtime

  free: dict[str, int] = {}
  for mark in marks:
    host = mark['host']
    free[host] = min(free.get(host, mark['free']), mark['free'])
  for rank, mark in enumerate(marks):
    left = free[mark['host']]
    if mark['need'] > left:
      raise rank_runtime.RankError(
        f'rank {rank}: shared memory: expected {mark["need"]} bytes free in '
        f'{mpi_job.SHM} of {mark["host"]}, got {left} after the lower ranks',
        [rank],
      )
    free[mark['host']] = left - mark['need']


def _count_shared_bytes(image) -> int:
  """Returns the bytes of shared memory of a rank; 0 for a bad image."""
  from hpmoe.backend_ascend.compiler.taskflow import image as image_lib

  if not isinstance(image, image_lib.Image):
    return 0  # `agree` reports what is wrong with it
  windows = image.heap_bytes, 4 * len(image.tables['events'])
  return MPI_BYTES + sum(-(-size // _PAGE) * _PAGE for size in windows)


def _launch(job: pathlib.Path, rank: int, pulse: Pulse) -> None:
  """Runs the rank's part of the job."""
  pulse.beat('importing')
  from hpmoe.backend_ascend.host.ranks import mpi_transport
  from hpmoe.backend_ascend.host.ranks import rank_runtime
  from hpmoe.parity_tests.candidates import tensor_transfer

  request = mpi_job.read_request(job)
  rank_folder = mpi_job.find_rank_folder(job, rank)
  pulse.beat('reading its inputs')
  image = rank_runtime.load_if_good((rank_folder / 'image.bin').read_bytes())
  inputs = tensor_transfer.load(rank_folder / 'inputs')
  limit = request['shared_memory']
  free = mpi_job.free_shared_memory()
  mark = dict(
    host=os.uname().nodename,
    need=_count_shared_bytes(image),
    free=free if limit is None else min(free, limit),
  )
  mpi_job.write_mark(job, rank, 'ready', mark)
  check_shared_memory(_wait_for_ranks(job, request, pulse))
  pulse.beat('starting MPI', mpi_job.EVERY_RANK)
  mpi_drills.before_mpi(request, rank)
  transport = mpi_transport.MpiTransport(
    None,
    pulse.beat,
    make_check(job, request['num_ranks']),
    # A drill counts puts, on its rank only.
    use_shared_memory=request['use_shared_memory'] and not request['drills'],
  )
  outputs = rank_runtime.launch_rank(
    image,
    inputs,
    mpi_drills.plan_drill(transport, request),
    deadline_s=request['deadline_s'],
  )
  pulse.beat('writing its outputs')
  tensor_transfer.save(rank_folder / 'outputs', outputs)
  transport.close()
  mpi_transport.load_mpi().Finalize()


def _run_rank(job: pathlib.Path, rank: int, pulse: Pulse) -> int:
  """Returns the exit status of the rank's process."""
  from hpmoe.backend_ascend.host.launch import runtime
  from hpmoe.backend_ascend.host.ranks import rank_runtime

  error_mark: dict[str, Any]
  try:
    _launch(job, rank, pulse)
    return 0
  except rank_runtime.RankLost as error:
    text = f'{error} (rank {rank} saw it)'
    error_mark = dict(outcome='stopped', text=text, ranks=error.ranks)
  except rank_runtime.RankError as error:
    error_mark = dict(outcome='error', text=str(error), ranks=error.ranks)
  except runtime.WaitError as error:
    owing = sorted({task.rank for task in error.diagnosis.suspects})
    error_mark = dict(
      outcome='waits', text=f'rank {rank}: {error}', ranks=owing
    )
  except rank_runtime.DiagnosisRequest:
    phase = pulse.read()[1]
    error_mark = dict(
      outcome='waits', text=f'rank {rank} was {phase}', ranks=()
    )
  except Exception as error:  # pylint: disable=broad-except
    error_mark = dict(
      outcome='error', text=f'rank {rank}: {error!r}', ranks=[rank]
    )
  mpi_job.write_mark(job, rank, 'error', error_mark)
  return _GAVE_UP


def _be_rank(job: pathlib.Path, rank: int, pulse: Pulse, keeper: int) -> None:
  """Runs the rank in the forked process; never returns."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  status = _GAVE_UP
  try:
    if os.getppid() == keeper:
      status = _run_rank(job, rank, pulse)
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    # No atexit: mpi4py's would wait for lost ranks.
    os._exit(status)


def main(job: pathlib.Path) -> None:
  # MPICH's mpiexec sends it to the others when a process ends without MPI's
  # farewell.
  signal.signal(signal.SIGUSR1, signal.SIG_IGN)
  rank = rank_of_process()
  mpi_drills.before_start(mpi_job.read_request(job), rank)
  pulse = Pulse()
  keeper = os.getpid()
  pid = os.fork()
  if not pid:
    _be_rank(job, rank, pulse, keeper)
  mark: dict[str, Any] = dict(
    host=os.uname().nodename, keeper=keeper, process=pid
  )
  mpi_job.write_mark(job, rank, 'started', mark)
  watcher = Keeper(job, rank, pid, pulse)
  ending = watcher.watch()
  mpi_job.write_mark(job, rank, 'ended', json.loads(json.dumps(vars(ending))))
  if ending.outcome != mpi_job.SUCCESS:
    watcher.linger()


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
