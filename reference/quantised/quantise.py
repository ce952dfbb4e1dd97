"""Codes and scales of a tensor, as a row of `contract.quantised` says.

Of numpy arrays it makes numpy's, of JAX's JAX's, with the same bits, but that
JAX on CPUs takes subnormal float32 numbers for zero.  Numpy needs no JAX.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import quantised

# Of float32.
_BIAS, _MANTISSA = 127, 23


class Quantised(NamedTuple):
  """A tensor `[..., A, B]` as codes and scales.

  Attributes:
    codes: `[..., A, B]` in the form's element.
    scales: `[..., a, b]` in its scale dtype, one for each group.
    zeros: `[..., a, b]` int32, codes of 0; None: 0 throughout.
    tensor_scales: `[..., 1, 1]` float32, one for each matrix; None: 1.
  """

  codes: at.Array
  scales: at.Array
  zeros: at.Array | None = None
  tensor_scales: at.Array | None = None


def quantise(
  form: quantised.Form,
  values: at.Float[at.Array, '*batch A B'],
  depth: int = -1,
  scales: at.Float[at.Array, '*batch A'] | None = None,
) -> Quantised:
  """Returns codes and scales of finite values `[..., A, B]`.

  Args:
    form: of the codes and scales.
    values: `[..., A, B]` float, of at most 32 bits.
    depth: the axis that a GEMM sums over: -1 of rows, -2 of weights.
    scales: `[..., A]` float32 of rows, of a form that reads them; None: 1.

  Returns:
    Codes and scales; codes of 4 bits of JAX's arrays are float32.
  """
  xp = _library(values)
  if depth == -2:
    values = xp.swapaxes(values, -1, -2)
  across, along = values.shape[-2:]
  groups = _grouped(form, xp, values.astype('float32'))
  scaled, group_scales, zeros, tensor_scales = _scaled(form, xp, groups, scales)
  for name, mode in form.rounding:
    scaled = rounded(quantised.ELEMENTS[name], mode, scaled)
  if zeros is not None:
    scaled, zeros = scaled + zeros, zeros.astype('int32')
  scaled = xp.clip(scaled, *map(xp.float32, form.limits))
  *batch, a, height, b, width = scaled.shape
  codes = scaled.reshape(*batch, a * height, b * width)[..., :across, :along]
  coded = [
    codes,
    *(
      z if z is None else z[..., 0, :, 0]
      for z in (group_scales, zeros, tensor_scales)
    ),
  ]
  if depth == -2:
    coded = [m if m is None else xp.swapaxes(m, -1, -2) for m in coded]
  # XLA on CPUs writes 4-bit results past their buffer.
  is_wide = form.is_packed and xp is not np
  dtype = np.dtype('float32') if is_wide else numpy_dtype(form.element)
  return Quantised(coded[0].astype(dtype), *coded[1:])


def dequantise(
  form: quantised.Form,
  coded: Quantised,
  depth: int = -1,
  dtype: str = 'float32',
) -> at.Float[at.Array, '*batch A B']:
  """Returns (code - zero) * scale, `[..., A, B]`, one operation in `dtype`.

  The scale is that of the group times that of the matrix, if it has one.  It is
  exact in float64, and in float32 where scales are powers of two or have
  16 bits; a product with a float32 scale is rounded once.
  """
  codes = coded.codes.astype(dtype)
  scales = coded.scales.astype(dtype)
  if coded.tensor_scales is not None:
    scales = scales * coded.tensor_scales.astype(dtype)
  if coded.zeros is not None:
    codes = codes - spread(form, coded.zeros, codes.shape, depth).astype(dtype)
  return codes * spread(form, scales, codes.shape, depth)


def spread(
  form: quantised.Form,
  of_groups: at.Num[at.Array, '*batch a b'],
  shape: tuple[int, ...],
  depth: int = -1,
) -> at.Num[at.Array, '*batch A B']:
  """Repeats values of groups for each element: `[..., A, B]` of that shape."""
  xp = _library(of_groups)
  sizes = form.group if depth == -1 else form.group[::-1]
  for axis, size in zip((-2, -1), sizes):
    of_groups = xp.repeat(of_groups, size or shape[axis], axis=axis)
  return of_groups[..., : shape[-2], : shape[-1]]


def rounded(
  element: quantised.Element, mode: str, values: at.Float[at.Array, '*shape']
) -> at.Float[at.Array, '*shape']:
  """Returns float32 values `[...]` as the element has them, were it unbounded.

  `mode` is one of `quantised.MODES`.
  """
  xp = _library(values)
  exponent = xp.maximum(_exponent(xp, values), element.min_exponent)
  exponent = exponent - (element.digits - 1)
  steps = xp.abs(values * _power(xp, -exponent))
  whole = xp.rint(steps) if mode == 'even' else xp.floor(steps)
  if mode == 'away':
    whole = whole + (steps - whole >= 0.5)
  elif mode == 'zero':
    whole = whole + (steps - whole > 0.5)
  return xp.copysign(whole * _power(xp, exponent), values)


# As files have them.
_WORDS = {np.dtype('u1'): np.dtype('u1'), np.dtype('u4'): np.dtype('i4')}


def pack(form: quantised.Form, codes: np.ndarray, axis: int = -1) -> np.ndarray:
  """Returns 4-bit codes `[...]` in words, along an axis, as files hold them.

  Raises:
    ValueError: words cannot be filled.
  """
  order = quantised.PACKINGS[form.packing]
  nibbles = np.moveaxis(codes, axis, -1)
  if nibbles.shape[-1] % len(order):
    raise ValueError(
      f'codes: expected a multiple of {len(order)} along axis {axis}, got '
      f'{list(codes.shape)}'
    )
  words = _nibbles(nibbles).reshape(*nibbles.shape[:-1], -1, len(order))
  word = np.dtype(f'u{len(order) // 2}')
  shifts = (4 * np.arange(len(order))).astype(word)
  shifted = words[..., list(order)].astype(word) << shifts
  packed_words = np.bitwise_or.reduce(shifted, -1).view(_WORDS[word])
  return np.moveaxis(packed_words, -1, axis)


def unpack(
  form: quantised.Form, words: np.ndarray, axis: int = -1
) -> np.ndarray:
  """Returns the codes `[...]` that `pack` put into words."""
  order = quantised.PACKINGS[form.packing]
  words = words.view(f'u{words.itemsize}')
  words = np.moveaxis(words, axis, -1)[..., None]
  shifts = (4 * np.argsort(order)).astype(words.dtype)
  nibbles = (words >> shifts & words.dtype.type(15)).astype(np.uint8)
  nibbles = nibbles.reshape(*words.shape[:-2], -1)
  return np.moveaxis(_codes_of(form, nibbles), -1, axis)


def numpy_dtype(name: str) -> np.dtype:
  """Returns a dtype of codes or scales."""
  # Not above: flags read the table before anything heavy is loaded.
  import ml_dtypes

  return np.dtype(getattr(ml_dtypes, name, name))


def _library(array: Any) -> Any:
  """Returns numpy, or the module that does the same for JAX's arrays."""
  if isinstance(array, np.ndarray):
    return np
  import jax.numpy as jnp

  return jnp


