"""Bits and error bounds of the host activation and combine tiles."""

import zlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.tiles import gemm_testing
from hpmoe.backend_ascend.host.tiles import tiles_testing

ISAS = _native.isas()
SHAPES = ((1, 1), (3, 7), (5, 33), (2, 300))
GRAD_SHAPES = ((0, 5), (1, 1), (3, 16), (5, 33), (2, 611))
DOT_LANES = 16  # what tile_kernels.h promises
EXP_MAX_ULP = 1.0  # what tile_kernels.h promises
NAN = np.uint32(0x7FC00000).view('f4')  # the canonical one
ALL_INPUTS = 2**32


def _rng(name):
  return np.random.default_rng(zlib.crc32(name.encode()))


def _halves(rng, shape, dtype):
  """Returns gate and up of a shape, two halves of one tensor."""
  rows, cols = shape
  values = rng.standard_normal((rows, 2 * cols), 'f4') * 4
  return np.split(gemm_testing.to_binding(values, dtype), 2, axis=1)


def _silu(g, isa):
  """Returns the kernel's silu of float32 `g`: times one is exact."""
  g = g.reshape(1, -1)
  return tiles_testing.swiglu_tile(g, np.ones_like(g), isa=isa)


def _dot(a, b):
  """Returns float32 `[rows, 1]`: lanes of ascending fma, added in order."""
  lanes = np.zeros((a.shape[0], DOT_LANES), 'f4')
  for j in range(a.shape[1]):
    lane = lanes[:, j % DOT_LANES]
    lanes[:, j % DOT_LANES] = gemm_testing.fma(a[:, j], b[:, j], lane)
  total = lanes[:, :1]
  for lane in range(1, DOT_LANES):
    total = total + lanes[:, lane : lane + 1]
  return total


def _scaled(rng, *shape):
  """Returns float32 normals over 12 binades: order shows in sums."""
  return np.ldexp(rng.standard_normal(shape, 'f4'), rng.integers(-6, 6, shape))


class ExpTest(parameterized.TestCase):
  @parameterized.parameters(*ISAS)
  def test_bound_on_a_sample(self, isa):
    step = 2**24 + 12345
    for begin in range(0, ALL_INPUTS, step):
      end = min(begin + 2**10, ALL_INPUTS)
      error = _native.exp_max_ulp(begin, end, isa)
      self.assertLessEqual(error, EXP_MAX_ULP, f'{isa} from {begin:#x}')

  @parameterized.parameters(
    ('overflow', 88.72284),
    ('first subnormal', -87.33655),
    ('underflow', -103.97208),
    ('inf', np.inf),
    ('-inf', -np.inf),
    ('nan', np.nan),
    ('half ln 2', 0.34657359),
    ('zero', 0.0),
  )
  def test_bound_around_edges(self, name, value):
    bits = int(np.float32(value).view('u4'))
    begin, end = max(bits - 4096, 0), min(bits + 4096, ALL_INPUTS)
    for isa in ISAS:
      error = _native.exp_max_ulp(begin, end, isa)
      self.assertLessEqual(error, EXP_MAX_ULP, f'{isa} {name}')

  @parameterized.parameters(*ISAS)
  @pytest.mark.slow
  def test_bound_for_every_float32(self, isa):
    error = _native.exp_max_ulp(0, ALL_INPUTS, isa)
    self.assertLessEqual(error, EXP_MAX_ULP)


