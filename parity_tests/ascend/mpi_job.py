"""A job whose ranks are processes, as a folder that all of them share.

    request.json          what to run
    supervisor            touched as long as a process waits for the job
    rank3/image.bin       the rank's copy of the task image
    rank3/inputs          its slabs, a file each; outputs lie beside it
    rank3/started.json    host and process ids
    rank3/ready.json      shared memory that it needs; MPI starts next
    rank3/segments.json   shared memory segments that its process has mapped
    rank3/error.json      why it gave up
    rank3/ended.json      how its process ended, written by its keeper

A mark (a JSON file) appears whole or not at all.  Only the standard library is
imported: a keeper must start fast and hold no resource.
"""

import dataclasses
import json
import os
import pathlib
import time
from typing import Any

# Names of segments in /dev/shm that MPI libraries use.
SHM = pathlib.Path('/dev/shm')

# `Ending.outcome` of a rank that returned its outputs.
SUCCESS = 'done'
# `Ending.needs` of a collective call.
EVERY_RANK = -1


@dataclasses.dataclass(frozen=True)
class Ending:
  """How a rank's process ended, as far as it or its keeper knows.

  Attributes:
    rank: the rank.
    outcome: 'done'; 'died': its process ended early; 'error': it gave up for an
      error of its own; 'waits': it gave up waiting, and says for what; 'hung':
      its keeper killed it because it made no progress; 'stopped': another rank
      was lost, and it ended itself or its keeper killed it.
    text: what happened, starting with the rank's name.
    ranks: the ranks that it holds responsible.
    needs: the rank without which the last call of a killed rank cannot return:
      a peer, the rank itself if it was in no such call, or EVERY_RANK.  None if
      the keeper did not kill it.
  """

  rank: int
  outcome: str
  text: str
  ranks: tuple[int, ...]
  needs: int | None = None


def find_rank_folder(job: pathlib.Path, rank: int) -> pathlib.Path:
  return job / f'rank{rank}'


def write_mark(
  job: pathlib.Path, rank: int, name: str, value: dict[str, Any]
) -> None:
  """Writes a rank's mark."""
  path = find_rank_folder(job, rank) / f'{name}.json'
  draft = path.with_suffix(f'.{os.getpid()}')
  draft.write_text(json.dumps(value))
  draft.rename(path)


def read_mark(job: pathlib.Path, rank: int, name: str) -> dict[str, Any] | None:
  """Returns a rank's mark, or None where there is none yet."""
  try:
    return json.loads(
      (find_rank_folder(job, rank) / f'{name}.json').read_text()
    )
  except FileNotFoundError:
    return None


def read_request(job: pathlib.Path) -> dict[str, Any]:
  return json.loads((job / 'request.json').read_text())


def touch_supervisor(job: pathlib.Path) -> None:
  """Tells the keepers that a process waits for the job."""
  (job / 'supervisor').touch()


def supervisor_sign(job: pathlib.Path) -> int | None:
  """Returns a stamp that changes while a process waits; None: none ever did."""
  try:
    return (job / 'supervisor').stat().st_mtime_ns
  except FileNotFoundError:
    return None


def read_endings(job: pathlib.Path, num_ranks: int) -> list[Ending]:
  """Returns the endings of the ranks that have ended."""
  marks = [read_mark(job, rank, 'ended') for rank in range(num_ranks)]
  return [
    Ending(**dict(mark, ranks=tuple(mark['ranks']))) for mark in marks if mark
  ]


def find_causes(endings: list[Ending]) -> list[Ending]:
  """Returns the endings that caused the others, in whatever order they came.

  A rank that gave up waiting is a witness, not a cause.  So is a rank that its
  keeper killed in a call to a peer that did not answer, or in a collective.
  """
  bad = [ending for ending in endings if ending.outcome != SUCCESS]
  for outcome in ('died', 'error'):
    causes = [ending for ending in bad if ending.outcome == outcome]
    if causes:
      return causes
  silent = [ending for ending in bad if ending.needs is not None]
  own = [ending for ending in silent if ending.needs != EVERY_RANK] or silent
  own_ranks = {ending.rank for ending in own}
  first = [e for e in own if e.needs == e.rank or e.needs not in own_ranks]
  return first or own or [e for e in bad if e.outcome == 'waits'] or bad


def explain_endings(
  endings: list[Ending],
) -> tuple[str, tuple[int, ...], list[Ending]]:
  """Returns what happened, the ranks at fault, and all endings.

  The ending of a witness names the cause instead of the rank that it waited
  for, which may have waited itself.
  """
  causes = find_causes(endings)
  text = '; '.join(dict.fromkeys(cause.text for cause in causes))
  responsible_ranks = {rank for cause in causes for rank in cause.ranks}
  witnesses = {cause.rank for cause in causes if cause.outcome == 'waits'}
  ranks = tuple(sorted(responsible_ranks - witnesses or responsible_ranks))

  def name_cause(ending: Ending) -> Ending:
    witness = ending.outcome == 'waits' or ending.needs is not None
    if ending in causes or not witness:
      return ending
    words = f'{text} ({ending.text})'
    return dataclasses.replace(ending, text=words, ranks=ranks)

  return text, ranks, list(map(name_cause, endings))


def list_segments(pid: int) -> set[str]:
  """Returns the names of the shared memory segments that a process maps."""
  try:
    lines = pathlib.Path(f'/proc/{pid}/maps').read_text().splitlines()
  except OSError:
    return set()
  paths = {line.split(maxsplit=5)[-1] for line in lines}
  return {
    path.removeprefix(f'{SHM}/').removesuffix(' (deleted)')
    for path in paths
    if path.startswith(f'{SHM}/')
  }


def _read_stat(pid: int) -> list[str]:
  """Returns the fields of /proc/PID/stat from the state on; [] if it ended."""
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return []
  return stat.rpartition(')')[2].split()


def read_cpu_times(pid: int) -> list[str]:
  """Returns the CPU times of a process; [] once it has ended."""
  return _read_stat(pid)[11:13]


def is_stopped(pid: int) -> bool:
  """Returns whether a signal or a debugger stopped a process."""
  return _read_stat(pid)[:1] in (['T'], ['t'])


def remove_segments(names: set[str]) -> None:
  """Removes segments that a process left behind."""
  for name in names:
    (SHM / name).unlink(missing_ok=True)


def free_shared_memory() -> int:
  """Returns the bytes that segments of this machine may still take."""
  about = os.statvfs(SHM)
  return about.f_bavail * about.f_frsize


class Patience:
  """Runs out when a state has not changed for some seconds.

  The caller passes the state again and again.  If it was suspended for a while,
  so were the other processes of its machine: that time does not count.
  """

  _LONGEST_LOOK_S = 0.1

  def __init__(self, seconds: float):
    self._left = self._seconds = seconds
    self._state: Any = None
    self._looked = time.monotonic()

  def has_run_out(self, state: Any) -> bool:
    """Returns whether `state` has been the same for too long."""
    now = time.monotonic()
    self._left -= min(now - self._looked, self._LONGEST_LOOK_S)
    self._looked = now
    if state != self._state:
      self._state, self._left = state, self._seconds
    return self._left < 0