def _pin(xp, value, operand=None):
  """Returns a value that a compiler neither folds nor moves.

  XLA makes a / 448 a product with 1 / 448, and 1 / (448 / a) a / 448, which
  have other bits.  `operand` is the value that a constant is used with.
  """
  operand = value if operand is None else operand
  return xp.where(operand == operand, value, xp.float32(xp.nan))


def _grouped(form: quantised.Form, xp, values):
  """Returns `[..., a, across, b, depth]`, filled up with zeros."""
  *batch, across, along = values.shape
  counts = form.groups(across, along)
  sizes = [g or n for g, n in zip(form.group, (across, along))]
  missing = [c * s - n for c, s, n in zip(counts, sizes, (across, along))]
  if any(missing):
    widths = [(0, 0)] * len(batch) + [(0, count) for count in missing]
    values = xp.pad(values, widths)
  return values.reshape(*batch, counts[0], sizes[0], counts[1], sizes[1])


def _scaled(form: quantised.Form, xp, groups, static=None):
  """Returns `[..., a, across, b, depth]` to be rounded, scales and zeros.

  Both of them `[..., a, 1, b, 1]`; then `[..., 1, 1, 1, 1]` of the matrix.
  Scales that are an input are `static` `[..., A]`.
  """
  if static is not None:
    static = static.astype('float32')[..., None, None, None]
    groups = groups / static
  if form.is_static:
    return groups, static, None, None
  if form.rule == 'static_two_level':
    return *_by_coarse_scales(form, xp, groups), None, static
  maximum = xp.max(groups, axis=(-3, -1), keepdims=True, initial=0)
  minimum = xp.max(-groups, axis=(-3, -1), keepdims=True, initial=0)
  live = (
    xp.maximum(xp.maximum(maximum, minimum), xp.float32(form.min_magnitude)) > 0
  )
  # A group of zeros is scaled as if there were a 1: 0 stays 0.
  maximum, minimum = (
    xp.where(live, a, xp.float32(1)) for a in (maximum, minimum)
  )
  amax = xp.maximum(
    xp.maximum(maximum, minimum), xp.float32(form.min_magnitude)
  )
  top, bottom, unit = (_pin(xp, xp.float32(a), amax) for a in (*form.top, 1.0))
  scales = amax / top
  if form.rule == 'zero_point':
    width = _pin(xp, maximum + minimum)
    scales = xp.maximum(width, xp.float32(form.min_magnitude)) / top
  elif form.top[0] != form.top[1]:
    scales = xp.maximum(maximum / top, minimum / bottom)
  scales = _pin(xp, scales)
  if form.rule in quantised.POWERS:
    return _by_powers(form, xp, groups, live, amax, scales)
  if form.rule == 'two_level':
    return _by_two_levels(form, xp, groups)
  encode = _pin(xp, top / amax)
  if form.rule in ('encode_torch', 'encode_apart'):
    encode = _pin(xp, _pin(xp, unit / amax) * top)
  if form.rule in ('encode', 'encode_torch'):
    scales = _pin(xp, unit / encode)
  # Codes are made of scales as they are stored.
  stored_scales = scales.astype(numpy_dtype(form.scale))
  wide_scales, scales = scales, stored_scales.astype('float32')
  if form.rule in ('divide', 'zero_point'):
    scaled = groups / scales
  else:
    if form.rule in ('reciprocal', 'reciprocal_apart'):
      is_apart = form.rule == 'reciprocal_apart'
      encode = _pin(xp, unit / (wide_scales if is_apart else scales))
    scaled = groups * encode
  zeros = xp.rint(minimum / scales) if form.rule == 'zero_point' else None
  of_zeros = xp.float32(form.of_zeros).astype(stored_scales.dtype)
  return scaled, xp.where(live, stored_scales, of_zeros), zeros, None


