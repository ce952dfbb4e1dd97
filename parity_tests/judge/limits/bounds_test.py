"""Bounds hold for every order of summation, and are not empty words."""

import zlib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import precision

F32 = precision.PrecisionPolicy()
BF16 = precision.PrecisionPolicy(storage='bfloat16')
F16 = precision.PrecisionPolicy(storage='float16')


def _rng(name: str) -> np.random.Generator:
  return np.random.default_rng(zlib.crc32(name.encode()))


def _store(policy, value):
  return value.astype(ulp.storage_dtype(policy.storage))


def _gemm_in_order(rows, weights, order):
  """A float32 GEMM that adds in the given order, product by product."""
  total = np.zeros((rows.shape[0], weights.shape[1]), np.float32)
  for k in order:
    total = total + rows[:, k : k + 1].astype(np.float32) * weights[k].astype(
      np.float32
    )
  return total


def _excess(got, bounded) -> float:
  """Largest error in units of its bound."""
  error = np.abs(got.astype(np.float64) - bounded.value)
  return float((error / bounded.error).max())


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
@pytest.mark.parametrize('order', ('forward', 'backward', 'shuffled'))
def test_gemm_in_any_order_stays_within_the_bound(policy, order):
  rng = _rng(f'gemm {policy.storage} {order}')
  rows = _store(policy, rng.normal(size=(9, 65)))
  weights = _store(policy, rng.normal(size=(65, 7)) * 100)
  steps = {
    'forward': np.arange(65),
    'backward': np.arange(65)[::-1],
    'shuffled': rng.permutation(65),
  }[order]

  got = _store(policy, _gemm_in_order(rows, weights, steps))

  bounded = bounds.gemm(policy, bounds.exact(rows), weights)
  assert 0 < _excess(got, bounded) <= 1


@pytest.mark.parametrize('size', [1e-42, 1e-38, 1e-20, 1.0, 1e20, 3e38])
def test_sums_of_magnitudes_in_float32_are_never_too_small(size):
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
    sums = bounds._Sizes.of(weights).at_most(rows)
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
  got = _gemm_in_order(rows, weights, range(depth))

  bounded = bounds.gemm(F32, bounds.exact(rows), weights)

  # then the bound of the depth holds, and nearly all of it is used.
  assert 0.9 < _excess(got, bounded) <= 1


def test_early_rounding_breaks_the_gemm_bound():
  rng = _rng('early rounding')
  rows = rng.normal(size=(64, 128)).astype(np.float32)
  weights = rng.normal(size=(128, 64)).astype(np.float32)
  early = rows.astype(ml_dtypes.bfloat16)

  got = _gemm_in_order(early, weights, range(128))

  assert _excess(got, bounds.gemm(F32, bounds.exact(rows), weights)) > 10


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
@pytest.mark.parametrize('weighted', (False, True))
@pytest.mark.parametrize('reciprocal', (False, True))
def test_swiglu_stays_within_the_bound(policy, weighted, reciprocal):
  rng = _rng(f'swiglu {policy.storage} {weighted} {reciprocal}')
  spread = np.concatenate(
    [
      rng.normal(size=(40, 64)),
      rng.uniform(-120, 120, size=(40, 64)),
    ]
  )
  gate_up = _store(policy, spread)
  weight = rng.random(80).astype(np.float32) if weighted else None
  gate, up = np.split(gate_up.astype(np.float32), 2, axis=1)

  with np.errstate(over='ignore'):
    divisor = 1 + np.exp(-gate)
  left = gate * (np.float32(1) / divisor) if reciprocal else gate / divisor
  got = left * up
  if weighted:
    got = got * weight[:, None]

  bounded = bounds.activation(policy, bounds.exact(gate_up), weight)
  assert 0.05 < _excess(_store(policy, got), bounded) <= 1


