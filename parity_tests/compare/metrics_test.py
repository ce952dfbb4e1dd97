"""msprobe's metrics, of numbers that one can follow by hand."""

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.compare import metrics


def _values(npu, bench, dtype='float32') -> dict[str, object]:
  dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
  arrays = [np.asarray(a, dtype) for a in (npu, bench)]
  return metrics.compare('a', None, '', *arrays).values


class TestMetrics:
  def test_each_is_what_its_name_says(self):
    values = _values([3.0, 4.0, 1.002], [3.0, 4.0, 1.0])
    error = float(np.float32(1.002)) - 1
    assert values['MaxAbsErr'] == values['MaxRelativeErr'] == error
    assert values['EucDist'] == pytest.approx(error)
    assert values['One Thousandth Err Ratio'] == pytest.approx(2 / 3)
    assert values['Five Thousandths Err Ratio'] == 1
    assert values['NPU max'] == 4
    assert values['Bench min'] == 1
    assert values['Bench mean'] == pytest.approx(8 / 3)
    assert values['Bench l2norm'] == pytest.approx(26**0.5)

  def test_where_the_bench_is_zero_an_epsilon_divides(self):
    assert _values([2.0**-20, 1], [0, 1])['MaxRelativeErr'] == 8
    assert _values([0, 1], [0, 1])['MaxRelativeErr'] == 0


class TestVerdict:
  @pytest.mark.parametrize(
    ('dtype', 'error', 'count', 'result'),
    [
      # Of 1000 elements at 8 so many are off by this share.
      ('float32', 1.1e-4, 1000, metrics.PASS),  # below 1e-3 in all
      ('float32', 2e-4, 1000, metrics.WARNING),
      ('float32', 2e-3, 1, metrics.ERROR),
      ('bfloat16', 2.0**-7, 9, metrics.WARNING),
      ('bfloat16', 2.0**-6, 9, metrics.WARNING),
      ('bfloat16', 2.0**-6, 10, metrics.ERROR),
    ],
  )
  def test_of_shares(self, dtype, error, count, result):
    bench = np.full(1000, 8.0)
    npu = bench.copy()
    npu[:count] *= 1 + error
    assert _values(npu, bench, dtype)['Result'] == result

  def test_of_a_low_cosine_and_of_small_errors_against_zero(self):
    assert _values([1e-5, 0], [0, 1e-5])['Result'] == metrics.ERROR
    assert _values([1, 9e-4], [1, 0])['Result'] == metrics.PASS

  def test_of_values_that_are_not_finite(self):
    values = _values([1, np.nan], [1, 2])
    assert values['Result'] == metrics.ERROR
    assert values['Err_message'] == 'NPU has NaN where the other side has not'
