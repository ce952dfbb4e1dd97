"""Another process maps large arrays; what it writes stays its own."""

import gc
import os

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import tensor_transfer
from hpmoe.parity_tests.case import shared_memory

pytestmark = pytest.mark.skipif(
  not shared_memory.is_supported(), reason='needs memfd_create of Linux'
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1)
  with shared_memory.reuse():
    yield
    gc.collect()


def draw_array() -> np.ndarray:
  array = shared_memory.empty((3, 5, 4096), np.dtype('float32'))
  array[...] = np.arange(array.size).reshape(array.shape)
  return array


def test_a_small_array_is_numpys(monkeypatch):
  monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1 << 20)
  assert not shared_memory.find_places(dict(x=draw_array()))


def test_a_copy_is_written_to_alone():
  array = draw_array()
  own = shared_memory.copy(array)
  assert shared_memory.is_unwritten(own)

  own[1, 2, 3] = -1

  assert array[1, 2, 3] != -1
  assert not shared_memory.is_unwritten(own)


def test_no_part_of_a_block_is_taken_for_the_block():
  array = draw_array()
  parts = dict(first=array[:1], turned=array.T, whole=array)
  assert list(shared_memory.find_places(parts)) == ['whole']
  assert not shared_memory.is_unwritten(np.ones(5))


def test_a_block_is_reused_once_nobody_uses_it():
  array = draw_array()
  view = array[0]
  place = shared_memory.find_places(dict(array=array))['array']
  del array
  other = draw_array()
  assert shared_memory.find_places(dict(x=other))['x'].file != place.file
  del view

  reused = shared_memory.zeros((3, 5, 4096), np.dtype('float32'))

  assert shared_memory.find_places(dict(x=reused))['x'].file == place.file
  assert not reused.any()


def count_files() -> int:
  return len(os.listdir('/proc/self/fd'))


def test_nothing_is_kept_once_the_context_ends():
  gc.collect()
  before = count_files()
  with shared_memory.reuse():
    outlives = draw_array()
    draw_array()
  assert count_files() > before
  del outlives
  shared_memory._blocks.drop_unused()  # of the fixture's context
  assert count_files() <= before


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16', 'int32'])
def test_what_is_lent_is_borrowed(tmp_path, dtype):
  import ml_dtypes  # noqa: F401  registers bfloat16

  large = shared_memory.empty((2, 3, 7), np.dtype(dtype))
  large[...] = np.arange(42).reshape(2, 3, 7)
  small = np.ones(4, np.float32)

  rows = tensor_transfer.lend(
    tmp_path / 'inputs', dict(large=large, small=small)
  )
  borrowed = tensor_transfer.borrow(tmp_path / 'inputs', rows)

  assert list(rows) == ['large']
  assert borrowed['large'].dtype == large.dtype
  np.testing.assert_array_equal(borrowed['large'], large)
  np.testing.assert_array_equal(borrowed['small'], small)


def test_one_changed_bit_is_seen():
  array = draw_array()
  own = tensor_transfer.copy(dict(w=array))
  assert not tensor_transfer.describe_overwritten(dict(w=array), own)

  own['w'][...] = array  # written to, and as it was
  assert not tensor_transfer.describe_overwritten(dict(w=array), own)
  own['w'].view(np.uint32)[2, 4, 4095] ^= 1

  assert tensor_transfer.describe_overwritten(dict(w=array), own).startswith(
    'w: expected an input'
  )
