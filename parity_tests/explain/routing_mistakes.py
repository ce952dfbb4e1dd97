"""Routing weights, and local experts, as kernels get them wrong.

The weights of the experts that a kernel chose, under a rule with one mistake:
in numpy, in float64.
"""

from collections.abc import Iterator
import dataclasses

import numpy as np

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import router as router_lib


@dataclasses.dataclass(frozen=True)
class OtherInputs:
  """What a kernel with a mistake has in place of a routing.

  Attributes:
    says: the mistake, in words that follow "as if".
    arrays: `topk_ids`, `topk_weights`, or both.
  """

  says: str
  arrays: dict[str, np.ndarray]


def list_wrong_weights(
  router: router_lib.Router,
  logits: at.Float[np.ndarray, '*tokens E'],
  bias: at.Float[np.ndarray, 'E'] | None,
  ids: at.Int[np.ndarray, '*tokens K'],
) -> Iterator[tuple[str, at.Float[np.ndarray, '*tokens K']]]:
  """Yields a mistake in words, and the weights `[..., K]` float64 with it.

  Args:
    router: the rule.
    logits: `[..., E]`.
    bias: `[E]`, or None.
    ids: `[..., K]` experts.
  """
  rule = router.table
  other_scores = {'softmax': 'sigmoid', 'sigmoid': 'softmax'}
  changes = [
    *_list_sum_changes(rule),
    *(
      (f'{name} was in place of {rule.scores}', dict(scores=name))
      for name in [other_scores.get(rule.scores)]
      if name and not rule.of_chosen
    ),
  ]
  for says, fields in changes:
    changed_rule = dataclasses.replace(rule, **fields)
    yield says, router.scale * _weigh(changed_rule, logits, bias, ids)
  weights = _weigh(rule, logits, bias, ids)
  if router.scale != 1:
    yield f'the scale {router.scale:g} was forgotten', weights
    yield (
      f'the scale {router.scale:g} was applied twice',
      (router.scale**2 * weights),
    )
  # The bias of a masked expert is minus infinity, and no weight holds it.
  if bias is not None and rule.bias == 'choice' and np.isfinite(bias).all():
    biased = _weigh(rule, logits, bias, ids, in_weights=True)
    yield 'the bias was in the weights', router.scale * biased


def _list_sum_changes(rule: router_lib.Rule) -> list[tuple[str, dict]]:
  if rule.of_chosen:
    return [('they were the softmax of all experts', dict(of_chosen=False))]
  if rule.renormalise:
    return [('they were not renormalised', dict(renormalise=False))]
  return [('they were renormalised', dict(renormalise=True))]


def _weigh(
  rule: router_lib.Rule,
  logits: np.ndarray,
  bias: np.ndarray | None,
  ids: np.ndarray,
  in_weights: bool = False,
) -> np.ndarray:
  """Returns the weights `[..., K]` of experts by a rule, without a scale."""
  wide = logits.astype(np.float64)
  if bias is not None and rule.bias == 'logits':
    wide = wide + bias
  if rule.of_chosen:
    return _softmax(np.take_along_axis(wide, ids, -1))
  scores = {'softmax': _softmax, 'sigmoid': _sigmoid}.get(rule.scores)
  wide = wide if scores is None else scores(wide)
  if in_weights and bias is not None:
    wide = wide + bias
  weights = np.take_along_axis(wide, ids, -1)
  if rule.renormalise:
    weights = weights / (weights.sum(-1, keepdims=True) + rule.epsilon)
  return weights


def _softmax(logits: np.ndarray) -> np.ndarray:
  exp = np.exp(logits - logits.max(-1, keepdims=True))
  return exp / exp.sum(-1, keepdims=True)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
  with np.errstate(over='ignore'):
    return 1 / (1 + np.exp(-logits))
