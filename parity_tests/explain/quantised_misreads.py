"""Quantised weights as a kernel reads them that misreads codes or scales."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case.layouts import swizzles
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import quantise

Arrays = Mapping[str, np.ndarray]
# Axes of scales `[R, L, X, Y]`.
_ALONG = {-2: 'depth', -1: 'columns'}


def list_misreads(
  form: str, arrays: Arrays, x_form: str = ''
) -> dict[str, list[tuple[str, Callable]]]:
  """Returns ways to misread each weight, and x: words, and it as misread.

  Args:
    form: one of `quantised.FORMS`; '': no weight is quantised.
    arrays: codes, scales and zeros of each weight, and of x, by name.
    x_form: likewise, of x.
  """
  misreads_of_x = {}
  if x_form:
    misreads_of_x['x'] = [
      (says, _weight(x_form, arrays, 'x', changed_part))
      for says, changed_part in _changes_of_x(x_form, arrays)
    ]
  if not form:
    return misreads_of_x
  misreads = misreads_of_x | {
    weight: _list_misreads_of_weight(form, arrays, weight)
    for weight in quantised_inputs.WEIGHTS
  }
  for weight in precision.SHARED_WEIGHTS:
    names = quantised.parts(form, weight)
    if names[0] in arrays:
      # As if they were experts of their own.
      as_routed = tensors.as_routed({name: arrays[name] for name in names})
      routed = tensors.AS_ROUTED[weight]
      misreads[weight] = [
        (says, functools.partial(_read_shared, read))
        for says, read in _list_misreads_of_weight(form, as_routed, routed)
        if not says.endswith('expert')  # all ranks have the same
      ]
  return misreads


def _list_misreads_of_weight(
  form: str, arrays: Arrays, weight: str
) -> list[tuple[str, Callable]]:
  return [
    (says, _weight(form, arrays, weight, {name: changed_part}))
    for says, name, changed_part in _changes(form, weight, arrays)
  ]


def _read_shared(read: Callable, values: np.ndarray) -> np.ndarray:
  """Returns a weight `[R, X, Y]` misread, by a function of `[R, 1, X, Y]`."""
  return read(values[:, None])[:, 0]


def _changes_of_x(form: str, arrays: Arrays) -> Iterator[tuple[str, Arrays]]:
  """Yields words, and changed scales of x `[R, T, groups]`, by name."""
  name = quantised.parts(form, 'x')[1]
  scales = arrays[name]
  for axis, (before, after) in (
    (-1, ('the previous group', 'the next group')),
    (-2, ('the previous token', 'the next token')),
  ):
    if scales.shape[axis] > 1:
      yield f'had the scales of {before}', {name: np.roll(scales, 1, axis)}
      yield f'had the scales of {after}', {name: np.roll(scales, -1, axis)}
      first = np.take(scales, [0], axis)
      kind = 'first group' if axis == -1 else 'first token'
      new_scales = {name: np.broadcast_to(first, scales.shape).copy()}
      yield f'had the scales of its {kind} throughout', new_scales
  of_tokens = scales.reshape(-1, scales.shape[-1])
  transposed_scales = of_tokens.T.reshape(scales.shape)
  if min(of_tokens.shape) > 1:
    yield 'had its scales transposed', {name: transposed_scales}
  for says, other in _list_orders(of_tokens):
    yield says, {name: other.reshape(scales.shape)}
  wide = scales.view(quantise.numpy_dtype(quantised.FORMS[form].scale))
  yield 'had no scales', {name: np.ones_like(wide).view(scales.dtype)}


def _weight(
  form: str, arrays: Arrays, name: str, changed_part: Arrays
) -> Callable:
  new_arrays = {**arrays, **changed_part}
  return lambda read: quantised_inputs.compute_values({name: form}, new_arrays)[
    name
  ]


def _changes(
  form: str, weight: str, arrays: Arrays
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields words, the name of a part of the weight, and the changed part."""
  row = quantised.FORMS[form]
  names = quantised.parts(form, weight)
  stored_scales = arrays[names[1]]
  wide = stored_scales.view(quantise.numpy_dtype(row.scale)).astype(np.float32)
  for says, scales in _scales(wide):
    rounded_scales = scales.astype(quantise.numpy_dtype(row.scale))
    yield says, names[1], rounded_scales.view(stored_scales.dtype)
  for says, new_scales in _list_orders_of_weight(stored_scales):
    yield says, names[1], new_scales
  if weight == quantised_inputs.WEIGHTS[0]:
    yield from (
      (f'{says}, with up first', names[1], _swap_halves(new_scales))
      for says, new_scales in _list_orders_of_weight(
        _swap_halves(stored_scales)
      )
    )
  for part, name in zip(row.parts[2:], names[2:]):
    if part == 'zeros':
      yield 'had no zero points', name, np.zeros_like(arrays[name])
      for step, word in ((1, 'more'), (-1, 'less')):
        yield f'had zero points of 1 {word}', name, arrays[name] + step
    else:
      yield 'had no scale of the matrix', name, np.ones_like(arrays[name])
  codes_of_weight = arrays[names[0]]
  if row.codes_in_word == 8:
    yield (
      'had its codes in another order',
      names[0],
      _reorder(row, codes_of_weight),
    )
  if (
    quantised.ELEMENTS[row.element].is_packed
    and codes_of_weight.dtype == np.uint8
  ):
    yield (
      'had the two codes of each byte swapped',
      names[0],
      (codes_of_weight << 4 | codes_of_weight >> 4),
    )


