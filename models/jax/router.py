"""Scores of a router, and the experts that they choose.

Scores are in float32 in every family, as DeepSeek-V3's published code has it
and as fused kernels need it.  transformers computes those of Qwen3-MoE and
Mixtral in the model's dtype and rounds Qwen3-MoE's weights to it; in bfloat16
that is one rounding more than here.
"""

import jax.numpy as jnp

from hpmoe.models import config as config_lib
from hpmoe.models.jax import ops
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at


def scores(
  params: ops.Params, x: at.Float[at.Array, 'R T D']
) -> at.Float[at.Array, 'R T E']:
  """Returns `[R, T, E]` in `ops.wide`; `params` are those of the block."""
  wide = ops.wide(x.dtype)
  weight = params['gate.weight'].astype(wide)
  return jnp.matmul(x.astype(wide), weight.T)


def route(
  config: config_lib.ModelConfig,
  params: ops.Params,
  scores_: at.Float[at.Array, 'R T E'],
) -> routing.Routing:
  """Returns the choice of `config.family.router`; ties as in the oracle."""
  top_k, normalize = config.num_experts_per_tok, config.normalizes_weights
  if config.family.router == 'softmax':
    return routing.softmax_topk(scores_, top_k, normalize)
  return routing.sigmoid_group_topk(
    scores_,
    _bias(config, params).astype(scores_.dtype),
    top_k,
    config.n_group,
    config.topk_group,
    normalize,
    config.routed_scaling_factor,
  )


def _bias(
  config: config_lib.ModelConfig, params: ops.Params
) -> at.Float[at.Array, 'E']:
  if config.router_bias:
    return params['gate.e_score_correction_bias']
  return jnp.zeros(config.num_experts)
