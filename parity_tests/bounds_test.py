"""Bounds hold for every order of summation, and are not empty words."""

import zlib

import ml_dtypes
import numpy as np
import pytest

from parity_tests import bounds
from parity_tests import ulp
from reference import precision

F32 = precision.PrecisionPolicy()
BF16 = precision.PrecisionPolicy(storage='bfloat16')


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
  spread = np.concatenate([
      rng.normal(size=(40, 64)), rng.uniform(-120, 120, size=(40, 64)),
  ])  # fmt: skip
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

  bounded = bounds.combine(policy, bounds.exact(returned), weights)

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
  alone = bounds.gemm(policy, bounds.Bounded(
      bounds.activation(policy, bounds.gemm(policy, bounds.exact(x), up), None)
      .value
  ), down)  # fmt: skip
  assert _excess(got, alone) > 1 or policy == F32


def test_results_flushed_to_zero_are_within_the_bound():
  rows = np.full((1, 3), 2.0**-70, np.float32)
  weights = np.full((3, 1), 2.0**-70, np.float32)

  bounded = bounds.gemm(F32, bounds.exact(rows), weights)

  assert _excess(np.zeros((1, 1), np.float32), bounded) <= 1


def test_a_sum_too_long_for_any_digit_is_refused():
  with pytest.raises(ValueError, match='roundings: expected fewer'):
    bounds.gamma(2**24)
