"""Bounds hold for every order of summation, and are not empty words."""

from collections.abc import Iterator
import itertools
import zlib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import activation_bounds
from hpmoe.parity_tests.judge.limits.bounds import activation_grad_bounds
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import combine_bounds
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.parity_tests.judge.limits.bounds import weight_sizes
from hpmoe.parity_tests.judge.limits.bounds import weighting_bounds
from hpmoe.parity_tests.judge.limits.weights import products
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage

F32 = precision.PrecisionPolicy()
BF16 = precision.PrecisionPolicy(storage='bfloat16')
F16 = precision.PrecisionPolicy(storage='float16')
PRODUCTS = precision.PrecisionPolicy(activation='absolute')
POLICIES = pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
EXACT = bounded_values.exact

# What was computed, its bound, and what it uses of that: at least, at most.
Case = tuple[np.ndarray, bounded_values.Bounded, float, float]
WRONG = (10, np.inf)


def _rng(name: str) -> np.random.Generator:
  return np.random.default_rng(zlib.crc32(name.encode()))


def _store(policy, value):
  return value.astype(ulp.storage_dtype(policy.storage))


def _early(value):
  return value.astype(ml_dtypes.bfloat16).astype(np.float32)


def _gemm_in_order(rows, weights, order=None):
  """A float32 GEMM that adds in the given order, product by product."""
  total = np.zeros((rows.shape[0], weights.shape[1]), np.float32)
  for k in range(len(weights)) if order is None else order:
    total = total + rows[:, k : k + 1].astype(np.float32) * weights[k].astype(
      np.float32
    )
  return total


def _excess(actual, bounded) -> float:
  """Largest error in units of its bound."""
  error = np.abs(actual.astype(np.float64) - bounded.value)
  return float((error / bounded.error).max())


def _sigmoid(z):
  with np.errstate(over='ignore'):
    return np.float32(1) / (1 + np.exp(-z))


def _split(gate_up):
  return np.split(gate_up.astype(np.float32), 2, axis=1)


# Ways to compute d silu(z) / dz in float32.
_SLOPES = {
  'own_complement': lambda z: _sigmoid(z) * (1 + z * _sigmoid(-z)),
  'one_minus_sigmoid': lambda z: _sigmoid(z) * (1 + z * (1 - _sigmoid(z))),
  'silu_times_rest': lambda z: _sigmoid(z) + z * _sigmoid(z) * _sigmoid(-z),
  'silu_plus_rest': lambda z: (
    z * _sigmoid(z) + _sigmoid(z) * (1 - z * _sigmoid(z))
  ),
}


def _early_slope(z):
  s = _early(_sigmoid(z))
  return s * (1 + z * (1 - s))


def _gates(rng, columns=96):
  """Usual gates, saturated ones, and those next to the slope's zero."""
  return np.concatenate(
    [
      rng.normal(size=(30, columns)),
      rng.uniform(-120, 120, size=(30, columns)),
      -1.2784645 + rng.uniform(-1e-3, 1e-3, size=(30, columns)),
    ]
  )


def _gate_up(rng):
  return np.concatenate([_gates(rng), rng.normal(size=(90, 96))], axis=1)


def _activation_grad(gate, up, grad, weight, slope):
  """One order of the products in float32; the bound is for all of them."""
  grad = grad if weight is None else grad * weight[:, None]
  d_up = grad * (gate * _sigmoid(gate))
  return np.concatenate([grad * up * slope(gate), d_up], axis=1)


# --- Stages, right in several ways and wrong in one ------------------------


def gemm(policy, rng) -> Iterator[Case]:
  rows = _store(policy, rng.normal(size=(9, 65)))
  weights = _store(policy, rng.normal(size=(65, 7)) * 100)
  bounded = gemm_bounds.gemm(policy, EXACT(rows), weights)
  for order in (range(65), range(65)[::-1], rng.permutation(65)):
    actual = _gemm_in_order(rows, weights, order)
    yield _store(policy, actual), bounded, 0, 1
  if policy == F32:
    yield _gemm_in_order(_early(rows), weights), bounded, *WRONG


def activation(policy, rng) -> Iterator[Case]:
  spread = [rng.normal(size=(40, 64)), rng.uniform(-120, 120, size=(40, 64))]
  gate_up = _store(policy, np.concatenate(spread))
  gate, up = _split(gate_up)
  with np.errstate(over='ignore'):
    divisor = 1 + np.exp(-gate)
  silus = gate / divisor, gate * (np.float32(1) / divisor)
  weights = None, rng.random(80).astype(np.float32)
  for silu, weight in itertools.product(silus, weights):
    actual = silu * up if weight is None else silu * up * weight[:, None]
    bounded = activation_bounds.activation(policy, EXACT(gate_up), weight)
    yield _store(policy, actual), bounded, 0.05, 1
  if policy == F32:
    bounded = activation_bounds.activation(policy, EXACT(gate_up[:40]), None)
    yield _early(silus[0][:40]) * up[:40], bounded, *WRONG


