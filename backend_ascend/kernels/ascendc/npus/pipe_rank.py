"""One rank whose Comm is a pipe to the process that started it.

    python -m hpmoe.backend_ascend.kernels.ascendc.npus.pipe_rank RANK RANKS

Messages are pickles, each behind its length.  It is told what to make a
`Launch` of, then what to run, and answers each with what came of it;
`local_ranks` is the other side.
"""

import os
import pickle
import struct
import sys
from typing import IO, Any

from hpmoe.backend_ascend.kernels.ascendc.npus import npu_launch
from hpmoe.backend_ascend.kernels.host.ranks import rank_runtime

_LENGTH = struct.Struct('<q')


def send(to: IO[bytes], value: Any) -> None:
  """Writes a message."""
  words = pickle.dumps(value)
  to.write(_LENGTH.pack(len(words)) + words)
  to.flush()


def receive(source: IO[bytes]) -> Any:
  """Reads a message.

  Raises:
    EOFError: the other side has gone.
  """
  head = source.read(_LENGTH.size)
  if len(head) < _LENGTH.size:
    raise EOFError('expected a message, got the end')
  size = _LENGTH.unpack(head)[0]
  words = source.read(size)
  if len(words) < size:
    raise EOFError('expected a whole message, got the end')
  return pickle.loads(words)


class PipeComm:
  """A `npu_launch.Comm` through the process that started all ranks."""

  def __init__(self, rank: int, num_ranks: int, source: IO, to: IO):
    self.rank, self.num_ranks = rank, num_ranks
    self._source, self._to = source, to

  def allgather(self, value: Any) -> list[Any]:
    """See `npu_launch.Comm`."""
    send(self._to, ('gather', value))
    kind, heard = receive(self._source)
    if kind == 'lost':
      text = f'{rank_runtime.name_ranks(heard)} ended'
      raise rank_runtime.RankError(text, heard)
    return heard


def main(rank: int, num_ranks: int) -> None:
  """Serves until the other side has gone."""
  # What a library prints goes to our error output.
  source, to = sys.stdin.buffer, os.fdopen(os.dup(1), 'wb')
  os.dup2(2, 1)
  comm = PipeComm(rank, num_ranks, source, to)
  launch: npu_launch.Launch  # the first thing that it is told
  while True:
    try:
      kind, told = receive(source)
    except EOFError:
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
      send(to, ('failed', (type(error), error.args, error.__dict__)))
    else:
      send(to, ('done', answer))


if __name__ == '__main__':
  main(*map(int, sys.argv[1:3]))
