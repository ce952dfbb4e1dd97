"""Jobs that know nothing of each other, done by two processes.

numpy on small arrays hands the interpreter from thread to thread all the time,
so threads do not help a small check.  A fork sees all that is there, and hands
back what its jobs return.  Who takes which job depends on time, what comes out
does not: a job that the other process did not bring to its end is done here.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import pickle
import sys
from typing import Any, TypeVar

from hpmoe.parity_tests.judge import prefetch

_Value = TypeVar('_Value')

# They have threads of their own, which a fork would leave behind.
_THREADED = ('jax', 'mindspore', 'torch', 'mpi4py')
# One byte names a job.
_MOST_JOBS = 256


def can_fork() -> bool:
  """Says whether a second process is of use, and harmless."""
  alone = not any(name in sys.modules for name in _THREADED)
  return alone and sys.platform == 'linux' and (os.cpu_count() or 1) > 1


def run_jobs(
  jobs: Sequence[Callable[[], _Value]], fork: bool | None = None
) -> Iterator[_Value]:
  """Yields what jobs return, in order; the first error of any is the caller's.

  Args:
    jobs: each changes nothing that others see; what they return is pickled.
    fork: whether by two processes; None: if `can_fork`.
  """
  fork = can_fork() if fork is None else fork
  if not fork or not 1 < len(jobs) <= _MOST_JOBS:
    yield from (job() for job in jobs)
    return
  returned_values = _run_by_two(jobs)
  for index, job in enumerate(jobs):
    yield returned_values[index] if index in returned_values else job()


def _run_by_two(jobs: Sequence[Callable[[], _Value]]) -> dict[int, _Value]:
  """Returns what came out of jobs, but for those of the other that failed."""
  left, answers = os.pipe(), os.pipe()
  # The last are those of a whole layer, and the longest: they come first.
  os.write(left[1], bytes(reversed(range(len(jobs)))))
  os.close(left[1])
  # What is not yet written would be written twice.
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
  """Yields jobs that nobody has taken."""
  while index := os.read(left, 1):
    yield index[0]


def _read(stream) -> dict[int, Any]:
  returned_values: dict[int, Any] = {}
  # The other may have been killed at any time: what is whole counts.
  with contextlib.suppress(EOFError, pickle.UnpicklingError):
    while True:
      index, value = pickle.load(stream)
      returned_values[index] = value
  return returned_values


def _work_and_end(jobs, left: int, answers: int) -> None:
  """Does jobs and ends the process; what fails here is tried by the other."""
  with contextlib.suppress(BaseException), os.fdopen(answers, 'wb') as stream:
    for index in _take_jobs(left):
      pickle.dump((index, jobs[index]()), stream)
      stream.flush()
  os._exit(0)