def combine(policy, rng) -> Iterator[Case]:
  for top_k in (1, 2, 8):
    rows = _store(policy, rng.normal(size=(30, top_k, 16)))
    weights = rng.random((30, top_k)).astype(np.float32)
    actual = np.zeros((30, 16), np.float32)
    for slot in rng.permutation(top_k):
      actual = actual + weights[:, slot, None] * rows[:, slot].astype(
        np.float32
      )
    bounded = combine_bounds.combine(policy, 'y', EXACT(rows), weights)
    yield _store(policy, actual), bounded, 0, 1


def activation_grad(policy, rng) -> Iterator[Case]:
  gate_up = _store(policy, _gate_up(rng))
  grad = _store(policy, rng.normal(size=(90, 96)))
  operands = *_split(gate_up), grad.astype(np.float32)
  for weight in (None, rng.random(90).astype(np.float32)):
    bounded = activation_grad_bounds.activation_grad(
      policy, EXACT(gate_up), EXACT(grad), weight
    )
    for slope in _SLOPES.values():
      actual = _activation_grad(*operands, weight, slope)
      yield _store(policy, actual), bounded, 0.05, 1
  if policy == F32:
    actual = _activation_grad(*operands, weight, _early_slope)
    yield actual[:30], bounded[:30], *WRONG


def activation_grad_of_products(policy, rng) -> Iterator[Case]:
  del policy
  gate, up, grad = rng.normal(size=(3, 30, 64)).astype(np.float32)
  weight = rng.random((30, 1)).astype(np.float32)
  bounded = activation_grad_bounds.activation_grad(
    PRODUCTS,
    EXACT(np.concatenate([gate, up], axis=1)),
    EXACT(grad),
    weight[:, 0],
  )
  sign, size = np.sign(gate), np.abs(gate)
  for actual in (
    [grad * weight * up * sign, grad * weight * size],
    [up * weight * grad * sign, size * grad * weight],
  ):
    yield np.concatenate(actual, axis=1), bounded, 0.4, 1


def weight_grad(policy, rng) -> Iterator[Case]:
  """In chains of some rows; wrong without the first row."""
  rows = _store(policy, rng.normal(size=(65, 9)))
  d_out = _store(policy, rng.normal(size=(65, 7)))
  bounded = gemm_bounds.weight_grad(policy, EXACT(rows), EXACT(d_out))
  for link in (1, 16, 100):
    actual = np.zeros((9, 7), np.float32)
    for begin in range(0, 65, link):
      part = slice(begin, begin + link)
      actual = actual + _gemm_in_order(rows[part].T, d_out[part])
    yield _store(policy, actual), bounded, 0, 1
  short = _gemm_in_order(rows[1:].T, d_out[1:])
  yield _store(policy, short), bounded, *WRONG
  if policy == BF16:
    actual = np.zeros((9, 7), np.float32)
    for row in range(65):
      part = slice(row, row + 1)
      actual = _early(actual + _gemm_in_order(rows[part].T, d_out[part]))
    yield actual, bounded, 2, np.inf


def weighted(policy, rng) -> Iterator[Case]:
  rows = _store(policy, rng.normal(size=(50, 33)))
  weight, wide = rng.random(50).astype(np.float32), rows.astype(np.float32)
  bounded = weighting_bounds.weighted(policy, EXACT(rows), weight)
  yield _store(policy, weight[:, None] * wide), bounded, 0.9, 1
  yield _store(policy, weight[::-1, None] * wide), bounded, *WRONG


def inner_product(policy, rng) -> Iterator[Case]:
  del policy
  for columns in (1, 65, 256):
    a, b = rng.normal(size=(2, 40, columns)).astype(np.float32)
    actual = np.zeros(40, np.float32)
    for column in rng.permutation(columns):
      actual = actual + a[:, column] * b[:, column]
    bounded = gemm_bounds.inner_product(F32, EXACT(a), EXACT(b))
    yield actual, bounded, 0, 1
    yield actual - a[:, 0] * b[:, 0], bounded, *WRONG


