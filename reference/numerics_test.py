"""Tests of numerics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import numerics
from hpmoe.reference import test_util
from hpmoe.reference.contract import precision

BF16 = precision.PrecisionPolicy(storage='bfloat16')
F16 = precision.PrecisionPolicy(storage='float16')


class TestStore:
  def test_rounds_to_nearest_even(self):
    # Given: halfway cases between bfloat16 neighbours of 1 (spacing 2^-7).
    halves = jnp.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], jnp.float32)
    # When, then.
    actual = numerics.store(BF16, halves)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
      actual.astype(jnp.float32), [1, 1 + 2**-6, -1]
    )

  def test_rounds_once_from_float64(self):
    # Given: just above a halfway case of bfloat16, by less than float32 holds.
    policy = precision.PrecisionPolicy('bfloat16', 'float64')
    value = jnp.float64(1 + 2**-8 + 2**-40)
    # When, then: by way of float32 it would be 1.
    assert float(numerics.store(policy, value)) == 1 + 2**-7

  @pytest.mark.parametrize('jit', [lambda f: f, jax.jit], ids=('plain', 'jit'))
  def test_float16_is_rounded_as_ieee_says(self, jit):
    # Given: every half, midpoints with the next one, and their neighbours.
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    edges = np.append(halves.astype(np.float32), np.float32(65536))
    edges = np.concatenate([edges, (edges[1:] + edges[:-1]) / 2])
    near = [np.nextafter(edges, np.float32(limit)) for limit in (-1, np.inf)]
    values = np.concatenate([edges, *near, [1e30, np.inf, np.nan]], dtype='f4')
    values = np.concatenate([values, -values])
    # When.
    actual = np.asarray(jit(lambda a: numerics.store(F16, a))(values))
    # Then: numpy's bits; subnormal numbers are not flushed.
    with np.errstate(over='ignore'):
      want = values.astype(np.float16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(
      actual.view('u2')[number], want.view('u2')[number]
    )
    assert np.isnan(actual[~number]).all()

  def test_float16_is_rounded_once_from_float64(self):
    # Given: just above a midpoint of subnormal numbers, by less than float32
    # holds.
    policy = precision.PrecisionPolicy('float16', 'float64')
    value = jnp.float64(1.5 * 2**-24 + 2**-60)
    assert float(numerics.store(policy, value)) == 2**-23

  def test_jitted_chain_reads_the_rounded_value(self):
    # Given: two stages in one jitted function.
    @jax.jit
    def stages(a):
      first = numerics.store(BF16, a * 1.1)
      return first, numerics.widen(BF16, first) * 1.3

    a = test_util.generator('chain').normal(size=1000).astype(np.float32)
    # When, then.
    first, second = stages(a)
    np.testing.assert_array_equal(
      second, np.asarray(first).astype(np.float32) * np.float32(1.3)
    )

  @pytest.mark.parametrize('value', [np.inf, -np.inf, 3.4e38])
  def test_overflow_is_infinite(self, value):
    actual = numerics.store(BF16, jnp.float32(value))
    assert float(actual) == np.inf * np.sign(value)


class TestTruncated:
  @pytest.mark.parametrize('x64', [False, True])
  def test_drops_the_bits_that_tf32_lacks(self, x64):
    # Given numbers of every sign and size, and those that round up or away,
    policy = precision.PrecisionPolicy(points=('operands=tf32_rz',))
    a = np.concatenate(
      [
        np.random.default_rng(0).standard_normal(1000),
        [1 + 2**-10 - 2**-23, -1 - 2**-10 + 2**-23, 2 - 2**-23, 2.0**-149],
        [0.0, -0.0, np.inf, -np.inf, 3.4e38],
      ]
    ).astype(np.float32)
    with numerics.use_x64(x64):
      values = np.asarray(numerics.at_point(policy, 'operands', jnp.asarray(a)))
    # then each keeps its sign, exponent and ten bits of its fraction.
    bits = a.view(np.uint32) & np.uint32(0xFFFFE000)
    np.testing.assert_array_equal(values.view(np.uint32), bits)
    assert np.isnan(numerics.at_point(policy, 'operands', jnp.float32(np.nan)))


class TestX64:
  @pytest.mark.parametrize(
    'read', [numerics.storage_dtype, numerics.accumulate_dtype]
  )
  def test_golden_needs_x64(self, read):
    golden = precision.PrecisionPolicy().golden()
    with test_util.x64(False), pytest.raises(ValueError, match='enable_x64'):
      read(golden)
    assert read(golden) == np.float64


class TestRounded:
  def test_product_is_rounded_before_it_is_added(self):
    # Given: data on which a fused multiply-add differs.
    rng = test_util.generator('rounded')
    a, b, c = rng.normal(size=(3, 4096)).astype(np.float32)
    # When.
    total = jax.jit(lambda a, b, c: numerics.rounded(a * b) + c)(a, b, c)
    # Then.
    np.testing.assert_array_equal(total, a * b + c)

  def test_nan_and_signed_zero_stay(self):
    out = np.asarray(numerics.rounded(jnp.array([np.nan, -0.0, -np.inf])))
    assert np.isnan(out[0]) and np.signbit(out[1]) and out[2] == -np.inf
