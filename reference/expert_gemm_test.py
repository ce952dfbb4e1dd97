"""Tests of expert_gemm."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.reference import expert_gemm
from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

run = jax.jit(expert_gemm.expert_gemm, static_argnums=(0, 1))


def plan_of(config: config_lib.MoEConfig, counts: list) -> token_order.Plan:
  """Returns a plan with only `counts` `[R, E]` in it: all that a GEMM reads."""
  counts = jnp.array(counts, jnp.int32)
  return token_order.Plan(counts, jnp.zeros_like(counts), counts)


def serial(counts, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Returns row times weight of its expert, one row at a time, in float64."""
  out = np.zeros((*rows.shape[:2], weights.shape[-1]))
  local = weights.shape[1]
  for rank in range(rows.shape[0]):
    row = 0
    for expert in range(local):
      for _ in range(sum(c[rank * local + expert] for c in counts)):
        if row < rows.shape[1]:
          out[rank, row] = rows[rank, row] @ weights[rank, expert]
        row += 1
  return out


# Rows of an expert around the block of 128 and beyond; the tail holds garbage.
CASES = {
  'all empty': ([[0, 0], [0, 0]], 4),
  'one row': ([[1, 0], [0, 0]], 1),
  'empty expert': ([[0, 3], [2, 0]], 8),
  'one rank gets all': ([[0, 0], [7, 5]], 16),
  'block': ([[128, 127], [128, 1]], 300),
  'many blocks': ([[300, 1], [0, 129]], 470),
  'full': ([[130, 3], [70, 60]], 200),
  'over capacity': ([[9, 9], [9, 9]], 20),
}
# Every case in both dtypes and on both numbers of ranks; `make sweep` runs the
# whole product.
PAIRWISE = halved_testing.halved(
  sorted(CASES), ['float32', 'bfloat16'], [1, 2], odd=True
)


class TestExpertGemm:
  @pytest.mark.parametrize('name, storage, ranks', PAIRWISE)
  def test_integers_equal_a_serial_loop(self, name, storage, ranks):
    # Given: small integers, exact in any order.
    counts, num_rows = CASES[name]
    config = config_testing.sized(r=ranks, t=1, e=2, k=1, d=3, f=1, n=num_rows)
    counts = counts[:ranks]
    policy = precision.PrecisionPolicy(storage)
    rng = test_util.generator(name)
    rows = rng.integers(-4, 5, (ranks, num_rows, 3))
    weights = rng.integers(-4, 5, (ranks, 2 // ranks, 3, 5))
    # When.
    out = run(
      config,
      policy,
      plan_of(config, counts),
      jnp.asarray(rows, storage),
      jnp.asarray(weights, storage),
    )
    # Then.
    assert out.dtype == storage
    np.testing.assert_array_equal(
      out.astype(jnp.float32), serial(counts, rows, weights)
    )

  @pytest.mark.parametrize('inner', [1, 256, 600])
  def test_golden_takes_any_float_and_keeps_float64(self, inner):
    # Given: float32 rows and bfloat16 weights.
    config = config_testing.sized(r=1, t=1, e=2, k=1, d=inner, f=1, n=9)
    counts = [[4, 3]]
    rng = test_util.generator('golden')
    with test_util.x64():
      rows = jnp.asarray(rng.normal(size=(1, 9, inner)), jnp.float32)
      weights = jnp.asarray(rng.normal(size=(1, 2, inner, 4)), jnp.bfloat16)
      # When.
      golden = precision.PrecisionPolicy().golden()
      out = run(config, golden, plan_of(config, counts), rows, weights)
      # Then.
      rows = np.asarray(rows, np.float64)
      weights = np.asarray(weights).astype(np.float64)
      # Each of the two sums is off by at most gamma_X * sum |x||w|.
      scale = serial(counts, abs(rows), abs(weights))
      bound = 2 * inner * np.finfo(np.float64).eps * scale
      assert out.dtype == np.float64
      assert (abs(out - serial(counts, rows, weights)) <= bound).all()

  def test_memory_does_not_grow_with_experts_times_rows(self):
    # Given: 32 experts of 16 x 16 and 10^4 rows.
    config = config_testing.sized(r=1, t=1, e=32, k=1, d=16, f=1, n=10_000)
    for storage, size in (('float32', 4), ('bfloat16', 2)):
      lowered = run.lower(
        config,
        precision.PrecisionPolicy(storage),
        plan_of(config, [[300] * 32]),
        jax.ShapeDtypeStruct((1, 10_000, 16), storage),
        jax.ShapeDtypeStruct((1, 32, 16, 16), storage),
      )
      # When.
      memory = lowered.compile().memory_analysis()
      # Then: less than the result once more, and some blocks.
      assert memory.temp_size_in_bytes <= 10_000 * 16 * size + 100_000


_DIGEST = """
import os, sys
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:int(sys.argv[1])])
import jax, numpy as np, zlib
jax.config.update('jax_enable_x64', True)
from hpmoe.reference import expert_gemm, expert_gemm_test as test
from hpmoe.reference.contract import config, precision
shape = config.MoEConfig(
  num_ranks=1, num_tokens=1, num_experts=1, top_k=1,
  d_model=1, d_ff=1, capacity=128)
plan = test.plan_of(shape, [[128]])
rng = np.random.default_rng(0)
for dtype in ('float32', 'float64'):
  policy = precision.PrecisionPolicy(dtype, dtype)
  a, b = rng.normal(size=(1, 128, 4096)), rng.normal(size=(1, 1, 4096, 64))
  a, b = a.astype(dtype), b.astype(dtype)
  print(zlib.crc32(np.asarray(test.run(shape, policy, plan, a, b))))
"""


@pytest.mark.skipif(
  not hasattr(os, 'sched_getaffinity') or len(os.sched_getaffinity(0)) < 2,
  reason='needs two CPUs that a process can be bound to',
)
def test_bits_do_not_depend_on_the_number_of_threads():
  # Given a sum long enough for XLA to split; when: on one CPU and on two.
  digests = [
    subprocess.run(
      [sys.executable, '-c', _DIGEST, str(cpus)],
      check=True,
      capture_output=True,
      text=True,
      cwd=pathlib.Path(__file__).parents[1],
      env=dict(os.environ, JAX_PLATFORMS='cpu'),
    ).stdout
    for cpus in (1, 2)
  ]
  # Then.
  assert digests[0] and digests[0] == digests[1]
