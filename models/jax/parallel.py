"""A decoder on a device mesh: tokens and experts divided, the rest repeated.

Every device computes its own sequences; rows travel to the devices of their
experts and home again (`reference/sharded_layer.py`).  A gradient of what is
repeated is summed over devices; that of an expert is complete where it lives.
"""

import jax
import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models.jax import decoder
from hpmoe.models.jax import moe as moe_lib
from hpmoe.models.jax import ops
from hpmoe.reference.contract import array_typing as at

P = jax.sharding.PartitionSpec


def specs(config: config_lib.ModelConfig, axis: str) -> dict[str, P]:
  """Returns how each parameter is divided along the mesh axis `axis`."""
  return {
    name: P(axis) if parameters.is_of_experts(name) else P()
    for name in parameters.parameter_shapes(config)
  }


def logits(
  params: ops.Params,
  config: config_lib.ModelConfig,
  tokens: at.Int32[at.Array, 'B S'],
  mesh: jax.sharding.Mesh,
  axis: str = 'rank',
  moe: str | moe_lib.Layer = 'oracle',
) -> at.Float[at.Array, 'B S V']:
  """Returns `[B, S, V]`, divided along B; see `loss_and_grads`."""
  _check(config, tokens, mesh, axis)

  def run(params, tokens):
    return decoder.forward(params, config, tokens, moe=moe, axis=axis)[0]

  in_specs = specs(config, axis), P(axis)
  return _shard_map(mesh, run, in_specs, P(axis))(dict(params), tokens)


def loss_and_grads(
  params: ops.Params,
  config: config_lib.ModelConfig,
  tokens: at.Int32[at.Array, 'B S'],
  mesh: jax.sharding.Mesh,
  axis: str = 'rank',
  moe: str | moe_lib.Layer = 'oracle',
) -> tuple[at.Float[at.Array, ''], dict[str, at.Array]]:
  """Returns `next_token_loss` of all tokens, and its gradients by name.

  Pure and jit-able with all but `params` and `tokens` static.

  Args:
    params: whole, by name.
    config: sizes and options.
    tokens: `[B, S]` int32; the axis divides B.
    mesh: R devices along `axis`; R divides the experts.
    axis: name of the mesh axis.
    moe: 'oracle', or a layer that is given one shard (`moe.sharded`).

  Raises:
    ValueError: an argument is not as above; names it.
  """
  _check(config, tokens, mesh, axis)
  ranks = mesh.shape[axis]

  def loss(params, tokens):
    out, _ = decoder.forward(params, config, tokens, moe=moe, axis=axis)
    # Of the mean over all devices this one's share: each has as many tokens.
    return decoder.next_token_loss(out, tokens) / ranks

  def run(params, tokens):
    share, grads = jax.value_and_grad(loss)(params, tokens)
    whole = {n: g for n, g in grads.items() if not parameters.is_of_experts(n)}
    return jax.lax.psum(share, axis), grads | jax.lax.psum(whole, axis)

  divided = specs(config, axis)
  run = _shard_map(mesh, run, (divided, P(axis)), (P(), divided))
  return run(dict(params), tokens)


def _shard_map(mesh, run, in_specs, out_specs):
  # The layer's collectives are in its own gradient: nothing is to be inferred.
  return jax.shard_map(
    run, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
  )


def _check(
  config: config_lib.ModelConfig,
  tokens: at.Array,
  mesh: jax.sharding.Mesh,
  axis: str,
) -> None:
  if axis not in mesh.axis_names:
    raise ValueError(
      f'axis: expected an axis of the mesh, {mesh.axis_names}, got {axis!r}'
    )
  ranks = mesh.shape[axis]
  if jnp.ndim(tokens) != 2 or tokens.shape[0] % ranks:
    raise ValueError(
      f'tokens: expected [B, S] with B a multiple of {ranks} devices, got '
      f'{list(tokens.shape)}'
    )
  if config.num_experts % ranks:
    raise ValueError(
      f'mesh: expected a number of devices that divides {config.num_experts} '
      f'experts, got {ranks}'
    )
