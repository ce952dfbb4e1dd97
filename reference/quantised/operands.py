"""What a GEMM multiplies of its operands: codes times scales, in JAX.

Which forms those are is data of a policy, see `contract.recipes`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import quantise


class Experts(NamedTuple):
  """Which rows are whose, on each rank.

  Attributes:
    begin: `[R, L]` int32, the first row of each expert.
    end: `[R, L]` int32, one past its last row.
  """

  begin: at.Int32[at.Array, 'R L']
  end: at.Int32[at.Array, 'R L']


def multiplied(
  gemm: str,
  operand: str,
  policy: precision.PrecisionPolicy,
  experts: Experts,
  values: at.Float[at.Array, 'R _ ...'],
  scale: at.Float[at.Array, 'R L'] | None = None,
) -> at.Float[at.Array, 'R _ ...']:
  """Returns an operand `[R, N, X]` or `[R, L, X, Y]` as a GEMM multiplies it.

  Args:
    gemm: the stage that it computes.
    operand: the tensor that it reads.
    policy: says the forms.
    experts: of the rows.
    values: the tensor, as it is stored.
    scale: of rows of each expert, of a static form; None: of others.

  Returns:
    The same shape: float32, or `values` where the GEMM quantises nothing.
  """
  *before, last = policy.forms(gemm, operand) or (None,)
  if last is None:
    return values
  if last.reads_scale:
    scales = _scale_rows(experts, scale, values.shape[1])
    coded = quantise.quantise(last, values, scales=scales)
    return quantise.dequantise(last, coded)
  if tensors.SPECS[operand].role == 'weight':
    # Of a transposed product the depth is the last axis.
    depth = -2 if gemm in tensors.GEMMS else -1
    return _requantised(last, values, depth)
  for form in before:
    values = _by_rows(form, experts, values)
  by_lines = _by_columns if gemm in tensors.WEIGHT_GRADS else _by_rows
  return by_lines(last, experts, values)


def _scale_rows(
  experts: Experts, scale: at.Float[at.Array, 'R L'] | None, count: int
) -> at.Float[at.Array, 'R N']:
  """Returns the scale of each row's expert; past the last row 1."""
  assert scale is not None  # `precision.PrecisionPolicy.needs` names it
  expert, _ = _places(experts, count)
  padded = jnp.pad(scale, [(0, 0), (0, 1)], constant_values=1)
  return jnp.take_along_axis(padded, expert, axis=1)


def _requantised(form: quantised.Form, values: at.Array, depth: int = -1):
  codes = quantise.quantise(form, values, depth)
  return quantise.dequantise(form, codes, depth)


def _by_rows(form: quantised.Form, experts: Experts, rows):
  if form.group[0] == 1:
    return _requantised(form, rows)
  return _scaled_alike(form, rows, _largest_of_experts(experts, rows, -1))


def _by_columns(form: quantised.Form, experts: Experts, rows):
  """Returns rows `[R, N, X]`, whose columns were quantised expert by expert.

  Rows of an expert are laid out from the beginning of a group on, and what
  fills the last one up is zeros.
  """
  height = form.group[1]
  if not height:
    axis = None if form.group[0] == 1 else -1
    largest = _largest_of_experts(experts, rows, axis)
    return _scaled_alike(form, rows, largest)
  ranks, count, width = rows.shape
  expert, place = _places(experts, count)
  groups = -(-(experts.end - experts.begin) // height)
  before = jnp.cumsum(groups, axis=1, dtype=jnp.int32) - groups
  first = jnp.take_along_axis(_with_nobody(before), expert, axis=1)
  num_groups = count // height + groups.shape[1]
  group = jnp.where(
    expert < groups.shape[1], first + place // height, num_groups
  )
  at_group = jnp.arange(ranks)[:, None], group, place % height
  tiles = jnp.zeros((ranks, num_groups, height, width), rows.dtype)
  tiles = tiles.at[at_group].set(rows, mode='drop')
  tiles = _requantised(form, tiles, -2)
  return tiles.at[at_group].get(mode='fill', fill_value=0)


def _places(
  experts: Experts, count: int
) -> tuple[at.Int32[at.Array, 'R N'], at.Int32[at.Array, 'R N']]:
  """Returns the expert of each row, L past the last, and its place in that."""
  row = jnp.arange(count, dtype=jnp.int32)
  expert = (row[None, :, None] >= experts.end[:, None]).sum(-1, dtype=jnp.int32)
  first = jnp.take_along_axis(_with_nobody(experts.begin), expert, axis=1)
  return expert, row - first


def _with_nobody(of_experts: at.Int32[at.Array, 'R L']):
  return jnp.pad(of_experts, [(0, 0), (0, 1)])


def _largest_of_experts(
  experts: Experts,
  rows: at.Float[at.Array, 'R N X'],
  axis: int | None,
) -> at.Float[at.Array, 'R N _']:
  """Returns the largest magnitude of the expert of each row, over an axis.

  `[R, N, 1]`, or `[R, N, X]` of each column if `axis` is None.
  """
  ranks, count, _ = rows.shape
  sizes = jnp.abs(rows).astype('float32')
  if axis is not None:
    sizes = sizes.max(axis, keepdims=True)
  expert, _ = _places(experts, count)
  segments = experts.end.shape[1] + 1
  owner = jnp.arange(ranks, dtype=jnp.int32)[:, None] * segments + expert
  owner = owner.reshape(-1)
  largest = jax.ops.segment_max(
    sizes.reshape(ranks * count, -1), owner, ranks * segments
  )
  return largest[owner].reshape(ranks, count, -1)


def _scaled_alike(
  form: quantised.Form,
  rows: at.Float[at.Array, 'R N X'],
  largest: at.Float[at.Array, 'R N _'],
) -> at.Float[at.Array, 'R N X']:
  """Returns rows quantised as if each element was in a group with `largest`."""
  pairs = jnp.stack(
    [rows.astype('float32'), jnp.broadcast_to(largest, rows.shape)], axis=-1
  )
  pair = dataclasses.replace(form, group=(1, 2))
  return _requantised(pair, pairs)[..., 0]
