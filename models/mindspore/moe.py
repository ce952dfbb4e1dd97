"""The feed-forward block with routed experts; its layer is chosen by name.

A layer is a function

    layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy) -> y

of tensors as `reference/contract/tensors.py` names and shapes them: `x` and `y`
`[R, T, D]`, ids and weights `[R, T, K]`, `w_gate_up` `[R, L, D, 2F]` and
`w_down` `[R, L, F, D]`.  It is differentiable in all but the ids; the gradient
of `topk_weights` is what trains a router.
"""

from collections.abc import Callable, Mapping
import functools
import types
from typing import NamedTuple

import mindspore as ms
from mindspore import ops as ms_ops

from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends import mindspore_parallel
from hpmoe.models import config as config_lib
from hpmoe.models import layer_names
from hpmoe.models.mindspore import ops
from hpmoe.models.mindspore import router
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as layer_config
from hpmoe.reference.contract import precision

Layer = Callable[..., ms.Tensor]


class Routed(NamedTuple):
  """What went into the layer and came out; as in `models/jax/moe.py`.

  Attributes:
    x: `[R, T, D]`.
    scores: `[R, T, E]` router logits, in `ops.wide`.
    topk_ids: `[R, T, K]` int32.
    topk_weights: `[R, T, K]` in `ops.wide`.
    loads: `[E]` int32, tokens of each expert.
    y: `[R, T, D]`, without shared experts.
  """

  x: at.Float[ms.Tensor, 'R T D']
  scores: at.Float[ms.Tensor, 'R T E']
  topk_ids: at.Int32[ms.Tensor, 'R T K']
  topk_weights: at.Float[ms.Tensor, 'R T K']
  loads: at.Int32[ms.Tensor, 'E']
  y: at.Float[ms.Tensor, 'R T D']


def feed_forward(
  config: config_lib.ModelConfig,
  params: ops.Params,
  x: at.Float[ms.Tensor, 'B S D'],
  layer: Layer,
  policy: precision.PrecisionPolicy,
  ranks: int,
) -> tuple[at.Float[ms.Tensor, 'B S D'], Routed]:
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
  hits = _hits(chosen.topk_ids, config.num_experts)
  loads = hits.astype(ms.int32).sum(axis=(0, 1, 2))
  routed = Routed(tokens, scores, *chosen, loads, y)
  return y.reshape(x.shape), routed


def _hits(
  ids: at.Int32[ms.Tensor, 'R T K'], count: int
) -> at.Bool[ms.Tensor, 'R T K E']:
  return ids.expand_dims(-1) == ms_ops.arange(count).astype(ms.int32)


def _by_rank(
  weights: at.Float[ms.Tensor, 'E X Y'], ranks: int
) -> at.Float[ms.Tensor, 'R L X Y']:
  return weights.reshape(ranks, -1, *weights.shape[1:])


def policy_of(dtype) -> precision.PrecisionPolicy:
  """Returns the policy of a model whose weights are in `dtype`."""
  return precision.PrecisionPolicy(
    storage=ops.dtype_name(dtype), accumulate=ops.dtype_name(ops.wide(dtype))
  )


def config_of(
  x: at.Float[ms.Tensor, 'R T D'],
  topk_ids: at.Int32[ms.Tensor, 'R T K'],
  w_down: at.Float[ms.Tensor, 'R L F D'],
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
  if name == 'ascend' and not mindspore_layer.has_ascend():
    raise ValueError(
      "moe: 'ascend' expects an Ascend NPU, got none that MindSpore finds; "
      "here 'host' runs the same task image"
    )
  return layer_names.found(name, LAYERS)


# One Cell for all layers of a size: it has no parameters.
@functools.cache
def _cell(
  config: layer_config.MoEConfig, policy: precision.PrecisionPolicy, device: str
) -> mindspore_layer.MoELayer:
  return mindspore_layer.MoELayer(config, policy, device=device)


def _launched(
  device, x, topk_ids, topk_weights, w_gate_up, w_down, policy
) -> at.Float[ms.Tensor, 'R T D']:
  cell = _cell(config_of(x, topk_ids, w_down), policy, device)
  return cell(x, topk_ids, topk_weights, w_gate_up, w_down)


# The megakernel, one launch forward and one backward.
host = functools.partial(_launched, 'cpu')
ascend = functools.partial(_launched, 'ascend')


@functools.cache
def _parallel_cell(
  config: layer_config.MoEConfig, policy: precision.PrecisionPolicy
) -> mindspore_parallel.ParallelMoELayer:
  return mindspore_parallel.ParallelMoELayer(config, policy)


def sharded(shards: int) -> Layer:
  """Returns the megakernel for one of `shards` processes of an msrun job.

  It is given this process's tokens, `[1, T, D]`, and experts, `[1, L, ...]`.
  """

  def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
    config = config_of(x, topk_ids, w_down, shards)
    slabs = (x, topk_ids, topk_weights, w_gate_up, w_down)
    own = (slab.reshape(slab.shape[1:]) for slab in slabs)
    return _parallel_cell(config, policy)(*own).reshape(x.shape)

  return layer


def framework(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy
) -> at.Float[ms.Tensor, 'R T D']:
  """MindSpore's own operators: every expert on every token.

  Those that group rows by expert have no kernel on a CPU, so this costs E / K
  times the arithmetic; rounds where the policy says so.

  Raises:
    ValueError: a policy with an activation or placement of the tests.
  """
  if (policy.activation, policy.placement) != ('swiglu', 'combine'):
    raise ValueError(
      "policy: expected 'swiglu' and 'combine' for the layer 'framework', got "
      f'{policy.activation!r} and {policy.placement!r}'
    )
  wide = ops.wide(x.dtype)
  count, d_model = topk_ids.shape[-1], x.shape[-1]
  experts = w_down.shape[0] * w_down.shape[1]
  rows = x.astype(wide).reshape(1, -1, d_model)

  def grouped(rows, weights):
    weights = weights.astype(wide).reshape(experts, *weights.shape[2:])
    rows = ms_ops.broadcast_to(rows, (experts, *rows.shape[1:]))
    return ms_ops.bmm(rows, weights).astype(x.dtype).astype(wide)

  gate_up = grouped(rows, w_gate_up)
  d_ff = gate_up.shape[-1] // 2
  activation = ops.silu(gate_up[..., :d_ff]) * gate_up[..., d_ff:]
  out = grouped(activation.astype(x.dtype).astype(wide), w_down)
  # [E, T, D] at (expert, token) of each slot.
  ids = topk_ids.reshape(-1, count)
  tokens = ms_ops.arange(ids.shape[0]).astype(ms.int32).reshape(-1, 1)
  places = (ids * ids.shape[0] + tokens).reshape(-1)
  returned = ms_ops.gather(out.reshape(-1, d_model), places, 0)
  weighted = returned.reshape(-1, count, d_model) * topk_weights.reshape(
    -1, count, 1
  )
  return weighted.sum(axis=1).astype(x.dtype).reshape(x.shape)


LAYERS: Mapping[str, Layer] = types.MappingProxyType(
  dict(host=host, framework=framework, ascend=ascend)
)
