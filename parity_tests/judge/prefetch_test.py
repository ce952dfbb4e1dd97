"""What is computed ahead comes in order, and as if it were computed here."""

import threading
import time

import numpy as np
import pytest

from hpmoe.parity_tests.judge import prefetch


def test_items_come_in_order_whichever_is_ready_first():
  def slow(item):
    time.sleep(0.02 if item % 3 == 0 else 0)
    return -item

  assert list(prefetch.prefetch_map(slow, range(9))) == [
    (i, -i) for i in range(9)
  ]
  assert list(prefetch.prefetch_map(slow, [])) == []


def test_no_more_is_begun_than_workers_hold():
  started_items = []
  results = prefetch.prefetch_map(started_items.append, range(100))
  next(results)
  assert len(started_items) <= prefetch._MOST_WORKERS + 1
  results.close()


def test_an_error_is_the_callers():
  def refuse(item):
    raise ValueError(f'item: expected none, got {item}')

  with pytest.raises(ValueError, match='got 7'):
    list(prefetch.prefetch_map(refuse, [7, 8]))


def test_the_callers_error_state_holds():
  for count in (1, 2):
    large = [np.array([1e300])] * count
    with np.errstate(over='raise'), pytest.raises(FloatingPointError):
      list(prefetch.prefetch_map(np.square, large))
    with np.errstate(over='ignore'):
      squares = [
        square for _, square in prefetch.prefetch_map(np.square, large)
      ]
    assert squares == [np.inf] * count


def test_one_thing_alone_takes_no_thread():
  def get_thread(_):
    return threading.get_ident()

  assert list(prefetch.prefetch_map(get_thread, [0])) == [
    (0, threading.get_ident())
  ]
  threads_of_two = [
    thread for _, thread in prefetch.prefetch_map(get_thread, [0, 1])
  ]
  assert threading.get_ident() not in threads_of_two


def test_blas_has_its_threads_back():
  blas = prefetch._openblas()
  if blas is None:
    pytest.skip('numpy has no OpenBLAS of its own here')
  get, set_ = blas
  before = get()
  set_(2)
  try:
    inside = prefetch.prefetch_map(
      lambda _: [get() for _ in prefetch.prefetch_map(int, [1])] + [get()], [1]
    )
    assert [num_threads for _, num_threads in inside] == [[1, 1]]
    assert get() == 2
  finally:
    set_(before)
