"""Tests of inner_product."""

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import inner_product
from hpmoe.reference import test_util
from hpmoe.reference.contract import precision

run = jax.jit(inner_product.inner_product, static_argnums=0)


def halved(terms: np.ndarray) -> np.float32:
  """Returns the sum of float32 `terms` `[X]`, second half onto the first."""
  terms = list(terms)
  while len(terms) > 1:
    half = (len(terms) + 1) // 2
    for i in range(len(terms) - half):
      terms[i] = np.float32(terms[i] + terms[half + i])
    terms = terms[:half]
  return terms[0]


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
@pytest.mark.parametrize('length', [1, 2, 3, 7, 8, 300])
def test_bits_equal_a_loop_jitted_or_not(length, storage):
  # Given: real data, on which order and fused multiply-adds show.
  rng = test_util.generator(f'{length}')
  policy = precision.PrecisionPolicy(storage)
  a, b = (jnp.asarray(rng.normal(size=(5, length)), storage) for _ in '12')
  # When, then.
  terms = np.asarray(a).astype(np.float32) * np.asarray(b).astype(np.float32)
  expected = [halved(row) for row in terms]
  for function in (run, inner_product.inner_product):
    out = function(policy, a, b)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, expected)


def _exact(left, right, order) -> np.ndarray:
  """Returns the chain in rational numbers, rounded once a step."""
  total = np.zeros((left.shape[1], right.shape[1]), np.float32)
  for row in order:
    for i in range(total.shape[0]):
      for j in range(total.shape[1]):
        term = fractions.Fraction(float(left[row, i])) * fractions.Fraction(
          float(right[row, j])
        )
        total[i, j] = _nearest(term + fractions.Fraction(float(total[i, j])))
  return total


def _nearest(value: fractions.Fraction) -> np.float32:
  """Returns the float32 that is nearest, of two alike the even one."""
  guess = np.float32(float(value))
  around = [np.nextafter(guess, np.float32(s * np.inf)) for s in (-1, 1)]
  return min(
    [guess, *around],
    key=lambda x: (
      abs(fractions.Fraction(float(x)) - value),
      int(x.view(np.int32)) & 1,
    ),
  )


@pytest.mark.parametrize('seed', range(4))
def test_each_step_rounds_once(seed):
  rng = np.random.default_rng(seed)
  left, right = (
    (rng.standard_normal((9, n)) * 2.0 ** rng.integers(-12, 12, (9, n))).astype(
      np.float32
    )
    for n in (3, 4)
  )
  order = rng.permutation(9)
  actual = inner_product.chain_over_rows(left, right, order, flushes=False)
  np.testing.assert_array_equal(actual, _exact(left, right, order))


def test_a_step_that_is_rounded_twice_would_be_wrong():
  # Given 1 + 2^-23 and a product of 2^-24 less 2^-60, when added, then the sum
  # is less than half way to 1 + 2^-22; in float64 it is half way.
  left = np.array([[1.0], [2.0**-12 * (1 + 2.0**-18)]], np.float32)
  right = np.array([[1 + 2.0**-23], [2.0**-12 * (1 - 2.0**-18)]], np.float32)
  actual = inner_product.chain_over_rows(
    left, right, np.arange(2), flushes=False
  )
  assert actual[0, 0] == np.float32(1 + 2.0**-23)
  np.testing.assert_array_equal(actual, _exact(left, right, np.arange(2)))


@pytest.mark.parametrize('flushes, expected', [(False, 1.5), (True, 0.0)])
def test_less_than_the_least_normal_number_is_kept_or_zero(flushes, expected):
  # The first product is subnormal; the second side of the last is.
  left = np.array([[2.0**-70], [2.0**-71], [1.0]], np.float32)
  right = np.array([[2.0**-70], [2.0**-70], [2.0**-130]], np.float32)
  actual = inner_product.chain_over_rows(
    left, right, np.arange(2), flushes=flushes
  )
  assert actual[0, 0] == np.float32(expected * 2.0**-140)
  last = inner_product.chain_over_rows(
    left, right, np.arange(2, 3), flushes=flushes
  )
  assert last[0, 0] == (0 if flushes else np.float32(2.0**-130))
