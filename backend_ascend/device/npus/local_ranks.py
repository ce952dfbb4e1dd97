"""Ranks of one server as processes that this process starts and drives."""

from collections.abc import Mapping, Sequence
import contextlib
import multiprocessing
from multiprocessing import connection
import os
import subprocess
import sys
import time
from typing import Any, Self

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.device.npus import pipe_rank
from hpmoe.backend_ascend.host.ranks import rank_runtime

# Added to the time that ranks wait by themselves.
_GRACE_S = 60.0


class RanksError(rank_runtime.RankError):
  """Ranks did not all end well.

  Attributes:
    ranks: the ranks at fault.
    errors: the exception of each rank that raised one, by rank.
  """

  def __init__(self, text: str, ranks: Sequence[int], errors: Mapping):
    super().__init__(text, ranks)
    self.errors = dict(errors)


def _rebuild_error(record) -> Exception:
  kind, args, fields = record
  error = kind.__new__(kind)
  error.args = args
  error.__dict__.update(fields)
  return error


class LocalRanks:
  """A `npu_launch.Launch` on each of `num_ranks` NPUs, rank r on device r.

  Attributes:
    processes: by rank.
  """

  def __init__(
    self,
    num_ranks: int,
    images: Sequence,
    *,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = 60.0,
    **options: Any,
  ):
    """Starts the processes.

    Args:
      num_ranks: R.
      images: as in `Launch`.
      environment: environment variables beside this process's.
      deadline_s: as in `Launch`.
      **options: other options of `Launch`.

    Raises:
      RanksError: ranks could not start; `errors` has what `Launch` raised.
    """
    self._patience_s = 4 * deadline_s + _GRACE_S
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    env = {**os.environ, 'PYTHONPATH': path, **(environment or {})}
    self.processes: list[subprocess.Popen] = []
    self._pipes: list[connection.Connection] = []
    for rank in range(num_ranks):
      parent_end, child_end = multiprocessing.Pipe()
      numbers = map(str, (rank, num_ranks, child_end.fileno()))
      self.processes.append(
        subprocess.Popen(
          [sys.executable, '-m', pipe_rank.__name__, *numbers],
          stdin=subprocess.DEVNULL,
          pass_fds=[child_end.fileno()],
          env=env,
        )
      )
      child_end.close()
      self._pipes.append(parent_end)
    self._good = False
    arguments = dict(options, images=[bytes(i) for i in images])
    arguments['deadline_s'] = deadline_s
    try:
      self._ask([('open', arguments)] * num_ranks)
    except BaseException:
      self.close()
      raise

  def run(
    self, image, inputs: Mapping[str, np.ndarray]
  ) -> dict[str, np.ndarray]:
    """Executes an image; as `runtime.launch`, `[R, ...]` in and out.

    Raises:
      RanksError: a rank is lost, or raised an error; see `errors`.
    """
    return self.gather(self.scatter(image, inputs))

  def scatter(self, image, inputs: Mapping[str, np.ndarray]) -> list:
    """Returns the request to each rank."""
    words = bytes(image_lib.load(image))
    slab = lambda r: {n: np.ascontiguousarray(a[r]) for n, a in inputs.items()}
    return [
      ('run', dict(image=words, inputs=slab(r)))
      for r in range(len(self.processes))
    ]

  def gather(self, requests: Sequence) -> dict[str, np.ndarray]:
    """Sends the requests, and returns the stacked slabs of all ranks."""
    slabs = self._ask(requests)
    return {name: np.stack([s[name] for s in slabs]) for name in slabs[0]}

  def _ask(self, requests: Sequence) -> list:
    """Returns the answer of each rank.

    Raises:
      RanksError: one failed or ended.
    """
    self._good = False
    exchange = _Exchange(self.processes, self._pipes)
    exchange.start(requests)
    until = time.monotonic() + self._patience_s
    while exchange.open and time.monotonic() < until:
      exchange.step()
    answers = exchange.answers()
    self._good = True
    return answers

  def close(self) -> None:
    """Ends the ranks, by a request if the last launch succeeded."""
    if self._good:
      with contextlib.suppress(RanksError):
        self._ask([('close', None)] * len(self.processes))
    for process, pipe in zip(self.processes, self._pipes):
      process.kill()
      process.wait()
      pipe.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error) -> None:
    self.close()


class _Exchange:
  """One question to all ranks, until each has answered or ended.

  Attributes:
    open: ranks that have not answered.
  """

  def __init__(self, processes, pipes):
    self._processes, self._pipes = processes, pipes
    self.open = set(range(len(processes)))
    self._exited_ranks: set[int] = set()
    self._gathered: dict[int, Any] = {}
    self._answers: dict[int, Any] = {}
    self._errors: dict[int, Exception] = {}

  def start(self, requests: Sequence) -> None:
    for rank, words in enumerate(requests):
      self._send(rank, words)

  def _send(self, rank: int, words) -> None:
    try:
      self._pipes[rank].send(words)
    except OSError:
      self._end(rank)

  def _end(self, rank: int) -> None:
    self._exited_ranks.add(rank)
    self.open.discard(rank)

  def step(self) -> None:
    """Receives the messages that ranks have sent."""
    speaking = set(range(len(self._pipes))) - self._exited_ranks
    pipes = {self._pipes[rank]: rank for rank in speaking}
    for pipe in connection.wait(pipes, 0.1):
      self._hear(pipes[pipe])
    if not self._gathered:
      return
    missing = set(range(len(self._processes))) - set(self._gathered)
    if not missing:
      heard = [self._gathered[r] for r in sorted(self._gathered)]
      words = ('heard', heard)
    elif missing & self.open:
      return
    else:
      words = ('lost', sorted(missing))
    for rank in list(self._gathered):
      self._send(rank, words)
    self._gathered = {}

  def _hear(self, rank: int) -> None:
    try:
      kind, value = self._pipes[rank].recv()
    except (EOFError, OSError):
      self._end(rank)
      return
    if kind == 'gather':
      self._gathered[rank] = value
      return
    self.open.discard(rank)
    if kind == 'done':
      self._answers[rank] = value
    else:
      self._errors[rank] = _rebuild_error(value)

  def answers(self) -> list:
    """Returns the answers by rank; see `LocalRanks._ask`."""
    silent_ranks = sorted(self._exited_ranks | self.open)
    messages = [self._describe_lost_rank(rank) for rank in silent_ranks]
    messages += [str(error) for error in self._errors.values()]
    if not messages:
      return [self._answers[rank] for rank in sorted(self._answers)]
    ranks = set(silent_ranks)
    for rank, error in self._errors.items():
      ranks |= set(getattr(error, 'ranks', () if silent_ranks else (rank,)))
    raise RanksError(
      '; '.join(dict.fromkeys(messages)), sorted(ranks), self._errors
    )

  def _describe_lost_rank(self, rank: int) -> str:
    if rank in self.open:
      return f'rank {rank}: expected an answer, got none'
    code = self._processes[rank].wait()
    ending = f'signal {-code}' if code < 0 else f'exit code {code}'
    return f'rank {rank}: expected an answer, got {ending}'
