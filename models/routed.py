"""The feed-forward block with routed experts, once for every framework.

Its layer is a function

    layer(x, topk_ids, topk_weights, w_gate_up, w_down, policy, *biases) -> y

of arrays as `reference/contract/tensors.py` names and shapes them: `x` and `y`
`[R, T, D]`, ids and weights `[R, T, K]`, `w_gate_up` `[R, L, D, 2F]` and
`w_down` `[R, L, F, D]`; the biases, `b_gate_up` `[R, L, 2F]` and `b_down`
`[R, L, D]`, come from a family that has them.  It is differentiable in all but
the ids; the gradient of `topk_weights` is what trains a router.

Scores are in float32 in every family, as DeepSeek-V3's published code has it
and as fused kernels need it.  transformers computes those of Qwen3-MoE and
Mixtral in the model's dtype and rounds Qwen3-MoE's weights to it; in bfloat16
that is one rounding more than here.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import layer_lookup
from hpmoe.models import operators
from hpmoe.models import parameters
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
  run: operators.Run,
  params: operators.Params,
  x: at.Float[Any, 'B S D'],
  hidden: at.Float[Any, 'B S D'] | None = None,
) -> tuple[at.Float[Any, 'B S D'], Routed]:
  """Returns the routed experts of `x` `[B, S, D]`, and the routing.

  Args:
    run: of this call; tokens and experts are divided among its ranks in order.
    params: those of the block.
    x: `[B, S, D]`, normalised.
    hidden: `[B, S, D]`, what a router with a norm of its own reads; None for a
      router that reads `x`.
  """
  nn, config = run.nn, run.config
  tokens = x.reshape(run.ranks, -1, x.shape[-1])
  read = tokens if hidden is None else hidden.reshape(tokens.shape)
  wide = read.astype(nn.wide(x.dtype))
  if hidden is not None:
    scale = params[f'{config.family.gate}.scale'].astype(wide.dtype)
    scale = scale * nn.constant(config.hidden_size**-0.5, scale)
    wide = nn.rms_norm(wide, scale, config.rms_norm_eps)
  scores = nn.linear(params, config.family.gate, wide)
  ids, weights = choose(nn, config, params, scores)
  names = (f'experts.{name}' for name in parameters.OF_EXPERTS)
  slabs = (params[name] for name in names if name in params)
  by_rank = [w.reshape(run.ranks, -1, *w.shape[1:]) for w in slabs]
  matrices, biases = by_rank[:2], by_rank[2:]
  if biases:
    layer_lookup.check_biased(run.layer)
  y = run.layer(tokens, ids, weights, *matrices, run.policy, *biases)
  layer_lookup.check_returned(layer_lookup.name_of(run.layer), tokens, y)
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
  shares = find_shares(nn, config, scores)
  family = config.family
  is_order = family.router == 'softmax' and not family.choice_bias
  ranking = scores if is_order else shares
  if (bias := params.get('gate.e_score_correction_bias')) is not None:
    ranking = ranking + bias.astype(ranking.dtype)
  if config.n_group > 1:
    lowest = nn.constant(float('-inf'), ranking)
    ranking = nn.select(_mask_groups(nn, config, ranking), ranking, lowest)
  ids = nn.best(ranking, config.num_experts_per_tok)
  weights = weigh(nn, config, shares, ids)
  if (factors := params.get(f'{family.gate}.per_expert_scale')) is not None:
    weights = weights * nn.embed(factors.astype(weights.dtype), ids)
  return ids, weights


def find_shares(
  nn: operators.Operators,
  config: config_lib.ModelConfig,
  scores: at.Float[Any, '*tokens E'],
) -> at.Float[Any, '*tokens E']:
  """Returns the router's scores `[..., E]`, of which weights are taken."""
  softmax = config.family.router == 'softmax'
  return nn.softmax(scores) if softmax else nn.sigmoid(scores)


def weigh(
  nn: operators.Operators,
  config: config_lib.ModelConfig,
  shares: at.Float[Any, '*tokens E'],
  ids: at.Int[Any, '*tokens K'],
) -> at.Float[Any, '*tokens K']:
  """Returns the routing weights `[..., K]` of given experts.

  Args:
    nn: operators of the framework.
    config: of the model.
    shares: of `find_shares`.
    ids: `[..., K]`.
  """
  weights = nn.gather(shares, ids)
  if config.normalizes_weights:
    # As DeepSeek-V3's published code: where all sigmoids of a token underflow,
    # its weights are 0, not NaN.
    weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
  return weights * nn.constant(config.routed_scaling_factor, weights)


def _mask_groups(
  nn: operators.Operators,
  config: config_lib.ModelConfig,
  ranking: at.Float[Any, 'R T E'],
) -> at.Bool[Any, 'R T E']:
  """Returns where an expert is in one of its token's best groups."""
  size = config.num_experts // config.n_group
  groups = ranking.reshape(*ranking.shape[:-1], config.n_group, size)
  best = nn.gather(groups, nn.best(groups, config.family.group_best))
  top_groups = nn.best(best.sum(axis=-1), config.topk_group)
  of_expert = nn.constant(np.arange(config.num_experts) // size, top_groups)
  hits = (top_groups[..., None] == of_expert).astype(top_groups.dtype)
  return hits.sum(axis=-2) > 0


def config_of(
  x: at.Float[Any, 'R T D'],
  topk_ids: at.Int32[Any, 'R T K'],
  w_down: at.Float[Any, 'R L F D'],
  biases: Sequence[Any] = (),
  shards: int = 1,
) -> layer_config.MoEConfig:
  """Returns the sizes of a whole layer from those of one of its shards.

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
    bias=bool(biases),
  )


def policy_of_model(
  policy: precision.PrecisionPolicy, config: config_lib.ModelConfig
) -> precision.PrecisionPolicy:
  """Returns a policy with the activation of a model that has one of its own."""
  if config.activation != 'swiglu':
    return dataclasses.replace(policy, activation=config.activation)
  if 'swiglu_limit' not in config.family.defaults:
    return policy
  return dataclasses.replace(
    policy,
    alpha=config.swiglu_alpha,
    limit=config.swiglu_limit,
    offset=config.family.up_offset,
  )


def check_launched(biases: Sequence[Any]) -> None:
  """Refuses what the megakernel does not have.

  Raises:
    ValueError: experts with biases.
  """
  if biases:
    raise ValueError(
      "moe: expected 'framework' for experts with biases, which the megakernel "
      'does not have, got a launch of it'
    )


def check_policy(policy: precision.PrecisionPolicy) -> None:
  """Refuses what no framework's own operators compute.

  Raises:
    ValueError: a policy with an activation or placement of the tests.
  """
  forms = ('swiglu', 'geglu', 'geglu_tanh')
  if policy.activation not in forms or policy.placement != 'combine':
    raise ValueError(
      f"policy: expected one of {forms} and 'combine' for the layer "
      f"'framework', got {policy.activation!r} and {policy.placement!r}"
    )
