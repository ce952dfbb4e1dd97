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
  begun = []
  made = prefetch.prefetch_map(begun.append, range(100))
  next(made)
  assert len(begun) <= prefetch._MOST_WORKERS + 1
  made.close()


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
      made = [one for _, one in prefetch.prefetch_map(np.square, large)]
    assert made == [np.inf] * count


def test_one_thing_alone_takes_no_thread():
  def where(_):
    return threading.get_ident()

  assert list(prefetch.prefetch_map(where, [0])) == [(0, threading.get_ident())]
  two = [thread for _, thread in prefetch.prefetch_map(where, [0, 1])]
  assert threading.get_ident() not in two


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
    assert [made for _, made in inside] == [[1, 1]]
    assert get() == 2
  finally:
    set_(before)