def test_wrong_activation_breaks_the_bound():
  rng = _rng('wrong activation')
  gate_up = rng.normal(size=(20, 64)).astype(np.float32)
  gate, up = np.split(gate_up, 2, axis=1)
  rounded = (gate / (1 + np.exp(-gate))).astype(ml_dtypes.bfloat16)

  got = rounded.astype(np.float32) * up

  assert _excess(got, bounds.activation(F32, bounds.exact(gate_up), None)) > 10


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
@pytest.mark.parametrize('top_k', (1, 2, 8))
def test_combine_in_any_slot_order_stays_within_the_bound(policy, top_k):
  rng = _rng(f'combine {policy.storage} {top_k}')
  returned = _store(policy, rng.normal(size=(30, top_k, 16)))
  weights = rng.random((30, top_k)).astype(np.float32)
  got = np.zeros((30, 16), np.float32)
  for slot in rng.permutation(top_k):
    got = got + weights[:, slot, None] * returned[:, slot].astype(np.float32)

  bounded = bounds.combine(policy, 'y', bounds.exact(returned), weights)

  assert 0 < _excess(_store(policy, got), bounded) <= 1


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
def test_errors_carried_through_three_stages_are_bounded(policy):
  # Given a chain whose stored intermediates nobody saw, when the end of it is
  # judged from the beginning,
  rng = _rng(f'chain {policy.storage}')
  x = _store(policy, rng.normal(size=(50, 32)))
  up = _store(policy, rng.normal(size=(32, 48)) / 32**0.5)
  down = _store(policy, rng.normal(size=(24, 32)) / 24**0.5)
  stored = _store(policy, _gemm_in_order(x, up, range(32)))
  gate, right = np.split(stored.astype(np.float32), 2, axis=1)
  stored = _store(policy, gate / (1 + np.exp(-gate)) * right)
  got = _store(policy, _gemm_in_order(stored, down, range(24)))

  end = bounds.gemm(policy, bounds.exact(x), up)
  end = bounds.activation(policy, end, None)
  end = bounds.gemm(policy, end, down)

  # then the carried bound holds, and still tells lost rows from rounded ones;
  assert _excess(got, end) <= 1
  assert (np.abs(end.value) > end.error).mean() > 0.5
  # and that of the last stage alone, which storage rounded thrice, does not.
  alone = bounds.gemm(
    policy,
    bounds.Bounded(
      bounds.activation(
        policy, bounds.gemm(policy, bounds.exact(x), up), None
      ).value
    ),
    down,
  )
  assert _excess(got, alone) > 1 or policy == F32


def test_results_flushed_to_zero_are_within_the_bound():
  rows = np.full((1, 3), 2.0**-70, np.float32)
  weights = np.full((3, 1), 2.0**-70, np.float32)

  bounded = bounds.gemm(F32, bounds.exact(rows), weights)

  assert _excess(np.zeros((1, 1), np.float32), bounded) <= 1


def test_a_sum_too_long_for_any_digit_is_refused():
  with pytest.raises(ValueError, match='roundings: expected fewer'):
    bounds.gamma(2**24)


def _sigmoid(z):
  with np.errstate(over='ignore'):
    return np.float32(1) / (1 + np.exp(-z))


# Ways to compute d silu(z) / dz in float32.
_SLOPES = {
  'own_complement': lambda z: _sigmoid(z) * (1 + z * _sigmoid(-z)),
  'one_minus_sigmoid': lambda z: _sigmoid(z) * (1 + z * (1 - _sigmoid(z))),
  'silu_times_rest': lambda z: _sigmoid(z) + z * _sigmoid(z) * _sigmoid(-z),
  'silu_plus_rest': lambda z: (
    z * _sigmoid(z) + _sigmoid(z) * (1 - z * _sigmoid(z))
  ),
}


def _gates(rng, columns=96):
  """Usual gates, saturated ones, and those next to the slope's zero."""
  return np.concatenate(
    [
      rng.normal(size=(30, columns)),
      rng.uniform(-120, 120, size=(30, columns)),
      -1.2784645 + rng.uniform(-1e-3, 1e-3, size=(30, columns)),
    ]
  )


def _activation_grad(gate, up, grad, weight, slope):
  """One order of the products in float32; the bound is for all of them."""
  grad = grad if weight is None else grad * weight[:, None]
  d_up = grad * (gate * _sigmoid(gate))
  return np.concatenate([grad * up * slope(gate), d_up], axis=1)


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
@pytest.mark.parametrize('weighted', (False, True))
@pytest.mark.parametrize('slope', _SLOPES.values(), ids=_SLOPES)
def test_activation_grad_stays_within_the_bound(policy, weighted, slope):
  rng = _rng(f'activation grad {policy.storage} {weighted}')
  gate_up = _store(
    policy, np.concatenate([_gates(rng), rng.normal(size=(90, 96))], axis=1)
  )
  grad = _store(policy, rng.normal(size=(90, 96)))
  weight = rng.random(90).astype(np.float32) if weighted else None
  gate, up = np.split(gate_up.astype(np.float32), 2, axis=1)

  got = _activation_grad(gate, up, grad.astype(np.float32), weight, slope)

  bounded = bounds.activation_grad(
    policy, bounds.exact(gate_up), bounds.exact(grad), weight
  )
  assert 0.05 < _excess(_store(policy, got), bounded) <= 1


