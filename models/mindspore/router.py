"""Scores of a router, and the experts that they choose.

As `models/jax/router.py`; ties go to the lower group and the lower expert id,
for which `ops.topk` cannot be used: it takes any of equal values.
"""

from typing import NamedTuple

import mindspore as ms
from mindspore import ops as ms_ops
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models.mindspore import ops
from hpmoe.reference.contract import array_typing as at


class Routing(NamedTuple):
  """The router's decision.

  Attributes:
    topk_ids: `[R, T, K]` int32, experts of each token, best first.
    topk_weights: `[R, T, K]` in the dtype of the scores.
  """

  topk_ids: at.Int32[ms.Tensor, 'R T K']
  topk_weights: at.Float[ms.Tensor, 'R T K']


def scores(
  params: ops.Params, x: at.Float[ms.Tensor, 'R T D']
) -> at.Float[ms.Tensor, 'R T E']:
  """Returns `[R, T, E]` in `ops.wide`; `params` are those of the block."""
  return ops.linear(params, 'gate', x.astype(ops.wide(x.dtype)))


def route(
  config: config_lib.ModelConfig,
  params: ops.Params,
  scores_: at.Float[ms.Tensor, 'R T E'],
) -> Routing:
  """Returns the choice of `config.family.router`; ties as in the oracle."""
  top_k, normalize = config.num_experts_per_tok, config.normalizes_weights
  if config.family.router == 'softmax':
    ids = _best(scores_, top_k)
    weights = ms_ops.gather_elements(ops.softmax(scores_), -1, ids)
    return Routing(ids, _normalized(weights) if normalize else weights)
  shares = ops.sigmoid(scores_)
  biased = ms_ops.stop_gradient(shares)
  if config.router_bias:
    bias = params['gate.e_score_correction_bias']
    biased = biased + bias.astype(scores_.dtype)
  lowest = ms_ops.full_like(biased, float('-inf'))
  allowed = _allowed(biased, config.n_group, config.topk_group)
  ids = _best(ms_ops.where(allowed, biased, lowest), top_k)
  weights = ms_ops.gather_elements(shares, -1, ids)
  if normalize:
    weights = _normalized(weights)
  scale = ops.number(config.routed_scaling_factor, weights)
  return Routing(ids, weights * scale)


def _best(
  scores_: at.Float[ms.Tensor, '*batch E'], count: int
) -> at.Int32[ms.Tensor, '*batch K']:
  # Stable, and -0.0 and 0.0 tie only if they are made the same.
  plain = ms_ops.stop_gradient(scores_) + 0.0
  order = ms_ops.argsort(plain, axis=-1, descending=True)
  return order[..., :count].astype(ms.int32)


def _normalized(
  weights: at.Float[ms.Tensor, 'R T K'],
) -> at.Float[ms.Tensor, 'R T K']:
  # As DeepSeek-V3's published code: where all sigmoids of a token underflow,
  # its weights are 0, not NaN.
  return weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)


def _allowed(
  biased: at.Float[ms.Tensor, 'R T E'], num_groups: int, top_groups: int
) -> at.Bool[ms.Tensor, 'R T E']:
  """Returns `[R, T, E]`, true where the expert's group is a token's choice."""
  size = biased.shape[-1] // num_groups
  groups = biased.reshape(*biased.shape[:-1], num_groups, size)
  sorted_, _ = ms_ops.sort(groups, axis=-1, descending=True)
  chosen = _best(sorted_[..., :2].sum(axis=-1), top_groups)
  experts = np.arange(biased.shape[-1], dtype=np.int32)
  hits = chosen.expand_dims(-1) == ms.Tensor(experts // size)
  return hits.astype(ms.int32).sum(axis=-2) > 0