def row_weight_grad(policy, rng) -> Iterator[Case]:
  """In float32; wrong where the activation is stored in between."""
  gate_up = _store(policy, _gate_up(rng))
  grad = _store(policy, rng.normal(size=(90, 96)))
  gate, up = _split(gate_up)
  activation, wide = gate * _sigmoid(gate) * up, grad.astype(np.float32)
  bounded = activation_grad_bounds.row_weight_grad(
    policy, EXACT(gate_up), EXACT(grad)
  )
  yield (wide * activation).sum(axis=1), bounded, 0, 1
  yield (wide * _early(activation)).sum(axis=1), bounded, *WRONG


_STAGES = (
  *(gemm, activation, combine, activation_grad, activation_grad_of_products),
  *(weight_grad, weighted, inner_product, row_weight_grad),
)


@POLICIES
@pytest.mark.parametrize('stage', _STAGES, ids=lambda stage: stage.__name__)
def test_right_kernels_alone_stay_within_the_bound(policy, stage):
  rng = _rng(f'{stage.__name__} {policy.storage}')
  for number, (actual, bounded, smallest, largest) in enumerate(
    stage(policy, rng)
  ):
    assert smallest < _excess(actual, bounded) <= largest, number


@pytest.mark.parametrize('size', [1e-42, 1e-38, 1e-20, 1.0, 1e20, 3e38])
@pytest.mark.parametrize('large', [weight_sizes.LARGE, 1])
def test_sums_of_magnitudes_in_float32_are_never_too_small(
  size, large, monkeypatch
):
  monkeypatch.setattr(weight_sizes, 'LARGE', large)
  # given: weights near an end of float32, and rows that float32 cannot hold.
  rng = np.random.default_rng(0)
  weights = (size * rng.uniform(-1, 1, (300, 40))).astype(np.float32)
  rows = (
    rng.uniform(0, 1, (30, 300)) * 10.0 ** np.linspace(-60, 60, 30)[:, None]
  )
  rows[3], rows[4, 5] = 0.0, np.inf
  # when: they are summed in float32; then: no sum is below the true one, and
  # few are far above it.
  with np.errstate(invalid='ignore'):
    sizes, _ = weight_sizes.Sizes.with_squares(weights)
    sums = sizes.multiply(rows)[0].at_most()
    expected = rows @ np.abs(weights.astype(np.float64))
  np.testing.assert_array_equal(sums[4], np.inf)
  sums, expected = (np.delete(a, [3, 4], axis=0) for a in (sums, expected))
  assert (sums >= expected).all()
  assert (sums <= 1.001 * expected).all() or size < 1e-38


def test_gemm_bound_needs_its_depth():
  # Given 1 followed by terms of half a unit each, which all get lost one by
  # one (ties go to even), when they are added in that order,
  depth = 257
  rows = np.full((1, depth), 2.0**-24, np.float32)
  rows[0, 0] = 1
  weights = np.ones((depth, 1), np.float32)

  # then the bound of the depth holds, and nearly all of it is used.
  bounded = gemm_bounds.gemm(F32, EXACT(rows), weights)
  assert 0.9 < _excess(_gemm_in_order(rows, weights), bounded) <= 1


def test_a_sum_too_long_for_any_digit_is_refused():
  with pytest.raises(ValueError, match='roundings: expected fewer'):
    rounding.gamma(2**24)


@pytest.mark.parametrize('activation', ('swiglu', 'absolute'))
@pytest.mark.parametrize('share', (1e-6, 1e-3, 1.0))
def test_activation_grad_of_a_gate_that_is_off_stays_within(activation, share):
  # Given gates and ups that a kernel has a little off, each by all it may,
  rng = _rng(f'gate off {activation} {share}')
  policy = precision.PrecisionPolicy(activation=activation)
  gate_up = _gate_up(rng)
  error = share * np.abs(rng.normal(size=gate_up.shape))
  grad = rng.normal(size=(90, 96)).astype(np.float32)
  gate_up_of_kernel = gate_up + error * rng.choice([-1, 1], gate_up.shape)
  gate, up = np.split(gate_up_of_kernel, 2, axis=1)

  # when the gradient is computed there,
  if activation == 'swiglu':
    actual = _activation_grad(gate, up, grad, None, _SLOPES['own_complement'])
  else:
    actual = np.concatenate(
      [grad * up * np.sign(gate), grad * abs(gate)], axis=1
    )

  # then it is within the bound of those that it should have had.
  stored_gate_up = bounded_values.Bounded(gate_up, error)
  bounded = activation_grad_bounds.activation_grad(
    policy, stored_gate_up, EXACT(grad), None
  )
  assert 0.3 < _excess(actual, bounded) <= 1


