"""Layers of routed experts by name: see `models/routed.py`."""

from collections.abc import Callable
import types

import jax
import jax.numpy as jnp

from hpmoe.models import layer_lookup
from hpmoe.models import routed
from hpmoe.models.jax import ops
from hpmoe.reference import differentiable
from hpmoe.reference import sharded_layer
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision

Layer = Callable[..., at.Array]


def policy_of(dtype) -> precision.PrecisionPolicy:
  """Returns the policy of a model whose weights are in `dtype`."""
  return precision.PrecisionPolicy(
    storage=str(jnp.dtype(dtype)), accumulate=str(ops.wide(dtype))
  )


def find_layer(name: str) -> Layer:
  """Returns the layer `name`.

  Args:
    name: a key of `LAYERS`, or `pkg.module:function` of the user.

  Raises:
    ValueError: there is no such layer, or it cannot run here.
  """
  if name == 'ascend':
    raise ValueError(
      "moe: 'ascend' expects an Ascend NPU, got none that JAX can reach; its "
      "operator is MindSpore's, and here 'host' runs the same task image"
    )
  return layer_lookup.find_layer(name, LAYERS, 'ascend')


def oracle(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases
) -> at.Float[at.Array, 'R T D']:
  """The reference layer."""
  config = routed.config_of(x, topk_ids, w_down, biases)
  return differentiable.layer(
    config, policy, x, topk_ids, topk_weights, w_gate_up, w_down, *biases
  )


def host(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases
) -> at.Float[at.Array, 'R T D']:
  """The megakernel, one launch forward and one backward."""
  # An extension module, which a build without JAX's headers does not have.
  from hpmoe.backend_ascend.frontends import jax_layer

  routed.check_launched(biases)
  config = routed.config_of(x, topk_ids, w_down)
  return jax_layer.layer(
    config, policy, x, topk_ids, topk_weights, w_gate_up, w_down
  )


def sharded(axis: str) -> Layer:
  """Returns the reference layer for one shard of a program over `axis`.

  It is given this rank's tokens, `[1, T, D]`, and experts, `[1, L, ...]`, and
  sends rows to the ranks of their experts by all-to-all.
  """

  def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases):
    shards = jax.lax.axis_size(axis)
    config = routed.config_of(x, topk_ids, w_down, biases, shards)
    arrays = (x, topk_ids, topk_weights, w_gate_up, w_down, *biases)
    return sharded_layer.layer_of_shard(config, policy, axis, *arrays)

  return layer


def framework(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases
) -> at.Float[at.Array, 'R T D']:
  """JAX's own operators: a stable sort, and grouped GEMMs (`ragged_dot`).

  Rounds where the policy says so; sums are in the order that XLA chooses.

  Raises:
    ValueError: a policy with an activation or placement of the tests.
  """
  routed.check_policy(policy)
  config = routed.config_of(x, topk_ids, w_down, biases)
  experts = topk_ids.reshape(-1)
  order = jnp.argsort(experts, stable=True)
  sizes = jnp.bincount(experts, length=config.num_experts).astype(jnp.int32)
  rows = x.reshape(-1, x.shape[-1])[order // config.top_k]

  def grouped(rows, weights, *bias):
    weights = weights.reshape(config.num_experts, *weights.shape[2:])
    out = jax.lax.ragged_dot(
      rows.astype(policy.accumulate), weights.astype(policy.accumulate), sizes
    )
    for of_rank in bias:
      of_expert = of_rank.reshape(config.num_experts, -1).astype(out.dtype)
      out += of_expert[experts[order]]
    return out.astype(rows.dtype)

  gate_up = grouped(rows, w_gate_up, *biases[:1]).astype(policy.accumulate)
  gate, up = jnp.split(gate_up, 2, axis=-1)
  form = policy.alpha, policy.limit, policy.offset
  gated = ops.gated(gate, up, *form, activation=policy.activation)
  activation = gated.astype(x.dtype)
  out = grouped(activation, w_down, *biases[1:])
  place = jnp.argsort(order)
  combined = out[place].reshape(*topk_ids.shape, -1)
  weighted = combined.astype(policy.accumulate) * topk_weights[..., None]
  return jnp.sum(weighted, axis=2).astype(x.dtype)


LAYERS = types.MappingProxyType(
  dict(oracle=oracle, host=host, framework=framework)
)
