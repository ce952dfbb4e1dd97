"""Layers of routed experts by name: see `models/routed.py`."""

from collections.abc import Callable, Mapping
import functools
import types

import mindspore as ms
from mindspore import ops as ms_ops

from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends import mindspore_parallel
from hpmoe.models import layer_lookup
from hpmoe.models import routed
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as layer_config
from hpmoe.reference.contract import precision

Layer = Callable[..., ms.Tensor]


def policy_of(dtype) -> precision.PrecisionPolicy:
  """Returns the policy of a model whose weights are in `dtype`."""
  return precision.PrecisionPolicy(
    storage=ops.dtype_name(dtype), accumulate=ops.dtype_name(ops.wide(dtype))
  )


def find_layer(name: str) -> Layer:
  """As `models/jax/moe.py`; 'ascend' is one where there is an NPU."""
  if name == 'ascend' and not mindspore_layer.has_ascend():
    raise ValueError(
      "moe: 'ascend' expects an Ascend NPU, got none that MindSpore finds; "
      "here 'host' runs the same task image"
    )
  return layer_lookup.find_layer(name, LAYERS)


# One Cell for all layers of a size: it has no parameters.
@functools.cache
def _cell(
  config: layer_config.MoEConfig, policy: precision.PrecisionPolicy, device: str
) -> mindspore_layer.MoELayer:
  return mindspore_layer.MoELayer(config, policy, device=device)


def _launch(
  device, x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases
) -> at.Float[ms.Tensor, 'R T D']:
  routed.check_launched(biases)
  cell = _cell(routed.config_of(x, topk_ids, w_down), policy, device)
  return cell(x, topk_ids, topk_weights, w_gate_up, w_down)


# The megakernel, one launch forward and one backward.
host = functools.partial(_launch, 'cpu')
ascend = functools.partial(_launch, 'ascend')


@functools.cache
def _parallel_cell(
  config: layer_config.MoEConfig, policy: precision.PrecisionPolicy
) -> mindspore_parallel.ParallelMoELayer:
  return mindspore_parallel.ParallelMoELayer(config, policy)


def sharded(shards: int) -> Layer:
  """Returns the megakernel for one of `shards` processes of an msrun job.

  It is given this process's tokens, `[1, T, D]`, and experts, `[1, L, ...]`.
  """

  def layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases):
    routed.check_launched(biases)
    config = routed.config_of(x, topk_ids, w_down, shards=shards)
    slabs = (x, topk_ids, topk_weights, w_gate_up, w_down)
    own = (slab.reshape(slab.shape[1:]) for slab in slabs)
    return _parallel_cell(config, policy)(*own).reshape(x.shape)

  return layer


def framework(
  x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases
) -> at.Float[ms.Tensor, 'R T D']:
  """MindSpore's own operators: every expert on every token.

  Those that group rows by expert have no kernel on a CPU, so this costs E / K
  times the arithmetic; rounds where the policy says so.

  Raises:
    ValueError: a policy with an activation or placement of the tests.
  """
  routed.check_policy(policy)
  wide = ops.wide(x.dtype)
  count, d_model = topk_ids.shape[-1], x.shape[-1]
  experts = w_down.shape[0] * w_down.shape[1]
  rows = x.astype(wide).reshape(1, -1, d_model)

  def grouped(rows, weights, *bias):
    weights = weights.astype(wide).reshape(experts, *weights.shape[2:])
    rows = ms_ops.broadcast_to(rows, (experts, *rows.shape[1:]))
    out = ms_ops.bmm(rows, weights)
    for of_expert in bias:
      out = out + of_expert.astype(wide).reshape(experts, 1, -1)
    return out.astype(x.dtype).astype(wide)

  gate_up = grouped(rows, w_gate_up, *biases[:1])
  gate, up = ops.parts(gate_up, gate_up.shape[-1] // 2)
  form = policy.alpha, policy.limit, policy.offset
  activation = ops.gated(gate, up, *form, activation=policy.activation)
  activation = activation.astype(x.dtype).astype(wide)
  out = grouped(activation, w_down, *biases[1:])
  # [E, T, D] at (expert, token) of each slot.
  ids = topk_ids.reshape(-1, count)
  tokens = ms_ops.arange(ids.shape[0]).astype(ms.int32).reshape(-1, 1)
  places = (ids * ids.shape[0] + tokens).reshape(-1)
  combined = ms_ops.gather(out.reshape(-1, d_model), places, 0)
  weighted = combined.reshape(-1, count, d_model) * topk_weights.reshape(
    -1, count, 1
  )
  return weighted.sum(axis=1).astype(x.dtype).reshape(x.shape)


LAYERS: Mapping[str, Layer] = types.MappingProxyType(
  dict(host=host, framework=framework, ascend=ascend)
)