@pytest.mark.parametrize('activation', ('swiglu', 'absolute'))
@pytest.mark.parametrize('off', (1e-6, 1e-3, 1.0))
def test_activation_grad_of_a_gate_that_is_off_stays_within(activation, off):
  # Given gates and ups that a kernel has a little off, each by all it may,
  rng = _rng(f'gate off {activation} {off}')
  policy = precision.PrecisionPolicy(activation=activation)
  gate_up = np.concatenate([_gates(rng), rng.normal(size=(90, 96))], axis=1)
  error = off * np.abs(rng.normal(size=gate_up.shape))
  grad = rng.normal(size=(90, 96)).astype(np.float32)
  there = gate_up + error * rng.choice([-1, 1], gate_up.shape)
  gate, up = np.split(there, 2, axis=1)

  # when the gradient is computed there,
  if activation == 'swiglu':
    got = _activation_grad(gate, up, grad, None, _SLOPES['own_complement'])
  else:
    got = np.concatenate([grad * up * np.sign(gate), grad * abs(gate)], axis=1)

  # then it is within the bound of those that it should have had.
  saved = bounds.Bounded(gate_up, error)
  bounded = bounds.activation_grad(policy, saved, bounds.exact(grad), None)
  assert 0.3 < _excess(got, bounded) <= 1


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

  got = grad * up * (sigmoid(gate) * (1 + gate * sigmoid(-gate)))

  # then the gate's columns use more than one rounding of the slope allows.
  bounded = bounds.activation_grad(
    F32,
    bounds.exact(np.concatenate([gate, up], axis=1)),
    bounds.exact(grad),
    None,
  )
  assert _worst_relative(got, bounded[:, :64]) > 4 * 2.0**-24
  assert _excess(got, bounded[:, :64]) <= 1


def _worst_relative(got, bounded) -> float:
  error = np.abs(got.astype(np.float64) - bounded.value)
  return float((error / np.abs(bounded.value)).max())


def test_slope_of_an_early_rounded_sigmoid_breaks_the_bound():
  rng = _rng('early rounded sigmoid')
  gate_up = rng.normal(size=(20, 64)).astype(np.float32)
  grad = rng.normal(size=(20, 32)).astype(np.float32)
  gate, up = np.split(gate_up, 2, axis=1)

  def early(z):
    s = _sigmoid(z).astype(ml_dtypes.bfloat16).astype(np.float32)
    return s * (1 + z * (1 - s))

  got = _activation_grad(gate, up, grad, None, early)

  bounded = bounds.activation_grad(
    F32, bounds.exact(gate_up), bounds.exact(grad), None
  )
  assert _excess(got, bounded) > 10


def test_activation_grad_of_products_has_three_roundings_at_most():
  # Given the activation without exp, when its gradient is bounded,
  policy = precision.PrecisionPolicy(activation='absolute')
  gate_up = np.array([[3, 5]], np.float32)
  grad = bounds.exact(np.array([[7.0]], np.float32))

  bounded = bounds.activation_grad(
    policy, bounds.exact(gate_up), grad, np.float32([2])
  )

  # then values are products, and their roundings the bound.
  np.testing.assert_array_equal(bounded.value, [[70, 42]])
  assert (bounded.error < 4 * 2.0**-24 * bounded.value).all()


def test_activation_grad_of_products_stays_within_the_bound():
  rng = _rng('activation grad of products')
  policy = precision.PrecisionPolicy(activation='absolute')
  gate, up, grad = rng.normal(size=(3, 30, 64)).astype(np.float32)
  weight = rng.random((30, 1)).astype(np.float32)

  sign, size = np.sign(gate), np.abs(gate)
  one = np.concatenate([grad * weight * up * sign, grad * weight * size], 1)
  other = np.concatenate([up * weight * grad * sign, size * grad * weight], 1)

  bounded = bounds.activation_grad(
    policy,
    bounds.exact(np.concatenate([gate, up], axis=1)),
    bounds.exact(grad),
    weight[:, 0],
  )
  assert 0.4 < _excess(one, bounded) <= 1
  assert 0.4 < _excess(other, bounded) <= 1


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
@pytest.mark.parametrize('link', (1, 16, 100))
def test_weight_grad_in_a_chain_stays_within_the_bound(policy, link):
  # Given 65 rows, when their outer products are added in links of some rows,
  rng = _rng(f'weight grad {policy.storage} {link}')
  rows = _store(policy, rng.normal(size=(65, 9)))
  d_out = _store(policy, rng.normal(size=(65, 7)))
  got = np.zeros((9, 7), np.float32)
  for begin in range(0, 65, link):
    part = slice(begin, begin + link)
    got = got + _gemm_in_order(
      rows[part].T, d_out[part], range(len(rows[part]))
    )

  bounded = bounds.weight_grad(policy, bounds.exact(rows), bounds.exact(d_out))

  # then the sum is within the bound; and with a row left out it is not.
  assert 0 < _excess(_store(policy, got), bounded) <= 1
  short = _gemm_in_order(rows[1:].T, d_out[1:], range(64))
  assert _excess(_store(policy, short), bounded) > 10


