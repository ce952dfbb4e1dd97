"""What is computed ahead comes in order, and as if it were computed here."""

import threading
import time

import numpy as np
import pytest

from hpmoe.parity_tests.lanes import ahead


def test_items_come_in_order_whichever_is_ready_first():
  def slow(item):
    time.sleep(0.02 if item % 3 == 0 else 0)
    return -item

  assert list(ahead.map_ahead(slow, range(9))) == [(i, -i) for i in range(9)]
  assert list(ahead.map_ahead(slow, [])) == []


def test_no_more_is_begun_than_workers_hold():
  begun = []
  made = ahead.map_ahead(begun.append, range(100))
  next(made)
  assert len(begun) <= ahead._MOST_WORKERS + 1
  made.close()


def test_an_error_is_the_callers():
  def refuse(item):
    raise ValueError(f'item: expected none, got {item}')

  with pytest.raises(ValueError, match='got 7'):
    list(ahead.map_ahead(refuse, [7, 8]))


def test_the_callers_error_state_holds():
  with np.errstate(over='raise'), pytest.raises(FloatingPointError):
    list(ahead.map_ahead(np.square, [np.array([1e300])]))
  with np.errstate(over='ignore'):
    ((_, made),) = ahead.map_ahead(np.square, [np.array([1e300])])
  assert made == np.inf


def test_blas_has_its_threads_back():
  blas = ahead._openblas()
  if blas is None:
    pytest.skip('numpy has no OpenBLAS of its own here')
  get, set_ = blas
  before = get()
  set_(2)
  try:
    inside = ahead.map_ahead(
      lambda _: [get() for _ in ahead.map_ahead(int, [1])] + [get()], [1]
    )
    assert [made for _, made in inside] == [[1, 1]]
    assert get() == 2
  finally:
    set_(before)


def test_work_is_done_by_other_threads():
  ((_, name),) = ahead.map_ahead(lambda _: threading.current_thread().name, [1])
  assert name != threading.current_thread().name
