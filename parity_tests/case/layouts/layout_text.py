"""Layouts from their text; `layouts` describes the form of the text."""

from collections.abc import Mapping
import re
from typing import Any

from hpmoe.parity_tests.case.layouts import declaration
from hpmoe.parity_tests.case.layouts import layouts
from hpmoe.parity_tests.case.layouts import swizzles
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import tensors

_RELAYED = tuple(spec.name for spec in tensors.RELAYED)
_NUMBER = r'(\d+)'
# Regular expressions of the words that set a field of a layout.
_WORDS: Mapping[str, str] = {
  'pad': rf'pad (\w+) {_NUMBER}',
  'experts': r'experts((?: -?\d+)+)',
  'block': rf'aligned {_NUMBER}',
  'by_source': 'by_source',
  'capacity': rf'C={_NUMBER}',
  'order': r'order (\S+)',
  'zeros': 'zeros',
}


def parse(name: str, text: str) -> layouts.Layout:
  """Returns the layout that a text describes.

  Raises:
    ValueError: the tensor or a word is unknown, an axis is named twice, or the
      axes or words do not suit the tensor.
  """
  if name not in tensors.IN_FILES:
    expected = messages.refuse_choice(
      tensors.IN_FILES, name, quantity='tensors among'
    )
    raise ValueError(f'layouts: {expected}')
  axes, *words = (word.strip() for word in text.split(','))
  fields: dict[str, Any] = {}
  for word in words:
    fields |= _parse_word(name, word, fields)
  layout = layouts.Layout(name, tuple(axes.split()), **fields)
  _check_axes(layout)
  _check_words(layout)
  return layout


def _parse_word(
  name: str, word: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the field and the value of a word after the axes."""
  if word in declaration.HALVES:
    return dict(halves=word)
  if word in declaration.DTYPES:
    return dict(dtype=word)
  if word in swizzles.SWIZZLES:
    return dict(swizzle=word)
  for field, pattern in _WORDS.items():
    match = re.fullmatch(pattern, word)
    if not match:
      continue
    if field == 'pad':
      pad = match[1], max(1, int(match[2]))
      return dict(pads=(*fields.get('pads', ()), pad))
    if field == 'experts':
      return dict(experts=tuple(map(int, match[1].split())))
    if field in ('by_source', 'zeros'):
      return {field: True}
    return {field: match[1] if field == 'order' else int(match[1])}
  fixed_words = ', '.join(
    (*declaration.HALVES, *declaration.DTYPES, *swizzles.SWIZZLES)
  )
  raise ValueError(
    f'{name}: expected words among {fixed_words}, pad AXIS n, '
    'experts n n ..., aligned n, by_source, C=n, order NAME, zeros after '
    f'the axes, got {word!r}'
  )


def parse_all(texts: Mapping[str, str]) -> dict[str, layouts.Layout]:
  """Returns layouts by tensor; see `parse`."""
  return {name: parse(name, text) for name, text in texts.items()}


def _check_axes(layout: layouts.Layout) -> None:
  own, split = layout.own_axes, layout.split_axes
  if len({*split}) != len(split) or not {*split} <= {*own}:
    merged_axes = ', '.join(
      f'{name}: {" ".join(parse_all)}'
      for name, parse_all in declaration.MERGED_AXES.items()
    )
    raise ValueError(
      f'{layout.name}: expected axes of [{" ".join(layout.spec)}], some in one '
      f'({merged_axes}), each once, got [{" ".join(layout.axes)}]'
    )
  if layout.halves != declaration.HALVES[0] and not layout.halves_axis:
    raise ValueError(
      f'{layout.name}: expected no order of halves, as [{" ".join(own)}] has '
      f'no 2F, got {layout.halves}'
    )


def _check_words(layout: layouts.Layout) -> None:
  """Refuses words that do not apply to the tensor."""
  own, may_move = layout.own_axes, layout.name not in _RELAYED
  rows = own[1] if 'N' in layout.spec and may_move else ''
  known_axes = {*own, *layout.axes, layout.halves_axis[1:]}
  is_of_scales = tensors.IN_FILES[layout.name].kind == 'scales'
  is_whole = tensors.IN_FILES[layout.name].kind == 'i32'
  at_experts = {'E', 'L'} & {*own} or rows or layout.name == 'topk_ids'
  for wrong, word in (
    (bool({axis for axis, _ in layout.pads} - known_axes), 'pad'),
    (bool(layout.experts) and not at_experts, 'experts'),
    ((layout.block > 0 or layout.by_source) and rows != 'N', 'order of rows'),
    (layout.block > 0 and layout.by_source, 'aligned beside by_source'),
    (layout.capacity is not None and rows != 'L', 'C'),
    (layout.order != '' and not rows, 'order'),
    (layout.moves_rows and not may_move, 'order of rows'),
    (layout.swizzle != '' and not is_of_scales, layout.swizzle),
    (layout.swizzle != '' and len(layout.axes) < 2, layout.swizzle),
    (layout.dtype.startswith('int') and not is_whole, layout.dtype),
    (layout.dtype not in ('', 'int32', 'int64') and is_whole, layout.dtype),
  ):
    if wrong:
      raise ValueError(
        f'{layout.name}: expected words that suit [{" ".join(layout.spec)}], '
        f'got {word} in {str(layout)!r}'
      )
