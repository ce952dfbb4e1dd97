"""Bits of GEMM sums in order even_odd_32, against a model of the order.

The model knows nothing of the kernels: every product and every sum is the
float32 nearest to an exact one.
"""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.tiles import gemm_testing
from hpmoe.backend_ascend.host.tiles import tiles_testing

ISAS = _native.isas()
ORDER = 'even_odd_32'
TERMS = 32
# Around a step, around two, and past the depth that a panel is packed for.
DEPTHS = (0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 300, 577)
SHAPES = ((1, 1), (3, 5), (7, 33), (29, 47), (33, 16))  # m, n
TRANSPOSED = tuple(itertools.product((False, True), repeat=2))  # a, b


def _model(a, b, start=None):
  """Returns a @ b `[m, n]` float32 of bfloat16 bits, in order even_odd_32."""
  zeros = gemm_testing.flush_subnormals
  a, b = (zeros(gemm_testing.to_float32(x)) for x in (a, b))
  acc = np.zeros((a.shape[0], b.shape[1]), 'f4')
  acc = acc if start is None else start
  for first in range(0, a.shape[1], TERMS):
    x, y = a[:, first : first + TERMS], b[first : first + TERMS]
    even = gemm_testing.chain(x[:, ::2], y[::2], flushes=True)
    odd = gemm_testing.chain(x[:, 1::2], y[1::2], flushes=True)
    acc = zeros(zeros(acc) + zeros(even + odd))
  return acc


def _operands(name, m, k, n):
  """Returns bfloat16 bits `[m, k]`, `[k, n]` over 16 binades: order shows."""
  return gemm_testing.operands(f'{name} {m} {k} {n}', m, k, n, 'bfloat16')


def _tile(a, b, isa, trans_a=False, trans_b=False, carry=None):
  a = np.ascontiguousarray(a.T) if trans_a else a
  b = np.ascontiguousarray(b.T) if trans_b else b
  return tiles_testing.gemm_tile(a, b, isa, trans_a, trans_b, carry, ORDER)


def _sums(a, b, isa, trans_a=False, trans_b=False):
  """Returns the unrounded sums `[m, n]` float32."""
  a, b = a.T if trans_a else a, b.T if trans_b else b
  m, n = a.shape[trans_a], b.shape[not trans_b]
  sums = np.full((m, n), np.nan, 'f4')
  a, b = map(np.ascontiguousarray, (a, b))
  tiles_testing.gemm_tile(a, b, isa, trans_a, trans_b, order=ORDER, sums=sums)
  return sums


def _canonical(x):
  return np.where(np.isnan(x), np.float32(np.nan), x)


class EvenOddTest(parameterized.TestCase):
  @parameterized.product(isa=ISAS, k=DEPTHS)
  def test_bits_are_those_of_the_model(self, isa, k):
    for (m, n), transposed in itertools.product(SHAPES, TRANSPOSED):
      a, b = _operands('model', m, k, n)
      want = _model(a, b)

      sums = _sums(a, b, isa, *transposed)
      whole = _tile(a, b, isa, *transposed)

      message = f'{isa} {m}x{k}x{n} {transposed}'
      gemm_testing.assert_same(sums, want, message)
      gemm_testing.assert_same(
        whole, gemm_testing.to_kernel_bits(want, 'bfloat16'), message
      )

  def test_it_is_another_order_than_ascending(self):
    a, b = _operands('another', 9, 64, 9)
    ascending = np.empty((9, 9), 'f4')
    tiles_testing.gemm_tile(a, b, sums=ascending)
    self.assertTrue((_sums(a, b, None) != ascending).any())

  @parameterized.product(isa=ISAS, k=(3, 32, 45, 300))
  def test_special_numbers(self, isa, k):
    # Given sums that end in -0, that overflow and that are subnormal, NaN and
    # infinities of both signs, then kernels treat all as the model does.
    a, b = (gemm_testing.to_float32(x) for x in _operands('special', 9, k, 40))
    a[0] = 0
    a[1, 0], a[1, -1], a[2, 1], b[0, 3], b[k // 2, 4] = (
      np.inf,
      -np.inf,
      np.nan,
      -np.inf,
      -np.nan,
    )
    a[3], b[:, 38] = 2.0**-100, -(2.0**-30)  # products that are flushed
    a[4], b[:, 39] = 1e-40, 0.75  # operands that are
    a[5] = 2.0**-120 * np.where(np.arange(k) % 2, -1, 1 + 2.0**-7)
    b[:, 37] = 2.0**-6  # whose even + odd is flushed
    a[6], b[:, 36] = 3e38, 3e38
    a, b = (gemm_testing.to_binding(x.astype('f4'), 'bfloat16') for x in (a, b))
    with np.errstate(invalid='ignore', over='ignore'):
      want = _canonical(_model(a, b))
    self.assertTrue(np.isnan(want).any() and np.isinf(want).any())
    self.assertEqual(want[4, 39], 0)

    gemm_testing.assert_same(_sums(a, b, isa), want, f'{isa} {k}')
    gemm_testing.assert_same(
      _tile(a, b, isa),
      gemm_testing.to_kernel_bits(want, 'bfloat16'),
      f'{isa} {k}',
    )

  @parameterized.product(isa=ISAS, k=(0, 1, 31, 33, 64))
  def test_start_is_added_to_last(self, isa, k):
    # -0, subnormal and not finite starts among them.
    a, b = _operands('start', 5, k, 18)
    a[2] = 0  # whose sums are +0
    start = gemm_testing.to_float32(_operands('start', 5, 1, 18)[1])
    start = np.repeat(start, 5, 0)
    start[:, :4] = -0.0, np.inf, -np.nan, 1e-40
    want = _canonical(_model(a, b, start))

    actual = _tile(a, b, isa, carry=start)

    gemm_testing.assert_same(
      actual, gemm_testing.to_kernel_bits(want, 'bfloat16'), f'{isa} {k}'
    )

  @parameterized.product(isa=ISAS, cuts=((32,), (64, 64, 512), (256, 288)))
  def test_whole_steps_may_be_split_off(self, isa, cuts):
    m, k, n = 29, 577, 47
    a, b = _operands('split', m, k, n)
    whole = _tile(a, b, isa)
    carry = np.full((m, n), np.nan, 'f4')

    for i, (p, end) in enumerate(itertools.pairwise((0, *cuts))):
      tiles_testing.gemm_tile(
        a[:, p:end],
        b[p:end],
        isa,
        carry=carry if i else None,
        order=ORDER,
        sums=carry,
      )
    actual = _tile(a[:, cuts[-1] :], b[cuts[-1] :], isa, carry=carry)

    gemm_testing.assert_same(actual, whole, f'{isa} {cuts}')


if __name__ == '__main__':
  absltest.main()
