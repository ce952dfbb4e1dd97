"""Shares of limits: of each tile, in bins that hold their ends, of codes."""

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge.limits import shares as shares_lib

CUT = tiles.cut_tokens(4, 2, 5, 3)  # two by two tiles


def _measure(errors, limits=None, first=0) -> shares_lib.Shares:
  errors = np.asarray(errors, np.float64)
  limits = np.ones_like(errors) if limits is None else np.asarray(limits)
  return shares_lib.measure_shares(CUT, first, errors, limits)


def _find_bins(errors, limits=None) -> list[int]:
  """Returns the bin of each error, which is alone in a row of five."""
  return [
    int(np.argmax(_measure([[e, 0, 0, 0, 0]] * 2, limits).counts[1:])) + 1
    for e in errors
  ]


def test_the_largest_of_each_tile_stands_where_the_tile_is():
  errors = np.zeros((4, 5))
  errors[1, 2], errors[0, 4], errors[3, 3] = 0.5, 3, 0.25

  whole = _measure(errors, np.full((4, 5), 2.0))
  last = _measure(errors[2:], np.full((2, 5), 2.0), first=1)

  np.testing.assert_array_equal(whole.largest, [[0.25, 1.5], [0, 0.125]])
  np.testing.assert_array_equal(last.largest, whole.largest[1:])
  assert whole.counts.sum() == 20 and whole.counts[0] == 17


@pytest.mark.parametrize('power', range(-14, 7))
def test_a_bin_holds_its_end_and_what_is_beyond_is_in_the_next(power):
  end = 2.0**power
  at_end, past_end = _find_bins([end, end * (1 + 1e-6)])

  expected = np.searchsorted(shares_lib.ENDS, end)
  assert at_end == max(1, expected)
  assert past_end == max(1, np.searchsorted(shares_lib.ENDS, end * (1 + 1e-6)))


def test_an_error_beyond_its_limit_by_a_bit_is_not_shown_within():
  share = _measure(
    np.full((2, 5), np.nextafter(1.0, 2)), np.ones((2, 5))
  ).largest

  assert (share > 1).all()


@pytest.mark.parametrize('error', [np.nan, np.inf, 1e300])
def test_what_is_not_finite_or_has_no_limit_is_in_the_last_bin(error):
  measured = _measure([[error, 0, 0, 0, 0]] * 2)

  assert measured.counts[-1] == 2
  assert not measured.largest[0, 0] <= 1e30
  assert _measure(np.ones((2, 5)), np.zeros((2, 5))).counts[-1] == 10
  assert _measure(np.zeros((2, 5)), np.zeros((2, 5))).counts[0] == 10


def test_a_rank_without_rows_has_no_tile():
  cut = tiles.cut_tokens(0, 2, 5, 3)
  empty = np.zeros((0, 5))

  measured = shares_lib.measure_shares(cut, 0, empty, empty)

  assert measured.largest.shape == (0, 2) and not measured.counts.any()


def test_histograms_add_up():
  first = _measure(np.full((2, 5), 0.5)).summarise()
  total = first + _measure(np.full((2, 5), 0.25)).summarise()

  assert total.total == 20 and sorted(filter(None, total.counts)) == [10, 10]


@pytest.mark.parametrize('form', ['int8_token', 'e4m3_1x128', 'mxfp8'])
def test_codes_that_moved_are_counted(form):
  rng = np.random.default_rng(0)
  golden = rng.standard_normal((4, 256))
  actual = golden.astype(np.float32)

  assert shares_lib.count_moved(form, actual, golden, 'float32') == (0, 1024)
  actual[1, 7] *= -1
  actual[2] = actual[2].astype(ml_dtypes.bfloat16)
  actual[3, 0] = np.nan
  moved_codes, codes = shares_lib.count_moved(form, actual, golden, 'float32')
  assert codes == 1024 and 2 <= moved_codes < 200


@pytest.mark.parametrize('form', ['int8_token', 'e4m3_1x128', 'mxfp8'])
def test_what_storage_rounds_has_not_moved(form):
  golden = np.random.default_rng(0).standard_normal((64, 256))
  right = golden.astype(ml_dtypes.bfloat16)
  # Truncated to bfloat16, not rounded.
  bits = golden.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
  cut = bits.view(np.float32).astype(ml_dtypes.bfloat16)

  counts = [
    shares_lib.count_moved(form, actual, golden, 'bfloat16')[0]
    for actual in (right, cut)
  ]

  assert counts[0] == 0 and counts[1] > golden.size // 100
