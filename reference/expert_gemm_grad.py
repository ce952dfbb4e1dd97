"""Gradients of the grouped GEMM: of its rows, and of every expert's weight.

And of the router's GEMM, which has one weight for the tokens of all ranks.
"""

from jax import lax
import jax.numpy as jnp

from hpmoe.reference import expert_gemm
from hpmoe.reference import numerics
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision


def rows_grad(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  plan: token_order.Plan,
  d_out: at.Float[at.Array, 'R N Y'],
  weights: at.Float[at.Array, 'R L X Y'],
) -> at.Float[at.Array, 'R N X']:
  """Multiplies row n of rank r by the transposed weight of its expert.

  As `expert_gemm.expert_gemm`, on one transposed copy of the stored weights.

  Args:
    config: sizes.
    policy: sums run in its accumulate dtype and are rounded once.
    plan: says which expert a row belongs to.
    d_out: `[R, N, Y]` any float dtype, in token order.
    weights: `[R, L, X, Y]` any float dtype.

  Returns:
    `[R, N, X]` in the storage dtype, zero past the last valid row.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  transposed = jnp.swapaxes(weights, -1, -2)
  return expert_gemm.expert_gemm(config, policy, plan, d_out, transposed)


def weight_grad(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  plan: token_order.Plan,
  rows: at.Float[at.Array, 'R N X'],
  d_out: at.Float[at.Array, 'R N Y'],
) -> at.Float[at.Array, 'R L X Y']:
  """Sums, for every expert, the outer products of its rows, in row order.

  Blocks of `expert_gemm.BLOCK_ROWS` rows, from the expert's first row on, are
  added one after another; inside a block the order is that of a dot.  Only the
  last sum is rounded.  No temporary is larger than the result, a copy of the
  rows if they are bfloat16, and one expert's gradient in the accumulate dtype.

  Args:
    config: sizes.
    policy: sums run in its accumulate dtype and are rounded once.
    plan: says which expert a row belongs to.
    rows: `[R, N, X]` any float dtype, in token order.
    d_out: `[R, N, Y]` any float dtype, in token order.

  Returns:
    `[R, L, X, Y]` in the storage dtype, zero for an expert without rows.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  begin, end = (
    jnp.minimum(edge, rows.shape[1]).reshape(-1)
    for edge in token_order.expert_rows(config, plan.counts)
  )
  left, right = numerics.bits(rows), numerics.bits(d_out)
  storage = numerics.storage_dtype(policy)
  shape = (rows.shape[2], d_out.shape[2])
  height = min(expert_gemm.BLOCK_ROWS, rows.shape[1])

  def accumulate(group: at.Int32[at.Array, '']) -> at.Array:
    def add(i: at.Array, total: at.Array) -> at.Array:
      block_args = rank, begin[group] + i * height, end[group], height
      a = numerics.values(_block(left, *block_args), rows.dtype)
      b = numerics.values(_block(right, *block_args), d_out.dtype)
      a, b = (expert_gemm.operand(policy, x) for x in (a, b))
      multiplied = numerics.multiplied_parts(policy, a, b)
      sums = expert_gemm.add_up(_dot(*pair) for pair in multiplied)
      return numerics.at_point(policy, 'accumulator', total + sums)

    rank = group // config.experts_per_rank
    blocks = (end[group] - begin[group] + (height - 1)) // height
    total = jnp.zeros(shape, numerics.accumulate_dtype(policy))
    total = lax.fori_loop(jnp.int32(0), blocks, add, total)
    return numerics.bits(numerics.store(policy, total))

  groups = jnp.arange(config.num_experts, dtype=jnp.int32)
  sums = numerics.values(lax.map(accumulate, groups), storage)
  return sums.reshape(config.num_ranks, config.experts_per_rank, *shape)


def bias_grad(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  plan: token_order.Plan,
  d_out: at.Float[at.Array, 'R N Y'],
  scale: at.Float[at.Array, 'R N'] | None = None,
) -> at.Float[at.Array, 'R L Y']:
  """Sums, for every expert, its rows, each times `scale`.

  This is `weight_grad` of an input with one column, which holds `scale`.

  Args:
    config: sizes.
    policy: sums run in its accumulate dtype and are rounded once.
    plan: says which expert a row belongs to.
    d_out: `[R, N, Y]` any float dtype, in token order.
    scale: `[R, N]` float; None: 1.

  Returns:
    `[R, L, Y]` in the storage dtype, zero for an expert without rows.

  Raises:
    ValueError: the policy is in float64 and jax_enable_x64 is off.
  """
  column = jnp.ones(d_out.shape[:2], d_out.dtype) if scale is None else scale
  grad = weight_grad(config, policy, plan, column[..., None], d_out)
  return grad[..., 0, :]


def router_rows_grad(
  policy: precision.PrecisionPolicy,
  d_logits: at.Float[at.Array, 'R T E'],
  router_w: at.Float[at.Array, 'D E'],
) -> at.Float[at.Array, 'R T D']:
  """Returns the router's part of dx, in the storage dtype.

  Args:
    policy: sums run in its accumulate dtype and are rounded once.
    d_logits: `[R, T, E]` any float dtype, gradients of the logits.
    router_w: `[D, E]` any float dtype.
  """
  return _multiply_whole(policy, jnp.asarray(d_logits), jnp.asarray(router_w).T)


def router_weight_grad(
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  d_logits: at.Float[at.Array, 'R T E'],
) -> at.Float[at.Array, 'D E']:
  """Returns the gradient of a router's weights, in the storage dtype.

  It is one sum over the tokens of all ranks, as all have the same weights.

  Args:
    policy: sums run in its accumulate dtype and are rounded once.
    x: `[R, T, D]` any float dtype.
    d_logits: `[R, T, E]` any float dtype, gradients of the logits.
  """
  rows, grads = (jnp.asarray(a).reshape(-1, a.shape[-1]) for a in (x, d_logits))
  return _multiply_whole(policy, rows.T, grads)


def _multiply_whole(policy, left: at.Array, right: at.Array) -> at.Array:
  operands = (expert_gemm.operand(policy, a) for a in (left, right))
  shape = *left.shape[:-1], right.shape[-1]
  left, right = operands
  rows = left.reshape(-1, left.shape[-1])
  sums = expert_gemm.dot(policy, rows, right)
  return numerics.store(policy, sums).reshape(shape)


def _block(
  bits: at.Array, rank: at.Array, row: at.Array, end: at.Array, height: int
) -> at.Array:
  """Returns `[height, X]`, the rows from `row` on, zero from `end` on."""
  # The slice stays within the buffer; the roll puts `row` first again, so that
  # an expert's sum does not depend on the capacity.
  start = jnp.minimum(row, bits.shape[1] - height)
  sizes = (1, height, bits.shape[2])
  block = lax.dynamic_slice(bits, (rank, start, jnp.int32(0)), sizes)[0]
  block = jnp.roll(block, start - row, axis=0)
  is_own = row + jnp.arange(height, dtype=jnp.int32) < end
  return jnp.where(is_own[:, None], block, jnp.zeros((), bits.dtype))


def _dot(a: at.Array, b: at.Array) -> at.Array:
  return lax.dot_general(
    a,
    b,
    (((0,), (0,)), ((), ())),
    precision=lax.Precision.HIGHEST,
    preferred_element_type=a.dtype,
  )
