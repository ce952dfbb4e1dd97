"""Products of a few rows with one expert's weights, as they are stored.

The extension module comes with `hyperparallel-moe-ascend`.  Without it numpy
multiplies: sums have another order, so a golden value may differ in its last
bit, and the work takes more than twice as long.
"""

import importlib
from types import ModuleType

import numpy as np

_products: ModuleType | None
try:
  _products = importlib.import_module(f'{__package__}._products')
except ImportError:  # The extension module is not installed.
  _products = None

# The views of stored dtypes that the extension module takes.
_WORDS = {'float32': np.float32, 'bfloat16': np.uint16}


def suits(weights: np.ndarray) -> bool:
  """Says whether the other functions take weights `[x, y]`."""
  is_plain = weights.flags.c_contiguous and weights.dtype.name in _WORDS
  return _products is not None and is_plain


def add_up(
  rows: np.ndarray, weights: np.ndarray, block: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `[n, y]` float64, rows `[n, x]` times weights `[x, y]`.

  And `[n, y]`, the sum of squares of its prefixes of every `block` terms.
  """
  assert _products is not None
  total, squares = np.zeros((2, len(rows), weights.shape[1]))
  words = _view_words(weights)
  _products.add_up(np.ascontiguousarray(rows), words, block, total, squares)
  return total, squares


def multiply(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Returns `[n, y]`, rows `[n, x]` times weights `[x, y]`, all float32."""
  assert _products is not None
  total = np.empty((len(rows), weights.shape[1]), np.float32)
  _products.multiply(np.ascontiguousarray(rows), weights, total)
  return total


def measure(weights: np.ndarray) -> tuple[np.ndarray, ...] | None:
  """Returns the fields of `bounds._Sizes` of weights, and of their squares.

  None if a weight is not finite.

  Returns:
    Sizes and squares `[x, y]` float32, and scales of rows `[x]` and of columns
    `[y]` float64.
  """
  assert _products is not None
  size, squares = np.empty((2, *weights.shape), np.float32)
  row_scale, column_scale = (np.empty(count) for count in weights.shape)
  measured = size, squares, row_scale, column_scale
  is_finite = _products.measure(_view_words(weights), *measured)
  return measured if is_finite else None


def _view_words(weights: np.ndarray) -> np.ndarray:
  return weights.view(_WORDS[weights.dtype.name])
