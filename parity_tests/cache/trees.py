"""Trees of arrays, taken apart into a list of arrays and plain data."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def flatten(tree) -> tuple[list[Any], Any]:
  """Returns the arrays of a tree, and its structure as plain data.

  A tree is an array, None, or a tuple, list or dict of trees.
  """
  if tree is None:
    return [], None
  if isinstance(tree, dict):
    names = sorted(tree)
    leaves, structure = flatten([tree[name] for name in names])
    return leaves, {'names': names, 'of': structure['of']}
  if isinstance(tree, (tuple, list)):
    parts = [flatten(part) for part in tree]
    leaves = [leaf for part, _ in parts for leaf in part]
    return leaves, {'kind': type(tree).__name__, 'of': [t for _, t in parts]}
  return [tree], 'array'


def unflatten(tree, leaves: Iterator[np.ndarray]):
  """Returns the tree that `flatten` took apart; named tuples become tuples."""
  if tree is None:
    return None
  if tree == 'array':
    return next(leaves)
  parts = [unflatten(part, leaves) for part in tree['of']]
  if 'names' in tree:
    return dict(zip(tree['names'], parts, strict=True))
  return {'tuple': tuple, 'list': list}[tree['kind']](parts)
