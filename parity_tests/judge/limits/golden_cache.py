"""Golden results of large drawn layers, found again in the cache.

What the golden of a layer comes to depends on no candidate as long as nothing
that it returned is read.  It is then computed once: a second check looks it up.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.cache import cached_results

# Whose source text decides the results.
_PACKAGE = 'hpmoe.parity_tests'
# To compute these results takes far longer than to hash what they read.
_LIMITS = cached_results.Limits(arguments=4 << 30, result=256 << 20)


def recall(
  facts: tuple,
  arrays: Mapping[str, np.ndarray],
  compute: Callable[[], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
  """Returns what `compute` does, from the cache if a large array was drawn.

  Args:
    facts: plain data that decides the result, beside arrays.
    arrays: all that decides it, by name.
    compute: computes arrays by name.
  """
  names = sorted(arrays)
  leaves: list[Any] = [arrays[name] for name in names]
  is_drawn = any(array_recipes.find(leaf) is not None for leaf in leaves)
  if not is_drawn or not all(isinstance(a, np.ndarray) for a in leaves):
    return compute()
  return cached_results.get_or_compute(
    _PACKAGE, (*facts, names), leaves, compute, _LIMITS
  )
