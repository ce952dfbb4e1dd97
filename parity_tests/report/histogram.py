"""A histogram of errors over their limits, as a picture of shapes and text."""

import math
import xml.etree.ElementTree as ET

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import shares as shares_lib
from hpmoe.parity_tests.report import markup
from hpmoe.parity_tests.report import tile_map

_WIDTH, _HEIGHT, _BASE, _MARGIN = 340, 92, 70, 10
_tag = markup.make_tag


def draw_histogram(result: verdicts.Result) -> list[ET.Element]:
  """Returns the picture of a comparison, and what it says in words."""
  histogram = result.histogram
  if histogram is None or not histogram.total:
    return []
  bar_width = _WIDTH / shares_lib.NUM_BINS
  tallest = math.log1p(max(histogram.counts))
  shapes: list[ET.Element] = []
  for number, count in enumerate(histogram.counts):
    # Of logarithms, so that one element in a million is seen.
    height = round(math.log1p(count) / tallest * (_BASE - 14), 1)
    title = _tag('title', f'{describe_bin(number)}: {count}')
    place = dict(x=round(number * bar_width + 1, 1), y=round(_BASE - height, 1))
    size = dict(width=round(bar_width - 2, 1), height=height)
    level = tile_map.find_level(_largest_of(number))
    shapes.append(_tag('rect', title, class_=level, **place, **size))
    middle = round((number + 0.5) * bar_width, 1)
    if count:
      above = round(_BASE - height - 3, 1)
      shapes.append(_tag('text', shorten_count(count), x=middle, y=above))
    if number % 2 == 0 or number == len(histogram.counts) - 1:
      below = _BASE + 12
      shapes.append(_tag('text', _name_end(number), x=middle, y=below))
  picture = _tag(
    'svg',
    *shapes,
    viewBox=f'{-_MARGIN} 0 {_WIDTH + 2 * _MARGIN} {_HEIGHT}',
    role='img',
    class_='histogram',
  )
  return [picture, _tag('p', describe_histogram(result), class_='small')]


def describe_histogram(result: verdicts.Result) -> str:
  """Returns how many elements are how near their limits."""
  histogram = result.histogram
  assert histogram is not None  # who asks has one
  total = histogram.total
  is_over = [end > 1 for end in (*shares_lib.ENDS, math.inf)]
  num_over = sum(n for n, is_bad in zip(histogram.counts, is_over) if is_bad)
  words = (
    f'{total} elements by their error over its limit (heights are logarithms); '
    f'{histogram.counts[0]} have none, {num_over} are beyond'
  )
  codes = describe_codes(result)
  return f'{words}; {codes}' if codes else words


def describe_codes(result: verdicts.Result) -> str:
  """Returns how many codes moved of what a GEMM quantises, or ''."""
  histogram = result.histogram
  if histogram is None or not histogram.codes:
    return ''
  share = 100 * histogram.moved_codes / histogram.codes
  return (
    f'{histogram.moved_codes} of {histogram.codes} codes moved ({share:.2g} %)'
  )


def describe_bin(number: int) -> str:
  """Returns the shares that a bin has."""
  ends = shares_lib.ENDS
  if number == 0:
    return 'no error'
  if number == len(ends):
    return f'more than {ends[-1]:g}, or not finite'
  begin = f'{ends[number - 1]:.2g} to ' if number > 1 else 'up to '
  return f'{begin}{ends[number]:.2g}'


def _largest_of(number: int) -> float:
  ends = (*shares_lib.ENDS, math.inf)
  return ends[number]


def _name_end(number: int) -> str:
  ends = shares_lib.ENDS
  if number in (0, len(ends)):
    return '0' if number == 0 else 'more'
  power = round(math.log2(ends[number]))
  return f'{2**power}' if power >= 0 else f'2^{power}'


def shorten_count(count: int) -> str:
  """Returns a count in four characters at most, up to 10^12."""
  for size, letter in ((10**9, 'G'), (10**6, 'M'), (10**3, 'k')):
    if count >= size:
      return f'{count // size}{letter}'
  return str(count)
