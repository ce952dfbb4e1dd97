"""Grouped GEMM: each row times the weight of its expert."""

from collections.abc import Iterable
import functools

import jax
from jax import lax
import jax.numpy as jnp

from hpmoe.reference import numerics
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

# Rows of one dot: enough to hide the read of the expert's weight, and few
# enough that an expert's last, partly filled block costs little.  Experts with
# few rows use smaller blocks.
BLOCK_ROWS, _LEAST_BLOCK_ROWS = 128, 32

# Terms of one dot.  XLA on CPUs splits longer sums by cache size and number of
# threads, so that the bits would depend on the machine's load.  It splits 256
# float32 terms on a Zen 3 (AVX2), but not on CPUs with AVX-512.
BLOCK_INNER = precision.BLOCK_INNER


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def expert_gemm(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  plan: token_order.Plan,
  rows: at.Float[at.Array, 'R N X'],
  weights: at.Float[at.Array, 'R L X Y'],
  bias: at.Float[at.Array, 'R L Y'] | None = None,
  scale: at.Float[at.Array, 'R N'] | None = None,
  after: at.Float[at.Array, 'R N'] | None = None,
) -> at.Float[at.Array, 'R N Y']:
  """Multiplies row n of rank r by the weight of its expert, and adds a bias.

  The bias, times `scale`, is added to the sum in the accumulate dtype; the
  result is multiplied by `after`, and then rounded.

  Work and memory are proportional to the valid rows: no temporary is larger
  than the result and one expert's weight in the accumulation dtype.

  Args:
    config: sizes.
    policy: sums run in its accumulate dtype and are rounded once.
    plan: says which expert a row belongs to.
    rows: `[R, N, X]` any float dtype, in token order.
    weights: `[R, L, X, Y]` any float dtype.
    bias: `[R, L, Y]` any float dtype, or None.
    scale: `[R, N]` float, factor of each row's bias; None: 1.
    after: `[R, N]` float, factor of each row's sum; None: 1.

  Returns:
    `[R, N, Y]` in the storage dtype, zero past the last valid row.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
    TypeError: it is differentiated; `differentiable.layer` can be.
  """
  num_rows = rows.shape[1]
  height = min(_block_rows(config), num_rows)
  begin, end = (
    jnp.minimum(edge, num_rows).reshape(-1)
    for edge in token_order.expert_rows(config, plan.counts)
  )
  blocks = (end - begin + (height - 1)) // height
  last = jnp.cumsum(blocks, dtype=jnp.int32)
  first = last - blocks

  row_bits, weight_bits = numerics.bits(rows), numerics.bits(weights)

  def multiply(i: at.Array, out: at.Array) -> at.Array:
    group = jnp.searchsorted(last, i, side='right').astype(jnp.int32)
    rank, expert = jnp.divmod(group, jnp.int32(config.experts_per_rank))
    row = begin[group] + (i - first[group]) * height
    # A block stays within the buffer; it leaves rows of other experts as is.
    start = jnp.minimum(row, num_rows - height)
    block_rows = start + jnp.arange(height, dtype=jnp.int32)
    is_own = (block_rows >= row) & (block_rows < end[group])
    a = numerics.values(_rows_of(row_bits, rank, start, height), rows.dtype)
    b = numerics.values(weight_bits[rank, expert], weights.dtype)
    sums = dot(policy, operand(policy, a), operand(policy, b))

    def times(factors: at.Array | None, value: at.Array) -> at.Array:
      if factors is None:
        return value
      factor = lax.dynamic_slice(factors, (rank, start), (1, height))
      factor = numerics.widen(policy, factor[0, :, None])
      return numerics.rounded(factor * value)

    if bias is not None:
      term = numerics.widen(policy, bias[rank, expert])[None]
      sums = sums + times(scale, term)
    sums = times(after, sums)
    product = numerics.bits(numerics.store(policy, sums))
    old = _rows_of(out, rank, start, height)
    new = jnp.where(is_own[:, None], product, old)
    return lax.dynamic_update_slice(out, new[None], (rank, start, jnp.int32(0)))

  storage = numerics.storage_dtype(policy)
  out = numerics.bits(jnp.zeros((*rows.shape[:2], weights.shape[-1]), storage))
  out = lax.fori_loop(jnp.int32(0), last[-1], multiply, out)
  return numerics.values(out, storage)


@expert_gemm.defjvp
def _refuse_gradient(config, policy, primals, tangents):
  del config, policy, primals, tangents
  # JAX would return zero as the derivative of an operation on bits.
  raise TypeError(
    'expert_gemm: expected not to be differentiated; the layer with its '
    'gradient is hpmoe.reference.differentiable.layer'
  )


def _block_rows(config: config_lib.MoEConfig) -> int:
  """Returns a power of two that is at least twice an expert's mean rows."""
  rows = config.num_ranks * config.num_tokens * config.top_k
  mean = -(-rows // config.num_experts)
  height = 1 << (2 * mean - 1).bit_length()
  return max(_LEAST_BLOCK_ROWS, min(height, BLOCK_ROWS))


def _rows_of(
  a: at.Array, rank: at.Array, start: at.Array, height: int
) -> at.Array:
  sizes = (1, height, a.shape[-1])
  return lax.dynamic_slice(a, (rank, start, jnp.int32(0)), sizes)[0]


def operand(policy: precision.PrecisionPolicy, a: at.Array) -> at.Array:
  """Returns stored values `[...]` as a GEMM operand: widened, rounded."""
  return numerics.at_point(policy, 'operands', numerics.widen(policy, a))


def add_up(terms: Iterable[at.Array]) -> at.Array:
  """Returns the sum of arrays `[...]`, one after another."""
  return functools.reduce(lambda x, y: x + y, terms)


def dot(
  policy: precision.PrecisionPolicy, a: at.Array, b: at.Array
) -> at.Array:
  multiplied = numerics.multiplied_parts(policy, a, b)
  parts = [
    add_up(
      jnp.dot(
        left[:, inner : inner + BLOCK_INNER],
        right[inner : inner + BLOCK_INNER],
        precision=lax.Precision.HIGHEST,
        preferred_element_type=a.dtype,
      )
      for left, right in multiplied
    )
    for inner in range(0, a.shape[1], BLOCK_INNER)
  ]
  round_sum = functools.partial(numerics.at_point, policy, 'accumulator')
  return functools.reduce(
    lambda x, y: round_sum(x + y), parts[1:], round_sum(parts[0])
  )
