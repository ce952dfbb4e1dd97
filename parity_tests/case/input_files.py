"""Inputs of a layer from a file or from arrays; all of them are checked.

The config follows from shapes, layouts from the file's metadata.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import math
import os
import pathlib

import numpy as np
import safetensors.numpy

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case.layouts import exact_cast
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import part_layouts
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import real_data
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

# The axes of a weight, as a file's metadata describes them: name -> axes.
AXES = {
  name: tensors.SPECS[name].shape
  for name in ('w_gate_up', 'w_down', *real_data.SHARED)
}


# The plan has R * E counts, quadratic in R for a small file of many ranks.
_MAX_COUNTS = 1 << 24


def load_safetensors(
  path: str | os.PathLike[str],
  placement: str = 'combine',
  capacity: int | None = None,
  seed: int = 0,
  quantised: str = '',
  x_form: str = '',
) -> inputs.LayerInputs:
  """Returns the inputs in a file; their shapes are the config.

  Args:
    path: a .safetensors (or .npz or .pt) file with the tensors of
      `tensors.INPUTS`, and those of parts that the layer has: x, weights and
      biases in one storage dtype; ids int32; routing weights float32.  It may
      hold dy, and nothing else.  A tensor that is laid out otherwise has its
      layout in the metadata, under its name; so has a weight whose last two
      axes are equally long, as `save_safetensors` writes it: transposed it
      would look the same.  The metadata may have the activation too.
    placement: where the routing weight multiplies.
    capacity: N, as for `make_inputs`.
    seed: of dy, if the file holds none.
    quantised: as for `from_arrays`.
    x_form: likewise.

  Raises:
    ValueError: the file is unreadable or truncated, or a tensor is missing,
      unknown, or has a wrong shape, dtype or value; the text names it.
  """
  tensors_by_name, notes = tensor_files.read(pathlib.Path(path))
  layouts = _parse_layouts(notes)
  try:
    forms = quantised_inputs.make_forms(quantised, x_form)
    selected_forms = quantised_inputs.select_forms(forms, tensors_by_name)
    if selected_forms:
      _check_names(tensors_by_name, selected_forms)
      if layouts:
        tensors_by_name = _undo_layouts(
          tensors_by_name, layouts, selected_forms
        )
      inputs_of_file = from_arrays(
        tensors_by_name, placement, capacity, seed, quantised, x_form
      )
    else:
      _check_names(tensors_by_name)
      arrays = (
        _undo_layouts(tensors_by_name, layouts, {})
        if layouts
        else tensors_by_name
      )
      _check_shapes(arrays)
      known_axes = {name: AXES[name] for name in {*layouts} & {*AXES}}
      _check_axes(arrays, notes | known_axes)
      inputs_of_file = from_arrays(arrays, placement, capacity, seed)
    form = notes.get('activation_form', PrecisionPolicy.activation)
    inputs_of_file = inputs_of_file.with_policy(**precision.activation_of(form))
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return dataclasses.replace(inputs_of_file, routing=str(path))


def read_layouts(
  path: str | os.PathLike[str],
) -> dict[str, layouts_lib.Layout]:
  """Returns the layouts of a file's tensors that are not ours.

  Raises:
    ValueError: a layout is wrong, or the file cannot be read.
  """
  return _parse_layouts(tensor_files.read(pathlib.Path(path))[1])


def _parse_layouts(notes: Mapping[str, str]) -> dict[str, layouts_lib.Layout]:
  return layout_text.parse_all(
    {
      name: notes[name]
      for name, spec in tensors.IN_FILES.items()
      if notes.get(name, spec.shape) != spec.shape
    }
  )


def _check_names(
  names: Iterable[str], forms: Mapping[str, str] | None = None
) -> None:
  bias, shared = (
    not {*part_names}.isdisjoint(names)
    for part_names in real_data.WEIGHTS_OF_PARTS.values()
  )
  layer = tensors.Parts(bias=bias, d_shared=int(shared))
  required = quantised_inputs.replace_names(forms or {}, tensors.inputs(layer))
  scales = [spec.name for spec in tensors.STATIC_SCALES]
  for name in (*required, *names):
    if name not in names or name not in (*required, 'dy', *scales):
      raise ValueError(
        f'{name}: expected {", ".join(required)} and maybe dy, got '
        f'{", ".join(names)}'
      )


def _undo_layouts(
  user_tensors: Mapping[str, np.ndarray],
  layouts: Mapping[str, layouts_lib.Layout],
  forms: Mapping[str, str],
) -> dict[str, np.ndarray]:
  """Returns tensors in our layouts.

  Args:
    user_tensors: as the file has them.
    layouts: of tensors that are not in ours.
    forms: of tensors that come in codes.

  Raises:
    ValueError: a shape or dtype is wrong.
  """
  arrays = {n: read_case.as_numpy(a) for n, a in user_tensors.items()}
  policy = PrecisionPolicy(
    _find_storage(arrays, forms),
    quantised=forms.get('w_down', ''),
    x_form=forms.get('x', ''),
  )
  layout_by_name = {
    n: part_layouts.find_layout(layouts, n, policy) or layouts_lib.own_layout(n)
    for n in arrays
  }
  sizes = _infer_sizes(
    _count_elements(arrays, layout_by_name, policy), layout_by_name
  )
  return {
    name: exact_cast.cast_exactly(
      name,
      layout.undo(arrays[name], part_layouts.find_sizes(name, policy, sizes)),
      policy.dtype(name),
    )
    for name, layout in layout_by_name.items()
  }


def _count_elements(
  arrays: Mapping[str, np.ndarray],
  layouts: Mapping[str, layouts_lib.Layout],
  policy: PrecisionPolicy,
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of tensors in elements, those of packed codes last.

  Scales and zeros, whose shapes do not say how many elements a group has, are
  left out.
  """
  shapes, shapes_of_packed = {}, {}
  for name, array in arrays.items():
    spec = tensors.IN_FILES[name]
    if spec.role != 'codes':
      shapes[name] = array.shape
    elif spec.kind == 'codes':
      units = part_layouts.find_units(name, policy)
      shapes_of_packed[name] = tuple(
        units.get(axis, 1) * size
        for axis, size in zip(layouts[name].axes, array.shape)
      )
  return shapes | shapes_of_packed


