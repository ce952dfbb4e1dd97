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

# What a rank has beyond the deadline to say why it gives up, or to give up when
# another rank is lost.
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
  """What a rank does now, in memory that its keeper shares."""

  _LAYOUT = struct.Struct('<qq64s')

  def __init__(self):
    self._memory = mmap.mmap(-1, self._LAYOUT.size)
    self._count = 0

  def beat(self, phase: str, needs: int | None = None) -> None:
    """Says what comes now, and whose help it needs: see `Ending.needs`."""
    self._count += 1
    peer = _NOBODY if needs is None else needs
    self._LAYOUT.pack_into(
      self._memory, 0, self._count, peer, phase.encode()[:64]
    )

  def read(self) -> tuple[int, str, int | None]:
    """Returns the count of beats, the phase in words, and whom it needs."""
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
    request = mpi_job.request(job)
    self._num_ranks = request['num_ranks']
    self._deadline_s = request['deadline_s']
    self._patience = mpi_job.Patience(self._deadline_s + GRACE_S)
    self._lost_patience = mpi_job.Patience(GRACE_S)
    self._alone_patience = mpi_job.Patience(self._deadline_s + GRACE_S)
    self._segments: set[str] = set()

  def _lost(self) -> str:
    """Returns the ranks that ended without being done, in words."""
    return ', '.join(
      f'rank {ending.rank}'
      for ending in mpi_job.endings(self._job, self._num_ranks)
      if ending.how != mpi_job.DONE
    )

  def _note_segments(self) -> None:
    names = mpi_job.segments_of(self._pid)
    if names <= self._segments:
      return
    self._segments |= names
    mark = dict(names=sorted(self._segments))
    mpi_job.write_mark(self._job, self._rank, 'segments', mark)

  def _verdict(self) -> mpi_job.Ending | None:
    """Returns how the rank must be ended now, if it must."""
    beats, phase, needs = self._pulse.read()
    # Whatever call it is in, who was stopped waits for nobody.
    if mpi_job.is_stopped(self._pid):
      phase, needs = f'stopped while {phase}', None
    needs = self._rank if needs is None else needs
    lost = self._lost()
    if lost and self._lost_patience.over(True):
      return self._ending(
        'stopped',
        f'did not go on after {lost} ended: it was {phase}',
        needs=needs,
      )
    sign = mpi_job.supervisor_sign(self._job)
    if self._alone_patience.over(sign) and sign is not None:
      return self._ending('stopped', 'was not waited for any more', ranks=())
    # An import has no beats, and takes long where many ranks start at once.
    starts = phase in _STARTS and mpi_job.cpu_of(self._pid)
    if self._patience.over((beats, starts)):
      return self._ending(
        'hung',
        f'did not go on for {self._deadline_s + GRACE_S:g} s: it was {phase}',
        needs=needs,
      )
    return None

  def _ending(self, how: str, text: str, ranks=None, needs=None):
    ranks = (self._rank,) if ranks is None else tuple(ranks)
    text = f'rank {self._rank} {text}'
    return mpi_job.Ending(self._rank, how, text, ranks, needs)

  def _read_status(self, status: int) -> mpi_job.Ending:
    told = mpi_job.read_mark(self._job, self._rank, 'error')
    if told:
      return mpi_job.Ending(self._rank, **told)
    if not status:
      return self._ending(mpi_job.DONE, 'is done', ranks=())
    how = (
      f'was killed by signal {os.WTERMSIG(status)}'
      if os.WIFSIGNALED(status)
      else f'ended with exit status {os.waitstatus_to_exitcode(status)}'
    )
    return self._ending('died', f'{how} while {self._pulse.read()[1]}')

  def watch(self) -> mpi_job.Ending:
    """Returns how the rank ended, when it has."""
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
      mpi_job.folder(self._job, self._rank).touch()
      time.sleep(_TICK_S)

  def linger(self) -> None:
    """Waits for the other ranks: mpiexec ends them when this process goes."""
    patience = mpi_job.Patience(self._deadline_s + 2 * GRACE_S)
    ended: list[mpi_job.Ending] = []
    while len(ended) < self._num_ranks and not patience.over(len(ended)):
      time.sleep(_TICK_S)
      ended = mpi_job.endings(self._job, self._num_ranks)
    mpi_job.sweep(self._segments)


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
    # Those that started have keepers, which tell if they do not go on.
    missing = [
      rank
      for rank in range(num_ranks)
      if mpi_job.read_mark(job, rank, 'started') is None
    ]
    if missing and patience.over(missing):
      raise rank_runtime.RankError(
        f'{rank_runtime.name_ranks(missing)} did not start within '
        f'{request["deadline_s"]:g} s',
        missing,
      )
    time.sleep(_TICK_S)


