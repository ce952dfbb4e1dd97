"""Tests of expert_gemm and of its gradients."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import zlib

import jax
import numpy as np
import pytest

from hpmoe.reference import expert_gemm
from hpmoe.reference import expert_gemm_grad
from hpmoe.reference import test_util
from hpmoe.reference import token_order
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

run = jax.jit(expert_gemm.expert_gemm, static_argnums=(0, 1))
run_rows = jax.jit(expert_gemm_grad.rows_grad, static_argnums=(0, 1))
run_weight = jax.jit(expert_gemm_grad.weight_grad, static_argnums=(0, 1))


@functools.partial(jax.jit, static_argnums=(0, 1))
def run_all(config, policy, plan, rows, weights, d_out):
  return (
    expert_gemm.expert_gemm(config, policy, plan, rows, weights),
    expert_gemm_grad.rows_grad(config, policy, plan, d_out, weights),
    expert_gemm_grad.weight_grad(config, policy, plan, rows, d_out),
  )


def plan_of(counts: list) -> token_order.Plan:
  """Returns a plan with only `counts` `[R, E]` in it: all that is read."""
  counts = np.array(counts, np.int32)
  return token_order.Plan(counts, np.zeros_like(counts), counts)


def rows_of(counts: list, ranks: int, num_rows: int):
  """Yields (rank, row, local expert) of every row that exists."""
  local = len(counts[0]) // ranks
  for rank in range(ranks):
    row = 0
    for expert in range(local):
      for _ in range(sum(c[rank * local + expert] for c in counts)):
        if row < num_rows:
          yield rank, row, expert
        row += 1


# Rows of an expert around the block of 128 and beyond; the tail holds garbage.
# Few numbers of rows: each is compiled.
CASES = {
  'all empty': ([[0, 0], [0, 0]], 16),
  'one row': ([[1, 0], [0, 0]], 1),
  'empty expert': ([[0, 3], [2, 0]], 16),
  'one rank gets all': ([[0, 0], [7, 5]], 16),
  'block': ([[128, 127], [128, 1]], 300),
  'many blocks': ([[300, 1], [0, 129]], 470),
  'full': ([[130, 170], [170, 60]], 300),
  'over capacity': ([[9, 9], [9, 9]], 16),
}
# Every case in both dtypes and on both numbers of ranks; `make sweep` runs the
# whole product.
PAIRWISE = halved_testing.halved(
  sorted(CASES), ['float32', 'bfloat16'], [1, 2], odd=True
)


@pytest.mark.parametrize('name, storage, ranks', PAIRWISE)
@pytest.mark.few(4)
def test_integers_equal_a_serial_loop(name, storage, ranks):
  # Given: small integers, exact in any order; NaN where no row is.
  counts, num_rows = CASES[name]
  counts = counts[:ranks]
  config = config_testing.make_config(
    r=ranks, t=1, e=2, k=1, d=3, f=1, n=num_rows
  )
  policy = precision.PrecisionPolicy(storage)
  rng = test_util.generator(name)
  rows = rng.integers(-4, 5, (ranks, num_rows, 3)).astype(float)
  d_out = rng.integers(-4, 5, (ranks, num_rows, 5)).astype(float)
  weights = rng.integers(-4, 5, (ranks, 2 // ranks, 3, 5)).astype(float)
  out, d_rows, d_weights = (np.zeros(a.shape) for a in (d_out, rows, weights))
  valid = np.zeros(rows.shape[:2], bool)
  for rank, row, expert in rows_of(counts, ranks, num_rows):
    valid[rank, row] = True
    out[rank, row] = rows[rank, row] @ weights[rank, expert]
    d_rows[rank, row] = weights[rank, expert] @ d_out[rank, row]
    d_weights[rank, expert] += np.outer(rows[rank, row], d_out[rank, row])
  rows[~valid] = d_out[~valid] = np.nan
  rows, d_out, weights = (a.astype(storage) for a in (rows, d_out, weights))
  # When.
  actual = run_all(config, policy, plan_of(counts), rows, weights, d_out)
  # Then.
  for tensor, expected in zip(actual, (out, d_rows, d_weights)):
    assert tensor.dtype == storage
    np.testing.assert_array_equal(tensor, expected.astype(tensor.dtype))


@pytest.mark.parametrize('inner', [1, 256, 600])
def test_golden_takes_any_float_and_keeps_float64(inner):
  # Given: float32 rows and bfloat16 weights.
  config = config_testing.make_config(r=1, t=1, e=2, k=1, d=inner, f=1, n=9)
  rng = test_util.generator('golden')
  rows = rng.normal(size=(1, 9, inner)).astype('float32')
  weights = rng.normal(size=(1, 2, inner, 4)).astype('bfloat16')
  # When.
  golden = precision.PrecisionPolicy().golden()
  out = np.asarray(run(config, golden, plan_of([[4, 3]]), rows, weights))
  # Then: each of the two sums is off by at most gamma_X * sum |x||w|.
  assert out.dtype == np.float64
  rows, weights = (a.astype(np.float64) for a in (rows, weights))
  eps = 2 * inner * np.finfo(np.float64).eps
  for _, row, expert in rows_of([[4, 3]], 1, 9):
    x, w = rows[0, row], weights[0, expert]
    assert (abs(out[0, row] - x @ w) <= eps * (abs(x) @ abs(w))).all()
  assert not out[0, 7:].any()


def test_rows_of_another_expert_never_reach_a_weight():
  # Given: expert 0 holds NaN and infinity, in the same block as expert 1.
  config = config_testing.make_config(r=1, t=1, e=2, k=1, d=1, f=1, n=3)
  rows = np.array([[[np.nan], [2.0], [3.0]]], np.float32)
  d_out = np.array([[[np.inf], [5.0], [7.0]]], np.float32)
  # When.
  policy = precision.PrecisionPolicy()
  out = np.asarray(run_weight(config, policy, plan_of([[1, 2]]), rows, d_out))
  # Then.
  assert np.isnan(out[0, 0, 0, 0]) and out[0, 1, 0, 0] == 31


@pytest.mark.parametrize('before', [0, 5])
def test_blocks_are_added_in_row_order(before):
  # Given: 2^24 in the first block and a unit in each of the two after it, which
  # are lost one by one, and kept where they meet first.
  config = config_testing.make_config(
    r=1, t=1, e=2, k=1, d=1, f=1, n=before + 300
  )
  rows = np.zeros((1, before + 300, 1), np.float32)
  rows[0, before :: expert_gemm.BLOCK_ROWS] = 1
  rows[0, before] = 2.0**24
  # When.
  out = run_weight(
    config,
    precision.PrecisionPolicy(),
    plan_of([[before, 300]]),
    rows,
    np.ones(rows.shape, np.float32),
  )
  # Then.
  assert np.asarray(out)[0, 1, 0, 0] == 2.0**24


def test_bits_do_not_depend_on_the_capacity_or_on_other_experts():
  # Given: the same 150 rows, alone and amid others.
  rng = test_util.generator('capacity')
  rows, d_out = rng.normal(size=(150, 3)), rng.normal(size=(150, 5))
  checksums = set()
  for before, after in ((0, 0), (0, 90), (77, 0), (130, 300)):
    config = config_testing.make_config(
      r=1, t=1, e=2, k=1, d=1, f=1, n=before + 150 + after
    )
    padding = ((before, after), (0, 0))
    # When.
    out = run_weight(
      config,
      precision.PrecisionPolicy(),
      plan_of([[before, 150]]),
      np.pad(rows, padding)[None].astype('float32'),
      np.pad(d_out, padding)[None].astype('float32'),
    )
    checksums.add(np.asarray(out)[0, 1].tobytes())
  # Then.
  assert len(checksums) == 1


def test_a_sum_is_rounded_once():
  # Given: 4096 in the first block and 12 in each of the two after it, which are
  # lost beside it in bfloat16, whose unit there is 32, one by one.
  config = config_testing.make_config(r=1, t=1, e=1, k=1, d=1, f=1, n=300)
  rows = np.zeros((1, 300, 1), 'bfloat16')
  rows[0, :: expert_gemm.BLOCK_ROWS] = 12
  rows[0, 0] = 4096
  # When, then.
  policy = precision.PrecisionPolicy('bfloat16')
  d_out = np.ones_like(rows)
  out = run_weight(config, policy, plan_of([[300]]), rows, d_out)
  assert out.item() == 4128


def test_memory_does_not_grow_with_experts_times_rows():
  # Given: 32 experts of 16 x 16 and 10^4 rows.
  config = config_testing.make_config(r=1, t=1, e=32, k=1, d=16, f=1, n=10_000)
  plan = plan_of([[300] * 32])
  for storage, size in (('float32', 4), ('bfloat16', 2)):
    policy = precision.PrecisionPolicy(storage)
    rows = jax.ShapeDtypeStruct((1, 10_000, 16), storage)
    weights = jax.ShapeDtypeStruct((1, 32, 16, 16), storage)
    # At most a result, and for gradients the inputs, once more, and blocks.
    for function, other, max_copies in (
      (run, weights, 1),
      (run_rows, weights, 2),
      (run_weight, rows, 2),
    ):
      # When.
      lowered = function.lower(config, policy, plan, rows, other)
      memory = lowered.compile().memory_analysis()
      # Then.
      assert (
        memory.temp_size_in_bytes <= max_copies * 10_000 * 16 * size + 100_000
      )


# Sums long enough for XLA to split: rows, and columns of both sides.
LONG = ((1000, 64, 96), (1000, 1, 512), (1000, 512, 1))


def digests() -> list[int]:
  """Returns checksums of long sums."""

  def shape(rows):
    return config_testing.make_config(r=1, t=1, e=1, k=1, d=1, f=1, n=rows)

  rng = np.random.default_rng(0)
  out = []
  for dtype in ('float32', 'float64'):
    policy = precision.PrecisionPolicy(dtype, dtype)
    a, b = (
      rng.normal(size=dims).astype(dtype)
      for dims in ((1, 128, 4096), (1, 1, 4096, 64))
    )
    out.append(run(shape(128), policy, plan_of([[128]]), a, b))
    for rows, *widths in LONG:
      a, b = (rng.normal(size=(1, rows, w)).astype(dtype) for w in widths)
      out.append(run_weight(shape(rows), policy, plan_of([[rows]]), a, b))
  return [zlib.crc32(np.asarray(array)) for array in out]


_ON_ONE_CPU = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import jax
jax.config.update('jax_enable_x64', True)
from hpmoe.reference import expert_gemm_test
print(expert_gemm_test.digests())
"""


@pytest.mark.skipif(
  not hasattr(os, 'sched_getaffinity') or len(os.sched_getaffinity(0)) < 2,
  reason='needs two CPUs that a process can be bound to',
)
def test_bits_do_not_depend_on_the_number_of_threads():
  on_one = subprocess.run(
    [sys.executable, '-c', _ON_ONE_CPU],
    check=True,
    capture_output=True,
    text=True,
    cwd=pathlib.Path(__file__).parents[1],
    env=dict(os.environ, JAX_PLATFORMS='cpu'),
  ).stdout
  assert digests() == json.loads(on_one)
