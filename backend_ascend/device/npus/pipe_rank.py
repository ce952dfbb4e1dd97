"""One rank whose Comm is a pipe to the process that started it.

    python -m hpmoe.backend_ascend.device.npus.pipe_rank RANK RANKS FD

Messages are pickles, each behind its length.  It is told what to make a
`Launch` of, then what to run, and answers each with what came of it;
`local_ranks` is the other side.
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
  """Serves until the other side has gone."""
  # What a library prints goes to our error output.
  os.dup2(2, 1)
  pipe = connection.Connection(descriptor)
  comm = PipeComm(rank, num_ranks, pipe)
  launch: npu_launch.Launch  # the first thing that it is told
  while True:
    try:
      kind, told = pipe.recv()
    except (EOFError, OSError):
      return
    try:
      if kind == 'open':
        launch = npu_launch.Launch(comm=comm, **told)
        answer = None
      elif kind == 'run':
        answer = launch.run(**told)
      else:
        launch.close()
        answer = None
    except (ValueError, RuntimeError) as error:
      pipe.send(('failed', (type(error), error.args, error.__dict__)))
    else:
      pipe.send(('done', answer))


if __name__ == '__main__':
  main(*map(int, sys.argv[1:4]))
