"""A decoder as a function over a flat dict of parameters, and as a Cell.

As `models/jax/decoder.py`, file by file and name by name; it runs eagerly
(PYNATIVE).
"""

from collections.abc import Mapping

import mindspore as ms
from mindspore import nn
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import decoder_layers
from hpmoe.models import operators
from hpmoe.models import parameters
from hpmoe.models import requests
from hpmoe.models import routed as routed_lib
from hpmoe.models import states
from hpmoe.models.mindspore import attention as attention_lib
from hpmoe.models.mindspore import cache as cache_lib
from hpmoe.models.mindspore import moe as moe_lib
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision

OPERATORS = operators.Operators(
  linear=ops.linear,
  rms_norm=ops.rms_norm,
  gated=ops.gated,
  sigmoid=ops.sigmoid,
  softplus=ops.softplus,
  exp=ops.exp,
  tanh=ops.tanh,
  softmax=ops.softmax,
  best=ops.best,
  gather=lambda values, places: ms_ops.gather_elements(values, -1, places),
  select=ms_ops.where,
  constant=ops.constant,
  wide=ops.wide,
  matmul=ms_ops.matmul,
  embed=ops.embed,
  parts=ops.parts,
  concat=lambda arrays, axis=-1: ms_ops.cat(tuple(arrays), axis),
  broadcast=ops.broadcast,
  without_last=ops.without_last,
  attend=attention_lib.attend,
  find_positions=attention_lib.find_positions,
  append=cache_lib.append,
  scan=ops.scan,
)


def forward(
  params: ops.Params,
  config: config_lib.ModelConfig,
  tokens: at.Int32[ms.Tensor, 'B S'],
  *,
  moe: str | moe_lib.Layer = 'host',
  ranks: int = 1,
  policy: precision.PrecisionPolicy | None = None,
  cache: states.Cache | None = None,
  mtp: bool = False,
  shards: int = 1,
  between: states.Between = lambda name, x: x,
) -> tuple[at.Float[ms.Tensor, 'B S V'], states.Aux]:
  """Returns the logits `[B, S, V]` of `tokens`, and what else was computed.

  Arguments and errors are those of `models/jax/decoder.py`.  In place of a mesh
  axis there are `shards`, processes of an msrun job that call this at once: the
  tokens are then this process's own, and the experts, in order, its part of
  them; everything else is whole.  See `parallel.py`.
  """
  requests.check_parameters(params, config, shards)
  integers = tokens.dtype in (ms.int32, ms.int64)
  capacity = None if cache is None else cache.capacity
  requests.check(config, tokens, integers, ranks, capacity, mtp)
  embeddings = params['model.embed_tokens.weight']
  layer = _moe_layer(moe, shards)
  policy = policy or moe_lib.policy_of(embeddings.dtype)
  policy = routed_lib.policy_of_model(policy, config)
  run = operators.Run(OPERATORS, config, params, layer, policy, ranks, between)
  if cache is not None:
    states.check_room(cache, tokens.shape[1])
  return decoder_layers.forward(run, tokens, cache, mtp)


def next_token_loss(
  logits: at.Float[ms.Tensor, 'B S V'], tokens: at.Int32[ms.Tensor, 'B S']
) -> at.Float[ms.Tensor, '']:
  """Returns the mean cross-entropy, in nats, of every token after the first.

  `[]` in `ops.wide`; the logits at place i are those of token i + 1.
  """
  wide = logits.astype(ops.wide(logits.dtype))[:, :-1]
  shares = ops.log_softmax(wide)
  target_scores = ms_ops.gather_elements(
    shares, -1, tokens[:, 1:].expand_dims(-1)
  )
  return -target_scores.mean()


def _moe_layer(moe: str | moe_lib.Layer, shards: int) -> moe_lib.Layer:
  if not isinstance(moe, str):
    return moe
  if shards == 1:
    return moe_lib.find_layer(moe)
  if moe != 'host':
    raise ValueError(
      f"moe: expected 'host' or a function for {shards} shards, got {moe!r}"
    )
  return moe_lib.sharded(shards)


class Decoder(nn.Cell):
  """The decoder as a Cell: tokens `[B, S]` to logits `[B, S, V]`.

  Its parameters have the names of `parameters.parameter_shapes`; a router's
  bias is not trained by gradients.
  """

  def __init__(
    self,
    config: config_lib.ModelConfig,
    params: Mapping[str, np.ndarray],
    **options,
  ):
    """Takes values for the parameters.

    Args:
      config: sizes and options.
      params: by name, as `init.init` returns them.
      **options: of `forward`.
    """
    super().__init__()
    self.config, self.options = config, options
    self.weights = ms.ParameterTuple(
      ms.Parameter(
        ms.Tensor(value),
        name=name,
        requires_grad=parameters.has_gradient(name),
      )
      for name, value in params.items()
    )

  def construct(self, tokens: at.Int32[ms.Tensor, 'B S']):
    """See the class."""
    params = {weight.name: weight for weight in self.weights}
    return forward(params, self.config, tokens, **self.options)[0]
