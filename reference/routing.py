"""Router: which experts a token goes to, and with which weights.

`route` computes every rule of `contract/router.py`, of JAX's arrays in JAX and
of numpy's in numpy, in the dtype of the logits that it is given.  A NaN logit
is refused by whoever reads inputs (`checks.check_scores`); minus infinity is an
expert that is chosen last.
"""

from typing import Any, NamedTuple

import numpy as np

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import router as router_lib

# A score below all others that float32 and bfloat16 have.
_LOWEST = -(2.0**127)


class Routing(NamedTuple):
  """The router's decision.

  Attributes:
    topk_ids: `[R, T, K]` int32, experts of each token, best first.
    topk_weights: `[R, T, K]` in the dtype of the scores: their routing
      weights.
  """

  topk_ids: at.Int32[Any, 'R T K']
  topk_weights: at.Float[Any, 'R T K']


def route(
  router: router_lib.Router,
  logits: at.Float[Any, 'R T E'],
  bias: at.Float[Any, 'E'] | None = None,
) -> Routing:
  """Returns the experts and weights of tokens under a rule.

  Args:
    router: the rule, K and its other numbers.
    logits: `[R, T, E]` float; all is computed in their dtype.
    bias: `[E]` in that dtype; None: 0.

  Returns:
    `[R, T, K]` ids and weights, in descending order of what experts are chosen
    by; equal ones go to the lower group and the lower expert id.

  Raises:
    ValueError: the rule cannot be applied to so many experts.
  """
  router.check(logits.shape[-1])
  xp = _library(logits)
  logits, shares, choice = compute_scores(router, logits, bias)
  if router.groups > 1:
    eligible = _eligible(xp, choice, router.groups, router.top_groups)
    # An expert of a chosen group comes before all others, whatever it scores.
    lowest = xp.asarray(_LOWEST, choice.dtype)
    nobody = xp.asarray(-xp.inf, choice.dtype)
    choice = xp.where(eligible, xp.maximum(choice, lowest), nobody)
  topk_ids = _best(xp, choice, router.top_k)
  return Routing(topk_ids, _weigh_scores(router, logits, shares, topk_ids))


def compute_logits(
  x: at.Float[Any, '*tokens D'],
  router_w: at.Float[Any, 'D E'],
  bias: at.Float[Any, 'E'] | None = None,
) -> at.Float[Any, '*tokens E']:
  """Returns a router's logits `[..., E]` float32, the sums not rounded.

  Args:
    x: `[..., D]` tokens.
    router_w: `[D, E]` weights.
    bias: `[E]` that is added; None: nothing is.
  """
  logits = x.astype('float32') @ router_w.astype('float32')
  return logits if bias is None else logits + bias


def weigh_choice(
  router: router_lib.Router,
  logits: at.Float[Any, '*tokens E'],
  bias: at.Float[Any, 'E'] | None,
  topk_ids: at.Int[Any, '*tokens K'],
) -> at.Float[Any, '*tokens K']:
  """Returns the weights `[..., K]` of experts that somebody chose.

  Args:
    router: the rule.
    logits: `[..., E]` float; all is computed in their dtype.
    bias: `[E]` in that dtype; None: 0.
    topk_ids: `[..., K]` the experts, in any order.
  """
  logits, shares, _ = compute_scores(router, logits, bias)
  return _weigh_scores(router, logits, shares, topk_ids)


def weigh_choice_grad(
  router: router_lib.Router,
  logits: at.Float[Any, '*tokens E'],
  bias: at.Float[Any, 'E'] | None,
  topk_ids: at.Int[Any, '*tokens K'],
  d_weights: at.Float[Any, '*tokens K'],
) -> at.Float[Any, '*tokens E']:
  """Returns gradients of logits `[..., E]` through weights, by JAX.

  The choice of experts has no gradient, and no auxiliary loss is added.

  Args:
    router: the rule.
    logits: `[..., E]` float; all is computed in their dtype.
    bias: `[E]` in that dtype; None: 0.
    topk_ids: `[..., K]` the experts, in any order.
    d_weights: `[..., K]` gradients of the weights, in the dtype of the logits.
  """
  import jax
  import jax.numpy as jnp

  def weigh_logits(logits):
    return weigh_choice(router, logits, bias, topk_ids)

  _, pull_back = jax.vjp(weigh_logits, jnp.asarray(logits))
  return pull_back(jnp.asarray(d_weights))[0]


def _weigh_scores(router: router_lib.Router, logits, shares, topk_ids):
  of_chosen = logits if router.table.of_chosen else shares
  chosen_scores = _library(logits).take_along_axis(of_chosen, topk_ids, axis=-1)
  return weigh(router, chosen_scores)