def test_chain_of_stored_sums_breaks_the_weight_grad_bound():
  rng = _rng('stored chain')
  rows = _store(BF16, rng.normal(size=(64, 9)))
  d_out = _store(BF16, rng.normal(size=(64, 7)))
  got = np.zeros((9, 7), ml_dtypes.bfloat16)
  for row in range(64):
    part = _gemm_in_order(rows[row : row + 1].T, d_out[row : row + 1], [0])
    got = _store(BF16, got.astype(np.float32) + part)

  assert (
    _excess(
      got, bounds.weight_grad(BF16, bounds.exact(rows), bounds.exact(d_out))
    )
    > 2
  )


def test_weight_grad_of_an_expert_without_rows_is_zero():
  nobody = np.zeros((0, 3), np.float32)

  bounded = bounds.weight_grad(F32, bounds.exact(nobody), bounds.exact(nobody))

  np.testing.assert_array_equal(bounded.value, np.zeros((3, 3)))
  np.testing.assert_array_equal(bounded.error, np.zeros((3, 3)))


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
def test_weighted_rows_stay_within_the_bound(policy):
  rng = _rng(f'weighted {policy.storage}')
  rows = _store(policy, rng.normal(size=(50, 33)))
  weight = rng.random(50).astype(np.float32)

  got = _store(policy, weight[:, None] * rows.astype(np.float32))

  bounded = bounds.weighted(policy, bounds.exact(rows), weight)
  assert 0.9 < _excess(got, bounded) <= 1
  turned = _store(policy, weight[::-1, None] * rows.astype(np.float32))
  assert _excess(turned, bounded) > 10


@pytest.mark.parametrize('columns', (1, 65, 256))
def test_inner_product_in_any_order_stays_within_the_bound(columns):
  rng = _rng(f'inner product {columns}')
  a, b = rng.normal(size=(2, 40, columns)).astype(np.float32)
  got = np.zeros(40, np.float32)
  for column in rng.permutation(columns):
    got = got + a[:, column] * b[:, column]

  bounded = bounds.inner_product(F32, bounds.exact(a), bounds.exact(b))

  assert 0 < _excess(got, bounded) <= 1
  assert _excess(got - a[:, 0] * b[:, 0], bounded) > 10


def test_inner_product_carries_the_errors_of_both_sides():
  # Given factors that are all off by their bound, each in the worst direction,
  rng = _rng('carried inner product')
  a, b = rng.normal(size=(2, 20, 33))
  error_a, error_b = 0.01 * rng.random((2, 20, 33))
  a, b = bounds.Bounded(a, error_a), bounds.Bounded(b, error_b)

  bounded = bounds.inner_product(F32, a, b)

  # then the sum is within the bound, and uses nearly all of it.
  worst = (np.abs(a.value) + error_a) * (np.abs(b.value) + error_b)
  error = (worst - np.abs(a.value * b.value)).sum(axis=1)
  assert (error <= bounded.error).all()
  assert (error > 0.999 * bounded.error).all()


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
def test_row_weight_grad_stays_within_the_bound(policy):
  # Given gates of every size, when the activation is computed again,
  rng = _rng(f'row weight grad {policy.storage}')
  gate_up = _store(
    policy, np.concatenate([_gates(rng), rng.normal(size=(90, 96))], axis=1)
  )
  grad = _store(policy, rng.normal(size=(90, 96)))
  gate, up = np.split(gate_up.astype(np.float32), 2, axis=1)
  activation = gate * _sigmoid(gate) * up
  wide = grad.astype(np.float32)

  bounded = bounds.row_weight_grad(
    policy, bounds.exact(gate_up), bounds.exact(grad)
  )

  # then in float32 it is within the bound, and stored in between it is not.
  assert 0 < _excess((wide * activation).sum(axis=1), bounded) <= 1
  stored = activation.astype(ml_dtypes.bfloat16).astype(np.float32)
  assert _excess((wide * stored).sum(axis=1), bounded) > 10


