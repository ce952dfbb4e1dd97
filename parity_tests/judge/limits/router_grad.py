"""Golden gradients of router logits, and how far those of a kernel may be off.

With a_k the scores of a token's K experts c_k, S their sum and epsilon, and f
the scale, a weight is w_k = f a_k / S, or f a_k.  Its gradients are

  dw_k / da_j = f (1[j = k] / S - a_k / S^2),  or f 1[j = k]
  da_k / dz_e = a_k (1 - a_k) 1[e = c_k]       of a sigmoid
                a_k (1[e = c_k] - s_e)         of a softmax with shares s
                a_k (1[e = c_k] - a_e)         of a softmax of chosen logits
                1[e = c_k]                     of logits as they are

and their product J has one column for each weight: dz = J dw.  The choice of
experts has no gradient.

Kernels write these sums in other orders, and what cancels in one does not in
another.  So the error of each is bounded by the sum of magnitudes of all terms,
1 - a having the magnitude 1, times the roundings of the longest path: three
factors that are scores or weights, of r roundings each, two sums over K of a
product each, and eight operations more.
"""

import numpy as np

from hpmoe.parity_tests.judge.limits import router_limits
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import rounding
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import router as router_lib

_SCORES, _SUMS, _OPERATIONS = 3, 2, 8


def bound_logits_grad(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, 'T E'],
  bias: at.Float[np.ndarray, 'E'] | None,
  topk_ids: at.Int[np.ndarray, 'T K'],
  d_weights: bounded_values.Bounded,
  kernels: int = 1,
) -> bounded_values.Bounded:
  """Returns gradients `[T, E]` of logits through weights, with their bound.

  Args:
    router: the rule.
    logits: `[T, E]` as the kernel gets them.
    bias: `[E]`; None: 0.
    topk_ids: `[T, K]` experts of each token.
    d_weights: `[T, K]` gradients of their weights.
    kernels: see `rounding.kernels`.

  Where gradients of weights have a variance, those of logits have: of narrower
  numbers, or a right kernel's in other roundings, that of the largest error.
  """
  slopes, sizes = _slopes(router, logits, bias, topk_ids)
  grads, grad_error = d_weights.value, d_weights.bound()
  unit = ulp.unit_roundoff(router.dtype)
  roundings = _SCORES * router_limits.count_weight_roundings(
    router, logits, bias
  )
  roundings += _SUMS * (router.top_k + 1) + _OPERATIONS
  # So many roundings that no digit is left.
  if roundings * unit >= 1:
    value = np.einsum('tke,tk->te', slopes, grads)
    return bounded_values.Bounded(value, np.full(value.shape, np.inf))
  relative = rounding.gamma(roundings, unit)
  size = np.abs(grads) + grad_error
  own = relative * np.einsum('tke,tk->te', sizes, size)
  underflow = roundings * ulp.smallest_normal(router.dtype)
  own += underflow * (1 + size.sum(-1, keepdims=True))
  error = np.einsum('tke,tk->te', np.abs(slopes), grad_error) + own
  value = np.einsum('tke,tk->te', slopes, grads)
  variance = np.square(kernels * error)
  if d_weights.variance is not None and kernels == 1:
    variance = np.einsum('tke,tk->te', np.square(slopes), d_weights.variance)
    variance += np.square(own)
  return bounded_values.Bounded(value, error, variance)


def _slopes(router, logits, bias, topk_ids) -> tuple[np.ndarray, np.ndarray]:
  """Returns dw_k / dz_e `[T, K, E]`, and the magnitudes of their terms."""
  table = router.table
  wide = logits.astype(np.float64)
  if bias is not None and table.bias == 'logits':
    wide = wide + bias.astype(np.float64)
  is_own = topk_ids[..., None] == np.arange(wide.shape[-1])
  scores, shares, rest = _scores(table, wide, is_own)
  by_score, size_by_score = _slopes_of_weights(router, scores)
  if table.scores == 'none':
    by_logit, size_by_logit = (is_own.astype(np.float64),) * 2
  elif table.scores == 'sigmoid':
    by_logit = is_own * (scores * rest)[..., None]
    size_by_logit = is_own * scores[..., None]
  else:
    by_logit = scores[..., None] * (is_own - shares[:, None])
    size_by_logit = scores[..., None] * (is_own + shares[:, None])
  return by_score @ by_logit, size_by_score @ size_by_logit


def _scores(
  table: router_lib.Rule, logits: np.ndarray, is_own: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns scores `[T, K]` of chosen experts, shares `[T, E]`, 1 - scores.

  Shares are those of all experts in a softmax, 0 of those that have no part.
  """

  def choose(of_experts: np.ndarray) -> np.ndarray:
    return np.where(is_own, of_experts[:, None], 0.0).sum(-1)

  if table.scores == 'none':
    return choose(logits), np.zeros_like(logits), choose(1 - logits)
  if table.scores == 'sigmoid':
    scores, rest = (_sigmoid(sign * logits) for sign in (1, -1))
    return choose(scores), np.zeros_like(logits), choose(rest)
  if table.of_chosen:
    logits = np.where(is_own.any(1), logits, -np.inf)
  peak = logits.max(-1, keepdims=True)
  powers = np.exp(logits - np.where(np.isinf(peak), 0.0, peak))
  total = powers.sum(-1, keepdims=True)
  shares = powers / np.where(total == 0, 1.0, total)
  return choose(shares), shares, choose(1 - shares)


def _slopes_of_weights(
  router: router_lib.Router, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns dw_k / da_j `[T, K, K]`, and the magnitudes of their terms."""
  own = np.broadcast_to(np.eye(router.top_k), (*scores.shape, router.top_k))
  if not router.table.renormalise:
    return router.scale * own, abs(router.scale) * own
  total = (scores.sum(-1) + router.table.epsilon)[:, None, None]
  part = scores[..., None] / total
  slopes, sizes = (own - part) / total, (own + np.abs(part)) / np.abs(total)
  return router.scale * slopes, abs(router.scale) * sizes


def _sigmoid(logits: np.ndarray) -> np.ndarray:
  power = np.exp(-np.abs(logits))
  return np.where(logits >= 0, 1.0, power) / (1.0 + power)
