"""Products in C++ are those of numpy, and bounds from them hold as theirs."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weight_sizes
from hpmoe.parity_tests.judge.limits.weights import products
from hpmoe.reference.contract import precision

pytestmark = pytest.mark.skipif(
  products._products is None, reason='no extension module'
)

# Whole strips and tiles, and what is past them; blocks that end in a panel.
SHAPES = pytest.mark.parametrize(
  'shape', [(7, 300, 257), (3, 128, 128), (1, 5, 3), (4, 129, 64), (0, 4, 4)]
)
DTYPES = pytest.mark.parametrize('dtype', [np.float32, ml_dtypes.bfloat16])


def draw(shape, dtype=np.float32) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows and weights whose magnitudes differ widely."""
  count, depth, columns = shape
  rng = np.random.default_rng(7)
  weights = rng.standard_normal((depth, columns))
  weights *= np.exp2(rng.integers(-20, 20, (depth, 1)))
  weights *= np.exp2(rng.integers(-20, 20, columns))
  return rng.standard_normal((count, depth)), weights.astype(dtype)


@SHAPES
@DTYPES
@pytest.mark.parametrize('block', [48, 128, 1000])
def test_sums_and_prefixes(shape, dtype, block, monkeypatch):
  rows, weights = draw(shape, dtype)

  total, squares = products.add_up(rows, weights, block)

  monkeypatch.setattr(products, '_products', None)
  right, of_prefixes = gemm_bounds._prefix_sums(rows, weights, block)
  reach = np.abs(rows) @ np.abs(weights.astype(np.float64))
  order = 2 * rounding.gamma(300, 2.0**-53)
  assert (np.abs(total - right) <= order * reach).all()
  if of_prefixes is None:
    of_prefixes = np.zeros_like(total)
  apart = np.abs(squares - of_prefixes)
  assert (apart <= 1e-9 * of_prefixes + 1e-12 * reach**2).all()


@SHAPES
@DTYPES
def test_scales_have_the_bits_of_numpy(shape, dtype):
  _, weights = draw(shape, dtype)
  weights[0, 0] = 0
  weights[:, 1] = 2.0**-140  # subnormal
  weights[1] = 0

  row_scale, column_scale = products.measure(weights)

  of_size, _ = weight_sizes.Sizes._scale(weights)
  np.testing.assert_array_equal(row_scale, of_size.row_scale)
  np.testing.assert_array_equal(column_scale, of_size.column_scale)


@SHAPES
@DTYPES
@pytest.mark.parametrize('is_squared', [False, True])
def test_sums_of_magnitudes(shape, dtype, is_squared):
  rows, weights = draw(shape, dtype)
  rows = np.abs(rows).astype(np.float32)
  scales = products.measure(weights)

  sums = products.multiply_magnitudes(rows, weights, *scales, is_squared)

  sizes = weight_sizes.Sizes._scale(weights)[is_squared].size
  wide = rows.astype(np.float64) @ sizes.astype(np.float64)
  np.testing.assert_allclose(sums, wide, 4e-5)
  # A matrix of one row per term holds the magnitudes themselves.
  eye = np.eye(len(weights), dtype=np.float32)
  single = products.multiply_magnitudes(eye, weights, *scales, is_squared)
  np.testing.assert_array_equal(single, sizes)


@SHAPES
@DTYPES
def test_bits_do_not_depend_on_registers(shape, dtype):
  """Registers of 32 bytes can multiply and add at once, as those of 64."""
  rows, weights = draw(shape, dtype)
  scales = products.measure(weights)
  bits = {}
  try:
    for limit in (64, 32):
      count = products._products.limit_registers(limit)
      if count:
        narrow = np.abs(rows).astype(np.float32)
        sums = products.multiply_magnitudes(narrow, weights, *scales, True)
        arrays = *products.add_up(rows, weights, 48), sums
        bits[count] = [array.tobytes() for array in arrays]
  finally:
    products._products.limit_registers(64)
  assert all(b == next(iter(bits.values())) for b in bits.values())


