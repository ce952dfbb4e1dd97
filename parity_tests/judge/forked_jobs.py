"""Runs independent jobs in two processes, this one and a fork.

Threads do not help a small check: numpy on small arrays passes the interpreter
lock back and forth.  A fork sees all data of this process and sends back what
its jobs return.  Which process runs a job depends on timing; the results do
not: a job that the fork did not finish runs here.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import pickle
import sys
from typing import Any, TypeVar

from hpmoe.parity_tests.judge import prefetch

_Value = TypeVar('_Value')

# They start threads, which do not survive a fork.
_THREADED = ('jax', 'mindspore', 'torch', 'mpi4py')
# One byte names a job.
_MOST_JOBS = 256


def can_fork() -> bool:
  """Says whether a second process helps and is safe."""
  alone = not any(name in sys.modules for name in _THREADED)
  return alone and sys.platform == 'linux' and (os.cpu_count() or 1) > 1


def run_jobs(
  jobs: Sequence[Callable[[], _Value]], fork: bool | None = None
) -> Iterator[_Value]:
  """Yields what jobs return, in order; an error of a job reaches the caller.

  Args:
    jobs: functions without side effects; their results are pickled.
    fork: whether to use two processes; None: if `can_fork`.
  """
  fork = can_fork() if fork is None else fork
  if not fork or not 1 < len(jobs) <= _MOST_JOBS:
    yield from (job() for job in jobs)
    return
  returned_values = _run_by_two(jobs)
  for index, job in enumerate(jobs):
    yield returned_values[index] if index in returned_values else job()


def _run_by_two(jobs: Sequence[Callable[[], _Value]]) -> dict[int, _Value]:
  """Returns results by job; jobs that failed in the fork are missing."""
  left, answers = os.pipe(), os.pipe()
  # The last jobs judge the whole layer and take longest: they run first.
  os.write(left[1], bytes(reversed(range(len(jobs)))))
  os.close(left[1])
  # Buffered output would be written by both processes.
  sys.stdout.flush()
  sys.stderr.flush()
  child = os.fork()
  if not child:
    _work_and_end(jobs, left[0], answers[1])
  os.close(answers[1])
  try:
    with prefetch.limit_workers(1):
      returned_values = {index: jobs[index]() for index in _take_jobs(left[0])}
    with os.fdopen(os.dup(answers[0]), 'rb') as stream:
      return returned_values | _read(stream)
  finally:
    for end in (left[0], answers[0]):
      os.close(end)
    os.waitpid(child, 0)


def _take_jobs(left: int) -> Iterator[int]:
  """Yields indices of jobs that no process has taken yet."""
  while index := os.read(left, 1):
    yield index[0]


def _read(stream) -> dict[int, Any]:
  returned_values: dict[int, Any] = {}
  # The fork may have been killed at any time: only whole results count.
  with contextlib.suppress(EOFError, pickle.UnpicklingError):
    while True:
      index, value = pickle.load(stream)
      returned_values[index] = value
  return returned_values


def _work_and_end(jobs, left: int, answers: int) -> None:
  """Runs jobs and ends the process; the parent repeats jobs that fail."""
  with contextlib.suppress(BaseException), os.fdopen(answers, 'wb') as stream:
    for index in _take_jobs(left):
      pickle.dump((index, jobs[index]()), stream)
      stream.flush()
  os._exit(0)
