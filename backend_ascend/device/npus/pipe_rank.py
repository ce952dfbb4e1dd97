"""One rank whose Comm is a pipe to the process that started it.

    python -m hpmoe.backend_ascend.device.npus.pipe_rank RANK RANKS FD

Messages are pickles, each behind its length.  The first request opens a
`Launch`, the next ones run images; each gets an answer.  `local_ranks` is the
other side.
"""

from multiprocessing import connection
import os
import sys
from typing import Any

from hpmoe.backend_ascend.device.npus import npu_launch
from hpmoe.backend_ascend.host.ranks import rank_runtime


class PipeComm:
  """A `npu_launch.Comm` through the process that started all ranks."""

  def __init__(self, rank: int, num_ranks: int, pipe: connection.Connection):
    self.rank, self.num_ranks = rank, num_ranks
    self._pipe = pipe

  def allgather(self, value: Any) -> list[Any]:
    """See `npu_launch.Comm`."""
    self._pipe.send(('gather', value))
    kind, heard = self._pipe.recv()
    if kind == 'lost':
      text = f'{rank_runtime.name_ranks(heard)} ended'
      raise rank_runtime.RankError(text, heard)
    return heard


def main(rank: int, num_ranks: int, descriptor: int) -> None:
  """Serves until the other side closes the pipe."""
  # Libraries print to standard output: send it to standard error.
  os.dup2(2, 1)
  pipe = connection.Connection(descriptor)
  comm = PipeComm(rank, num_ranks, pipe)
  launch: npu_launch.Launch  # the first request opens it
  while True:
    try:
      kind, arguments = pipe.recv()
    except (EOFError, OSError):
      return
    try:
      if kind == 'open':
        launch = npu_launch.Launch(comm=comm, **arguments)
        answer = None
      elif kind == 'run':
        answer = launch.run(**arguments)
      else:
        launch.close()
        answer = None
    except (ValueError, RuntimeError) as error:
      pipe.send(('failed', (type(error), error.args, error.__dict__)))
    else:
      pipe.send(('done', answer))


if __name__ == '__main__':
  main(*map(int, sys.argv[1:4]))
