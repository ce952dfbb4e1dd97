"""Quantised weights as a kernel reads them that mistakes codes or scales."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from hpmoe.parity_tests.case import codes
from hpmoe.reference.contract import quantised
from hpmoe.reference.quantised import quantise

Arrays = Mapping[str, np.ndarray]
# Axes of scales `[R, L, X, Y]`.
_ALONG = {-2: 'depth', -1: 'columns'}


def of(form: str, arrays: Arrays) -> dict[str, list[tuple[str, Callable]]]:
  """Returns what may be wrong of each weight, and what it then is.

  Args:
    form: of `quantised.FORMS`; '': nothing is quantised.
    arrays: codes, scales and zeros of each weight, by name.
  """
  if not form:
    return {}
  return {
    weight: [
      (says, _weight(form, arrays, weight, {name: changed}))
      for says, name, changed in _changes(form, weight, arrays)
    ]
    for weight in codes.WEIGHTS
  }


def _weight(form: str, arrays: Arrays, name: str, changed: Arrays) -> Callable:
  return lambda read: codes.values(form, {**arrays, **changed})[name]


def _changes(
  form: str, weight: str, arrays: Arrays
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields what is said of a weight, the part, and the part changed."""
  row = quantised.FORMS[form]
  names = quantised.parts(form, weight)
  held = arrays[names[1]]
  wide = held.view(quantise.numpy_dtype(row.scale)).astype(np.float32)
  for says, scales in _scales(wide):
    made = scales.astype(quantise.numpy_dtype(row.scale))
    yield says, names[1], made.view(held.dtype)
  for name in names[2:]:
    yield 'had no zero points', name, np.zeros_like(arrays[name])
  packed = arrays[names[0]]
  if quantised.ELEMENTS[row.element].is_packed and packed.dtype == np.uint8:
    yield (
      'had the two codes of a byte exchanged',
      names[0],
      (packed << 4 | packed >> 4),
    )


def _scales(scales: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
  """Yields scales `[R, L, X, Y]` float32, changed."""
  for axis, along in _ALONG.items():
    groups = scales.shape[axis]
    for by, where in ((1, 'before'), (-1, 'after')) if groups > 1 else ():
      says = f'had the scales of the group {where} along its {along}'
      yield says, np.roll(scales, by, axis)
  rows, columns = scales.shape[-2:]
  if min(rows, columns) > 1:
    turned = np.ascontiguousarray(scales.swapaxes(-1, -2))
    yield 'had its scales transposed', turned.reshape(scales.shape)
  for axis, along in _ALONG.items():
    if scales.shape[axis] > 1:
      left = scales.copy()
      np.moveaxis(left, axis, 0)[-1] = 1
      yield f'had no scale in the last group of its {along}', left
  experts = scales.reshape(-1, rows, columns)
  for by, where in ((1, 'before'), (-1, 'after')):
    says = f'had the scales of the expert {where}'
    yield says, np.roll(experts, by, 0).reshape(scales.shape)
  yield 'had no scales', np.ones_like(scales)
  yield 'had scales twice as large', 2 * scales
  yield 'had scales half as large', scales / 2
