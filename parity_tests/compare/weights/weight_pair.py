"""One tensor of two sides, rounded to a common precision.

A wrong conversion often rounds as well: experts are exchanged *and* in
bfloat16.  So the wider side is rounded to the precision of the narrower one
first, and the bits are then compared.  Codes of a quantised side are compared
with a tolerance instead.
"""

from collections.abc import Callable, Iterator
import dataclasses

import ml_dtypes
import numpy as np

Array = np.ndarray
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
# Largest error of a code's value, relative to the value, and of the smallest
# code, relative to the largest magnitude.
_OF_CODES = {
  'float8': (2.0**-4, 2.0**-10 / 448),
  'mxfp4': (0.34, 0.25 / 6),
  'nvfp4': (0.34, 0.25 / 6),
  # Of these the error of all codes is that of the smallest; half of a group's
  # elements are within the first.
  'int4': (0.34, 0.5 / 7),
  'int8': (0.02, 0.5 / 127),
}


def _round_to(dtype: np.dtype) -> Callable[[Array], Array]:
  def round_(values: Array) -> Array:
    with np.errstate(over='ignore'):
      return values.astype(dtype).astype(values.dtype)

  return round_


def _cut(values: Array) -> Array:
  """Returns float32 without the bits that bfloat16 lacks: a wrong rounding."""
  bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
  return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(values.dtype)


# Each way to make values narrower, the narrowest first.
_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
  'rounded to bfloat16': _round_to(_BFLOAT16),
  'cut to bfloat16': _cut,
  'rounded to float16': _round_to(np.dtype(np.float16)),
  'rounded to float32': _round_to(np.dtype(np.float32)),
}


@dataclasses.dataclass(frozen=True)
class Pair:
  """Values of two sides, which are equal after some reordering.

  Attributes:
    left: of the reference, float32 or float64.
    right: of the candidate, in the same dtype.
    rounding: the rounding of one of them, in words; '': none.
    codes: a key of `_OF_CODES` if a side has codes; '': none has.
  """

  left: Array
  right: Array
  rounding: str = ''
  codes: str = ''

  def with_arrays(self, left: Array, right: Array) -> 'Pair':
    """Returns the pair of other arrays, such as parts of these."""
    return dataclasses.replace(self, left=left, right=right)

  def are_alike(self, left: Array | None = None) -> bool:
    """Returns whether `left`, by default the pair's, equals the right."""
    left = self.left if left is None else left
    if left.shape != self.right.shape:
      return False
    if not self.codes:
      # If they differ, mostly the first row does.
      return all(
        _are_equal(left[part], self.right[part])
        for part in (slice(1), slice(None))
      )
    relative, smallest = _OF_CODES[self.codes]
    floor = smallest * np.abs(left).max(initial=0)
    error = np.abs(left - self.right)
    return bool(np.all(error <= relative * np.abs(left) + floor))

  def may_be_alike(self) -> bool:
    """Returns whether the first rows are equal, so that the rest may be."""
    if not self.codes or self.left.shape != self.right.shape:
      return self.are_alike()
    # The smallest of a block's codes depend on the block's largest.
    relative, _ = _OF_CODES[self.codes]
    error = np.abs(self.left - self.right)
    return bool(np.mean(error <= relative * np.abs(self.left)) > 0.5)

  @property
  def tolerance(self) -> float:
    """The largest relative error of an element against a factor's product."""
    if self.codes:
      return _OF_CODES[self.codes][0]
    if any(map(_is_float8, (self.left, self.right))):
      return _OF_CODES['float8'][0]
    return 2.0**-7 if 'bfloat16' in self.rounding else 2.0**-9


def _is_float8(values: Array) -> bool:
  """Returns whether these may be codes without their scales."""
  return _is_exact(_round_to(_FLOAT8), values)


def widen(values: Array) -> Array:
  """Returns values in float32, or in float64 if that is their dtype."""
  wide = np.float64 if values.dtype == np.float64 else np.float32
  return np.asarray(values, wide)


def list_pairs(left: Array, right: Array, codes: str = '') -> Iterator[Pair]:
  """Yields both sides unchanged, then each rounded to the other's precision.

  Args:
    left: of any shape.
    right: of any shape.
    codes: see `Pair`.
  """
  common = np.promote_types(widen(left).dtype, widen(right).dtype)
  left, right = (a.astype(common, copy=False) for a in (left, right))
  yield Pair(left, right, codes=codes)
  if codes:
    return
  for words, round_ in _ROUNDINGS.items():
    if common == np.float32 and words.endswith('float32'):
      continue
    if _is_exact(round_, right):
      if not _is_exact(round_, left):
        yield Pair(round_(left), right, words)
    elif _is_exact(round_, left):
      yield Pair(left, round_(right), f'left {words}')


def _are_equal(left: Array, right: Array) -> bool:
  """Returns whether values are the same; NaN is NaN."""
  if np.array_equal(left, right):
    return True
  has_nan = left.shape == right.shape and bool(np.isnan(left).any())
  return has_nan and np.array_equal(left, right, equal_nan=True)


def _is_exact(round_: Callable[[Array], Array], values: Array) -> bool:
  """Returns whether a rounding changes nothing; the first row often decides."""
  return all(
    _are_equal(round_(values[part]), values[part])
    for part in (slice(1), slice(None))
  )
