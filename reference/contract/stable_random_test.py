"""Bits that a numpy release must not move."""

import zlib

import numpy as np

from hpmoe.reference.contract import stable_random


class TestStableRandom:
  def test_bits_are_these(self):
    # given: figures written down once (numpy 1.26, x86-64).
    seed = stable_random.seed_of('test_bits_are_these', 0)
    assert seed == 2379847149
    assert _crc(stable_random.integers(seed, (64,), 1000)) == 1697381383
    assert _crc(stable_random.normal(seed, (64,))) == 21985441
    assert _crc(stable_random.permutation(seed, 64)) == 1121702597

  def test_skip_continues_the_stream(self):
    whole = stable_random.integers(7, (10, 3), 100)
    np.testing.assert_array_equal(
      stable_random.integers(7, (6, 3), 100, skip=12), whole[4:]
    )


def _crc(array):
  return zlib.crc32(np.ascontiguousarray(array).tobytes())


def test_a_part_is_drawn_without_the_rest():
  whole = stable_random.normal(7, (5, 6))
  part = stable_random.normal(7, (2, 6), skip=3 * 6)
  np.testing.assert_array_equal(part, whole[3:])
  assert np.abs(whole).max() <= stable_random.MOST_DEVIATIONS < 3.5