@pytest.mark.parametrize('unit', (-3, 3))
def test_activation_grad_may_use_an_exp_two_units_off(unit):
  # Given gates near zero, where nothing hides the error of exp, when it is two
  # units in the last place off (three halves, and its rounding),
  rng = _rng(f'exp two units off {unit}')
  gate = rng.uniform(-0.01, 0.01, size=(30, 64)).astype(np.float32)
  up, grad = rng.normal(size=(2, 30, 64)).astype(np.float32)

  def sigmoid(z):
    e = np.exp(-z.astype(np.float64)) * (1 + unit * 2.0**-24)
    return np.float32(1) / (1 + e.astype(np.float32))

  actual = grad * up * (sigmoid(gate) * (1 + gate * sigmoid(-gate)))

  # then the gate's columns use more than one rounding of the slope allows.
  gate_up = EXACT(np.concatenate([gate, up], axis=1))
  bounded = activation_grad_bounds.activation_grad(
    F32, gate_up, EXACT(grad), None
  )[:, :64]
  error = np.abs(actual.astype(np.float64) / bounded.value - 1)
  assert error.max() > 4 * 2.0**-24
  assert _excess(actual, bounded) <= 1


def test_weight_grad_of_an_expert_without_rows_is_zero():
  nobody = np.zeros((0, 3), np.float32)

  bounded = gemm_bounds.weight_grad(F32, EXACT(nobody), EXACT(nobody))

  np.testing.assert_array_equal(bounded.value, np.zeros((3, 3)))
  np.testing.assert_array_equal(bounded.error, np.zeros((3, 3)))


def test_a_float32_sum_counts_what_both_operands_store_differently():
  # given: operands in bfloat16 that two right kernels may store differently
  zero = np.zeros((1, 2))
  rows = bounded_values.Bounded(
    np.ones((1, 2)), zero, zero, unlike=np.array([[0.25, 0.5]])
  )
  weights = bounded_values.Bounded(
    np.ones((2, 1)), zero.T, zero.T, unlike=np.array([[0.125], [0.0]])
  )
  # when
  sums = gemm_bounds.gemm(BF16, rows, weights, 'float32')
  # then
  np.testing.assert_allclose(sums.crossings, [[0.875]])


def test_rows_with_and_without_crossings_are_joined():
  # given: rows of an expert, and those of one that has none to sum
  row = np.ones((1, 2))
  plain_rows = bounded_values.Bounded(row, row, row)
  rounded_rows = bounded_values.Bounded(row, row, row, crossings=row)
  # when
  all_rows = bounded_values.join([rounded_rows, plain_rows])
  # then
  np.testing.assert_array_equal(all_rows.crossings, [[1, 1], [0, 0]])


def test_inner_product_carries_the_errors_of_both_sides():
  # Given factors that are all off by their bound, each in the worst direction,
  rng = _rng('carried inner product')
  a, b = rng.normal(size=(2, 20, 33))
  error_a, error_b = 0.01 * rng.random((2, 20, 33))
  a, b = bounded_values.Bounded(a, error_a), bounded_values.Bounded(b, error_b)

  bounded = gemm_bounds.inner_product(F32, a, b)

  # then the sum is within the bound, and uses nearly all of it.
  worst = (np.abs(a.value) + error_a) * (np.abs(b.value) + error_b)
  error = (worst - np.abs(a.value * b.value)).sum(axis=1)
  assert (error <= bounded.error).all()
  assert (error > 0.999 * bounded.error).all()


def test_what_is_flushed_to_zero_is_within_the_bound():
  small, weight = np.full((1, 2), 2.0**-70, np.float32), np.float32([2.0**-70])
  rows, grad = EXACT(small), EXACT(small[:, :1])

  for bounded in (
    gemm_bounds.gemm(F32, rows, small.T),
    weighting_bounds.weighted(F32, rows, weight),
    gemm_bounds.weight_grad(F32, rows, rows),
    gemm_bounds.inner_product(F32, rows, rows),
    activation_grad_bounds.activation_grad(PRODUCTS, rows, grad, None),
    activation_grad_bounds.activation_grad(F32, rows, grad, weight),
  ):
    assert _excess(np.zeros_like(bounded.value), bounded) <= 1


_GAMMA = rounding.gamma(2)


