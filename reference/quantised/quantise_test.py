"""Tests of quantise.

`testdata/quantised.npz` is what torch and transformers make of the same values;
it was made by `tools/make_quantised_golden.py`, as it is at 0a52017.
"""

import functools
import math
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest

from hpmoe.reference.contract import quantised
from hpmoe.reference.quantised import quantise

# Static scales are an input.
FORMS = {name: quantised.FORMS[name] for name in quantised.OF_VALUES}
FILE = pathlib.Path(__file__).resolve().parents[1] / 'testdata/quantised.npz'
f32 = np.float32


def bits(array) -> np.ndarray:
  array = np.asarray(array)
  return array.view(f'u{array.dtype.itemsize}')


def draw_values(*shape: int) -> np.ndarray:
  """Returns values of many sizes; rows 1 and 2, and a corner, are zero."""
  rng = np.random.default_rng(len(shape))
  sizes = np.exp2(rng.integers(-12, 12, size=(shape[0], 1)))
  values = f32(rng.normal(size=shape) * sizes)
  values[1:3] = 0
  values[:8, 128:] = 0
  # Largest magnitudes at a power of two, and just above and below it.
  values[3:6] = values[3:6] / np.abs(values[3:6]).max() / 2
  values[3:6, 5] = 4, np.nextafter(f32(4), f32(5)), np.nextafter(f32(4), f32(0))
  return values


# What kernels do to one group, in plain steps: (scale, codes[, zero]).
def _clip(values, highest):
  return np.clip(values, -highest, highest)


def _make_cast(dtype):
  dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
  return lambda values: values.astype(dtype).astype(f32)


E4M3, E5M2 = _make_cast('float8_e4m3fn'), _make_cast('float8_e5m2')
E2M1, FNUZ = _make_cast('float4_e2m1fn'), _make_cast('float8_e4m3fnuz')


def ascend_dynamic_quant(x, amax):
  encode = f32(127) / amax
  return f32(1) / encode, np.rint(x * encode)


def ascend_swiglu_quant(x, amax):
  scale = amax / f32(127)
  half = (x * (f32(1) / scale)).astype('f2')
  return scale, np.rint(half).astype(f32)


def ascend_routing_quant(x, amax):
  scale = amax / f32(127)
  scaled = x / scale
  half = scaled.astype('f2')
  is_beyond = np.abs(half.astype(f32)) > np.abs(scaled)
  half = np.where(is_beyond, np.nextafter(half, np.float16(0)), half).astype(
    'f8'
  )
  return scale, np.copysign(np.floor(np.abs(half) + 0.5), half)


def torch_int8(x, amax):
  scale = max(amax, f32(1e-5)) / f32(127)
  return scale, np.rint(x * (f32(1) / scale))


def int8_divided(scale_dtype, x, amax):
  scale = _make_cast(scale_dtype)(amax / f32(127))
  return scale, np.rint(x / scale)


def vllm_uint4b8(x, amax):
  del amax
  scale = _make_cast('bfloat16')(
    max(abs(x.max() / f32(7)), abs(x.min() / f32(8)))
  )
  return scale, np.clip(np.rint(x / scale), -8, 7)


def autoawq(x, amax):
  del amax
  scale = max(x.max() - x.min(), f32(1e-5)) / f32(15)
  scale = _make_cast('float16')(scale)
  zero = np.clip(-np.rint(x.min() / scale), 0, 15)
  return scale, np.clip(np.rint(x / scale) + zero, 0, 15), zero


def gptq(x, amax):
  del amax
  lowest, highest = min(x.min(), f32(0)), max(x.max(), f32(0))
  if lowest == highest == 0:
    lowest, highest = f32(-1), f32(1)
  scale = _make_cast('bfloat16')((highest - lowest) / f32(15))
  zero = np.rint(-lowest / scale)
  return scale, np.clip(np.rint(x / scale) + zero, 0, 15), zero


def vllm_fp8(top, cast, x, amax):
  scale = amax / f32(top)
  return scale, cast(_clip(x * (f32(1) / scale), top))


def compressed_int4(x, amax):
  scale = max(amax / f32(7.5), f32(2**-23))
  scale = _make_cast('bfloat16')(scale)
  return scale, np.clip(np.rint(x / scale), -8, 7)


def flashinfer_mxint4(x, amax):
  del amax
  scale = max(x.max() * f32(8) / f32(7), -x.min()) / f32(8)
  codes = np.clip(np.rint(x * (f32(1) / scale)), -8, 7)
  return _make_cast('bfloat16')(scale), codes


