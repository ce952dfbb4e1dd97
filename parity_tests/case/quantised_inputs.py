"""Quantised inputs: codes and scales of expert weights and of x.

The oracle and every limit read the values, code times scale in float32, under
the tensor's own name.  A candidate gets `NAME_codes`, `NAME_scales` and, if the
form has them, `NAME_zeros` or `NAME_tensor_scales` instead, in the format of
checkpoints: 4-bit codes in bytes, two along the depth, the even one in the low
nibble; scales that are powers of two as the byte of their exponent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from hpmoe.reference.contract import checks
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import quantise

WEIGHTS = precision.EXPERT_WEIGHTS
_ALL_WEIGHTS = precision.EXPERT_WEIGHTS + precision.SHARED_WEIGHTS
# The axis that a GEMM sums over: X of `[R, L, X, Y]`, the last of rows.
_DEPTHS = {
  **dict.fromkeys(_ALL_WEIGHTS, -2),
  **dict.fromkeys(('x', *quantised.ROWS), -1),
}
# Exponents of scales that exact data may have.
_EXPONENTS = 4

Arrays = Mapping[str, np.ndarray]
# The form of each tensor that comes as codes, by name.
Forms = Mapping[str, str]
Make = Callable[[str, np.ndarray, int], quantise.Quantised]


def replace_values(
  policy: precision.PrecisionPolicy, arrays: Arrays
) -> dict[str, np.ndarray]:
  """Returns the arrays of a candidate: codes and scales replace values."""
  return {n: a for n, a in arrays.items() if n not in policy.coded}


def list_names(
  policy: precision.PrecisionPolicy, layer: tensors.Layer
) -> tuple[str, ...]:
  """Returns the names of codes, scales and zeros that are inputs."""
  forms = policy.coded_inputs(layer)
  return (*replace_names(forms, [*forms]), *policy.static_scales)


def replace_names(forms: Forms, inputs: Sequence[str]) -> tuple[str, ...]:
  """Returns names of inputs; names of codes replace those of values."""
  names: list[str] = []
  for name in inputs:
    names += quantised.parts(forms.get(name, ''), name) or (name,)
  return tuple(names)


def list_row_names(policy: precision.PrecisionPolicy) -> tuple[str, ...]:
  """Returns the names of codes and scales of rows that kernels quantise.

  Those of tokens too, unless x comes as codes or rows are weighted before.
  """
  names = _name_parts(_list_output_forms(policy))
  return tuple(
    spec.name
    for spec in tensors.TOKEN_CODES + tensors.ROW_CODES
    if spec.name in names
  )


def _list_output_forms(policy: precision.PrecisionPolicy) -> dict[str, str]:
  if policy.x_form or policy.placement == 'input':
    return quantised.row_forms(policy.rows)
  return quantised.output_forms(policy.rows)


def _name_parts(forms: Forms) -> set[str]:
  return {
    n for name, form in forms.items() for n in quantised.parts(form, name)
  }


def find_row_shape(
  policy: precision.PrecisionPolicy, name: str, **sizes: int
) -> tuple[int, ...]:
  """Returns the shape of one of `list_row_names`: `[R, N, X]` or groups.

  Args:
    policy: has the form.
    name: of the tensor.
    **sizes: by the letters of the notation.
  """
  spec = tensors.SPECS[name]
  dims = spec.dims(**sizes)
  form = quantised.output_forms(policy.rows)[name.removesuffix(f'_{spec.kind}')]
  parts = _list_parts(quantised.FORMS[form], dims, -1, dims[-1])
  return parts[quantised.FORMS[form].parts.index(spec.kind)][1]


def check_row_widths(policy: precision.PrecisionPolicy, **sizes: int) -> None:
  """Refuses rows that do not fill bytes with their codes.

  Args:
    policy: has the forms.
    **sizes: by the letters of the notation.

  Raises:
    ValueError: names the rows and their width.
  """
  for name, form in quantised.row_forms(policy.rows).items():
    width = tensors.SPECS[name].dims(**sizes)[-1]
    if quantised.FORMS[form].is_packed and width % 2:
      raise ValueError(
        f'rows: expected an even number of columns of {name} with {form}, two '
        f'codes a byte, got {width}'
      )


def check_row_parts(
  policy: precision.PrecisionPolicy, outputs: Iterable[str]
) -> None:
  """Refuses codes of rows without their scales, or scales without codes.

  Raises:
    ValueError: names what is missing.
  """
  outputs = {*outputs}
  for name, form in _list_output_forms(policy).items():
    names = quantised.parts(form, name)
    missing = [part for part in names if part not in outputs]
    if missing and len(missing) < len(names):
      present = next(part for part in names if part in outputs)
      raise ValueError(f'{missing[0]}: expected it with {present}, got none')


def read_rows(
  policy: precision.PrecisionPolicy, arrays: Arrays, static_scales: Arrays
) -> dict[str, np.ndarray]:
  """Returns `[R, N, X]` float32 by name, the values of rows' codes.

  Args:
    policy: has the forms of rows.
    arrays: may have codes and scales.
    static_scales: `[R, N]` by name, scales of rows that are an input.
  """
  forms = select_forms(quantised.row_forms(policy.rows), arrays)
  computed = {
    n: form for n, form in forms.items() if not quantised.FORMS[form].is_static
  }
  rows = compute_values(computed, arrays)
  for name in forms:
    scales = static_scales.get(f'{name}_scale')
    if scales is not None:
      codes = rows.get(name, arrays[f'{name}_codes'])
      rows[name] = codes.astype(np.float32) * scales[..., None]
  return rows


def make_forms(weights: str = '', x: str = '') -> dict[str, str]:
  """Returns the form of each tensor, from the forms of weights and of x.

  Of weights of shared experts too, which not every layer has.
  """
  forms = dict.fromkeys(_ALL_WEIGHTS, weights) | {'x': x}
  return {name: form for name, form in forms.items() if form}


def select_forms(forms: Forms, names: Iterable[str]) -> dict[str, str]:
  """Returns the forms of tensors whose codes are among the names."""
  names = {*names}
  return {n: form for n, form in forms.items() if f'{n}_codes' in names}


def check(forms: Forms, arrays: Arrays) -> None:
  """Refuses codes, scales and zeros whose dtype or shape a form does not have.

  Raises:
    ValueError: names the first of them.
  """
  for tensor, form in forms.items():
    row = quantised.FORMS[form]
    names = quantised.parts(form, tensor)
    dims, depth_axis = arrays[names[0]].shape, _DEPTHS[tensor]
    letters = '[R, T, D]' if tensor == 'x' else '[R, L, X, Y]'
    if tensor in precision.SHARED_WEIGHTS:
      letters = '[R, X, Y]'
    if len(dims) != letters.count(',') + 1:
      raise ValueError(f'{names[0]}: expected {letters}, got {list(dims)}')
    for name, (dtype, shape) in zip(
      names, _list_parts(row, dims, depth_axis, _depth_of(tensor, arrays))
    ):
      array = arrays[name]
      if str(array.dtype) != dtype or array.shape != shape:
        raise ValueError(
          f'{name}: expected {dtype} {list(shape)}, got {array.dtype} '
          f'{list(array.shape)}'
        )
      checks.check_finite(name, array.astype(np.float32))


def _depth_of(tensor: str, arrays: Arrays) -> int | None:
  """Returns the depth as another tensor has it, or None."""
  if tensor not in (WEIGHTS[0], precision.SHARED_WEIGHTS[0]):
    return None
  return arrays['x' if 'x' in arrays else 'x_codes'].shape[-1]


def _list_parts(
  row: quantised.Form,
  dims: tuple[int, ...],
  depth_axis: int,
  depth: int | None,
) -> tuple[tuple[str, tuple[int, ...]], ...]:
  """Returns dtype and shape of codes, scales and zeros, of codes `dims`."""
  words = 1, row.codes_in_word
  if row.is_packed_across:
    words = words[::-1]
  depth = depth or dims[depth_axis] * words[1]
  across = dims[-1 if depth_axis == -2 else -2] * words[0]
  groups = row.groups(across, depth)
  shape = (across // words[0], depth // words[1])
  if depth_axis == -2:
    groups, shape = groups[::-1], shape[::-1]
  shapes = {'codes': shape, 'tensor_scales': (1, 1)}
  return tuple(
    (dtype, dims[:-2] + shapes.get(part, groups))
    for part, dtype in row.dtypes.items()
  )


def quantise_values(forms: Forms, arrays: Arrays) -> dict[str, np.ndarray]:
  """Returns arrays, some quantised, with codes, scales and their values.

  Raises:
    ValueError: codes do not fill words.
  """

  def make(tensor: str, values: np.ndarray, part: int) -> quantise.Quantised:
    row = quantised.FORMS[forms[tensor]]
    return quantise.quantise(row, values, _DEPTHS[tensor])

  return _with_codes(forms, arrays, make)


def factor_exactly(
  forms: Forms, arrays: Arrays, seed: int
) -> dict[str, np.ndarray]:
  """Returns arrays, some with codes and scales of their whole numbers.

  Values do not change, so all sums stay exact: the scale of a group is a random
  power of two with which its codes fit.

  Raises:
    ValueError: codes do not fill words, or a value is no code.
  """

  def make(tensor: str, values: np.ndarray, part: int) -> quantise.Quantised:
    form = forms[tensor]
    # Scales of x are drawn apart from those of weights of the same form.
    # Those of shared experts are the same on all ranks.
    is_shared = tensor in precision.SHARED_WEIGHTS
    part = 0 if is_shared else part
    key = form if tensor in WEIGHTS else f'{tensor} {form}'
    scale_seed = stable_random.seed_of(key, part, seed)
    row = quantised.FORMS[form]
    return _factor_scales(row, values, scale_seed, _DEPTHS[tensor])

  arrays_with_codes = _with_codes(forms, arrays, make)
  for tensor, form in forms.items():
    if not np.array_equal(
      arrays_with_codes[tensor], arrays[tensor].astype(np.float32)
    ):
      element = quantised.FORMS[form].element
      raise ValueError(
        f'{tensor}: expected whole numbers that {element} has, got others'
      )
  return arrays_with_codes


def compute_values(forms: Forms, arrays: Arrays) -> dict[str, np.ndarray]:
  """Returns float32 values of codes and scales, by name."""
  values = {}
  for tensor, form in forms.items():
    row, depth = quantised.FORMS[form], _DEPTHS[tensor]
    names = quantised.parts(form, tensor)
    parts = {part: arrays[n] for part, n in zip(row.parts, names)}
    if row.is_packed:
      axis = _word_axis(row, depth)
      parts['codes'] = quantise.unpack(row, parts['codes'], axis)
    if parts['scales'].dtype == np.uint8:
      parts['scales'] = parts['scales'].view(quantise.numpy_dtype(row.scale))
    coded = quantise.Quantised(**parts)
    values[tensor] = np.asarray(quantise.dequantise(row, coded, depth))
  return values


def _with_codes(forms: Forms, arrays: Arrays, make: Make) -> dict:
  """Returns arrays with codes, computed matrix by matrix, and their values.

  A matrix is one expert's weight, or the tokens of a rank.
  """
  arrays_with_codes = dict(arrays)
  for tensor, form in forms.items():
    row, depth = quantised.FORMS[form], _DEPTHS[tensor]
    home = arrays[tensor].shape[:-2]
    matrices = arrays[tensor].reshape(-1, *arrays[tensor].shape[-2:])
    matrix_parts = [
      _pack_for_file(row, make(tensor, m.astype(np.float32), i), depth)
      for i, m in enumerate(matrices)
    ]
    for name, parts in zip(quantised.parts(form, tensor), zip(*matrix_parts)):
      arrays_with_codes[name] = np.stack(parts).reshape(*home, *parts[0].shape)
  return arrays_with_codes | compute_values(forms, arrays_with_codes)


def _pack_for_file(
  row: quantised.Form, codes_and_scales: quantise.Quantised, depth: int
) -> tuple[np.ndarray, ...]:
  codes, scales, *further_parts = (
    np.asarray(getattr(codes_and_scales, part)) for part in row.parts
  )
  if row.is_packed:
    codes = quantise.pack(row, codes, _word_axis(row, depth))
  if row.rule in quantised.POWERS:
    scales = scales.view(np.uint8)
  return (codes, scales, *further_parts)


def _word_axis(row: quantised.Form, depth: int) -> int:
  """Returns the axis, -2 or -1, along which a word holds codes."""
  return -3 - depth if row.is_packed_across else depth


def _factor_scales(
  row: quantised.Form, values: np.ndarray, seed: int, depth_axis: int
) -> quantise.Quantised:
  """Returns whole numbers `[A, B]` as codes times powers of two."""
  element = quantised.ELEMENTS[row.element]
  order = -1 if depth_axis == -2 else 1
  shape = row.groups(*values.shape[::order])[::order]
  largest_values = np.abs(values)
  for axis, size in enumerate(row.group[::order]):
    starts = np.arange(0, values.shape[axis], size or values.shape[axis])
    largest_values = np.maximum.reduceat(largest_values, starts, axis)
  largest = float(min(element.highest, (element.highest - element.lowest) // 2))
  room = np.floor(np.log2(largest / np.maximum(largest_values, 1)))
  exponents = stable_random.integers(seed, shape, _EXPONENTS)
  scales = np.exp2(-np.minimum(exponents, room)).astype(np.float32)
  codes = values / quantise.spread(row, scales, values.shape, depth_axis)
  zeros = tensor_scales = None
  if row.rule == 'zero_point':
    zeros = np.full(shape, int(largest) + 1, np.int32)
    codes = codes + zeros[0, 0]
  if row.rule == 'two_level':
    tensor_scales = np.full((1, 1), 2.0, np.float32)
    scales = scales / 2
  return quantise.Quantised(
    codes.astype(quantise.numpy_dtype(row.element)),
    scales.astype(quantise.numpy_dtype(row.scale)),
    zeros,
    tensor_scales,
  )