@pytest.mark.parametrize(
  ('policy', 'row', 'value', 'error'),
  [
    # Certain; it rounds to the largest, or past it; a half unit and 3 roundings
    # from it; a subnormal number, half the spacing of those.
    (F16, (65504, 65504), np.inf, 0.0),
    (F16, (-65504, -32), -65536.0, np.inf),
    (F16, (65504, 15), 65519.0, np.inf),
    (F16, (60000, 1), 60001.0, 16 + 60001 * _GAMMA),
    (F16, (2.0**-20, 2.0**-24), 17 * 2.0**-24, 2.0**-25 + 34 * 2.0**-48),
    # Certain; within one rounding of the largest; in some order; of both signs.
    (F32, (3e38, 3e38), np.inf, 0.0),
    (F32, (-3e38, -3e38), -np.inf, 0.0),
    (F32, (3.4028235e38, 0), 3.4028234663852886e38, np.inf),
    (F32, (3e38, -2e38, 3e38), np.inf, 0.0),
    (F32, (3e38, 2e38, -3e38), 2e38, np.inf),
    (F32, (3e38, 3e38, 3e38, -3e38, -3e38), 3e38, np.inf),
    (F32, (3e38, 3e38, 3e38, 3e38, -3e38, -3e38), np.inf, np.inf),
    (F32, (np.inf, 3), np.inf, None),
    (F32, (np.inf, -np.inf), np.nan, None),
  ],
)
def test_what_overflows_is_certain_or_not_known(policy, row, value, error):
  rows = _store(policy, np.array([row]))

  with np.errstate(invalid='ignore', over='ignore'):
    actual = gemm_bounds.gemm(policy, EXACT(rows), np.ones((len(row), 1)))
    expected = _store(policy, np.float32(rows.astype(np.float32).sum()))

  assert actual.value[0, 0] == pytest.approx(value, rel=1e-6, nan_ok=True)
  bound = actual.error[0, 0]
  assert (
    np.isfinite(bound) if error is None else bound == pytest.approx(error, 1e-4)
  )
  assert policy == F32 or expected == value or abs(expected - value) <= bound


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_weights_of_any_number_are_made_ready_alike(monkeypatch, dtype):
  # given: weights of many magnitudes, and one that is not finite
  rng = np.random.default_rng(3)
  weights = rng.normal(size=(700, 24)) * 2.0 ** rng.integers(-9, 9, (700, 24))
  weights[5, 7] = np.inf
  weights = weights.astype(storage.FORMATS[dtype].numpy)
  rows = EXACT(rng.normal(size=(6, 700)).astype(np.float32))
  with np.errstate(invalid='ignore'):
    expected = gemm_bounds.gemm(F32, rows, weights)
    # when: numpy takes them in panels, and does not keep them in float64
    monkeypatch.setattr(products, '_products', None)
    monkeypatch.setattr(weight_sizes, '_PANEL', 100)
    monkeypatch.setattr(weight_sizes, 'LARGE', 1)
    actual = gemm_bounds.gemm(F32, rows, weights)
  # then: no bit changes
  for array, right in zip(actual.arrays(), expected.arrays(), strict=True):
    np.testing.assert_array_equal(array, right)


def test_what_underflows_moves_by_its_error_and_crosses_no_edge():
  # given: float32 values with errors below, at and above a spacing of bfloat16
  policy = precision.PrecisionPolicy(points=('silu=bfloat16',))
  value, spacing = np.array([1.0, 1.0, 0.0]), 2.0**-7
  error = np.array([spacing / 8, 2 * spacing, 1e-38])
  # when
  rounded = rounding.rounded(
    policy, 'bfloat16', bounded_values.Bounded(value, error, np.square(error))
  )
  # then: the first may cross an edge; the others are off as they were
  np.testing.assert_allclose(rounded.crossings, [1 / 8, 0, 0], rtol=1e-6)
  assert rounded.variance is not None and rounded.variance[0] == 0
  assert (np.sqrt(rounded.variance[1:]) >= error[1:]).all()


@pytest.mark.parametrize('stage', ['y', 'dx'])
def test_a_sum_stored_narrower_crosses_no_edge_before_it_is_stored(stage):
  # given: float32 rows, and a point elsewhere or none
  for points, has_crossings in (
    ((f'{stage}=bfloat16',), False),
    ((f'{stage}=bfloat16', 'weighted=bfloat16'), True),
  ):
    policy = precision.PrecisionPolicy(points=points)
    size = np.full((2, 3, 4), 1e-6)
    rows = bounded_values.Bounded(np.ones((2, 3, 4)), size, size)
    # when
    total = combine_bounds.combine(policy, stage, rows, np.ones((2, 3)))
    # then: crossings are told only where an earlier rounding may differ
    assert (total.crossings is not None) == has_crossings
