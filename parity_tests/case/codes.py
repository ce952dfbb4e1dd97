"""Expert weights that come quantised: codes and scales beside their values.

The oracle and every limit read the values, code times scale in float32, under
the weight's own name.  A candidate gets `NAME_codes`, `NAME_scales` and, where
the form has them, `NAME_zeros` in their place, as files have them: codes of 4
bits in bytes, two along the depth, the even one in the low nibble; scales that
are powers of two as the byte of their exponent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from hpmoe.reference.contract import checks
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import quantise

WEIGHTS = tuple(weight for _, weight in tensors.GEMMS.values())
# Weights `[R, L, X, Y]` are summed over X.
_DEPTH = -2
# Exponents of scales that exact data may have.
_EXPONENTS = 4

Arrays = Mapping[str, np.ndarray]
Make = Callable[[np.ndarray, int], quantise.Quantised]


def replace_values(
  policy: precision.PrecisionPolicy, arrays: Arrays
) -> dict[str, np.ndarray]:
  """Returns what a candidate gets of arrays: codes in place of values."""
  hidden = WEIGHTS if policy.quantised else ()
  return {n: a for n, a in arrays.items() if n not in hidden}


def list_names(policy: precision.PrecisionPolicy) -> tuple[str, ...]:
  """Returns the names of codes, scales and zeros."""
  return replace_names(policy.quantised, WEIGHTS) if policy.quantised else ()


def replace_names(form: str, inputs: Sequence[str]) -> tuple[str, ...]:
  """Returns names of inputs, weights by those of their codes; '': as is."""
  names: list[str] = []
  for name in inputs:
    parts = quantised.parts(form, name) if name in WEIGHTS else ()
    names += parts or (name,)
  return tuple(names)


def has_codes(names: Iterable[str]) -> bool:
  """Says whether any weight is given as codes."""
  return not {f'{weight}_codes' for weight in WEIGHTS}.isdisjoint(names)


def check(form: str, arrays: Arrays) -> None:
  """Refuses codes, scales and zeros of other dtypes or shapes than a form's.

  Raises:
    ValueError: names the first.
  """
  row = quantised.FORMS[form]
  element = quantised.ELEMENTS[row.element]
  width = arrays['x'].shape[-1]
  for weight, depth in zip(WEIGHTS, (width, None)):
    names = quantised.parts(form, weight)
    shape = arrays[names[0]].shape
    if len(shape) != 4:
      raise ValueError(f'{names[0]}: expected [R, L, X, Y], got {list(shape)}')
    words = 1 + element.is_packed
    depth = depth or shape[2] * words
    groups = row.groups(shape[3], depth)[::-1]
    dtypes = (
      'uint8' if element.is_packed else row.element,
      'uint8' if row.rule in quantised.POWERS else row.scale,
      'int32',
    )
    shapes = ((*shape[:2], depth // words, shape[3]), *2 * [shape[:2] + groups])
    for name, dtype, dims in zip(names, dtypes, shapes):
      array = arrays[name]
      if str(array.dtype) != dtype or array.shape != dims:
        raise ValueError(
          f'{name}: expected {dtype} {list(dims)}, got {array.dtype} '
          f'{list(array.shape)}'
        )
      checks.check_finite(name, array.astype(np.float32))


def quantise_values(form: str, arrays: Arrays) -> dict[str, np.ndarray]:
  """Returns arrays whose weights were quantised; values are what they became.

  Raises:
    ValueError: codes do not fill words.
  """
  row = quantised.FORMS[form]
  make = lambda values, expert: quantise.quantise(row, values, _DEPTH)
  return _with_codes(form, arrays, make)


def factor_exactly(
  form: str, arrays: Arrays, seed: int
) -> dict[str, np.ndarray]:
  """Returns arrays whose weights are whole numbers as codes and scales.

  Values stay as they are, so that all sums are exact as before: the scale of a
  group is a power of two, drawn from those with which its codes fit.

  Raises:
    ValueError: codes do not fill words, or a weight is no code.
  """
  row = quantised.FORMS[form]

  def make(values: np.ndarray, expert: int) -> quantise.Quantised:
    return _factor_scales(
      row, values, stable_random.seed_of(form, expert, seed)
    )

  arrays_with_codes = _with_codes(form, arrays, make)
  for weight in WEIGHTS:
    if not np.array_equal(
      arrays_with_codes[weight], arrays[weight].astype(np.float32)
    ):
      raise ValueError(
        f'{weight}: expected whole numbers that {row.element} has, got others'
      )
  return arrays_with_codes


def compute_values(form: str, arrays: Arrays) -> dict[str, np.ndarray]:
  """Returns the weights `[R, L, X, Y]` float32 that codes and scales mean."""
  row = quantised.FORMS[form]
  values = {}
  for weight in WEIGHTS:
    parts = [arrays[name] for name in quantised.parts(form, weight)]
    codes, scales, *zeros = parts
    if quantised.ELEMENTS[row.element].is_packed:
      codes = quantise.unpack(row, codes, _DEPTH)
    if scales.dtype == np.uint8:
      scales = scales.view(quantise.numpy_dtype(row.scale))
    coded = quantise.Quantised(codes, scales, *zeros)
    values[weight] = np.asarray(quantise.dequantise(row, coded, _DEPTH))
  return values


def _with_codes(form: str, arrays: Arrays, make: Make) -> dict[str, np.ndarray]:
  """Returns arrays with codes, made expert by expert, and what these mean."""
  row = quantised.FORMS[form]
  arrays_with_codes = dict(arrays)
  for weight in WEIGHTS:
    experts = arrays[weight].reshape(-1, *arrays[weight].shape[2:])
    expert_parts = [
      _pack_for_file(row, make(values.astype(np.float32), expert))
      for expert, values in enumerate(experts)
    ]
    home = arrays[weight].shape[:2]
    for name, parts in zip(quantised.parts(form, weight), zip(*expert_parts)):
      arrays_with_codes[name] = np.stack(parts).reshape(*home, *parts[0].shape)
  return arrays_with_codes | compute_values(form, arrays_with_codes)


def _pack_for_file(
  row: quantised.Form, codes_and_scales: quantise.Quantised
) -> tuple[np.ndarray, ...]:
  codes, scales = (
    np.asarray(codes_and_scales.codes),
    np.asarray(codes_and_scales.scales),
  )
  if quantised.ELEMENTS[row.element].is_packed:
    codes = quantise.pack(row, codes, _DEPTH)
  if row.rule in quantised.POWERS:
    scales = scales.view(np.uint8)
  zeros = (
    ()
    if codes_and_scales.zeros is None
    else (np.asarray(codes_and_scales.zeros),)
  )
  return (codes, scales, *zeros)


def _factor_scales(
  row: quantised.Form, values: np.ndarray, seed: int
) -> quantise.Quantised:
  """Returns whole numbers `[X, Y]` as codes times powers of two."""
  element = quantised.ELEMENTS[row.element]
  across, depth = row.groups(*values.shape[::-1])
  shape = (depth, across)
  largest_values = np.abs(values)
  for axis, size in enumerate(row.group[::-1]):
    starts = np.arange(0, values.shape[axis], size or values.shape[axis])
    largest_values = np.maximum.reduceat(largest_values, starts, axis)
  largest = float(min(element.highest, (element.highest - element.lowest) // 2))
  room = np.floor(np.log2(largest / np.maximum(largest_values, 1)))
  exponents = stable_random.integers(seed, shape, _EXPONENTS)
  scales = np.exp2(-np.minimum(exponents, room)).astype(np.float32)
  codes, zeros = (
    values / quantise.spread(row, scales, values.shape, _DEPTH),
    None,
  )
  if row.rule == 'zero_point':
    zeros = np.full(shape, int(largest) + 1, np.int32)
    codes = codes + zeros[0, 0]
  return quantise.Quantised(
    codes.astype(quantise.numpy_dtype(row.element)),
    scales.astype(quantise.numpy_dtype(row.scale)),
    zeros,
  )
