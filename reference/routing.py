"""Router: which experts a token goes to, and with which weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hpmoe.reference.contract import array_typing as at


class Routing(NamedTuple):
  """The router's decision.

  Attributes:
    topk_ids: `[R, T, K]` int32, experts of each token, best first.
    topk_weights: `[R, T, K]` in the dtype of the scores: their routing
      weights.
  """

  topk_ids: at.Int32[at.Array, 'R T K']
  topk_weights: at.Float[at.Array, 'R T K']


def softmax_topk(
  scores: at.Float[at.Array, 'R T E'], top_k: int, normalize: bool = True
) -> Routing:
  """Routes to the `top_k` best scores, weighted by their softmax.

  Args:
    scores: `[R, T, E]` router logits, free of NaN (`checks.check_scores`);
      float32, or float64 for a golden value.
    top_k: K.
    normalize: whether a token's K weights are divided by their sum.

  Returns:
    `[R, T, K]` ids and weights, in descending order of score; equal scores go
    to the lower expert id.

  Raises:
    ValueError: `scores` is not `[R, T, E]` of these dtypes, or K is not in
      [1, E].
  """
  _check_arguments(scores, top_k)
  topk_ids = _best(scores, top_k)
  shares = _gather(jax.nn.softmax(scores, axis=-1), topk_ids)
  return Routing(topk_ids, _normalized(shares) if normalize else shares)


def sigmoid_group_topk(
  scores: at.Float[at.Array, 'R T E'],
  bias: at.Float[at.Array, 'E'],
  top_k: int,
  num_groups: int,
  top_groups: int,
  normalize: bool = True,
  scale: float = 1.0,
) -> Routing:
  """Routes as DeepSeek-V3 does: sigmoid, bias correction, group-limited top-k.

  The bias steers selection only; weights are the plain sigmoids.  A group is
  E / num_groups successive experts and scores the sum of its two best biased
  sigmoids.  Source: arXiv 2412.19437, section 2.1.2.

  Args:
    scores: `[R, T, E]` router logits, free of NaN (`checks.check_scores`);
      float32, or float64 for a golden value.
    bias: `[E]` correction of the load, in the dtype of the scores.
    top_k: K.
    num_groups: groups of experts; 1 for no limit.
    top_groups: groups that a token may go to.
    normalize: whether a token's K weights are divided by their sum.
    scale: factor on the weights, after the division.

  Returns:
    `[R, T, K]` ids and weights, in descending order of biased sigmoid; equal
    ones go to the lower group and the lower expert id.

  Raises:
    ValueError: a shape, dtype or number is not as above, num_groups does not
      divide E, or the chosen groups hold fewer than K experts.
  """
  _check_arguments(scores, top_k)
  _check_groups(scores, bias, top_k, num_groups, top_groups)
  shares = jax.nn.sigmoid(scores)
  biased = shares + bias
  allowed = _allowed(biased, num_groups, top_groups)
  topk_ids = _best(jnp.where(allowed, biased, -jnp.inf), top_k)
  weights = _gather(shares, topk_ids)
  if normalize:
    weights = _normalized(weights)
  return Routing(topk_ids, weights * jnp.asarray(scale, weights.dtype))


def _best(
  scores: at.Float[at.Array, '*batch E'], count: int
) -> at.Int32[at.Array, '*batch K']:
  # Not lax.top_k: it does not promise that -0.0 and 0.0 tie.
  order = jnp.argsort(-scores, axis=-1, stable=True)
  return order[..., :count].astype(jnp.int32)


def _gather(
  values: at.Float[at.Array, 'R T E'], ids: at.Int32[at.Array, 'R T K']
) -> at.Float[at.Array, 'R T K']:
  return jnp.take_along_axis(values, ids, axis=-1)


def _normalized(
  weights: at.Float[at.Array, 'R T K'],
) -> at.Float[at.Array, 'R T K']:
  total = jnp.sum(weights, axis=-1, keepdims=True)
  # As DeepSeek-V3's published code: where all sigmoids of a token underflow,
  # its weights are 0, not NaN.
  return weights / (total + 1e-20)


def _allowed(
  biased: at.Float[at.Array, 'R T E'], num_groups: int, top_groups: int
) -> at.Bool[at.Array, 'R T E']:
  """Returns `[R, T, E]`, true where the expert's group is a token's choice."""
  size = biased.shape[-1] // num_groups
  groups = biased.reshape(*biased.shape[:-1], num_groups, size)
  two_best = jnp.sort(groups, axis=-1)[..., -2:]
  chosen = _best(jnp.sum(two_best, axis=-1), top_groups)
  group_of_expert = jnp.arange(biased.shape[-1], dtype=jnp.int32) // size
  return jnp.any(chosen[..., None] == group_of_expert, axis=-2)


def _check_arguments(scores: at.Array, top_k: int) -> None:
  if scores.ndim != 3 or scores.dtype not in (jnp.float32, jnp.float64):
    raise ValueError(
      'scores: expected float32 or float64 [R, T, E], got '
      f'{scores.dtype} '
      f'{list(scores.shape)}'
    )
  if not 1 <= top_k <= scores.shape[-1]:
    raise ValueError(f'top_k: expected 1 to E={scores.shape[-1]}, got {top_k}')


def _check_groups(
  scores: at.Array, bias: at.Array, top_k: int, num_groups: int, top_groups: int
) -> None:
  num_experts = scores.shape[-1]
  if bias.shape != (num_experts,) or bias.dtype != scores.dtype:
    raise ValueError(
      f'bias: expected {scores.dtype} [{num_experts}], got {bias.dtype} '
      f'{list(bias.shape)}'
    )
  if num_groups < 1 or num_experts % num_groups:
    raise ValueError(
      f'num_groups: expected a divisor of E={num_experts}, got {num_groups}'
    )
  if not 1 <= top_groups <= num_groups:
    raise ValueError(
      f'top_groups: expected 1 to num_groups={num_groups}, got {top_groups}'
    )
  if top_groups * (num_experts // num_groups) < top_k:
    raise ValueError(
      f'top_groups: expected groups that hold top_k={top_k} experts, got '
      f'{top_groups} of {num_experts // num_groups} each'
    )
