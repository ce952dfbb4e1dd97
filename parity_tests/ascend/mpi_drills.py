"""Drills: ways in which a rank fails on request, to test a launch.

A request names a drill by rank, as `{'2': ['killed_at_put', 3]}`.
"""

import os
import signal
import subprocess
import time
from typing import Any

# Longer than any deadline; the keeper ends it.
_FOREVER_S = 1e6


def find_drill(request: dict[str, Any], rank: int, name: str) -> int | None:
  """Returns the number of the rank's drill of that name, or None."""
  drill_name, number = request.get('drills', {}).get(str(rank), ('', 0))
  return number if drill_name == name else None


def before_start(request: dict[str, Any], rank: int) -> None:
  """Does the drill 'never_starts', in the keeper."""
  if find_drill(request, rank, 'never_starts') is not None:
    time.sleep(_FOREVER_S)


def before_mpi(request: dict[str, Any], rank: int) -> None:
  """Does 'killed_before_mpi' or 'stopped_in_mpi', in the rank.

  All ranks are ready.  'stopped_in_mpi' stops the rank some milliseconds later,
  when the others are in MPI_Init.
  """
  if find_drill(request, rank, 'killed_before_mpi') is not None:
    os.kill(os.getpid(), signal.SIGKILL)
  wait_ms = find_drill(request, rank, 'stopped_in_mpi')
  if wait_ms == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
  elif wait_ms is not None:
    # MPI_Init holds the interpreter's lock: a thread would come too late.
    text = f'sleep {wait_ms / 1000}; kill -STOP {os.getpid()}'
    subprocess.Popen(['sh', '-c', text])


class Drilled:
  """A transport that kills or stops its process, or its keeper, at a put."""

  def __init__(self, transport, request: dict[str, Any]):
    self._transport = transport
    self._left = {
      (pid, signal_number): find_drill(request, transport.rank, name)
      for name, pid, signal_number in (
        ('killed_at_put', os.getpid(), signal.SIGKILL),
        ('stopped_at_put', os.getpid(), signal.SIGSTOP),
        ('keeper_killed_at_put', os.getppid(), signal.SIGKILL),
      )
    }

  def __getattr__(self, name: str):
    return getattr(self._transport, name)

  def put(self, rank: int, offset: int, data: memoryview) -> None:
    self._transport.put(rank, offset, data)
    for (pid, signal_number), left in self._left.items():
      if left == 0:
        os.kill(pid, signal_number)
      self._left[pid, signal_number] = None if left is None else left - 1


def plan_drill(transport, request: dict[str, Any]):
  """Returns the transport, with the rank's drill if it has one."""
  planned = str(transport.rank) in request.get('drills', {})
  return Drilled(transport, request) if planned else transport