def vllm_fp8_token_rocm(x, amax):
  scale = max(amax / f32(224), f32(1) / f32(224 * 512))
  return scale, FNUZ(_clip(x * (f32(1) / scale), 224))


def divided_fnuz(top, floor, x, amax):
  scale = max(amax, f32(floor)) / f32(top)
  return scale, FNUZ(x / scale)


def vllm_fp8_token(x, amax):
  scale = max(amax / f32(448), f32(1) / f32(448 * 512))
  return scale, E4M3(_clip(x * (f32(1) / scale), 448))


def divided(floor, x, amax):
  scale = max(amax, f32(floor)) / f32(448)
  return scale, E4M3(x / scale)


def deepgemm(x, amax):
  scale = max(amax, f32(1e-4)) / f32(448)
  return scale, E4M3(x * (f32(1) / scale))


def deepep(x, amax):
  amax = max(amax, f32(1e-4))
  return amax / f32(448), E4M3(x * (f32(1) / amax * f32(448)))


def transformers_fp8(x, amax):
  if not amax:
    return f32(1), x
  # torch has no other division of a number by a tensor.
  encode = f32(1) / amax * f32(448)
  return f32(1) / encode, E4M3(_clip(x * encode, 448))


def transformer_engine(top, cast, x, amax):
  encode = f32(top) / amax if amax else f32(1)
  return f32(1) / encode, cast(_clip(x * encode, top))


def transformer_engine_power(x, amax):
  encode = f32(448) / amax if amax else f32(1)
  encode = f32(math.ldexp(0.5, math.frexp(encode)[1]))
  return f32(1) / encode, E4M3(x * encode)


def _ceil_power(scale):
  mantissa, exponent = math.frexp(scale)
  return f32(math.ldexp(1, exponent - (mantissa == 0.5)))


def deepgemm_ceil(x, amax):
  scale = _ceil_power(max(amax, f32(1e-4)) / f32(448))
  return scale, E4M3(x / scale)


def torch_mx(top, cast, x, amax):
  scale = _ceil_power(amax / f32(top)) if amax else f32(2.0**-127)
  return scale, cast(_clip(x / scale, top))


def ocp(top, cast, x, amax):
  exponent = math.frexp(amax)[1] - math.frexp(top)[1] if amax else -127
  scale = f32(2.0**exponent)
  return scale, cast(_clip(x / scale, top))


def transformer_engine_nvfp4(matrix_amax, x, amax):
  encode = f32(448 * 6) / matrix_amax
  scale = E4M3(min(amax / f32(6) * encode, f32(448)))
  x = x * min(f32(1) / (scale * (f32(1) / encode)), np.finfo(f32).max)
  return scale, E2M1(_clip(x, 6))


def deepgemm_fp4(x, amax):
  scale = _ceil_power(max(amax, f32(1e-4)) / f32(6))
  edges = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
  codes = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
  magnitudes = codes[np.searchsorted(edges, np.abs(x / scale))]
  return scale, np.copysign(magnitudes, x)


PLAIN = {
  'int8_channel': functools.partial(int8_divided, 'float32'),
  'int8_channel_bf16': functools.partial(int8_divided, 'bfloat16'),
  'int8_token': ascend_dynamic_quant,
  'int8_token_swiglu': ascend_swiglu_quant,
  'int8_token_routing': ascend_routing_quant,
  'int8_token_torch': torch_int8,
  **dict.fromkeys([f'int4_{n}' for n in (32, 64, 128)], vllm_uint4b8),
  'int4_32_compressed': compressed_int4,
  'mxint4': flashinfer_mxint4,
  **dict.fromkeys([f'uint4_{n}' for n in (32, 64, 128)], gptq),
  'int4_gptq': gptq,
  'int4_awq': autoawq,
  'e4m3_tensor': functools.partial(vllm_fp8, 448, E4M3),
  'e5m2_tensor': functools.partial(vllm_fp8, 57344, E5M2),
  'e4m3_token': vllm_fp8_token,
  'e4m3_channel': functools.partial(divided, 0),
  'e4m3_1x128': functools.partial(divided, 1e-4),
  'e4m3_1x128_deepgemm': deepgemm,
  'e4m3_1x128_deepep': deepep,
  'e4m3_1x128_vllm': functools.partial(divided, 1e-10),
  'e4m3_128x128': functools.partial(divided, 0),
  'e4m3_128x128_deepgemm': deepgemm,
  'e4m3_128x128_transformers': transformers_fp8,
  'e4m3fnuz_tensor': functools.partial(divided_fnuz, 240, 0),
  'e4m3fnuz_token': vllm_fp8_token_rocm,
  'e4m3fnuz_1x128': functools.partial(divided_fnuz, 240, 0),
  'e4m3fnuz_1x128_vllm': functools.partial(divided_fnuz, 224, 1e-10),
  'e4m3fnuz_128x128': functools.partial(divided_fnuz, 240, 0),
  'e4m3_1x128_online': functools.partial(divided, 0),
  'e4m3_tensor_encode': functools.partial(transformer_engine, 448, E4M3),
  'e5m2_tensor_encode': functools.partial(transformer_engine, 57344, E5M2),
  'e4m3_1x128_power': transformer_engine_power,
  'e4m3_128x128_power': transformer_engine_power,
  'e4m3_1x128_ceil': deepgemm_ceil,
  'e4m3_128x128_ceil': deepgemm_ceil,
  'mxfp8': functools.partial(ocp, 448, E4M3),
  'mxfp8_e5m2': functools.partial(ocp, 57344, E5M2),
  'mxfp8_ceil': functools.partial(torch_mx, 448, E4M3),
  'mxfp4': functools.partial(ocp, 6, E2M1),
  'mxfp4_ceil': functools.partial(torch_mx, 6, E2M1),
  'mxfp4_deepgemm': deepgemm_fp4,
  'nvfp4': transformer_engine_nvfp4,
}


