"""ULP distances against what numpy says a step is."""

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.judge.limits import ulp

DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16, np.float64)


@pytest.mark.parametrize('dtype', DTYPES)
def test_neighbours_are_one_apart_across_binades_and_zero(dtype):
  values = [-2.0, -1.0, 0.0, 1.0, 1.9921875, 2.0, 1e-30, 3e4]
  low = np.array(values, dtype)
  high = np.nextafter(low, np.array(np.inf, dtype))

  apart = ulp.distance(low, high)

  np.testing.assert_array_equal(apart, 1)


def test_signs_meet_at_zero():
  tiny = np.array([np.float32(1e-45)])

  assert ulp.distance(np.float32([-0.0]), np.float32([0.0])) == [0]
  assert ulp.distance(-tiny, tiny) == [2]


def test_nan_is_farthest_from_numbers_and_equal_to_nan():
  a = np.float32([np.nan, np.nan, np.inf, 1])
  b = np.float32([np.nan, 1, 1, np.nan])

  apart = ulp.distance(a, b)

  assert apart[0] == 0
  assert apart[1] == apart[3] == 2**32 - 1
  assert 0 < apart[2] < apart[1]


def test_integers_count_one_by_one():
  a, b = np.int32([2**31 - 1, 5]), np.int32([-(2**31), 3])

  np.testing.assert_array_equal(ulp.distance(a, b), [2**32 - 1, 2])


def test_other_dtype_is_refused():
  with pytest.raises(ValueError, match='expected dtype float32, got float64'):
    ulp.distance(np.zeros(1, np.float32), np.zeros(1))


def test_half_spacing_is_half_a_step():
  values = np.abs(np.random.default_rng(7).normal(size=1000)) * 1e3
  values = np.float32([*values, 0.0, 1.0, 1e-40]).astype(np.float64)

  half = ulp.half_spacing(values, 'float32')

  np.testing.assert_array_equal(
    half, np.spacing(values.astype(np.float32)).astype(np.float64) / 2
  )


# In the second scale float16 has subnormal numbers.
@pytest.mark.parametrize('scale', (1.0, 2.0**-16))
@pytest.mark.parametrize('dtype', ('bfloat16', 'float16'))
def test_rounding_moves_no_more_and_sometimes_that_much(dtype, scale):
  values = np.linspace(0.5, 4, 4001) * scale

  change = np.abs(
    values.astype(ulp.storage_dtype(dtype)).astype(float) - values
  )
  half = ulp.half_spacing(values, dtype)

  assert (change <= half).all()
  assert (change / half).max() > 0.95


def test_truncation_drops_bits_and_is_off_by_less_than_a_step():
  a = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
  expected = (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
  truncated = ulp.rounded(a.astype(np.float64), 'tf32_rz')
  np.testing.assert_array_equal(truncated, expected)
  apart = np.abs(truncated - a) / np.abs(a)
  # Twice what rounding to nearest may be off, and more than it is.
  assert ulp.unit_roundoff('tf32') < apart.max() < ulp.unit_roundoff('tf32_rz')
