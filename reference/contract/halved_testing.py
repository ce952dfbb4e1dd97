"""A product of choices of which `make test` runs some."""

from collections.abc import Iterable
import itertools

import pytest


def halved(*axes: Iterable, odd: bool = False) -> list:
  """Returns the product of axes as test parameters, every other one slow.

  With two choices on each axis but the first, every pair of choices of two
  axes is in the half that is not slow if there are three or more axes, and
  every choice if there are two.  `make sweep` runs the others.

  Args:
    *axes: choices of each argument.
    odd: which half is not slow: where places on the axes add up to an odd
      number.
  """
  return [
    pytest.param(
      *(choice for _, choice in places),
      marks=() if sum(i for i, _ in places) % 2 == odd else pytest.mark.slow,
    )
    for places in itertools.product(*map(enumerate, map(list, axes)))
  ]


def covering(*axes: Iterable) -> list:
  """Returns the product of axes as test parameters, most of them slow.

  Every pair of choices of two axes is in one that is not slow.  `make sweep`
  runs the others.
  """
  cases = list(itertools.product(*axes))
  pairs = {
    case: set(itertools.combinations(enumerate(case), 2)) for case in cases
  }
  left, quick = set.union(*pairs.values()), set()
  while left:
    best = max(cases, key=lambda case: len(pairs[case] & left))
    quick.add(best)
    left -= pairs[best]
  return [
    pytest.param(*case, marks=() if case in quick else pytest.mark.slow)
    for case in cases
  ]