class TestElements:
  @pytest.mark.parametrize(
    'name',
    ['float8_e4m3fn', 'float8_e4m3fnuz', 'float8_e5m2', 'float4_e2m1fn'],
  )
  def test_rounding_is_that_of_ml_dtypes(self, name):
    # Given: every number of the format, midpoints, and their neighbours.
    element = quantised.ELEMENTS[name]
    dtype = quantise.numpy_dtype(name)
    count = 16 if element.is_packed else 256
    finite = np.arange(count, dtype=np.uint8).view(dtype).astype(f32)
    finite = np.unique(finite[np.isfinite(finite)])
    edges = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2])
    near = [
      np.nextafter(edges, f32(direction)) for direction in (-np.inf, np.inf)
    ]
    values = np.concatenate([edges, *near])
    values = values[np.abs(values) <= element.highest]
    # When.
    actual = quantise.rounded(element, 'even', values)
    # Then.
    np.testing.assert_array_equal(actual, values.astype(dtype).astype(f32))
    assert finite[-1] == element.highest

  @pytest.mark.parametrize(
    'mode, expected',
    [
      ('even', [0, 2, 2, 3, -2, 0]),
      ('away', [1, 2, 3, 3, -2, 0]),
      ('zero', [0, 1, 2, 3, -1, 0]),
      ('cut', [0, 1, 2, 2, -1, 0]),
    ],
  )
  def test_ties_go_as_the_mode_says(self, mode, expected):
    values = np.float32(
      [0.5, 1.5, 2.5, 2.75, -1.5, np.nextafter(f32(0.5), f32(0))]
    )
    actual = quantise.rounded(quantised.ELEMENTS['int8'], mode, values)
    np.testing.assert_array_equal(actual, expected)