def _by_two_levels(form: quantised.Form, xp, groups):
  """Returns what `_scaled` does, for 8-bit scales and one scale of a matrix."""
  largest = xp.float32(np.finfo(np.float32).max)
  highest = xp.float32(quantised.ELEMENTS[form.scale].highest)
  top, magnitudes = xp.float32(form.top[0]), xp.abs(groups)
  amax = xp.max(magnitudes, axis=(-3, -1), keepdims=True, initial=0)
  matrix_amax = xp.max(amax, axis=(-4, -2), keepdims=True, initial=0)
  with np.errstate(divide='ignore', over='ignore'):
    encode = xp.minimum(highest * top / matrix_amax, largest)
    tensor_scales = xp.float32(1) / encode
    scales = xp.minimum(amax / top * encode, highest)
    scales = scales.astype(numpy_dtype(form.scale))
    wide_scales = scales.astype('float32') * tensor_scales
    scaled = groups * xp.minimum(xp.float32(1) / wide_scales, largest)
  return scaled, scales, None, tensor_scales


def _by_coarse_scales(form: quantised.Form, xp, groups):
  """Returns groups to be rounded, and scales in 8 bits, which saturate."""
  element = quantised.ELEMENTS[form.scale]
  amax = xp.max(xp.abs(groups), axis=(-3, -1), keepdims=True, initial=0)
  top = _pin(xp, xp.float32(form.top[0]), amax)
  # XLA's own conversion rounds twice.
  scales = rounded(element, 'even', _pin(xp, amax / top))
  scales = xp.minimum(scales, xp.float32(element.highest))
  scales = scales.astype(numpy_dtype(form.scale))
  wide_scales = scales.astype('float32')
  is_zero = wide_scales == 0
  scaled = groups / xp.where(is_zero, xp.float32(1), wide_scales)
  return xp.where(is_zero, xp.float32(0), scaled), scales


def _by_powers(form: quantised.Form, xp, groups, live, amax, scales):
  """Returns what `_scaled` does, for scales that are powers of two."""
  if form.rule == 'floor':
    exponent = _exponent(xp, amax) - (math.frexp(form.top[0])[1] - 1)
  else:
    fraction = scales.view('int32') & ((1 << _MANTISSA) - 1)
    exponent = _exponent(xp, scales) + (fraction != 0)
  exponent = xp.clip(exponent, -_BIAS, _BIAS)
  scaled = groups * _power(xp, -exponent)
  of_zeros = math.frexp(form.of_zeros)[1] - 1
  # By bits: 2^-127, whose byte is 0, is no normal float32.
  scale_bytes = (xp.where(live, exponent, of_zeros) + _BIAS).astype('uint8')
  return scaled, scale_bytes.view(numpy_dtype(form.scale)), None, None


def _exponent(xp, values):
  """Returns floor(log2 |value|) `[...]` int32; of subnormal numbers -127."""
  return (values.view('int32') >> _MANTISSA & 255) - _BIAS


def _power(xp, exponent):
  """Returns 2**exponent `[...]` float32, of -126 to 127."""
  return ((exponent + _BIAS).astype('int32') << _MANTISSA).view('float32')


def _nibbles(codes: np.ndarray) -> np.ndarray:
  return codes.view(np.uint8) & np.uint8(15)


def _codes_of(form: quantised.Form, nibbles: np.ndarray) -> np.ndarray:
  dtype = numpy_dtype(form.element)
  if form.element == 'int4':
    nibbles = (nibbles.astype(np.int8) ^ np.int8(8)) - np.int8(8)
    return nibbles.astype(dtype)
  return nibbles.view(dtype)
