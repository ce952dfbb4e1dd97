"""A histogram says how near errors are to limits, and how many codes moved."""

import pytest

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import shares as shares_lib
from hpmoe.parity_tests.report import histogram


def _make_result(counts=(), **codes) -> verdicts.Result:
  """A comparison with these counts in its last bins."""
  zeros = (0,) * (shares_lib.NUM_BINS - len(counts))
  measured = shares_lib.Histogram((*zeros, *counts), **codes)
  return verdicts.Result('y', 'bounded', 'rule', histogram=measured)


def test_words_say_what_has_no_error_and_what_is_beyond():
  result = _make_result((8, 5, 1, 2, 3, 4, 5))
  right = _make_result((7,) * shares_lib.NUM_BINS, moved_codes=3, codes=1024)

  assert histogram.describe_histogram(result) == (
    '28 elements by their error over its limit (heights are logarithms); '
    '0 have none, 15 are beyond'
  )
  assert histogram.describe_histogram(right).endswith(
    '7 have none, 35 are beyond; 3 of 1024 codes moved (0.29 %)'
  )


def test_one_element_in_a_million_has_a_bar():
  picture, _ = histogram.draw_histogram(_make_result((10**6, 1)))

  heights = [float(bar.get('height')) for bar in picture.iter('rect')]
  assert heights[-2] > 50 and heights[-1] > 2 and heights[0] == 0


def test_nothing_that_was_measured_is_no_picture():
  assert histogram.draw_histogram(_make_result()) == []
  assert histogram.draw_histogram(verdicts.Result('y', 'exact', 'rule')) == []


@pytest.mark.parametrize(
  ('count', 'text'),
  [
    (999, '999'),
    (1463, '1k'),
    (999_999, '999k'),
    (10**6, '1M'),
    (10**12, '1000G'),
  ],
)
def test_a_count_takes_few_characters(count, text):
  assert histogram.shorten_count(count) == text


def test_bins_say_what_they_hold():
  words = [histogram.describe_bin(n) for n in range(shares_lib.NUM_BINS)]

  assert words[0] == 'no error' and words[1] == 'up to 0.00024'
  assert words[-2:] == ['8 to 16', 'more than 16, or not finite']
