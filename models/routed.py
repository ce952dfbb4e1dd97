"""The feed-forward block with routed experts, once for every framework.

Its layer is a function

    layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy) -> y

of arrays as `reference/contract/tensors.py` names and shapes them: `x` and `y`
`[R, T, D]`, ids and weights `[R, T, K]`, `w_gate_up` `[R, L, D, 2F]` and
`w_down` `[R, L, F, D]`.  It is differentiable in all but the ids; the gradient
of `topk_weights` is what trains a router.

Scores are in float32 in every family, as DeepSeek-V3's published code has it
and as fused kernels need it.  transformers computes those of Qwen3-MoE and
Mixtral in the model's dtype and rounds Qwen3-MoE's weights to it; in bfloat16
that is one rounding more than here.
"""

from typing import Any, NamedTuple

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import operators
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as layer_config
from hpmoe.reference.contract import precision


class Routed(NamedTuple):
  """What went into the layer and came out; `hpmoe compare` reads it.

  Attributes:
    x: `[R, T, D]`.
    scores: `[R, T, E]` router logits, in `Operators.wide`.
    topk_ids: `[R, T, K]` int32, experts of each token, best first.
    topk_weights: `[R, T, K]` in the dtype of the scores.
    loads: `[E]` int32, tokens of each expert.
    y: `[R, T, D]`, without shared experts.
  """

  x: at.Float[Any, 'R T D']
  scores: at.Float[Any, 'R T E']
  topk_ids: at.Int32[Any, 'R T K']
  topk_weights: at.Float[Any, 'R T K']
  loads: at.Int32[Any, 'E']
  y: at.Float[Any, 'R T D']


def feed_forward(
  run: operators.Run, params: operators.Params, x: at.Float[Any, 'B S D']
) -> tuple[at.Float[Any, 'B S D'], Routed]:
  """Returns the routed experts of `x` `[B, S, D]`, and the routing.

  Args:
    run: of this call; tokens and experts are divided among its ranks in order.
    params: those of the block.
    x: `[B, S, D]`, normalised.
  """
  nn, config = run.nn, run.config
  tokens = x.reshape(run.ranks, -1, x.shape[-1])
  scores = nn.linear(params, 'gate', tokens.astype(nn.wide(x.dtype)))
  ids, weights = choose(nn, config, params, scores)
  slabs = (params[f'experts.{name}'] for name in ('w_gate_up', 'w_down'))
  by_rank = (w.reshape(run.ranks, -1, *w.shape[1:]) for w in slabs)
  y = run.layer(tokens, ids, weights, *by_rank, run.policy)
  experts = nn.constant(np.arange(config.num_experts), ids)
  hits = (ids[..., None] == experts).astype(ids.dtype)
  loads = hits.sum(axis=(0, 1, 2)).astype(ids.dtype)
  return y.reshape(x.shape), Routed(tokens, scores, ids, weights, loads, y)


def choose(
  nn: operators.Operators,
  config: config_lib.ModelConfig,
  params: operators.Params,
  scores: at.Float[Any, 'R T E'],
) -> tuple[at.Int32[Any, 'R T K'], at.Float[Any, 'R T K']]:
  """Returns each token's experts and their weights: `config.family.router`.

  As `reference/routing.py` chooses, to the bit in JAX: equal scores go to the
  lower group and the lower expert id.
  """
  softmax = config.family.router == 'softmax'
  shares = nn.softmax(scores) if softmax else nn.sigmoid(scores)
  by = scores if softmax else shares
  if (bias := params.get('gate.e_score_correction_bias')) is not None:
    by = by + bias.astype(by.dtype)
  if config.n_group > 1:
    lowest = nn.constant(float('-inf'), by)
    by = nn.where(_allowed(nn, config, by), by, lowest)
  ids = nn.best(by, config.num_experts_per_tok)
  weights = nn.gather(shares, ids)
  if config.normalizes_weights:
    # As DeepSeek-V3's published code: where all sigmoids of a token underflow,
    # its weights are 0, not NaN.
    weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
  return ids, weights * nn.constant(config.routed_scaling_factor, weights)


def _allowed(
  nn: operators.Operators,
  config: config_lib.ModelConfig,
  by: at.Float[Any, 'R T E'],
) -> at.Bool[Any, 'R T E']:
  """Returns where the expert's group is a token's: by its best."""
  size = config.num_experts // config.n_group
  groups = by.reshape(*by.shape[:-1], config.n_group, size)
  best = nn.gather(groups, nn.best(groups, config.family.group_best))
  chosen = nn.best(best.sum(axis=-1), config.topk_group)
  of_expert = nn.constant(np.arange(config.num_experts) // size, chosen)
  hits = (chosen[..., None] == of_expert).astype(chosen.dtype)
  return hits.sum(axis=-2) > 0


def config_of(
  x: at.Float[Any, 'R T D'],
  topk_ids: at.Int32[Any, 'R T K'],
  w_down: at.Float[Any, 'R L F D'],
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


def check_policy(policy: precision.PrecisionPolicy) -> None:
  """Refuses what no framework's own operators compute.

  Raises:
    ValueError: a policy with an activation or placement of the tests.
  """
  if (policy.activation, policy.placement) != ('swiglu', 'combine'):
    raise ValueError(
      "policy: expected 'swiglu' and 'combine' for the layer 'framework', got "
      f'{policy.activation!r} and {policy.placement!r}'
    )
