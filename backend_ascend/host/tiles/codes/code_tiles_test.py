"""Tiles of int8 codes: the bits of numpy, on every instruction set."""

import zlib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.tiles import tiles_testing as tiles

ISAS = _native.isas()
F32 = np.float32
DTYPES = {'float32': F32, 'uint16': ml_dtypes.bfloat16, 'float16': np.float16}
# Rows of parts of 12, columns of 32, depths of quads and of panels of 1024.
GEMMS = (
  *((1, 1, 1), (3, 5, 2), (12, 32, 4), (13, 33, 5), (24, 65, 31)),
  *((2, 16, 1024), (5, 17, 1027), (1, 3, 4099)),
)


def _rng(*key) -> np.random.Generator:
  return np.random.default_rng(zlib.crc32(repr(key).encode()))


def _codes(rng, *shape) -> np.ndarray:
  return rng.integers(-128, 128, shape, np.int8)


@pytest.mark.parametrize('isa', ISAS)
class TestSums:
  @pytest.mark.parametrize('m, n, k', GEMMS)
  def test_are_those_of_numpy(self, isa, m, n, k):
    rng = _rng(m, n, k)
    a, b = _codes(rng, m, k + 3)[:, :k], _codes(rng, k, n + 5)[:, :n]
    sums = tiles.code_gemm_tile(a, b, isa)
    np.testing.assert_array_equal(sums, a.astype('i8') @ b.astype('i8'))

  def test_do_not_saturate(self, isa):
    # All of one sign: an int16 holds two of these products, not three, and a
    # float32 not all digits of their sum.
    k = 8195
    a, b = np.full((2, k), -128, np.int8), np.full((k, 18), -128, np.int8)
    a[1], b[:, 1::2] = 127, 127
    want = a.astype('i8') @ b.astype('i8')
    assert np.abs(want).max() > 2**26 and (want % 2).any()
    np.testing.assert_array_equal(tiles.code_gemm_tile(a, b, isa), want)

  def test_of_the_deepest_product_fit(self, isa):
    k = (2**31 - 1) // 128**2
    a, b = np.full((1, k), -128, np.int8), np.full((k, 1), -128, np.int8)
    assert tiles.code_gemm_tile(a, b, isa)[0, 0] == 128**2 * k

  def test_of_no_terms_are_zero(self, isa):
    a, b = np.zeros((3, 0), np.int8), np.zeros((0, 4), np.int8)
    assert (tiles.code_gemm_tile(a, b, isa) == 0).all()


@pytest.mark.parametrize('isa', ISAS)
class TestQuantise:
  @pytest.mark.parametrize('dtype', DTYPES)
  @pytest.mark.parametrize('shape', [(1, 1), (4, 7), (9, 130)])
  def test_has_the_bits_of_the_form(self, isa, dtype, shape):
    rng = _rng(dtype, shape)
    values = rng.standard_normal(shape, F32) * np.exp2(
      rng.integers(-9, 9, (shape[0], 1))
    ).astype(F32)
    values = values.astype(DTYPES[dtype])
    values[-1, ::2] = 0
    codes, scales = tiles.quantise_rows_tile(values.view(dtype), isa)
    wide = values.astype(F32)
    largest = np.abs(wide).max(axis=1, keepdims=True)
    factor = F32(127) / np.where(largest > 0, largest, F32(1))
    want = np.where(largest > 0, F32(1) / factor, F32(0))
    np.testing.assert_array_equal(codes, np.rint(wide * factor))
    np.testing.assert_array_equal(scales.view('u4'), want.view('u4'))

  def test_of_zeros_is_zeros_and_of_ties_is_even(self, isa):
    values = np.zeros((2, 5), F32)
    values[1] = [127, 0.5, 1.5, -2.5, -127]
    codes, scales = tiles.quantise_rows_tile(values, isa)
    assert not codes[0].any() and scales[0] == 0
    assert codes[1].tolist() == [127, 0, 2, -2, -127] and scales[1] == 1

  def test_of_nan_has_a_scale_that_is_nan(self, isa):
    values = np.array([[1, np.nan, np.inf], [1, np.inf, -2], [1, 2, 3]], F32)
    codes, scales = tiles.quantise_rows_tile(values, isa)
    assert np.isnan(scales[0, 0]) and codes[0, 1] == 0
    assert np.isinf(scales[1, 0])
    assert scales[2, 0] < 1 and codes[2, 2] == 127


def _meaning(sums, row_scales, col_scales, dtype) -> np.ndarray:
  values = sums.astype(F32) * row_scales * col_scales[None]
  return values.astype(DTYPES[dtype])


@pytest.mark.parametrize('isa', ISAS)
@pytest.mark.parametrize('dtype', DTYPES)
class TestMeaning:
  def _sums(self, dtype, rows=5, cols=37):
    rng = _rng(dtype, rows, cols)
    sums = rng.integers(-(2**29), 2**29, (rows, 2 * cols), np.int32)
    row_scales = rng.uniform(1e-5, 1e-4, (rows, 1)).astype(F32)
    col_scales = rng.uniform(1e-5, 1e-4, 2 * cols).astype(F32)
    return sums, row_scales, col_scales

  def test_of_sums_takes_the_row_first(self, isa, dtype):
    # Sums that float32 rounds; the other order has other bits.
    sums, row_scales, col_scales = self._sums(dtype)
    values = tiles.dequantise_rows_tile(
      sums, row_scales, col_scales, dtype, isa
    )
    want = _meaning(sums, row_scales, col_scales, dtype)
    np.testing.assert_array_equal(values, want.view(dtype))
    if dtype == 'float32':
      other = sums.astype(F32) * col_scales[None] * row_scales
      assert (values != other).any()

  @pytest.mark.parametrize('weighted', [False, True])
  @pytest.mark.parametrize('activation', ['swiglu', 'absolute'])
  def test_of_an_activation_is_that_of_stored_values(
    self, isa, dtype, weighted, activation
  ):
    # As if gate, up and the activation were stored and then quantised.
    sums, row_scales, col_scales = self._sums(dtype)
    weight = np.linspace(-1, 2, len(sums), dtype=F32) if weighted else None
    codes, scales = tiles.code_swiglu_tile(
      sums, row_scales, col_scales, dtype, weight, activation, isa
    )
    halves = _meaning(sums, row_scales, col_scales, dtype).view(dtype)
    gate, up = np.split(halves, 2, axis=1)
    activation = tiles.swiglu_tile(gate, up, weight, activation, isa=isa)
    want = tiles.quantise_rows_tile(activation, isa)
    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(scales.view('u4'), want[1].view('u4'))
    assert len(np.unique(codes)) > 8