class SwigluTileTest(parameterized.TestCase):
  @parameterized.parameters(*ISAS)
  def test_silu_within_its_bound(self, isa):
    # Relative: an ulp of exp (2^-23), the sum and the quotient (2^-24 each).
    # At -87 and above exp(-g) does not overflow.
    g = _rng('test_silu_within_its_bound').uniform(-87, 100, 20000)
    g = g.astype('f4')
    exact = g.astype('f8') / (1 + np.exp(-g.astype('f8')))

    actual = _silu(g, isa)[0]

    error = np.abs(actual - exact) / np.abs(exact)
    self.assertLessEqual(error.max(), 2**-23 + 2**-23)

  @parameterized.parameters(*ISAS)
  def test_silu_of_extremes(self, isa):
    g = np.array([0, -0.0, 200, -200, np.inf, 3e38, -3e38, 1e-45], 'f4')
    want = np.array([0, -0.0, 200, -0.0, np.inf, 3e38, -0.0, 0], 'f4')
    gemm_testing.assert_same(_silu(g, isa)[0], want, isa)
    nan = _silu(np.array([np.nan, -np.nan, -np.inf], 'f4'), isa)
    gemm_testing.assert_same(nan, np.full((1, 3), NAN), isa)

  @parameterized.product(
    isa=ISAS,
    dtype=gemm_testing.DTYPES,
    activation=('swiglu', 'absolute'),
    weighted=(False, True),
    shape=SHAPES,
  )
  def test_products_left_to_right_then_one_rounding(
    self, isa, dtype, activation, weighted, shape
  ):
    rng = _rng('test_products_left_to_right_then_one_rounding')
    gate, up = _halves(rng, shape, dtype)
    weight = rng.random(shape[0], 'f4') if weighted else None
    want = np.ascontiguousarray(gemm_testing.to_float32(gate))
    if activation == 'swiglu':
      want = _silu(want, 'portable').reshape(shape)
    else:
      want = np.abs(want)
    want = want * gemm_testing.to_float32(up)
    if weighted:
      want = want * weight[:, None]

    actual = tiles_testing.swiglu_tile(gate, up, weight, activation, isa=isa)

    gemm_testing.assert_same(
      actual, gemm_testing.to_binding(want, dtype), f'{isa}'
    )

  @parameterized.parameters(*ISAS)
  def test_early_rounding_rounds_silu(self, isa):
    rng = _rng('test_early_rounding_rounds_silu')
    gate, up = rng.standard_normal((2, 3, 50), 'f4')
    silu = _silu(gate, isa).reshape(gate.shape)

    actual = tiles_testing.swiglu_tile(gate, up, early_rounding=True, isa=isa)

    gemm_testing.assert_same(
      actual,
      gemm_testing.to_float32(gemm_testing.to_binding(silu, 'bfloat16')) * up,
      isa,
    )
    self.assertTrue((actual != silu * up).any())

  @parameterized.parameters(*ISAS)
  def test_silu_has_the_portable_bits_over_all_exponents(self, isa):
    g = np.arange(0, ALL_INPUTS, 49999, dtype='u4').view('f4')
    gemm_testing.assert_same(_silu(g, isa), _silu(g, 'portable'), isa)


def _slope(g, isa):
  """Returns the kernel's derivative of silu: d_out and up of one are exact."""
  g = g.reshape(1, -1)
  return tiles_testing.swiglu_grad_tile(
    np.ones_like(g), g, np.ones_like(g), isa=isa
  )[0]


