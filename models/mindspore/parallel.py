"""A decoder on the processes of an msrun job: tokens and experts divided.

As `models/jax/parallel.py`.  Every process computes its own sequences; what its
tokens need of other processes' experts comes through the layer, whose limits on
a CPU `frontends/mindspore_parallel.py` states.  A gradient of what is repeated
is summed over processes; that of an expert is complete where it lives.
"""

from collections.abc import Mapping

import mindspore as ms
from mindspore import communication
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import array_typing as at


def own(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns this process's part of whole parameters, by name.

  Raises:
    ValueError: the number of processes does not divide the experts.
  """
  shards, rank = communication.get_group_size(), communication.get_rank()

  def part(name: str, value: np.ndarray) -> np.ndarray:
    if not parameters.is_of_experts(name):
      return value
    if len(value) % shards:
      raise ValueError(
        f'msrun: expected a number of processes that divides {len(value)} '
        f'experts, got {shards}'
      )
    return np.split(value, shards)[rank]

  return {name: part(name, value) for name, value in params.items()}


def logits(
  params: ops.Params,
  config: config_lib.ModelConfig,
  tokens: at.Int32[ms.Tensor, 'B S'],
) -> at.Float[ms.Tensor, 'B S V']:
  """Returns `[B, S, V]` of this process's tokens; see `loss_and_grads`."""
  shards = communication.get_group_size()
  return decoder.forward(params, config, tokens, shards=shards)[0]


def loss_and_grads(
  params: ops.Params,
  config: config_lib.ModelConfig,
  tokens: at.Int32[ms.Tensor, 'B S'],
) -> tuple[at.Float[ms.Tensor, ''], dict[str, ms.Tensor]]:
  """Returns `next_token_loss` of all tokens, and its gradients by name.

  Called by every process of the job at once, after
  `mindspore.communication.init`.

  Args:
    params: `own` of the whole.
    config: sizes and options.
    tokens: `[B, S]` int32, this process's own; of one shape in all.

  Raises:
    ValueError: an argument is not as above; names it.
  """
  shards = communication.get_group_size()
  names = [n for n in params if parameters.has_gradient(n)]

  # Positions: a gradient over a dict is an empty tuple, without an error.
  def loss(*values):
    merged_params = dict(params) | dict(zip(names, values, strict=True))
    out = logits(merged_params, config, tokens)
    # Of the mean over all processes this one's share.
    return decoder.next_token_loss(out, tokens) / shards

  places = tuple(range(len(names)))
  share, grads = ms.value_and_grad(loss, places)(*(params[n] for n in names))
  grads_by_name = dict(zip(names, grads, strict=True))
  return _all_reduce(share), {
    name: grad if parameters.is_of_experts(name) else _all_reduce(grad)
    for name, grad in grads_by_name.items()
  }


def _all_reduce(value: ms.Tensor) -> ms.Tensor:
  # No sum of bfloat16 over processes on a CPU.
  wide = value.astype(ops.wide(value.dtype))
  return ms_ops.AllReduce()(wide).astype(value.dtype)
