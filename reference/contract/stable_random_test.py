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

  def test_integers_reach_both_ends_and_no_further(self):
    drawn = stable_random.integers(7, (4000,), 5)
    np.testing.assert_array_equal(np.unique(drawn), np.arange(5))

  def test_normal_has_mean_0_and_variance_1(self):
    # given 10^5 draws, the standard error of the mean is 0.003.
    drawn = stable_random.normal(7, (100, 1000))
    assert abs(drawn.mean()) < 0.015
    assert abs(drawn.var() - 1) < 0.02
    assert 3 < np.abs(drawn).max() < 3.47

  def test_permutation_has_every_number_once(self):
    drawn = stable_random.permutation(7, 50)
    np.testing.assert_array_equal(np.sort(drawn), np.arange(50))
    assert (drawn != np.arange(50)).any()


def _crc(array):
  return zlib.crc32(np.ascontiguousarray(array).tobytes())