class SwigluGradTileTest(parameterized.TestCase):
  @parameterized.product(
    isa=ISAS,
    dtype=gemm_testing.DTYPES,
    activation=('swiglu', 'absolute'),
    weighted=(False, True),
    dot=(False, True),
    shape=GRAD_SHAPES,
  )
  def test_bits_are_those_of_the_stated_order(
    self, isa, dtype, activation, weighted, dot, shape
  ):
    rng = _rng('test_bits_are_those_of_the_stated_order')
    gate, up = _halves(rng, shape, dtype)
    d_out = gemm_testing.to_binding(_scaled(rng, *shape), dtype)
    weight = rng.random(shape[0], 'f4') if weighted else None
    act = np.ascontiguousarray(gemm_testing.to_float32(gate))
    if activation == 'swiglu':
      slope = _slope(act, 'portable').reshape(shape)
      act = _silu(act, 'portable').reshape(shape)
    else:
      slope, act = np.sign(act), np.abs(act)
    d = gemm_testing.to_float32(d_out)
    if weighted:
      d = d * weight[:, None]
    want = [
      gemm_testing.to_binding(d * gemm_testing.to_float32(up) * slope, dtype),
      gemm_testing.to_binding(d * act, dtype),
    ]
    if dot:
      want.append(
        _dot(gemm_testing.to_float32(d_out), act * gemm_testing.to_float32(up))
      )

    actual = tiles_testing.swiglu_grad_tile(
      d_out, gate, up, weight, activation, dot, isa
    )

    self.assertLen(actual, len(want))
    for name, x, y in zip(('d_gate', 'd_up', 'd_row_weight'), actual, want):
      gemm_testing.assert_same(x, y, f'{isa} {name}')

  @parameterized.parameters(*ISAS)
  def test_slope_within_its_bound(self, isa):
    # In units u = 2^-24, to first order: e 2 (an ulp), s and silu 4 (e, the
    # sum, the quotient), rest 7 (e, s, the product; 1 - s has less, as
    # s <= 1/2 there), and one more for the fma: 5 |s| + 12 |silu * rest|.
    g = _rng('test_slope_within_its_bound').uniform(-87, 100, 20000)
    g = np.concatenate([g, np.linspace(-2, 2, 5000)]).astype('f4')
    x = g.astype('f8')
    s, rest = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    bound = 1.01 * 2**-24 * (5 * s + 12 * np.abs(x * s * rest))

    error = np.abs(_slope(g, isa)[0] - (s + x * s * rest))

    self.assertLessEqual((error / bound).max(), 1)

  @parameterized.parameters(*ISAS)
  def test_extremes(self, isa):
    g = np.array([[0, -0.0, 200, -200, 3e38, -3e38, 1e-45]], 'f4')
    unit = np.ones_like(g)
    d_gate, d_up, d_weight = tiles_testing.swiglu_grad_tile(
      unit, g, unit, d_row_weight=True, isa=isa
    )
    gemm_testing.assert_same(
      d_gate, np.array([[0.5, 0.5, 1, 0, 1, 0, 0.5]], 'f4'), isa
    )
    gemm_testing.assert_same(
      d_up, np.array([[0, -0.0, 200, -0.0, 3e38, -0.0, 0]], 'f4'), isa
    )
    self.assertEqual(d_weight, np.float32(3e38))

    g = np.array([[np.nan, -np.nan, np.inf, -np.inf]], 'f4')
    d_gate, _, d_weight = tiles_testing.swiglu_grad_tile(
      np.ones_like(g), g, np.ones_like(g), d_row_weight=True, isa=isa
    )
    gemm_testing.assert_same(d_gate, np.full((1, 4), NAN), isa)
    gemm_testing.assert_same(d_weight, np.full((1, 1), NAN), isa)

  @parameterized.parameters(*ISAS)
  def test_slope_has_the_portable_bits_over_all_exponents(self, isa):
    g = np.arange(0, ALL_INPUTS, 49999, dtype='u4').view('f4')
    gemm_testing.assert_same(_slope(g, isa), _slope(g, 'portable'), isa)


class ScaleRowsTileTest(parameterized.TestCase):
  @parameterized.product(isa=ISAS, dtype=gemm_testing.DTYPES, shape=GRAD_SHAPES)
  def test_products_rounded_once(self, isa, dtype, shape):
    rng = _rng('test_products_rounded_once')
    x = gemm_testing.to_binding(
      rng.standard_normal((shape[0], shape[1] + 3), 'f4'), dtype
    )
    x = x[:, 2:-1]
    weight = rng.random(shape[0], 'f4')

    actual = tiles_testing.scale_rows_tile(x, weight, isa)

    want = gemm_testing.to_binding(
      gemm_testing.to_float32(np.ascontiguousarray(x)) * weight[:, None], dtype
    )
    gemm_testing.assert_same(actual, want, isa)

  @parameterized.product(isa=ISAS, dtype=gemm_testing.DTYPES)
  def test_without_weights_copies_bits(self, isa, dtype):
    rng = _rng('test_without_weights_copies_bits')
    x = rng.integers(0, 2**16, (5, 2 * 39), 'u2')  # NaNs of every kind too
    x = x.view({'float32': 'f4', 'bfloat16': 'u2', 'float16': 'f2'}[dtype])
    gemm_testing.assert_same(
      tiles_testing.scale_rows_tile(x, None, isa), x, isa
    )

  @parameterized.parameters(*ISAS)
  def test_nan_is_canonical_and_weight_zero_signed(self, isa):
    x = np.array([[-np.nan, np.inf, -1.0]], 'f4')
    actual = tiles_testing.scale_rows_tile(x, np.zeros(1, 'f4'), isa).view('u4')
    np.testing.assert_array_equal(
      actual, [[0x7FC00000, 0x7FC00000, 0x80000000]]
    )


