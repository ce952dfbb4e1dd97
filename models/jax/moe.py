"""The feed-forward block with routed experts; its layer is chosen by name.

A layer is a function

    layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy) -> y

of arrays as `reference/contract/tensors.py` names and shapes them: `x` and `y`
`[R, T, D]`, ids and weights `[R, T, K]`, `w_gate_up` `[R, L, D, 2F]` and
`w_down` `[R, L, F, D]`.  It is differentiable in all but the ids; the gradient
of `topk_weights` is what trains a router.
"""

from collections.abc import Callable
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models import layer_names
from hpmoe.models.jax import ops
from hpmoe.models.jax import router
from hpmoe.reference import differentiable
from hpmoe.reference import sharded_layer
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as layer_config
from hpmoe.reference.contract import precision

Layer = Callable[..., at.Array]


class Routed(NamedTuple):
  """What went into the layer and came out; `hpmoe compare` reads it.

  Attributes:
    x: `[R, T, D]`.
    scores: `[R, T, E]` router logits, in `ops.wide`.
    topk_ids: `[R, T, K]` int32.
    topk_weights: `[R, T, K]` in `ops.wide`.
    loads: `[E]` int32, tokens of each expert.
    y: `[R, T, D]`, without shared experts.
  """

  x: at.Float[at.Array, 'R T D']
  scores: at.Float[at.Array, 'R T E']
  topk_ids: at.Int32[at.Array, 'R T K']
  topk_weights: at.Float[at.Array, 'R T K']
  loads: at.Int32[at.Array, 'E']
  y: at.Float[at.Array, 'R T D']


def feed_forward(
  config: config_lib.ModelConfig,
  params: ops.Params,
  x: at.Float[at.Array, 'B S D'],
  layer: Layer,
  policy: precision.PrecisionPolicy,
  ranks: int,
) -> tuple[at.Float[at.Array, 'B S D'], Routed]:
  """Returns the routed experts of `x` `[B, S, D]`, and the routing.

  Args:
    config: sizes and options.
    params: those of the block.
    x: `[B, S, D]`, normalised.
    layer: the routed experts.
    policy: the layer's.
    ranks: R; tokens and experts are divided among them in order.
  """
  tokens = x.reshape(ranks, -1, x.shape[-1])
  scores = router.scores(params, tokens)
  chosen = router.route(config, params, scores)
  y = layer(
    tokens,
    chosen.topk_ids,
    chosen.topk_weights,
    *(_by_rank(params[f'experts.{n}'], ranks) for n in ('w_gate_up', 'w_down')),
    policy,
  )
  experts = jnp.arange(config.num_experts, dtype=jnp.int32)
  hits = chosen.topk_ids[..., None] == experts
  loads = jnp.sum(hits, axis=(0, 1, 2), dtype=jnp.int32)
  routed = Routed(tokens, scores, *chosen, loads, y)
  return y.reshape(x.shape), routed


def _by_rank(
  weights: at.Float[at.Array, 'E X Y'], ranks: int
) -> at.Float[at.Array, 'R L X Y']:
  return weights.reshape(ranks, -1, *weights.shape[1:])


def policy_of(dtype) -> precision.PrecisionPolicy:
  """Returns the policy of a model whose weights are in `dtype`."""
  return precision.PrecisionPolicy(
    storage=str(jnp.dtype(dtype)), accumulate=str(ops.wide(dtype))
  )


def config_of(
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  w_down: at.Float[at.Array, 'R L F D'],
  shards: int = 1,
) -> layer_config.MoEConfig:
  """Returns the sizes of a layer of which this is one of so many shards.

  There is no limit to its rows.
  """
  ranks, local, d_ff, d_model = w_down.shape
  return layer_config.MoEConfig(
    num_ranks=shards * ranks,
    num_tokens=x.shape[1],
    num_experts=shards * ranks * local,
    top_k=topk_ids.shape[-1],
    d_model=d_model,
    d_ff=d_ff,
  )


def named(name: str) -> Layer:
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
  return layer_names.found(name, LAYERS, 'ascend')


def oracle(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy
) -> at.Float[at.Array, 'R T D']:
  """The reference layer."""
  config = config_of(x, topk_ids, w_down)
  return differentiable.layer(
    config, policy, x, topk_ids, topk_weights, w_gate_up, w_down
  )


def host(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy
) -> at.Float[at.Array, 'R T D']:
  """The megakernel, one launch forward and one backward."""
  # An extension module, which a build without JAX's headers does not have.
  from hpmoe.backend_ascend.frontends import jax_layer

  config = config_of(x, topk_ids, w_down)
  return jax_layer.layer(
    config, policy, x, topk_ids, topk_weights, w_gate_up, w_down
  )


def sharded(axis: str) -> Layer:
  """Returns the reference layer for one shard of a program over `axis`.

  It is given this rank's tokens, `[1, T, D]`, and experts, `[1, L, ...]`, and
  sends rows to the ranks of their experts by all-to-all.
  """

  def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
    config = config_of(x, topk_ids, w_down, jax.lax.axis_size(axis))
    return sharded_layer.layer_of_shard(
      config, policy, axis, x, topk_ids, topk_weights, w_gate_up, w_down
    )

  return layer


def framework(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy
) -> at.Float[at.Array, 'R T D']:
  """JAX's own operators: a stable sort, and grouped GEMMs (`ragged_dot`).

  Rounds where the policy says so; sums are in the order that XLA chooses.

  Raises:
    ValueError: a policy with an activation or placement of the tests.
  """
  if (policy.activation, policy.placement) != ('swiglu', 'combine'):
    raise ValueError(
      "policy: expected 'swiglu' and 'combine' for the layer 'framework', got "
      f'{policy.activation!r} and {policy.placement!r}'
    )
  config = config_of(x, topk_ids, w_down)
  experts = topk_ids.reshape(-1)
  order = jnp.argsort(experts, stable=True)
  sizes = jnp.bincount(experts, length=config.num_experts).astype(jnp.int32)
  rows = x.reshape(-1, x.shape[-1])[order // config.top_k]

  def grouped(rows, weights):
    weights = weights.reshape(config.num_experts, *weights.shape[2:])
    out = jax.lax.ragged_dot(
      rows.astype(policy.accumulate), weights.astype(policy.accumulate), sizes
    )
    return out.astype(rows.dtype)

  gate, up = jnp.split(
    grouped(rows, w_gate_up).astype(policy.accumulate), 2, axis=-1
  )
  activation = (jax.nn.silu(gate) * up).astype(x.dtype)
  out = grouped(activation, w_down)
  place = jnp.argsort(order)
  returned = out[place].reshape(*topk_ids.shape, -1)
  weighted = returned.astype(policy.accumulate) * topk_weights[..., None]
  return jnp.sum(weighted, axis=2).astype(x.dtype)


LAYERS = types.MappingProxyType(
  dict(oracle=oracle, host=host, framework=framework)
)