@pytest.mark.parametrize('policy', (F32, BF16), ids=('f32', 'bf16'))
def test_errors_carried_through_the_backward_stages_are_bounded(policy):
  rng = _rng(f'backward chain {policy.storage}')
  d_out = _store(policy, rng.normal(size=(50, 32)))
  down = _store(policy, rng.normal(size=(32, 24)) / 32**0.5)
  gate_up = _store(policy, rng.normal(size=(50, 48)))
  rows = _store(policy, rng.normal(size=(50, 16)))
  weight = rng.random(50).astype(np.float32)
  gate, up = np.split(gate_up.astype(np.float32), 2, axis=1)
  stored = _store(policy, _gemm_in_order(d_out, down, range(32)))
  stored = _store(
    policy,
    _activation_grad(
      gate, up, stored.astype(np.float32), weight, _SLOPES['own_complement']
    ),
  )
  got = _store(policy, _gemm_in_order(rows.T, stored, range(50)))

  end = bounds.gemm(policy, bounds.exact(d_out), down)
  end = bounds.activation_grad(policy, bounds.exact(gate_up), end, weight)
  end = bounds.weight_grad(policy, bounds.exact(rows), end)

  assert _excess(got, end) <= 1
  assert (np.abs(end.value) > end.error).mean() > 0.5


def test_gradients_flushed_to_zero_are_within_the_bound():
  small = np.full((1, 2), 2.0**-70, np.float32)
  grad = bounds.exact(small[:, :1])
  product = precision.PrecisionPolicy(activation='absolute')

  for bounded in (
    bounds.weighted(F32, bounds.exact(small), np.float32([2.0**-70])),
    bounds.weight_grad(F32, bounds.exact(small), bounds.exact(small)),
    bounds.inner_product(F32, bounds.exact(small), bounds.exact(small)),
    bounds.activation_grad(product, bounds.exact(small), grad, None),
    bounds.activation_grad(
      F32, bounds.exact(small), grad, np.float32([2.0**-70])
    ),
  ):
    assert _excess(np.zeros_like(bounded.value), bounded) <= 1


@pytest.mark.parametrize(
  ('row', 'value', 'error'),
  [
    # Certain; it rounds to the largest, or past it; a half unit and 3 roundings
    # from it; a subnormal number, half the spacing of those.
    ((65504, 65504), np.inf, 0.0),
    ((-65504, -32), -65536.0, np.inf),
    ((65504, 15), 65519.0, np.inf),
    ((60000, 1), 60001.0, 16 + 60001 * bounds.gamma(2)),
    ((2.0**-20, 2.0**-24), 17 * 2.0**-24, 2.0**-25 + 17 * 2.0**-24 * 2**-23),
  ],
)
def test_float16_has_its_own_ends(row, value, error):
  rows = np.float16([row])

  got = bounds.gemm(F16, bounds.exact(rows), np.ones((len(row), 1)))

  assert got.value[0, 0] == value
  assert got.error[0, 0] == pytest.approx(error, rel=1e-4)
  stored = np.float32(rows.astype(np.float32).sum()).astype(np.float16)
  assert stored == value or abs(float(stored) - value) <= got.error[0, 0]


@pytest.mark.parametrize(
  ('row', 'value', 'error'),
  [
    # Certain; within one rounding of the largest; in some order; of both signs.
    ((3e38, 3e38), np.inf, 0.0),
    ((-3e38, -3e38), -np.inf, 0.0),
    ((3.4028235e38, 0), 3.4028234663852886e38, np.inf),
    ((3e38, -2e38, 3e38), np.inf, 0.0),
    ((3e38, 2e38, -3e38), 2e38, np.inf),
    ((3e38, 3e38, 3e38, -3e38, -3e38), 3e38, np.inf),
    ((3e38, 3e38, 3e38, 3e38, -3e38, -3e38), 6e38, np.inf),
    ((np.inf, 3), np.inf, None),
    ((np.inf, -np.inf), np.nan, None),
  ],
)
def test_what_overflows_is_certain_or_not_known(row, value, error):
  rows = np.float32([row])
  policy = precision.PrecisionPolicy()

  with np.errstate(invalid='ignore', over='ignore'):
    got = bounds.gemm(policy, bounds.exact(rows), np.ones((len(row), 1)))

  if error == 0 or error is None:
    np.testing.assert_array_equal(got.value[0, 0], value)
    assert np.isfinite(got.error[0, 0])
  else:
    assert got.error[0, 0] == error