class RowDotTileTest(parameterized.TestCase):
  @parameterized.product(
    isa=ISAS,
    dtype=gemm_testing.DTYPES,
    shape=(*GRAD_SHAPES, (2, 0), (3, 15), (3, 17)),
  )
  def test_bits_are_those_of_the_lanes(self, isa, dtype, shape):
    rng = _rng('test_bits_are_those_of_the_lanes')
    values = gemm_testing.to_binding(
      _scaled(rng, shape[0], 2 * shape[1]), dtype
    )
    a, b = values[:, : shape[1]], values[:, shape[1] :]

    actual = tiles_testing.row_dot_tile(a, b, isa)

    gemm_testing.assert_same(
      actual,
      _dot(gemm_testing.to_float32(a), gemm_testing.to_float32(b)),
      f'{isa} {shape}',
    )

  @parameterized.parameters(*ISAS)
  def test_one_row_against_many(self, isa):
    rng = _rng('test_one_row_against_many')
    dy, returned_rows = _scaled(rng, 1, 70), _scaled(rng, 4, 70)
    dy = np.broadcast_to(dy, (4, 70))
    actual = tiles_testing.row_dot_tile(dy, returned_rows, isa)
    gemm_testing.assert_same(actual, _dot(dy, returned_rows), isa)

  @parameterized.parameters(*ISAS)
  def test_nan_is_canonical(self, isa):
    a = np.array([[-np.nan, 1], [np.inf, -np.inf]], 'f4')
    actual = tiles_testing.row_dot_tile(a, np.ones_like(a), isa).view('u4')
    np.testing.assert_array_equal(actual, [[0x7FC00000]] * 2)


class CombineTileTest(parameterized.TestCase):
  @parameterized.product(
    isa=ISAS,
    dtype=gemm_testing.DTYPES,
    weighted=(False, True),
    shape=((1, 1, 1), (3, 2, 7), (2, 8, 256), (4, 5, 300)),
  )
  def test_sum_in_slot_order(self, isa, dtype, weighted, shape):
    rng = _rng('test_sum_in_slot_order')
    returned_rows = gemm_testing.to_binding(
      rng.standard_normal(shape, 'f4'), dtype
    )
    weights = rng.random(shape[:2], 'f4') if weighted else None
    rows = gemm_testing.to_float32(returned_rows)
    if weighted:
      rows = rows * weights[:, :, None]
    want = rows[:, 0]
    for k in range(1, shape[1]):
      want = want + rows[:, k]

    actual = tiles_testing.combine_tile(returned_rows, weights, isa)

    gemm_testing.assert_same(
      actual, gemm_testing.to_binding(want, dtype), f'{isa}'
    )

  @parameterized.parameters(*ISAS)
  def test_bfloat16_rounds_to_nearest_even(self, isa):
    # Upper halves of every exponent and sign; lower halves around the tie.
    upper = np.arange(0, 2**16, 5, dtype='u4')[:, None] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], 'u4')
    x = (upper | lower).view('f4').reshape(-1, 1)
    units = np.full((x.size, 1, 19), 0x3F80, 'u2')
    with np.errstate(invalid='ignore'):
      want = gemm_testing.to_kernel_bits(x, 'bfloat16')

    actual = tiles_testing.combine_tile(units, x, isa)

    gemm_testing.assert_same(actual, np.broadcast_to(want, actual.shape), isa)

  @parameterized.parameters(*ISAS)
  def test_negative_zero_and_nan(self, isa):
    returned_rows = np.array(
      [[[-0.0, np.nan, np.inf], [-0.0, 1, -np.inf]]], 'f4'
    )
    actual = tiles_testing.combine_tile(returned_rows, None, isa).view('u4')
    np.testing.assert_array_equal(
      actual, [[0x80000000] + [0x7FC00000] * 2], isa
    )


if __name__ == '__main__':
  absltest.main()