def _infer_sizes(
  shapes: Mapping[str, tuple[int, ...]],
  layouts: Mapping[str, layouts_lib.Layout],
) -> dict[str, int]:
  """Returns the length of each of our axes; R is 1 if no tensor has it."""
  sizes: dict[str, int] = {}
  for several in (False, True):
    for name, shape in shapes.items():
      layout = layouts[name]
      if len(shape) != len(layout.axes) or 0 in shape:
        raise ValueError(
          f'{name}: expected [{" ".join(layout.axes)}], none of them 0, got '
          f'{list(shape)}'
        )
      for axis, size in zip(layout.axes, shape):
        parts = layout.parts(axis)
        rest = [part for part in parts if part not in sizes]
        if len(rest) == 1 and (len(parts) > 1) == several:
          known_sizes = [sizes[part] for part in parts if part in sizes]
          sizes[rest[0]] = size // math.prod(known_sizes)
    sizes.setdefault('R', 1)
  sizes |= {'F': sizes['2F'] // 2, 'E': sizes['R'] * sizes['L'], 'N': 0}
  return sizes | {'S': sizes.get('S', sizes.get('2S', 0) // 2)}


def from_arrays(
  tensors_by_name: Mapping[str, np.ndarray],
  placement: str = 'combine',
  capacity: int | None = None,
  seed: int = 0,
  quantised: str = '',
  x_form: str = '',
) -> inputs.LayerInputs:
  """Returns inputs from arrays; the config follows from their shapes.

  Args:
    tensors_by_name: the tensors of `tensors.INPUTS`, biases, maybe dy; numpy's
      or another framework's; dtypes as for `load_safetensors`.
    placement: where the routing weight multiplies.
    capacity: N, as for `make_inputs`.
    seed: of dy, if none is given.
    quantised: a form of `codes` that may be given in place of expert weights.
    x_form: likewise, in place of x; other tensors are then float32, unless
      weights that are no codes say otherwise.

  Raises:
    ValueError: a tensor is missing, unknown, or has a wrong shape, dtype or
      value; the text names it.
  """
  forms = quantised_inputs.make_forms(quantised, x_form)
  forms = quantised_inputs.select_forms(forms, tensors_by_name)
  _check_names(tensors_by_name, forms)
  arrays = {
    name: read_case.as_numpy(read_case.bits_of(value))
    for name, value in tensors_by_name.items()
  }
  quantised_inputs.check(forms, arrays)
  arrays |= quantised_inputs.compute_values(forms, arrays)
  config = _infer_config(arrays, capacity)
  if arrays['x'].dtype not in exact_limits.STORAGE.values():
    raise ValueError(
      f'x: expected one of {list(exact_limits.STORAGE)}, got '
      f'{arrays["x"].dtype}'
    )
  policy = PrecisionPolicy(
    storage=_find_storage(arrays, forms),
    placement=placement,
    quantised=forms.get('w_down', ''),
    x_form=forms.get('x', ''),
  )
  checks.check_ids(config, arrays['topk_ids'])
  config = inputs.with_capacity(config, arrays['topk_ids'])
  checks.check_inputs(config, policy, arrays)
  if 'dy' in arrays:
    checks.check_arrays(config, policy, arrays, ['dy'])
    checks.check_finite('dy', arrays['dy'])
  else:
    arrays['dy'] = real_data.draw_dy(config, arrays['x'].dtype, seed)
  facts = routings.measure_skew(config, arrays['topk_ids'])
  return inputs.LayerInputs(config, policy, arrays, 'given', facts)


def _find_storage(
  arrays: Mapping[str, np.ndarray], forms: Mapping[str, str]
) -> str:
  """Returns the storage dtype, from a tensor that is no codes, or float32."""
  for name in ('x', 'w_gate_up'):
    if name not in forms:
      return str(arrays[name].dtype)
  return 'float32'


def save_safetensors(
  path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes a layer's inputs as `load_safetensors` reads them."""
  safetensors.numpy.save_file(
    {name: np.ascontiguousarray(array) for name, array in arrays.items()},
    path,
    metadata={name: axes for name, axes in AXES.items() if name in arrays},
  )


def _check_axes(
  arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]
) -> None:
  """Refuses a weight whose axes neither its shape nor the file decides."""
  for name, axes in AXES.items():
    if name not in arrays:
      continue
    is_square = 1 < arrays[name].shape[-2] == arrays[name].shape[-1]
    stated = notes.get(name, '' if is_square else axes)
    if stated != axes:
      raise ValueError(
        f'{name}: expected its axes in the metadata of a .safetensors file, '
        f'{{{name!r}: {axes!r}}}, since its shape {list(arrays[name].shape)} '
        f'fits the transposed weight too, got {stated!r}'
      )


def _check_shapes(arrays) -> None:
  for name in (*tensors.INPUTS, *({*real_data.SHARED} & {*arrays})):
    axes = tensors.SPECS[name].shape.split()
    if arrays[name].ndim != len(axes) or 0 in arrays[name].shape:
      raise ValueError(
        f'{name}: expected shape [{", ".join(axes)}], none of them 0, got '
        f'{list(arrays[name].shape)}'
      )


def _infer_config(arrays, capacity) -> MoEConfig:
  _check_shapes(arrays)
  ranks, num_tokens, width = arrays['x'].shape
  _, local, _, halves_width = arrays['w_gate_up'].shape
  _, experts, depth, _ = arrays['w_down'].shape
  if experts != local:
    raise ValueError(
      f'w_down: expected L={local} experts of a rank, as in w_gate_up, got '
      f'L={experts}'
    )
  if 2 * depth != halves_width:
    raise ValueError(
      f'w_down: expected F to be half of 2F={halves_width} in w_gate_up, got '
      f'F={depth}'
    )
  if ranks * ranks * local > _MAX_COUNTS:
    raise ValueError(
      f'w_gate_up: expected R * E of at most {_MAX_COUNTS}, got R={ranks} '
      f'and E={ranks * local}'
    )
  return MoEConfig(
    num_ranks=ranks,
    num_tokens=num_tokens,
    num_experts=ranks * local,
    top_k=arrays['topk_ids'].shape[2],
    d_model=width,
    d_ff=halves_width // 2,
    capacity=capacity,
    bias='b_gate_up' in arrays,
    d_shared=arrays[real_data.SHARED[1]].shape[1]
    if real_data.SHARED[1] in arrays
    else 0,
  )
