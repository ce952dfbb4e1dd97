"""A job of ranks in processes of their own, as a folder that all of them see.

    request.json          what to do
    supervisor            touched as long as somebody waits for the job
    rank3/image.bin       the rank's copy of the task image
    rank3/inputs          its slabs, and outputs beside them (candidates.save)
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

# Of `Ending.how`, those that leave the other ranks alone.
DONE = 'done'


@dataclasses.dataclass(frozen=True)
class Ending:
  """How a rank's process ended.

  Attributes:
    rank: which.
    how: 'done'; 'error', it gave up and said why; 'died', by itself; 'hung',
      its keeper ended it because it did not go on; 'stopped', its keeper ended
      it because another rank was lost.
    text: what happened, starting with the rank's name.
    ranks: those that it holds responsible.
  """

  rank: int
  how: str
  text: str
  ranks: tuple[int, ...]


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
  """Returns the endings that the others follow from, the likeliest first."""
  order = ('died', 'hung', 'error', 'stopped')
  bad = [ending for ending in ended if ending.how != DONE]
  return sorted(bad, key=lambda ending: order.index(ending.how))


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


def sweep(names: set[str]) -> None:
  """Removes segments that a process left behind."""
  for name in names:
    (SHM / name).unlink(missing_ok=True)


def free_shared_memory() -> int:
  """Returns the bytes that segments of this machine may still take."""
  about = os.statvfs(SHM)
  return about.f_bavail * about.f_frsize


class Patience:
  """Runs out when nothing has changed for some seconds."""

  def __init__(self, seconds: float):
    self._seconds = seconds
    self._seen: Any = None
    self._since = time.monotonic()

  def over(self, state: Any) -> bool:
    """Returns whether `state` has been the same for too long."""
    now = time.monotonic()
    if state != self._seen:
      self._seen, self._since = state, now
    return now - self._since > self._seconds
