"""The oracle on a device mesh: one rank per device, rows sent by collectives.

Counts are all-gathered, so every rank knows the address of every row.  An
all-to-all sends rows to the owner of their expert, and another returns them;
each has one message from every rank to every rank.  Each rank runs the entries
of `stages` on its shard.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import movement
from hpmoe.reference import stages
from hpmoe.reference import token_order
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def forward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  mesh: jax.sharding.Mesh,
  axis: str,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
  *parts: at.Array,
) -> dict[str, at.Array]:
  """Runs the layer on a mesh; returns the results of `layer.forward`.

  Pure and jit-able with `config`, `policy`, `mesh` and `axis` static.  Every
  input and output, weights too, is sharded along its rank axis.

  Args are those of `layer.forward`, and:
    mesh: has R devices along `axis`; the layer is repeated along other axes.
    axis: name of the mesh axis that is the rank.
    *parts: the further tensors of `tensors.inputs`, in that order.

  Returns:
    Every tensor of `tensors.PLAN` and `tensors.stages` by its name.

  Raises:
    ValueError: as in `layer.forward`; the mesh has another number of ranks, or
      lacks the axis.
  """
  arrays = (x, topk_ids, topk_weights, w_gate_up, w_down, *parts)
  inputs = layer.name_inputs(config, arrays)
  run = functools.partial(_forward_shard, config, policy, axis)
  return _on_mesh(config, policy, mesh, axis, run, inputs, [*inputs])


def backward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  mesh: jax.sharding.Mesh,
  axis: str,
  forward: Mapping[str, at.Array],
  dy: at.Float[at.Array, 'R T D'],
) -> dict[str, at.Array]:
  """Runs the backward pass; returns the results of `layer_grad.backward`.

  Args are those of `layer_grad.backward`, and `mesh` and `axis` of `forward`.

  Raises:
    ValueError: as in `forward`, or a tensor of `forward` is missing.
  """
  arrays = {**forward, 'dy': dy}
  names = (*layer_grad.reads(config, policy), 'dy')
  inputs = {name: arrays[name] for name in names if name in arrays}
  run = functools.partial(_backward_shard, config, policy, axis)
  return _on_mesh(config, policy, mesh, axis, run, inputs, names)


def of_process(
  mesh: jax.sharding.Mesh, axis: str, arrays: Mapping[str, at.Array]
) -> dict[str, at.Array]:
  """Returns global arrays from the arrays of each process's own ranks.

  For `forward` and `backward` on the devices of several hosts: every process
  calls this after `jax.distributed.initialize`; on CPUs with the option
  jax_cpu_collectives_implementation 'gloo'.  The results of either are sharded
  likewise: `addressable_shards` has this process's ranks.

  Args:
    mesh: over the devices of all processes; along `axis` the devices of one
      process are adjacent.
    axis: name of the mesh axis that is the rank.
    arrays: `[r, ...]` by name, of the r ranks on this process's devices.
  """
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis))
  make = jax.make_array_from_process_local_data
  return {name: make(sharding, array) for name, array in arrays.items()}


def _on_mesh(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  mesh: jax.sharding.Mesh,
  axis: str,
  run: Callable[[dict[str, at.Array]], dict[str, at.Array]],
  inputs: dict[str, at.Array],
  names: Iterable[str],
) -> dict[str, at.Array]:
  if axis not in mesh.axis_names:
    raise ValueError(
      f'axis: expected an axis of the mesh, {mesh.axis_names}, got {axis!r}'
    )
  if mesh.shape[axis] != config.num_ranks:
    raise ValueError(
      f'mesh: expected num_ranks={config.num_ranks} devices along {axis!r}, '
      f'got {mesh.shape[axis]}'
    )
  checks.check_arrays(config, policy, inputs, names)
  ranks = jax.sharding.PartitionSpec(axis)
  # check_vma refuses loops over blocks, as their initial values are equal on
  # all ranks.
  sharded = jax.shard_map(
    run, mesh=mesh, in_specs=ranks, out_specs=ranks, check_vma=False
  )
  return sharded({name: jnp.asarray(inputs[name]) for name in names})


# From here on an array is the shard of one rank: its rank axis has one entry.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def layer_of_shard(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  axis: str,
  x: at.Float[at.Array, '1 T D'],
  topk_ids: at.Int32[at.Array, '1 T K'],
  topk_weights: at.Float[at.Array, '1 T K'],
  w_gate_up: at.Float[at.Array, '1 L D 2*F'],
  w_down: at.Float[at.Array, '1 L F D'],
  *parts: at.Array,
) -> at.Float[at.Array, '1 T D']:
  """Returns this rank's `y`, `[1, T, D]`, inside a `shard_map` over `axis`.

  For programs that are sharded as a whole, such as a model.  Reverse mode runs
  the backward stages on the shard; weight gradients sum over the tokens of all
  ranks.

  Args:
    config: sizes of the whole layer; R is the size of `axis`.
    policy: dtypes, placement of the weights, activation.
    axis: name of the mesh axis that is the rank.
    x: `[1, T, D]` storage.
    topk_ids: `[1, T, K]` int32, of all E experts.
    topk_weights: `[1, T, K]` float32.
    w_gate_up: `[1, L, D, 2F]` storage.
    w_down: `[1, L, F, D]` storage.
    *parts: the further tensors of `tensors.inputs`, in that order.

  Raises:
    ValueError: an array is not as above.
  """
  arrays = (x, topk_ids, topk_weights, w_gate_up, w_down, *parts)
  return _shard_forward(config, policy, axis, *arrays)[0]


def _shard_forward(config, policy, axis, *arrays):
  inputs = layer.name_inputs(config, arrays)
  checks.check_arrays(config, policy, inputs, inputs, ranks=1)
  tensors_by_name = inputs | _forward_shard(config, policy, axis, inputs)
  return tensors_by_name['y'], {
    name: tensors_by_name[name] for name in layer_grad.reads(config, policy)
  }


def _shard_backward(config, policy, axis, residuals, dy):
  out = _backward_shard(config, policy, axis, residuals | {'dy': dy})
  rest = tensors.inputs(config)[1:]
  return out['dx'], *(out.get(f'd_{name}') for name in rest)


layer_of_shard.defvjp(_shard_forward, _shard_backward)


def _forward_shard(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  axis: str,
  inputs: dict[str, at.Array],
) -> dict[str, at.Array]:
  ids = inputs['topk_ids']
  counts = token_order.slot_counts(config, ids)
  all_counts = lax.all_gather(counts, axis, tiled=True)
  base = _select_own(token_order.row_bases(config, all_counts), axis)
  rows = token_order.slot_rows(ids, counts, base)
  plan = token_order.Plan(counts, base, rows)
  arrays = inputs | plan._asdict()
  place = _place(config, policy, axis, plan, all_counts, ids)
  make = functools.partial(stages.at_place, place=place)
  return plan._asdict() | layer.compute_each(
    tensors.stages(config), make, arrays
  )


def _backward_shard(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  axis: str,
  inputs: dict[str, at.Array],
) -> dict[str, at.Array]:
  plan = token_order.Plan(*(inputs[name] for name in tensors.PLAN))
  ids = inputs['topk_ids']
  all_counts = lax.all_gather(plan.counts, axis, tiled=True)
  place = _place(config, policy, axis, plan, all_counts, ids)
  make = functools.partial(stages.at_place, place=place)
  return layer.compute_each(tensors.grads(config), make, inputs)


def _place(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  axis: str,
  plan: token_order.Plan,
  all_counts: at.Int32[at.Array, 'R E'],
  topk_ids: at.Int32[at.Array, '1 T K'],
) -> stages.Place:
  """Returns the place of one rank: its experts, its rows and its messages."""
  routes = _routes(config, axis, plan, all_counts, topk_ids)
  return stages.Place(
    _one_rank(config),
    policy,
    _own_plan(config, all_counts, plan.row_of_slot, axis),
    _by_message(routes, axis),
  )


def _select_own(
  of_ranks: at.Num[at.Array, 'R *shape'], axis: str
) -> at.Num[at.Array, '1 *shape']:
  return lax.dynamic_slice_in_dim(of_ranks, lax.axis_index(axis), 1)


def _one_rank(config: config_lib.MoEConfig) -> config_lib.MoEConfig:
  """Returns the layer of one rank's experts, with rows from all ranks."""
  return dataclasses.replace(
    config,
    num_ranks=1,
    num_tokens=config.num_ranks * config.num_tokens,
    num_experts=config.experts_per_rank,
    top_k=min(config.top_k, config.experts_per_rank),
    capacity=config.num_rows,
  )


