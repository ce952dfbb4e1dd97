"""Layouts of codes and scales: their own, or those of what they stand for.

The axes of scales and zeros count groups, and those of packed codes bytes, so a
part's sizes and padding follow from its form.
"""

from collections.abc import Mapping
import dataclasses

from hpmoe.parity_tests.case.layouts import declaration
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Layouts = Mapping[str, layouts_lib.Layout]


def find_layout(
  layouts: Layouts, name: str, policy: precision.PrecisionPolicy
) -> layouts_lib.Layout | None:
  """Returns the layout of a tensor, or None if it has ours.

  Args:
    layouts: by name; codes, scales and zeros without one have that of the
      tensor that they stand for.
    name: of the tensor.
    policy: has the form of codes.

  Raises:
    ValueError: the form has no such layout; names the tensor.
  """
  spec = tensors.IN_FILES.get(name)
  if spec is None or spec.role != 'codes':
    return layouts.get(name)
  layout = layouts.get(name)
  if layout is None:
    whole = layouts.get(name.removesuffix(f'_{spec.kind}'))
    if whole is None:
      return None
    layout = _adapt(whole, name, find_units(name, policy))
  _check_halves(layout, find_units(name, policy))
  _check_bytes(layout, spec.kind, policy.form_of(name).scale)
  return layout


def find_units(name: str, policy: precision.PrecisionPolicy) -> dict[str, int]:
  """Returns how many elements along an axis are one of a part; 0: all.

  Args:
    name: of codes, scales or zeros.
    policy: has their form.
  """
  spec, form = tensors.IN_FILES[name], policy.form_of(name)
  axes, is_weight = spec.shape.split(), spec in tensors.WEIGHT_CODES
  across, depth = axes[:-3:-1] if is_weight else axes[-2:]
  if spec.kind == 'codes':
    packed_axis = across if form.is_packed_across else depth
    return {packed_axis: form.codes_in_word}
  if spec.kind == 'tensor_scales':
    return {depth: 0, across: 0}
  units = dict(zip((across, depth), form.group))
  return units if is_weight else {depth: units[depth]}


def find_sizes(
  name: str, policy: precision.PrecisionPolicy, sizes: Mapping[str, int]
) -> dict[str, int]:
  """Returns the sizes of a tensor's axes, by letter.

  Args:
    name: of the tensor.
    policy: has the form of codes.
    sizes: of our axes, by letter, in elements.
  """
  spec = tensors.IN_FILES[name]
  if spec.role != 'codes':
    return {**sizes}
  lengths = dict(zip(spec.shape.split(), spec.dims(**sizes)))
  for axis, unit in find_units(name, policy).items():
    if axis[0] == '2':  # whole groups of gate, or of up
      lengths[axis[1:]] = lengths[axis] // 2 // unit if unit else 0
    lengths[axis] = -(-lengths[axis] // unit) if unit else 1
  return {**sizes, **lengths}


def _adapt(
  layout: layouts_lib.Layout, name: str, units: Mapping[str, int]
) -> layouts_lib.Layout:
  """Returns the layout of a part of a tensor that has a layout."""
  halves_axis = layout.halves_axis
  pads = []
  for axis, size in layout.pads:
    unit = units.get(axis, 1)
    if halves_axis and axis == halves_axis[1:]:
      unit = units.get(halves_axis, unit)
    if unit and size % unit:
      raise ValueError(
        f'{name}: expected a layout of its own, as pad {axis} {size} of layout '
        f'{str(layout)!r} is no multiple of {unit}, got none'
      )
    pads += [(axis, size // unit)] if unit else []
  is_one = units.get(halves_axis) == 0
  return dataclasses.replace(
    layout,
    name=name,
    dtype='',
    pads=tuple(pads),
    halves=declaration.HALVES[0] if is_one else layout.halves,
  )


def _check_halves(layout: layouts_lib.Layout, units: Mapping[str, int]) -> None:
  """Refuses halves of scales whose groups may have columns of both."""
  unit = units.get(layout.halves_axis, 1)
  if layout.halves == 'interleaved' and unit != 1:
    raise ValueError(
      f'{layout.name}: expected gate and up one after the other, since '
      f'{unit or "all"} columns have one scale, got layout {str(layout)!r}'
    )


def _check_bytes(layout: layouts_lib.Layout, kind: str, scale: str) -> None:
  """Refuses words of bytes for scales that are none."""
  is_byte = scale.startswith('float8')
  if layout.swizzle == 'packed_4x1' and kind == 'scales' and not is_byte:
    raise ValueError(
      f'{layout.name}: expected scales of one byte in layout {str(layout)!r}, '
      f'got a form with scales in {scale}; DeepGEMM has those in layout '
      'deepgemm'
    )