def make_check(job: pathlib.Path, num_ranks: int, every_s: float = 0.05):
  """Returns what raises RankLost or Asked when another rank has ended badly."""
  from hpmoe.backend_ascend.host.ranks import rank_runtime

  last = [time.monotonic()]

  def check() -> None:
    if time.monotonic() - last[0] < every_s:
      return
    last[0] = time.monotonic()
    bad = mpi_job.culprits(mpi_job.endings(job, num_ranks))
    if bad and bad[0].how in ('died', 'error'):
      raise rank_runtime.RankLost(bad[0].text, bad[0].ranks)
    if bad:
      raise rank_runtime.DiagnosisRequest

  return check


def check_shared_memory(marks: list[dict]) -> None:
  """Checks that every rank's windows fit into its machine's memory.

  Writing to a segment that does not fit is a bus error, which tells nobody
  anything; so this comes before.

  Args:
    marks: 'ready', of every rank.

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


def _needed(image) -> int:
  """Returns the shared memory that a rank takes; 0 for a bad image."""
  from hpmoe.backend_ascend.compiler.taskflow import image as image_lib

  if not isinstance(image, image_lib.Image):
    return 0  # `agree` says what is wrong with it
  windows = image.heap_bytes, 4 * len(image.tables['events'])
  return MPI_BYTES + sum(-(-size // _PAGE) * _PAGE for size in windows)


def _launch(job: pathlib.Path, rank: int, pulse: Pulse) -> None:
  """Does the rank's part of the job."""
  pulse.beat('importing')
  from hpmoe.backend_ascend.host.ranks import mpi_transport
  from hpmoe.backend_ascend.host.ranks import rank_runtime
  from hpmoe.parity_tests.candidates import exchange

  request = mpi_job.request(job)
  here = mpi_job.folder(job, rank)
  pulse.beat('reading its inputs')
  image = rank_runtime.load_if_good((here / 'image.bin').read_bytes())
  inputs = exchange.load(here / 'inputs')
  limit = request['shared_memory']
  free = mpi_job.free_shared_memory()
  mark = dict(
    host=os.uname().nodename,
    need=_needed(image),
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
    use_shared_memory=request['mapped'] and not request['drills'],
  )
  outputs = rank_runtime.launch_rank(
    image,
    inputs,
    mpi_drills.drill(transport, request),
    deadline_s=request['deadline_s'],
  )
  pulse.beat('writing its outputs')
  exchange.save(here / 'outputs', outputs)
  transport.close()
  mpi_transport.load_mpi().Finalize()


def _run_rank(job: pathlib.Path, rank: int, pulse: Pulse) -> int:
  """Returns the exit status of the rank's process."""
  from hpmoe.backend_ascend.host.launch import runtime
  from hpmoe.backend_ascend.host.ranks import rank_runtime

  told: dict[str, Any]
  try:
    _launch(job, rank, pulse)
    return 0
  except rank_runtime.RankLost as error:
    text = f'{error} (rank {rank} saw it)'
    told = dict(how='stopped', text=text, ranks=error.ranks)
  except rank_runtime.RankError as error:
    told = dict(how='error', text=str(error), ranks=error.ranks)
  except runtime.WaitError as error:
    owing = sorted({task.rank for task in error.diagnosis.suspects})
    told = dict(how='waits', text=f'rank {rank}: {error}', ranks=owing)
  except rank_runtime.DiagnosisRequest:
    phase = pulse.read()[1]
    told = dict(how='waits', text=f'rank {rank} was {phase}', ranks=())
  except Exception as error:  # pylint: disable=broad-except
    told = dict(how='error', text=f'rank {rank}: {error!r}', ranks=[rank])
  mpi_job.write_mark(job, rank, 'error', told)
  return _GAVE_UP


def _be_rank(job: pathlib.Path, rank: int, pulse: Pulse, keeper: int) -> None:
  """The forked process; never returns."""
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
  mpi_drills.before_start(mpi_job.request(job), rank)
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
  if ending.how != mpi_job.DONE:
    watcher.linger()


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