def compute_scores(
  router: router_lib.Router,
  logits: at.Float[Any, '*tokens E'],
  bias: at.Float[Any, 'E'] | None = None,
) -> tuple[Any, Any, Any]:
  """Returns logits, scores and what experts are chosen by, each `[..., E]`."""
  table = router.table
  if bias is not None and table.bias == 'logits':
    logits = logits + bias
  if table.scores == 'sigmoid':
    shares = choice = _sigmoid(logits)
  elif table.scores == 'softmax':
    # The softmax of a token has the order of its logits, but that small shares
    # underflow.
    shares, choice = _softmax(logits), logits
  else:
    shares = choice = logits
  if bias is not None and table.bias == 'choice':
    choice = choice + bias
  return logits, shares, choice


def weigh(
  router: router_lib.Router, chosen_scores: at.Float[Any, '*tokens K']
) -> at.Float[Any, '*tokens K']:
  """Returns the weights `[..., K]` of chosen experts.

  Args:
    router: the rule.
    chosen_scores: `[..., K]` their scores, or their logits where the rule
      scores those alone.
  """
  weights = _softmax(chosen_scores) if router.table.of_chosen else chosen_scores
  if router.table.renormalise:
    # As DeepSeek-V3's published code: where all sigmoids of a token underflow,
    # its weights are 0, not NaN.
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / (total + weights.dtype.type(router.table.epsilon))
  if router.scale != 1.0:
    weights = weights * weights.dtype.type(router.scale)
  return weights


def softmax_topk(
  scores: at.Float[Any, 'R T E'], top_k: int, normalize: bool = True
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
  rule = 'renormalize_naive' if normalize else 'softmax'
  return route(router_lib.Router(rule, top_k), scores)


def sigmoid_group_topk(
  scores: at.Float[Any, 'R T E'],
  bias: at.Float[Any, 'E'],
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
  rule = 'deepseek_v3' if normalize else 'deepseek_v3_plain'
  router = router_lib.Router(rule, top_k, num_groups, top_groups, scale)
  return route(router, scores, bias)


def _library(array: Any) -> Any:
  """Returns numpy, or the module that does the same for JAX's arrays."""
  if isinstance(array, np.ndarray):
    return np
  import jax.numpy as jnp

  return jnp


def _sigmoid(logits: Any) -> Any:
  if not isinstance(logits, np.ndarray):
    import jax

    return jax.nn.sigmoid(logits)
  unit = logits.dtype.type(1)
  with np.errstate(over='ignore'):
    return unit / (unit + np.exp(-logits))


def _softmax(logits: Any) -> Any:
  """Returns the softmax along the last axis; of equal infinities, no NaN."""
  xp = _library(logits)
  peak = logits.max(axis=-1, keepdims=True)
  peak = xp.where(xp.isinf(peak), xp.zeros_like(peak), peak)
  powers = xp.exp(logits - peak)
  total = powers.sum(axis=-1, keepdims=True)
  return powers / xp.where(total == 0, xp.ones_like(total), total)


def _best(
  xp: Any, scores: at.Float[Any, '*batch E'], count: int
) -> at.Int32[Any, '*batch K']:
  # Not lax.top_k: it does not promise that -0.0 and 0.0 tie.
  if xp is np:
    order = np.argsort(-scores, axis=-1, kind='stable')
  else:
    order = xp.argsort(-scores, axis=-1, stable=True)
  return order[..., :count].astype('int32')


def _eligible(
  xp: Any, biased: at.Float[Any, '*tokens E'], num_groups: int, top_groups: int
) -> at.Bool[Any, '*tokens E']:
  """Returns `[..., E]`, true where the expert's group is a token's choice."""
  size = biased.shape[-1] // num_groups
  groups = biased.reshape(*biased.shape[:-1], num_groups, size)
  best = xp.sort(groups, axis=-1)[..., -router_lib.GROUP_TERMS :]
  group_ids = _best(xp, best.sum(axis=-1), top_groups)
  group_of_expert = xp.arange(biased.shape[-1], dtype='int32') // size
  return (group_ids[..., None] == group_of_expert).any(axis=-2)


def _check_arguments(scores: Any, top_k: int) -> None:
  if scores.ndim != 3 or str(scores.dtype) not in ('float32', 'float64'):
    raise ValueError(
      'scores: expected float32 or float64 [R, T, E], got '
      f'{scores.dtype} '
      f'{list(scores.shape)}'
    )
  if not 1 <= top_k <= scores.shape[-1]:
    raise ValueError(f'top_k: expected 1 to E={scores.shape[-1]}, got {top_k}')


def _check_groups(
  scores: Any, bias: Any, top_k: int, num_groups: int, top_groups: int
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
