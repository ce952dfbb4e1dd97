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


def measure(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
  """Returns scales of rows `[x]` and columns `[y]` of weights `[x, y]`.

  Powers of two, float64: a magnitude is at most one when it is divided by both.
  None if a weight is not finite.
  """
  assert _products is not None
  row_scale, column_scale = (np.empty(count) for count in weights.shape)
  is_finite = _products.measure(_view_words(weights), row_scale, column_scale)
  return (row_scale, column_scale) if is_finite else None


def multiply_magnitudes(
  rows: np.ndarray,
  weights: np.ndarray,
  row_scale: np.ndarray,
  column_scale: np.ndarray,
  is_squared: bool,
) -> np.ndarray:
  """Returns `[n, y]` float32, rows times magnitudes of weights `[x, y]`.

  Args:
    rows: `[n, x]` float32.
    weights: as stored.
    row_scale: `[x]` float64, see `measure`.
    column_scale: `[y]` float64; magnitudes are divided by both.
    is_squared: whether they are then squared.
  """
  assert _products is not None
  total = np.empty((len(rows), weights.shape[1]), np.float32)
  scales = row_scale, column_scale
  words = _view_words(weights)
  _products.add_magnitudes(
    np.ascontiguousarray(rows), words, *scales, is_squared, total
  )
  return total


def _view_words(weights: np.ndarray) -> np.ndarray:
  return weights.view(_WORDS[weights.dtype.name])