class TestQuantise:
  @pytest.mark.parametrize('name', FORMS)
  @pytest.mark.parametrize('depth', [-1, -2])
  def test_it_is_what_the_kernel_does_to_each_group(self, name, depth):
    # Given: 140 x 200, whose last groups are not full.
    form = FORMS[name]
    values = draw_values(140, 200)
    # When.
    result = quantise.quantise(form, values if depth == -1 else values.T, depth)
    codes, scales, zeros, tensor_scales = (
      a if a is None or depth == -1 else a.T for a in result
    )
    plain_of_group = PLAIN[name]
    if tensor_scales is not None:
      plain_of_group = functools.partial(plain_of_group, np.abs(values).max())
      assert f32(1) / tensor_scales == f32(448 * 6) / np.abs(values).max()
    # Then.
    height, width = (g or n for g, n in zip(form.group, values.shape))
    for a, b in np.ndindex(scales.shape):
      block = np.s_[a * height : (a + 1) * height, b * width : (b + 1) * width]
      group = values[block]
      if not group.any() and form.of_zeros != 2 / 15 and not form.min_magnitude:
        plain = form.of_zeros, group
      else:
        with np.errstate(all='ignore'):
          plain = plain_of_group(group, np.abs(group).max())
      assert f32(scales[a, b]) == f32(plain[0]), (a, b)
      np.testing.assert_array_equal(codes[block].astype(f32), plain[1])
      if zeros is not None:
        assert zeros[a, b] == plain[2]

  def test_jax_makes_the_same_bits(self):
    values = draw_values(140, 200)
    # One form of each rule; 4 bits are numpy's.
    forms = {
      (form.rule, form.rounding): form
      for form in FORMS.values()
      if not quantised.ELEMENTS[form.element].is_packed
    }.values()
    results = jax.jit(lambda a: [quantise.quantise(f, a)[:2] for f in forms])(
      values
    )
    for form, result in zip(forms, results):
      for actual, expected in zip(result, quantise.quantise(form, values)):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(bits(actual), bits(expected), form.name)

  @pytest.mark.parametrize(
    'name', [n for n in quantised.OF_ROWS if quantised.FORMS[n].is_packed]
  )
  def test_rows_of_4_bits_are_the_same_in_jax_but_float32(self, name):
    # Given rows, of a form that reads them with a scale each.
    form, values = quantised.FORMS[name], draw_values(40, 200)
    scales = f32(1) / np.arange(1, 41, dtype=f32) if form.reads_scale else None
    # When, in numpy and in JAX.
    right = quantise.quantise(form, values, scales=scales)
    coded = quantise.quantise(
      form,
      jax.numpy.asarray(values),
      scales=None if scales is None else jax.numpy.asarray(scales),
    )
    # Then.
    np.testing.assert_array_equal(coded.codes, right.codes.astype(f32))
    np.testing.assert_array_equal(bits(coded.scales), bits(right.scales))
    rows = (quantise.dequantise(form, a) for a in (coded, right))
    np.testing.assert_array_equal(*rows)

  def test_two_levels_of_rows_are_those_of_plain_numpy(self):
    # Given rows with a scale each, and groups that are small beside it.
    form, values = quantised.FORMS['nvfp4_static'], draw_values(6, 48)
    scales = f32([1e-3, 1e-2, 0.1, 1, 10, 1e4])
    coded = quantise.quantise(form, values, scales=scales)
    # Then each group has the scale and codes of its own arithmetic.
    e4m3, e2m1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
    for row, group in np.ndindex(6, 3):
      columns = slice(16 * group, 16 * group + 16)
      scaled = values[row, columns] / scales[row]
      scale = np.minimum(np.abs(scaled).max() / f32(6), f32(448)).astype(e4m3)
      wide = scale.astype(f32)
      codes = scaled / wide if wide else 0 * scaled
      codes = np.clip(codes, -6, 6).astype(e2m1)
      assert coded.scales[row, group] == scale
      np.testing.assert_array_equal(
        coded.codes[row, columns].astype(f32), codes.astype(f32)
      )
    assert {*coded.scales.astype(f32)[0]} == {448.0}
    assert not coded.codes.astype(f32)[5].any()

  @pytest.mark.parametrize(
    ('name', 'lowest', 'highest'),
    [
      ('e4m3_static', -448, 448),
      ('e4m3fnuz_static', -224, 224),
      ('int8_static', -128, 127),
    ],
  )
  def test_static_scales_are_taken_and_codes_saturate(
    self, name, lowest, highest
  ):
    # Given a scale of each row, and values beyond all codes.
    form = quantised.FORMS[name]
    values = f32([[-4e3, -1, 0.3, 1, 4e3], [-2, 0.5, 0, 2.25, 3]])
    scales = f32([1, 0.5])
    # When, in numpy and in JAX.
    for library in (np, jax.numpy):
      coded = quantise.quantise(
        form, library.asarray(values), scales=library.asarray(scales)
      )
      # Then.
      codes = np.asarray(coded.codes).astype(f32)
      right = np.clip(values / scales[:, None], lowest, highest)
      dtype = quantise.numpy_dtype(form.element)
      whole = np.rint(right) if name == 'int8_static' else right
      np.testing.assert_array_equal(codes, whole.astype(dtype).astype(f32))
      np.testing.assert_array_equal(np.asarray(coded.scales)[:, 0], scales)
      assert codes.min() == lowest and codes.max() == highest

  def test_nothing_has_no_scales(self):
    result = quantise.quantise(FORMS['e4m3_1x128'], np.zeros((0, 256), f32))
    assert result.codes.shape == (0, 256) and result.scales.shape == (0, 2)

  def test_floor_saturates_and_ceil_does_not(self):
    # 7.5 of e2m1, whose largest number is 6.
    values = np.full((1, 32), 7.5, f32)
    for name, expected in (('mxfp4', 6), ('mxfp4_ceil', 8)):
      form = FORMS[name]
      result = quantise.quantise(form, values)
      np.testing.assert_array_equal(quantise.dequantise(form, result), expected)


@functools.cache
def _golden() -> dict[str, np.ndarray]:
  with np.load(FILE) as file:
    return dict(file)


