"""Computes the next items in threads while the caller uses one.

Results and their order do not depend on timing.  numpy releases the interpreter
lock in every long operation.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
import contextlib
import ctypes
import functools
import itertools
import os
import pathlib
import threading
from typing import TypeVar

import numpy as np

_Item = TypeVar('_Item')
_Value = TypeVar('_Value')

# More workers would only keep more unused results in memory.
_MOST_WORKERS = 4
# The names in wheels of numpy and in local builds.
_SETTERS = tuple(
  f'{prefix}openblas_{{}}_num_threads{suffix}'
  for prefix in ('scipy_', '')
  for suffix in ('64_', '')
)
# Set by `limit_workers`; 0: one for each core.
_workers = 0
_lock = threading.Lock()
_inside = 0


def prefetch_map(
  compute: Callable[[_Item], _Value], items: Iterable[_Item]
) -> Iterator[tuple[_Item, _Value]]:
  """Yields (item, `compute(item)`) in order, and computes the next ahead."""
  coming = iter(items)
  first = list(itertools.islice(coming, 2))
  if len(first) < 2:  # Nothing can overlap: a thread would only cost time.
    with _one_thread_of_blas():
      yield from ((item, compute(item)) for item in first)
    return
  items = itertools.chain(first, coming)
  count = _workers or min(os.cpu_count() or 1, _MOST_WORKERS)
  compute = _in_state_of_caller(compute)
  waiting: collections.deque = collections.deque()
  with _one_thread_of_blas(), futures.ThreadPoolExecutor(count) as pool:
    for item in items:
      waiting.append((item, pool.submit(compute, item)))
      if len(waiting) > count:
        before, future = waiting.popleft()
        yield before, future.result()
    while waiting:
      before, future = waiting.popleft()
      yield before, future.result()


@contextlib.contextmanager
def limit_workers(count: int) -> Iterator[None]:
  """Limits `prefetch_map` to `count` threads inside the context."""
  global _workers
  before, _workers = _workers, count
  try:
    yield
  finally:
    _workers = before


def _in_state_of_caller(compute: Callable[[_Item], _Value]):
  """Returns `compute` under the caller's numpy error state, in any thread."""
  state = np.geterr()

  def computed(item: _Item) -> _Value:
    with np.errstate(**state):
      return compute(item)

  return computed


@contextlib.contextmanager
def _one_thread_of_blas() -> Iterator[None]:
  """Limits OpenBLAS to one thread: its idle threads spin on our cores."""
  global _inside
  blas = _openblas()
  with _lock:
    _inside += 1
    if blas is not None and _inside == 1:
      _before.append(blas[0]())
      blas[1](1)
  try:
    yield
  finally:
    with _lock:
      _inside -= 1
      if blas is not None and not _inside:
        blas[1](_before.pop())


_before: list[int] = []


@functools.cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
  """Returns OpenBLAS's functions to get and set its threads, or None."""
  with contextlib.suppress(OSError):
    maps = pathlib.Path('/proc/self/maps').read_text().split()
    for path in sorted({path for path in maps if 'openblas' in path}):
      library = ctypes.CDLL(path)
      for name in _SETTERS:
        if hasattr(library, name.format('set')):
          get = getattr(library, name.format('get'))
          return get, getattr(library, name.format('set'))
  return None
