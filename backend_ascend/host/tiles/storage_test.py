"""Bits of narrow numbers in the tiles, against numpy's conversions."""

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.tiles import gemm_testing
from hpmoe.backend_ascend.host.tiles import tiles_testing

ISAS = _native.isas()
# Every half: both signs, subnormals, infinities, NaN of each payload.
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)
# As many bfloat16, as the bindings take them.
BRAINS = np.arange(2**16, dtype=np.uint16)


def by_gemm(x, dtype, isa):
  """Returns `[n]` in another dtype as GEMM tiles convert."""
  return _native.convert(x[None], dtype, isa)[0]


def by_vector_tile(x, dtype, isa):
  """As `by_gemm`: a product with one, and a dot of one term, are exact."""
  if dtype == 'float16':
    units = np.ones((x.size, 1, 1), np.float16)
    return tiles_testing.combine_tile(units, x[:, None], isa)[:, 0]
  unit = np.uint16(0x3F80) if x.dtype == np.uint16 else 1  # 1 in bfloat16
  units = np.full_like(x, unit)
  return tiles_testing.row_dot_tile(x[:, None], units[:, None], isa)[:, 0]


def around_rounding_edges():
  """Returns float32 `[n]`: halves, midpoints between them, and neighbours."""
  finite = HALVES[np.isfinite(HALVES)].astype(np.float32)
  up = np.sort(finite[finite >= 0])
  # What would follow the largest.
  up = np.append(up, 2 * up[-1] - up[-2]).astype(np.float32)
  edges = np.concatenate([up, (up[1:] + up[:-1]) / 2])
  near = [np.nextafter(edges, np.float32(dtype)) for dtype in (-np.inf, np.inf)]
  specials = np.float32([1e-45, 2**-126, 2**-25, 1e30, np.inf])
  values = np.concatenate([edges, *near, specials])
  return np.concatenate([values, -values])


@pytest.fixture(params=ISAS)
def isa(request):
  return request.param


class TestHalf:
  def test_nan_has_the_same_bits_on_every_instruction_set(self, isa):
    nan = HALVES[np.isnan(HALVES)]

    actual = by_gemm(nan, 'float32', isa)

    want = by_gemm(nan, 'float32', 'portable')
    np.testing.assert_array_equal(actual.view('u4'), want.view('u4'))

  @pytest.mark.parametrize('convert', [by_gemm, by_vector_tile])
  def test_every_edge_is_rounded_to_nearest_even(self, isa, convert):
    values = around_rounding_edges()
    with np.errstate(over='ignore'):
      want = values.astype(np.float16)
    assert np.isinf(want[np.isfinite(values)]).any()

    actual = convert(values, 'float16', isa)

    np.testing.assert_array_equal(actual.view('u2'), want.view('u2'))

  def test_there_and_back_is_the_same(self, isa):
    back = by_gemm(by_gemm(HALVES, 'float32', isa), 'float16', isa)

    want = gemm_testing.to_kernel_bits(HALVES.astype(np.float32), 'float16')
    np.testing.assert_array_equal(back.view('u2'), want.view('u2'))

  def test_any_count_and_offset(self, isa):
    # Vectors, and what is left of them.
    for begin, end in ((0, 1), (1, 8), (3, 20), (5, 36), (7, 7)):
      row = HALVES[None, 0x3C00 + begin : 0x3C00 + end]
      wide = _native.convert(row, 'float32', isa)
      np.testing.assert_array_equal(wide, row.astype(np.float32))
      np.testing.assert_array_equal(_native.convert(wide, 'float16', isa), row)

  def test_an_unknown_dtype_is_refused(self):
    with pytest.raises(
      ValueError, match='to: expected a storage dtype, got f8'
    ):
      _native.convert(HALVES[None], 'f8')


def wide_of(x):
  """Returns halves, or bfloat16 as the bindings take them, in float32."""
  if x is BRAINS:
    return (x.astype(np.uint32) << 16).view(np.float32)
  with np.errstate(invalid='ignore'):
    return x.astype(np.float32)


@pytest.mark.parametrize('convert', [by_gemm, by_vector_tile])
@pytest.mark.parametrize('x', [HALVES, BRAINS], ids=['float16', 'bfloat16'])
def test_every_number_is_read_exactly(isa, x, convert):
  want = wide_of(x)

  actual = convert(x, 'float32', isa)

  number = ~np.isnan(want)
  if convert is by_vector_tile:
    want = np.where(want == 0, np.float32(0), want)  # a dot starts from +0
  np.testing.assert_array_equal(
    actual.view('u4')[number], want.view('u4')[number]
  )
  assert np.isnan(actual[~number]).all()


def test_bfloat16_there_and_back_is_the_same(isa):
  wide = wide_of(BRAINS)
  number = ~np.isnan(wide)

  back = by_gemm(wide, 'bfloat16', isa)

  np.testing.assert_array_equal(back.view('u2')[number], BRAINS[number])


@pytest.mark.parametrize('x', [HALVES, BRAINS], ids=['float16', 'bfloat16'])
def test_every_number_times_one_is_itself(x, isa):
  """Minus zero too, which a sum that starts from zero does not show."""
  row = x[~np.isnan(wide_of(x))][None]

  actual = tiles_testing.scale_rows_tile(row, np.ones(1, np.float32), isa)

  np.testing.assert_array_equal(actual.view('u2'), row.view('u2'))
