"""How ranks exchange messages over the host, by the launcher that started them.

The environment says which of `mpiexec` (mpi4py), `torchrun` (torch, over gloo)
and `msrun` (MindSpore) it was.  Messages are pickles: small, and no tensors.
"""

import os
import pickle
from typing import Any

import numpy as np

from hpmoe.backend_ascend.host.ranks import mpi_transport
from hpmoe.backend_ascend.host.ranks import rank_runtime

_MPI = ('PMI_RANK', 'PMIX_RANK', 'OMPI_COMM_WORLD_RANK')


class MpiComm:
  """Ranks that `mpiexec` started."""

  def __init__(self, comm=None):
    """Joins all processes, or those of a communicator of mpi4py."""
    mpi = mpi_transport.load_mpi()
    self._comm = comm or mpi.COMM_WORLD
    self.rank: int = self._comm.Get_rank()
    self.num_ranks: int = self._comm.Get_size()
    machine = self._comm.Split_type(mpi.COMM_TYPE_SHARED)
    self.local_rank: int = machine.Get_rank()
    machine.Free()

  def allgather(self, value: Any) -> list[Any]:
    """See `rank_runtime.Comm`."""
    return self._comm.allgather(value)

  def leave(self, code: int) -> None:
    """Ends all processes: MPI's own end would wait for every rank."""
    self._comm.Abort(code)


class TorchComm:
  """Ranks that `torchrun` started, in a group of their own over gloo."""

  def __init__(self):
    from torch import distributed  # pylint: disable=g-import-not-at-top

    if not distributed.is_initialized():
      distributed.init_process_group('gloo')
    self._distributed = distributed
    self._group = distributed.new_group(backend='gloo')
    self.rank: int = distributed.get_rank()
    self.num_ranks: int = distributed.get_world_size()
    self.local_rank = int(os.environ.get('LOCAL_RANK', self.rank))

  def allgather(self, value: Any) -> list[Any]:
    """See `rank_runtime.Comm`."""
    heard: list[Any] = [None] * self.num_ranks
    self._distributed.all_gather_object(heard, value, group=self._group)
    return heard


class MindSporeComm:
  """Ranks that `msrun` started, after `mindspore.communication.init`.

  Its all-gather takes tensors of one size, so lengths go first.
  """

  def __init__(self):
    # pylint: disable=g-import-not-at-top
    from mindspore import communication

    self.rank: int = communication.get_rank()
    self.num_ranks: int = communication.get_group_size()
    self.local_rank: int = communication.get_local_rank()

  def allgather(self, value: Any) -> list[Any]:
    """See `rank_runtime.Comm`."""
    words = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = self._gather(np.array([len(words)], np.int32)).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.int32)
    padded[: len(words)] = words
    rows = self._gather(padded).reshape(self.num_ranks, -1)
    return [
      pickle.loads(row[:size].astype(np.uint8).tobytes())
      for row, size in zip(rows, sizes)
    ]

  @staticmethod
  def _gather(words: np.ndarray) -> np.ndarray:
    # pylint: disable=g-import-not-at-top
    import mindspore as ms
    from mindspore import ops

    return ops.AllGather()(ms.Tensor(words)).asnumpy()


class NoComm:
  """A single process."""

  rank, num_ranks, local_rank = 0, 1, 0

  def allgather(self, value: Any) -> list[Any]:
    """See `rank_runtime.Comm`."""
    return [value]


def find_comm() -> rank_runtime.Comm:
  """Returns the Comm of the launcher that started this process.

  Raises:
    RuntimeError: the package that it needs is not installed.
  """
  if any(name in os.environ for name in _MPI):
    return MpiComm()
  if 'TORCHELASTIC_RUN_ID' in os.environ:
    return TorchComm()
  if 'MS_WORKER_NUM' in os.environ:
    return MindSporeComm()
  return NoComm()