@DTYPES
@pytest.mark.parametrize('value', [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_are_not_measured(dtype, value):
  _, weights = draw((1, 20, 70), dtype)
  assert products.measure(weights) is not None
  weights[13, 69] = value
  assert products.measure(weights) is None


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
def test_bounds_of_large_weights(storage, monkeypatch):
  rows, weights = draw((5, 520, 96), np.dtype(storage))
  policy = precision.PrecisionPolicy(storage=storage)
  monkeypatch.setattr(weight_sizes, 'LARGE', 1)
  source = bounded_values.Bounded(rows, np.abs(rows) / 1e6, rows**2 / 1e14)
  calls = []
  names = ('add_up', 'multiply_magnitudes', 'measure')
  for name in names:
    function = getattr(products, name)

    def count(*arguments, name=name, function=function):
      calls.append(name)
      return function(*arguments)

    monkeypatch.setattr(products, name, count)

  bounded = gemm_bounds.gemm(policy, source, weights)

  assert {*calls} == {*names}
  monkeypatch.setattr(products, '_products', None)
  for actual, right in zip(
    bounded.arrays(),
    gemm_bounds.gemm(policy, source, weights).arrays(),
    strict=True,
  ):
    assert (actual is None) == (right is None)
    if right is not None:
      floor = 1e-12 * np.abs(right).max(axis=0)
      assert (np.abs(actual - right) <= 1e-4 * np.abs(right) + floor).all()


def test_shapes_that_do_not_fit_are_refused():
  rows, weights = draw((2, 30, 20))
  with pytest.raises(ValueError, match='rows: expected 30, got 29'):
    products.add_up(rows[:, 1:], weights, 8)
  with pytest.raises(ValueError, match='block: expected 1 or more'):
    products.add_up(rows, weights, 0)
  total, scales = np.zeros((3, 20), np.float32), (np.ones(30), np.ones(20))
  narrow, module = rows.astype(np.float32), products._products
  with pytest.raises(ValueError, match='total: expected 2, got 3'):
    module.add_magnitudes(narrow, weights, *scales, False, total)
  for function, ends in (
    (module.measure, ()),
    (module.add_magnitudes, (False, total[:2])),
  ):
    starts = () if function is module.measure else (narrow,)
    with pytest.raises(ValueError, match='row_scale: expected 30, got 20'):
      function(*starts, weights, *scales[::-1], *ends)
    with pytest.raises(ValueError, match='column_scale: expected 20, got 30'):
      function(*starts, weights, scales[0], scales[0], *ends)


@dataclasses.dataclass(frozen=True)
class Misweighted(trial.Kernel):
  """A kernel whose routing weights are off by 2 %."""

  def _weights(self, policy, weights):
    return super()._weights(policy, weights * np.float32(1.02))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('kernel', [trial.Kernel(), Misweighted()])
@pytest.mark.few(2)
def test_reports_are_those_of_numpy(kernel, dtype, monkeypatch):
  monkeypatch.setattr(weight_sizes, 'LARGE', 1)
  bench = bench_lib.Bench(case_lib.Case(preset='tiny', ranks=2, dtype=dtype))
  judging = judgement.Judgement(lanes=('bounded', 'standard'), repeat=1)

  def list_rows(stage: str) -> list[tuple]:
    candidate = numpy_testing.Numpy(
      kernel=kernel, everything=False, returns=(stage,)
    )
    case = case_lib.Case(preset='tiny', ranks=2, dtype=dtype)
    rows = bench.judge(request_lib.Request(case, candidate, judging))
    return [
      (
        *(row.stage, row.lane, row.rule, row.verdict, row.failed_tiles),
        *(row.worst_ulp, row.worst_element, row.not_judged),
        *(f'{name} {value:.3g}' for name, value in row.power.items()),
        *(f'{name} {value:.3g}' for name, value in row.values.items()),
      )
      for row in rows
    ]

  for stage in ('y', 'activation'):
    rows = list_rows(stage)
    with monkeypatch.context() as patch:
      patch.setattr(products, '_products', None)
      assert rows == list_rows(stage)
  is_right = not isinstance(kernel, Misweighted)
  assert is_right == (verdicts.FAIL not in {row[3] for row in rows})
