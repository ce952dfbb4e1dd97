"""Ways for a rank to fail, on request: what a launch must survive.

A request names a drill by rank, as `{'2': ['killed_at_put', 3]}`.
"""

import os
import signal
import subprocess
import time
from typing import Any

# Longer than any deadline; the keeper ends it.
_FOREVER_S = 1e6


def find(request: dict[str, Any], rank: int, name: str) -> int | None:
  """Returns the drill's number if the rank has that one to do."""
  what, number = request.get('drills', {}).get(str(rank), ('', 0))
  return number if what == name else None


def before_start(request: dict[str, Any], rank: int) -> None:
  """The keeper's: 'never_starts'."""
  if find(request, rank, 'never_starts') is not None:
    time.sleep(_FOREVER_S)


def before_mpi(request: dict[str, Any], rank: int) -> None:
  """The rank's, when all ranks are ready: 'killed_before_mpi'.

  'stopped_in_mpi': so many milliseconds later, the others being in MPI_Init.
  """
  if find(request, rank, 'killed_before_mpi') is not None:
    os.kill(os.getpid(), signal.SIGKILL)
  wait_ms = find(request, rank, 'stopped_in_mpi')
  if wait_ms == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
  elif wait_ms is not None:
    # MPI_Init holds the interpreter's lock: a thread would come too late.
    text = f'sleep {wait_ms / 1000}; kill -STOP {os.getpid()}'
    subprocess.Popen(['sh', '-c', text])


class Drilled:
  """A transport that ends or stops its process, or its keeper, within a put."""

  def __init__(self, transport, request: dict[str, Any]):
    self._transport = transport
    self._left = {
      (pid, sent): find(request, transport.rank, name)
      for name, pid, sent in (
        ('killed_at_put', os.getpid(), signal.SIGKILL),
        ('stopped_at_put', os.getpid(), signal.SIGSTOP),
        ('keeper_killed_at_put', os.getppid(), signal.SIGKILL),
      )
    }

  def __getattr__(self, name: str):
    return getattr(self._transport, name)

  def put(self, rank: int, offset: int, data: memoryview) -> None:
    self._transport.put(rank, offset, data)
    for (pid, sent), left in self._left.items():
      if left == 0:
        os.kill(pid, sent)
      self._left[pid, sent] = None if left is None else left - 1


def drill(transport, request: dict[str, Any]):
  """Returns the transport, or one with this rank's drill."""
  planned = str(transport.rank) in request.get('drills', {})
  return Drilled(transport, request) if planned else transport