class TestTorch:
  @pytest.mark.parametrize(
    'name, key',
    [
      ('int8_token_torch', 'rows'),
      ('e4m3_128x128_transformers', 'weights'),
      ('e4m3_128x128_ceil', 'weights'),
      ('mxfp8_ceil', 'rows'),
      ('mxfp4_ceil', 'rows'),
    ],
  )
  def test_codes_and_scales_are_its(self, name, key):
    golden, form = _golden(), FORMS[name]
    values = golden[key].view(ml_dtypes.bfloat16).astype(f32)
    result = quantise.quantise(form, values)
    codes = result.codes
    if quantised.ELEMENTS[form.element].is_packed:
      codes = quantise.pack(form, codes)
    np.testing.assert_array_equal(bits(codes), golden[f'{name}.codes'])
    scales = golden[f'{name}.scales']
    np.testing.assert_array_equal(bits(result.scales), bits(scales))

  @pytest.mark.parametrize('name', ['float8_e4m3fn', 'float8_e5m2'])
  def test_rounding_is_its(self, name):
    cast = _golden()[f'{name}.casts']
    values = np.arange(len(cast), dtype=np.uint16).view(ml_dtypes.bfloat16)
    actual = quantise.rounded(
      quantised.ELEMENTS[name], 'even', values.astype(f32)
    )
    np.testing.assert_array_equal(
      bits(actual.astype(quantise.numpy_dtype(name))), cast
    )

  def test_values_of_packed_weights_are_those_of_transformers(self):
    golden, form = _golden(), FORMS['mxfp4']
    codes = quantise.unpack(form, golden['mxfp4_ceil.codes'])
    scales = golden['mxfp4_ceil.scales'].view(ml_dtypes.float8_e8m0fnu)
    actual = quantise.dequantise(form, quantise.Quantised(codes, scales))
    np.testing.assert_array_equal(actual, golden['mxfp4.values'])


class TestDequantise:
  @pytest.mark.parametrize('name', FORMS)
  def test_it_is_one_product_in_float32(self, name):
    # Given: weights of 2 experts, 200 x 140.
    form = FORMS[name]
    values = np.stack([draw_values(140, 200).T] * 2)
    result = quantise.quantise(form, values, -2)
    # When.
    exact = quantise.dequantise(form, result, -2, 'float64')
    actual = quantise.dequantise(form, result, -2)
    # Then.
    if form.rule == 'two_level':  # the product of its scales is rounded too
      np.testing.assert_allclose(actual, exact, rtol=2.0**-23)
    else:
      np.testing.assert_array_equal(actual, exact.astype(f32))
    if form.scale != 'float32' and form.rule != 'two_level':
      np.testing.assert_array_equal(actual, exact)
    worst = np.abs(exact - values).max() / np.abs(values).max()
    assert worst < 2.0 ** (1 - quantised.ELEMENTS[form.element].digits)


class TestPack:
  @pytest.mark.parametrize(
    'packing, expected',
    [
      ('low', [0x21, 0x43, 0x65, 0x87]),
      ('high', [0x12, 0x34, 0x56, 0x78]),
      ('gptq', [0x87654321]),
      ('awq', [0x86427531]),
    ],
  )
  def test_nibbles_lie_as_files_have_them(self, packing, expected):
    form = quantised.Form('f', 'uint4', (1, 8), '', packing=packing)
    codes = np.arange(1, 9, dtype=np.uint8).astype(ml_dtypes.uint4)
    words = quantise.pack(form, codes)
    unsigned = words.view(f'u{words.itemsize}')
    np.testing.assert_array_equal(unsigned, expected)
    np.testing.assert_array_equal(quantise.unpack(form, words), codes)

  @pytest.mark.parametrize('element', ['int4', 'uint4', 'float4_e2m1fn'])
  def test_every_code_comes_back_along_any_axis(self, element):
    form = quantised.Form('f', element, (1, 8), '')
    dtype = quantise.numpy_dtype(element)
    codes = np.arange(16, dtype=np.uint8)
    codes = (
      codes.view(dtype)
      if 'float' in element
      else codes.astype('i1') - (8 if element == 'int4' else 0)
    )
    codes = codes.astype(dtype).reshape(4, 4)
    back = quantise.unpack(form, quantise.pack(form, codes, 0), 0)
    np.testing.assert_array_equal(back.astype(f32), codes.astype(f32))
    assert back.dtype == dtype

  def test_half_a_word_is_refused(self):
    with pytest.raises(ValueError, match='expected a multiple of 2 along axis'):
      quantise.pack(FORMS['mxfp4'], np.zeros((1, 3), ml_dtypes.uint4))
