"""A product of choices of which `make test` runs a half."""

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