def _reorder(row: quantised.Form, words: np.ndarray) -> np.ndarray:
  """Returns words that mean what these do in the other order of eight."""
  other = dict(awq='gptq', gptq='awq')[row.packing]
  codes = quantise.unpack(dataclasses.replace(row, packing=other), words)
  return quantise.pack(row, codes)


def _scales(scales: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
  """Yields scales `[R, L, X, Y]` float32, changed."""
  for axis, along in _ALONG.items():
    groups = scales.shape[axis]
    for step, side in ((1, 'previous'), (-1, 'next')) if groups > 1 else ():
      says = f'had the scales of the {side} group along its {along}'
      yield says, np.roll(scales, step, axis)
  rows, columns = scales.shape[-2:]
  if min(rows, columns) > 1:
    transposed_scales = np.ascontiguousarray(scales.swapaxes(-1, -2))
    yield 'had its scales transposed', transposed_scales.reshape(scales.shape)
  for axis, along in _ALONG.items():
    if scales.shape[axis] > 1:
      without_last = scales.copy()
      np.moveaxis(without_last, axis, 0)[-1] = 1
      yield f'had no scale in the last group of its {along}', without_last
      first = np.take(scales, [0], axis)
      says = f'had the scales of the first group along its {along} throughout'
      yield says, np.broadcast_to(first, scales.shape).copy()
  experts = scales.reshape(-1, rows, columns)
  for step, side in ((1, 'previous'), (-1, 'next')):
    says = f'had the scales of the {side} expert'
    yield says, np.roll(experts, step, 0).reshape(scales.shape)
  yield 'had no scales', np.ones_like(scales)
  yield 'had scales twice as large', 2 * scales
  yield 'had scales half as large', scales / 2


def _swap_halves(scales: np.ndarray) -> np.ndarray:
  """Returns `[..., 2F]` with the other half first; whole groups have halves."""
  return np.roll(scales, scales.shape[-1] // 2, -1)


def _list_orders_of_weight(
  scales: np.ndarray,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields `_list_orders` of each expert's scales `[R, L, X, Y]`."""
  home, by_rows = scales.shape[:2], scales.swapaxes(-1, -2)
  of_experts = [
    [*_list_orders(matrix)]
    for matrix in by_rows.reshape(-1, *by_rows.shape[2:])
  ]
  for alike in zip(*of_experts):
    new_scales = np.stack([matrix for _, matrix in alike])
    yield (
      alike[0][0],
      new_scales.reshape(*home, *new_scales.shape[1:]).swapaxes(-1, -2),
    )


def _list_orders(scales: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
  """Yields scales `[A, groups]` read in another order than they lie in."""
  rows, columns = scales.shape
  for word, swizzle in swizzles.SWIZZLES.items():
    if swizzle.tile[1] == 1:  # not of matrices whose columns are groups
      continue
    swizzled = swizzle.apply(scales)
    says = f'had its scales read by rows, not as {word}'
    yield says, swizzled[:rows, :columns]
    yield says, swizzled.reshape(-1)[: scales.size].reshape(scales.shape)
    padded = np.zeros_like(swizzled)
    padded[:rows, :columns] = scales
    row, column = np.indices(scales.shape, sparse=True)
    places = swizzle.place(row, column, swizzled.shape[1])
    yield f'had its scales read as {word}, not by rows', padded[places]