def _own_plan(
  config: config_lib.MoEConfig,
  all_counts: at.Int32[at.Array, 'R E'],
  row_of_slot: at.Int32[at.Array, '1 T K'],
  axis: str,
) -> token_order.Plan:
  """Returns the plan of `_one_rank`, of which GEMMs read the counts."""
  rows = jnp.sum(all_counts, axis=0, dtype=jnp.int32)
  rows = rows.reshape(config.num_ranks, config.experts_per_rank)
  counts = _select_own(rows, axis)
  base = token_order.row_bases(_one_rank(config), counts)
  return token_order.Plan(counts, base, row_of_slot)


class _Routes(NamedTuple):
  """Positions of rows in messages of up to C rows.

  Attributes:
    num_rows: N.
    owner: `[T, K]` int32 rank that a slot's row is sent to; R: none.
    place: `[T, K]` int32 its position in the message to that rank.
    row: `[R, C]` int32 own row of each position of the message from each rank;
      N past the message's end.
  """

  num_rows: int
  owner: at.Int32[at.Array, 'T K']
  place: at.Int32[at.Array, 'T K']
  row: at.Int32[at.Array, 'R C']


def _routes(
  config: config_lib.MoEConfig,
  axis: str,
  plan: token_order.Plan,
  all_counts: at.Int32[at.Array, 'R E'],
  topk_ids: at.Int32[at.Array, '1 T K'],
) -> _Routes:
  """Returns the routes; a message is in (expert, token, slot) order."""
  local = config.experts_per_rank
  pairs = all_counts.reshape(config.num_ranks, config.num_ranks, local)
  begin = token_order.exclusive_sum(pairs, axis=2)
  first = _select_own(begin, axis).reshape(-1)
  ids = topk_ids[0]
  place = first[ids] + plan.row_of_slot[0] - plan.row_base[0][ids]
  own_rank = lax.axis_index(axis)
  end = (begin + pairs)[:, own_rank]
  base = token_order.row_bases(config, all_counts)
  base = base.reshape(pairs.shape)[:, own_rank]
  size = config.num_tokens * min(config.top_k, local)
  places = jnp.arange(size, dtype=jnp.int32)
  expert = jnp.sum(places[:, None] >= end[:, None, :], axis=-1, dtype=jnp.int32)
  local_expert = jnp.minimum(expert, local - 1)
  offset = places - jnp.take_along_axis(
    begin[:, own_rank], local_expert, axis=1
  )
  row = jnp.take_along_axis(base, local_expert, axis=1) + offset
  row = jnp.where(expert < local, row, jnp.int32(config.num_rows))
  owner = token_order.owners(config, ids)
  return _Routes(config.num_rows, owner, place, row)


