"""A job of ranks in processes of their own, as a folder that all of them see.

    request.json          what to do
    supervisor            touched as long as somebody waits for the job
    rank3/image.bin       the rank's copy of the task image
    rank3/inputs          its slabs, and outputs beside them, a file each
    rank3/started.json    host and process ids
    rank3/ready.json      what it needs of shared memory: next is MPI
    rank3/segments.json   shared memory segments that its process has mapped
    rank3/error.json      why it gave up
    rank3/ended.json      how its process ended, written by its keeper

A mark appears whole or not at all.  Only the standard library is imported: a
keeper must start fast and hold nothing.
"""

import dataclasses
import json
import os
import pathlib
import time
from typing import Any

# Names of segments in /dev/shm that MPI libraries use.
SHM = pathlib.Path('/dev/shm')

# Of `Ending.how`: the one that leaves the other ranks alone.
DONE = 'done'
# Of `Ending.needs`: a call that takes every rank.
EVERY_RANK = -1


@dataclasses.dataclass(frozen=True)
class Ending:
  """How a rank's process ended: what one rank, or its keeper, can know.

  Attributes:
    rank: which.
    how: 'done'; 'died', by itself; 'error', it gave up and knows why; 'waits',
      it gave up and says what it waits for; 'hung', its keeper ended it because
      it did not go on; 'stopped', another rank was lost: it ended itself, or
      its keeper did because it did not answer.
    text: what happened, starting with the rank's name.
    ranks: those that it holds responsible.
    needs: of a rank that its keeper ended, whose help its last call needs: a
      rank, itself if it was in no such call, or EVERY_RANK.  None: it ended by
      itself.
  """

  rank: int
  how: str
  text: str
  ranks: tuple[int, ...]
  needs: int | None = None


def folder(job: pathlib.Path, rank: int) -> pathlib.Path:
  return job / f'rank{rank}'


def write_mark(
  job: pathlib.Path, rank: int, name: str, value: dict[str, Any]
) -> None:
  """Writes a rank's mark."""
  path = folder(job, rank) / f'{name}.json'
  draft = path.with_suffix(f'.{os.getpid()}')
  draft.write_text(json.dumps(value))
  draft.rename(path)


def read_mark(job: pathlib.Path, rank: int, name: str) -> dict[str, Any] | None:
  """Returns a rank's mark, or None where there is none yet."""
  try:
    return json.loads((folder(job, rank) / f'{name}.json').read_text())
  except FileNotFoundError:
    return None


def request(job: pathlib.Path) -> dict[str, Any]:
  return json.loads((job / 'request.json').read_text())


def touch_supervisor(job: pathlib.Path) -> None:
  """Tells the keepers that somebody waits."""
  (job / 'supervisor').touch()


def supervisor_sign(job: pathlib.Path) -> int | None:
  """Returns what changes while somebody waits; None if nobody ever did."""
  try:
    return (job / 'supervisor').stat().st_mtime_ns
  except FileNotFoundError:
    return None


def endings(job: pathlib.Path, num_ranks: int) -> list[Ending]:
  """Returns how the ranks ended that have."""
  marks = [read_mark(job, rank, 'ended') for rank in range(num_ranks)]
  return [
    Ending(**dict(mark, ranks=tuple(mark['ranks']))) for mark in marks if mark
  ]


def culprits(ended: list[Ending]) -> list[Ending]:
  """Returns the endings that the others follow from, whoever was first.

  A rank that waits and says so is a witness.  So is one that its keeper found
  in a call to another that did not answer, or in a call that takes every rank.
  """
  bad = [ending for ending in ended if ending.how != DONE]
  for how in ('died', 'error'):
    known = [ending for ending in bad if ending.how == how]
    if known:
      return known
  silent = [ending for ending in bad if ending.needs is not None]
  own = [ending for ending in silent if ending.needs != EVERY_RANK] or silent
  others = {ending.rank for ending in own}
  first = [e for e in own if e.needs == e.rank or e.needs not in others]
  return first or own or [e for e in bad if e.how == 'waits'] or bad


def verdict(ended: list[Ending]) -> tuple[str, tuple[int, ...], list[Ending]]:
  """Returns what happened, the ranks at fault, and every ending in that light.

  Who waits for one that waits itself has not found the cause.
  """
  causes = culprits(ended)
  text = '; '.join(dict.fromkeys(cause.text for cause in causes))
  held = {rank for cause in causes for rank in cause.ranks}
  witnesses = {cause.rank for cause in causes if cause.how == 'waits'}
  ranks = tuple(sorted(held - witnesses or held))

  def seen(ending: Ending) -> Ending:
    witness = ending.how == 'waits' or ending.needs is not None
    if ending in causes or not witness:
      return ending
    words = f'{text} ({ending.text})'
    return dataclasses.replace(ending, text=words, ranks=ranks)

  return text, ranks, list(map(seen, ended))


def segments_of(pid: int) -> set[str]:
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


def _stat_of(pid: int) -> list[str]:
  """Returns the fields of a process from its state on; none once it ended."""
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return []
  return stat.rpartition(')')[2].split()


def cpu_of(pid: int) -> list[str]:
  """Returns what grows while a process computes; empty once it has ended."""
  return _stat_of(pid)[11:13]


def is_stopped(pid: int) -> bool:
  """Returns whether a signal or a debugger stopped a process."""
  return _stat_of(pid)[:1] in (['T'], ['t'])


def sweep(names: set[str]) -> None:
  """Removes segments that a process left behind."""
  for name in names:
    (SHM / name).unlink(missing_ok=True)


def free_shared_memory() -> int:
  """Returns the bytes that segments of this machine may still take."""
  about = os.statvfs(SHM)
  return about.f_bavail * about.f_frsize


class Patience:
  """Runs out when nothing has changed for some seconds.

  The caller looks again and again.  Where it could not for a while, the others
  of its machine could not go on either: that time does not count.
  """

  _LONGEST_LOOK_S = 0.1

  def __init__(self, seconds: float):
    self._left = self._seconds = seconds
    self._seen: Any = None
    self._looked = time.monotonic()

  def over(self, state: Any) -> bool:
    """Returns whether `state` has been the same for too long."""
    now = time.monotonic()
    self._left -= min(now - self._looked, self._LONGEST_LOOK_S)
    self._looked = now
    if state != self._seen:
      self._seen, self._left = state, self._seconds
    return self._left < 0
