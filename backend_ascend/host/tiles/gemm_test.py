"""Bits of the host GEMM tile, against an exact emulation of its fma chain."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.tiles import gemm_testing
from hpmoe.backend_ascend.host.tiles import tiles_testing

ISAS = _native.isas()
SIZES = (1, 2, 7, 15, 16, 17, 31, 33, 128)
# (m, k, n): remainders of every kernel, no k, and k about one and two packing
# depths, and past them.
CHAIN_SHAPES = (
  (1, 1, 1),
  (2, 0, 3),
  (7, 31, 15),
  (15, 17, 33),
  (29, 64, 47),
  (7, 300, 17),
  (7, 400, 17),
  (3, 1100, 5),
)
# Around the blocks of a transposition (4 x 16) and the widths of panels.
AWKWARD = (1, 3, 5, 16, 17, 35, 67)
DTYPES = gemm_testing.DTYPES
TRANSPOSED = ((False, True), (True, False), (True, True))  # a, b


def _bf16(x):
  return gemm_testing.to_binding(x, 'bfloat16')


def _inside(x):
  """Returns `x` as a view into a wider array of NaN: reading past it shows."""
  nan = 0x7FC0 if x.dtype == 'u2' else np.nan
  wide = np.full((x.shape[0] + 3, x.shape[1] + 21), nan, x.dtype)
  wide[1 : 1 + x.shape[0], 2 : 2 + x.shape[1]] = x
  return wide[1 : 1 + x.shape[0], 2 : 2 + x.shape[1]]


def _transposed(a, b, trans_a, trans_b):
  """Returns a and b as stored for these flags."""
  return _inside(a.T if trans_a else a), _inside(b.T if trans_b else b)


class GemmTileTest(parameterized.TestCase):
  @parameterized.product(isa=ISAS, dtype=DTYPES, shape=CHAIN_SHAPES)
  def test_bits_are_those_of_the_chain(self, isa, dtype, shape):
    a, b = gemm_testing.operands(
      'test_bits_are_those_of_the_chain', *shape, dtype
    )
    want = gemm_testing.to_kernel_bits(
      gemm_testing.chain(
        gemm_testing.to_float32(a), gemm_testing.to_float32(b)
      ),
      dtype,
    )

    actual = tiles_testing.gemm_tile(a, b, isa)

    gemm_testing.assert_same(actual, want, f'{isa} {dtype} {shape}')

  @parameterized.parameters(*ISAS)
  def test_sum_is_fused(self, isa):
    # 1 + 2^-23, then 2^-24 (1 - 2^-46): a float64 sum lands on a tie.
    a = np.array([[1, 1 + 2**-23]], 'f4')
    b = np.array([[1 + 2**-23], [2**-24 * (1 - 2**-23)]], 'f4')

    actual = tiles_testing.gemm_tile(a, b, isa)

    self.assertEqual(actual[0, 0], np.float32(1 + 2**-23), isa)

  @parameterized.product(isa=[i for i in ISAS if i != 'portable'], dtype=DTYPES)
  def test_every_isa_gives_the_portable_bits(self, isa, dtype):
    for m, k, n in itertools.product(SIZES, repeat=3):
      a, b = gemm_testing.operands(
        'test_every_isa_gives_the_portable_bits', m, k, n, dtype
      )
      want = tiles_testing.gemm_tile(a, b, 'portable')
      actual = tiles_testing.gemm_tile(a, b, isa)
      gemm_testing.assert_same(actual, want, f'{isa} {dtype} m={m} k={k} n={n}')

  @parameterized.product(
    isa=ISAS, dtype=DTYPES, transposed=((False, False), *TRANSPOSED)
  )
  def test_splits_in_m_and_n_change_no_bit(self, isa, dtype, transposed):
    trans_a, trans_b = transposed
    m, k, n = 53, 600, 71
    a, b = gemm_testing.operands(
      'test_splits_in_m_and_n_change_no_bit', m, k, n, dtype
    )
    whole = tiles_testing.gemm_tile(a, b, isa)
    a, b = _transposed(a, b, *transposed)
    rng = np.random.default_rng(2 * trans_a + trans_b)
    rows = [0, *np.sort(rng.choice(np.arange(1, m), 3, False)), m]
    cols = [0, *np.sort(rng.choice(np.arange(1, n), 3, False)), n]
    # A margin that no tile may touch.
    parts = np.full((m + 1, n + 20), 77, whole.dtype)

    for i, j in itertools.product(*map(itertools.pairwise, (rows, cols))):
      tiles_testing.gemm_tile(
        a[:, slice(*i)] if trans_a else a[slice(*i)],
        b[slice(*j)] if trans_b else b[:, slice(*j)],
        isa,
        *transposed,
        out=parts[slice(*i), slice(*j)],
      )

    gemm_testing.assert_same(parts[:m, :n], whole, f'{isa} {dtype} {rows}')
    self.assertTrue((parts[m:] == 77).all() and (parts[:, n:] == 77).all())

  @parameterized.product(isa=ISAS, dtype=DTYPES, k=(600, 601))
  def test_nan_inf_and_subnormals(self, isa, dtype, k):
    # Given a sum that ends in -0, then what fills the last pair of an odd depth
    # keeps its sign.
    a, b = gemm_testing.operands('test_nan_inf_and_subnormals', 20, k, 40)
    a[1, 3], a[2, 5], a[3, 599], b[7, 2], b[9, 33] = (
      np.nan,
      np.inf,
      -np.inf,
      np.inf,
      -np.nan,
    )
    lowest, subnormal = (-14, 2.0**-23) if dtype == 'float16' else (-126, 1e-40)
    a[4, :8], a[4, 8:], b[:, 39] = subnormal, 0, 0.75  # subnormals
    a[5, :] = 0  # 0 * inf
    a[6], b[:, 38] = 2.0**-100, -(2.0**-30)  # subnormal products
    a, b = gemm_testing.to_binding(a, dtype), gemm_testing.to_binding(b, dtype)
    flushes = dtype == 'bfloat16'
    with np.errstate(invalid='ignore'):
      chain = gemm_testing.chain(
        gemm_testing.to_float32(a), gemm_testing.to_float32(b), flushes
      )
      want = gemm_testing.to_kernel_bits(chain, dtype)
    self.assertTrue(np.isnan(chain).any() and np.isinf(chain).any())
    if flushes:
      self.assertEqual(chain[4, 39], 0)
      self.assertEqual(chain[6, 38].view('u4'), 1 << 31)
    else:
      self.assertTrue(0 < abs(chain[4, 39]) < 2.0**lowest)

    gemm_testing.assert_same(
      tiles_testing.gemm_tile(a, b, isa), want, f'{isa} {dtype} {k}'
    )

  @parameterized.product(isa=ISAS, dtype=DTYPES, trans_a=(False, True))
  def test_weights_multiply_sums_before_they_are_rounded(
    self, isa, dtype, trans_a
  ):
    # Given weights of rows, when sums end a chain of calls or are one call's,
    # then each is rounded once, after its weight; the carry has no weight.
    m, k, n = 29, 300, 47
    a, b = gemm_testing.operands('test_weights_multiply_sums', m, k, n)
    weights = np.linspace(-1.7, 2.3, m, dtype='f4')
    weights[:3] = 0, np.nan, np.inf
    a, b = gemm_testing.to_binding(a, dtype), gemm_testing.to_binding(b, dtype)
    sums = gemm_testing.chain(
      gemm_testing.to_float32(a), gemm_testing.to_float32(b)
    )
    with np.errstate(over='ignore', invalid='ignore'):
      want = gemm_testing.to_kernel_bits(weights[:, None] * sums, dtype)
      twice = gemm_testing.to_float32(gemm_testing.to_kernel_bits(sums, dtype))
      twice = gemm_testing.to_kernel_bits(weights[:, None] * twice, dtype)
    a = a.T.copy() if trans_a else a
    cut = 256

    actual = tiles_testing.gemm_tile(a, b, isa, trans_a, row_weight=weights)
    carry = np.zeros((m, n), 'f4')
    first, last = (a[:cut], a[cut:]) if trans_a else (a[:, :cut], a[:, cut:])
    tiles_testing.gemm_tile(first, b[:cut], isa, trans_a, sums=carry)
    split = tiles_testing.gemm_tile(
      last, b[cut:], isa, trans_a, carry=carry, row_weight=weights
    )

    gemm_testing.assert_same(actual, want, f'{isa} {dtype}')
    gemm_testing.assert_same(split, want, f'{isa} {dtype} in two calls')
    as_int = f'u{want.itemsize}'
    differs = (twice.view(as_int) != want.view(as_int)).any()
    self.assertEqual(differs, dtype != 'float32')

  def test_bf16_accumulation_rounds_every_partial_sum(self):
    a, b = gemm_testing.operands('test_bf16_accumulation', 5, 40, 6)
    acc = np.zeros((5, 6), 'f4')
    for p in range(40):
      acc = gemm_testing.to_float32(
        _bf16(gemm_testing.fma(a[:, p, None], b[None, p], acc))
      )

    actual = tiles_testing.gemm_tile(a, b, bf16_sums=True)

    gemm_testing.assert_same(actual, acc, 'float32 storage')
    self.assertTrue((actual != tiles_testing.gemm_tile(a, b)).any())


class TransposedTest(parameterized.TestCase):
  @parameterized.product(isa=ISAS, dtype=DTYPES, transposed=TRANSPOSED)
  def test_bits_are_those_of_the_plain_tile(self, isa, dtype, transposed):
    for m, k, n in (*itertools.product(AWKWARD, repeat=3), *CHAIN_SHAPES):
      a, b = gemm_testing.operands(
        'test_bits_are_those_of_the_plain_tile', m, k, n, dtype
      )
      want = tiles_testing.gemm_tile(a, b, 'portable')

      actual = tiles_testing.gemm_tile(
        *_transposed(a, b, *transposed), isa, *transposed
      )

      gemm_testing.assert_same(
        actual, want, f'{isa} {dtype} {transposed} {m} {k} {n}'
      )


class CarryTest(parameterized.TestCase):
  @parameterized.product(
    isa=ISAS,
    dtype=DTYPES,
    transposed=((False, False), *TRANSPOSED),
    seed=(0, 1, 2),
  )
  def test_splits_in_k_change_no_bit(self, isa, dtype, transposed, seed):
    trans_a, trans_b = transposed
    m, k, n = 29, 1300, 47
    a, b = gemm_testing.operands('test_splits_in_k_change_no_bit', m, k, n)
    a[3, 700], b[900, 5] = np.inf, np.nan
    a, b = gemm_testing.to_binding(a, dtype), gemm_testing.to_binding(b, dtype)
    whole = tiles_testing.gemm_tile(a, b, isa)
    a, b = _transposed(a, b, *transposed)
    # Ascending, with repeats: calls of k = 0.
    draw = np.random.default_rng(seed).integers(0, k + 1, 4)
    cuts = [*np.sort([0, *draw, draw[0], k])]
    margin = np.full((m + 2, n + 20), np.nan, 'f4')
    carry = margin[1 : m + 1, 7 : n + 7]

    for i, (p, p_end) in enumerate(itertools.pairwise(cuts)):
      x = a[p:p_end] if trans_a else a[:, p:p_end]
      y = b[:, p:p_end] if trans_b else b[p:p_end]
      if p_end < k:
        start = carry if i else None
        tiles_testing.gemm_tile(x, y, isa, *transposed, carry=start, sums=carry)
    before = carry.copy()
    actual = tiles_testing.gemm_tile(x, y, isa, *transposed, carry=carry)

    gemm_testing.assert_same(
      actual, whole, f'{isa} {dtype} {transposed} {cuts}'
    )
    gemm_testing.assert_same(
      carry, before, 'a carry that only starts is only read'
    )
    margin[1 : m + 1, 7 : n + 7] = np.nan
    self.assertTrue(np.isnan(margin).all())

  @parameterized.product(isa=ISAS, dtype=DTYPES)
  def test_no_depth_rounds_the_carry(self, isa, dtype):
    carry, _ = gemm_testing.operands(
      'test_no_depth_rounds_the_carry', 15, 33, 1
    )
    carry[0, :3] = -0.0, np.inf, -np.nan
    carry[0, 3:5] = 1 + 2**-8, 1 + 2**-11  # ties
    a, b = np.zeros((15, 0), 'f4'), np.zeros((0, 33), 'f4')
    a, b = gemm_testing.to_binding(a, dtype), gemm_testing.to_binding(b, dtype)

    actual = tiles_testing.gemm_tile(a, b, isa, carry=carry)

    gemm_testing.assert_same(
      actual, gemm_testing.to_kernel_bits(carry, dtype), f'{isa} {dtype}'
    )

  def test_bf16_accumulation_takes_all_options(self):
    a, b = gemm_testing.operands(
      'test_bf16_accumulation_takes_all_options', 5, 40, 6
    )
    whole = tiles_testing.gemm_tile(a, b, bf16_sums=True)
    half = tiles_testing.gemm_tile(a[:, :17], b[:17], bf16_sums=True)
    a, b = _transposed(a, b, True, True)

    actual = tiles_testing.gemm_tile(
      a[17:], b[:, 17:], None, True, True, carry=half, bf16_sums=True
    )

    gemm_testing.assert_same(actual, whole, 'float32 storage')

  @parameterized.parameters(*ISAS)
  def test_no_rows_or_columns(self, isa):
    for m, n in ((0, 3), (3, 0)):
      a, b = np.ones((7, m), 'f4'), np.ones((7, n), 'f4')
      carry = np.ones((m, n), 'f4')
      actual = tiles_testing.gemm_tile(a, b, isa, trans_a=True, carry=carry)
      self.assertEqual(actual.shape, (m, n))


if __name__ == '__main__':
  absltest.main()