def _by_message(routes: _Routes, axis: str) -> movement.Movement:
  """Returns the movement by one message from every rank to every rank."""

  def exchange(messages: at.Array) -> at.Array:
    return lax.all_to_all(messages, axis, 0, 0, tiled=True)

  def to_owner(of_slot: at.Num[at.Array, '1 T K *X']) -> at.Array:
    shape = routes.row.shape + of_slot.shape[3:]
    messages = jnp.zeros(shape, of_slot.dtype)
    at_place = messages.at[routes.owner, routes.place]
    messages = at_place.set(of_slot[0], mode='drop')
    rows = jnp.zeros((routes.num_rows, *shape[2:]), of_slot.dtype)
    rows = rows.at[routes.row].set(exchange(messages), mode='drop')
    return rows[None]

  def dispatch(tokens: at.Num[at.Array, '1 T D']) -> at.Array:
    top_k = routes.owner.shape[1]
    return to_owner(jnp.repeat(tokens[:, :, None], top_k, axis=2))

  def return_rows(rows: at.Float[at.Array, '1 N D']) -> at.Array:
    # As in `combine.return_rows`, a row past the capacity is NaN.
    messages = rows[0].at[routes.row].get(mode='fill', fill_value=jnp.nan)
    of_slot = exchange(messages).at[routes.owner, routes.place]
    return of_slot.get(mode='fill', fill_value=0)[None]

  return movement.Movement(dispatch, to_owner, return_rows)
