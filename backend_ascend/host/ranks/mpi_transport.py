"""Ranks joined by MPI-3 one-sided communication, through mpi4py.

Only puts, flushes, accumulates and the polling of one's own memory: what a
cluster's network does as well as one machine does.  `mpi4py` is the optional
extra `mpi`.
"""

from collections.abc import Callable
import time
from typing import Any

import numpy as np

# How long an idle rank sleeps in the barrier after its last task, while it
# lets MPI work for the others.
_NAP_S = 2e-4


def load_mpi():
  """Returns `mpi4py.MPI`; the first call starts MPI, which may block.

  Raises:
    RuntimeError: it is not installed, or finds no MPI library.
  """
  try:
    from mpi4py import MPI  # pylint: disable=g-import-not-at-top
  except (ImportError, RuntimeError) as error:
    raise RuntimeError(
      'mpi: expected mpi4py and an MPI library, as the extra '
      f"'hyperparallel-moe[mpi]' installs them, got: {error}"
    ) from error
  return MPI


# Bytes of a cache line: what windows are multiples of.
_LINE = 64

# Of a call that takes every rank, as the second argument of a beat.
_EVERY_RANK = -1


def no_beat(phase: str, needs: int | None = None) -> None:
  """Does nothing."""


def no_check() -> None:
  """Does nothing."""


class MpiTransport:
  """A `rank_runtime.Transport` over two windows of a communicator.

  The heap and the counters are windows of their own, so that a flush of data
  does not wait for signals.  Every operation is within one access epoch to all
  ranks; the windows must have MPI's unified memory model.  Where all ranks are
  on one machine, their windows are mapped into each other.

  Args:
    comm: mpi4py communicator; None means all processes.
    beat: called before whatever may block with a phase and the rank whose help
      it needs: -1 for every rank, None for nobody's.
    check: called while idle; raises when a rank is known to be lost.
    use_shared_memory: whether ranks of one machine map each other's windows;
      the same on every rank.
  """

  def __init__(
    self,
    comm=None,
    beat: Callable[..., None] = no_beat,
    check: Callable[[], None] = no_check,
    use_shared_memory: bool = True,
  ):
    self._mpi = load_mpi()
    self._comm = comm or self._mpi.COMM_WORLD
    self.rank: int = self._comm.Get_rank()
    self.num_ranks: int = self._comm.Get_size()
    self._beat = beat
    self._check = check
    self._windows: list = []
    self._use_shared_memory = use_shared_memory

  def allgather(self, value: Any) -> list[Any]:
    self._beat('gathering offers', _EVERY_RANK)
    return self._comm.allgather(value)

  def _window(self, count: int, dtype, info: dict[str, str]):
    """Returns a window and its zeroed memory."""
    item = np.dtype(dtype).itemsize
    hints = self._mpi.Info.Create(info)
    make = self._mpi.Win.Allocate
    if self._use_shared_memory:
      make = self._mpi.Win.Allocate_shared
    # No window of zero bytes: its memory would have no address.  Those of a
    # machine may lie side by side.
    size = -(-max(count, 1) * item // _LINE) * _LINE
    window = make(size, item, info=hints, comm=self._comm)
    hints.Free()
    if window.model != self._mpi.WIN_UNIFIED:
      raise RuntimeError(
        'mpi: expected windows of the unified memory model, got others'
      )
    memory = np.frombuffer(window.tomemory(), dtype, count)
    memory[:] = 0
    window.Lock_all(self._mpi.MODE_NOCHECK)
    self._windows.append(window)
    return window, memory

  def allocate(
    self, heap_bytes: int, num_events: int
  ) -> tuple[np.ndarray, np.ndarray]:
    self._beat('allocating windows', _EVERY_RANK)
    self._use_shared_memory = self._use_shared_memory and self._on_one_machine()
    self._heap, heap = self._window(heap_bytes, np.uint8, {})
    # Lets a network add in hardware: nothing but sums is asked for.
    self._counts, counters = self._window(
      num_events, np.int32, dict(accumulate_ops='same_op')
    )
    self._sizes = heap_bytes, num_events
    return heap, counters

  def _on_one_machine(self) -> bool:
    machine = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
    size = machine.Get_size()
    machine.Free()
    return size == self.num_ranks

  def peers(self) -> list[tuple[np.ndarray, np.ndarray]]:
    if not self._use_shared_memory:
      return []
    heap_bytes, num_events = self._sizes

    def map_window(window, rank: int, dtype, count: int) -> np.ndarray:
      memory, _ = window.Shared_query(rank)
      return np.frombuffer(memory, dtype, count)

    return [
      (
        map_window(self._heap, rank, np.uint8, heap_bytes),
        map_window(self._counts, rank, np.int32, num_events),
      )
      for rank in range(self.num_ranks)
    ]

  def barrier(self) -> None:
    # Blocking would stop the puts of others on networks that need the target's
    # help, and would not see a lost rank.
    self.sync()
    request = self._comm.Ibarrier()
    while not request.Test():
      self._beat('waiting for every rank', _EVERY_RANK)
      self._check()
      time.sleep(_NAP_S)
    self.sync()

  def put(self, rank: int, offset: int, data: memoryview) -> None:
    self._beat('putting', rank)
    byte = self._mpi.BYTE
    size = len(data)
    self._heap.Put([data, size, byte], rank, [offset, size, byte])

  def flush(self, rank: int) -> None:
    self._beat('flushing puts', rank)
    self._heap.Flush(rank)

  def add(self, rank: int, event: int, amount: int) -> None:
    self._beat('signalling', rank)
    word = self._mpi.INT32_T
    amounts = np.array([amount], np.int32)
    self._counts.Accumulate(
      [amounts, 1, word], rank, [event, 1, word], self._mpi.SUM
    )
    self._counts.Flush(rank)

  def sync(self) -> None:
    self._beat('running')
    for window in self._windows:
      window.Sync()

  def progress(self) -> None:
    # A probe lets MPI serve the others, where their puts need this process.
    self._comm.Iprobe()
    self.sync()
    self._check()

  def close(self) -> None:
    """Frees the windows; every rank must call it, and only after a success.

    Where a rank is lost, this would wait for it: end the process instead.
    """
    self._beat('leaving', _EVERY_RANK)
    for window in self._windows:
      window.Unlock_all()
      window.Free()
    self._windows = []
