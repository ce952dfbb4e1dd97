"""Gradients of router logits as kernels get them wrong, in numpy float64."""

from collections.abc import Iterator
import dataclasses

import numpy as np

from hpmoe.parity_tests.judge.limits import router_grad
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference import routing
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import router as router_lib

# Limits that one with a mistake may be off, computed by itself.
_NEAR_UNITS = 4
# And of itself, for its own roundings.
_NEAR_SHARE = 2.0**-18


@dataclasses.dataclass(frozen=True)
class Inputs:
  """What gradients of logits are made of.

  Attributes:
    router: the rule.
    logits: `[R, T, E]`.
    bias: `[E]`, or None.
    ids: `[R, T, K]` experts.
    d_weights: `[R, T, K]` float64 gradients of their weights.
  """

  router: router_lib.Router
  logits: at.Float[np.ndarray, 'R T E']
  bias: at.Float[np.ndarray, 'E'] | None
  ids: at.Int[np.ndarray, 'R T K']
  d_weights: at.Float[np.ndarray, 'R T K']

  def differentiate(self, **changes) -> np.ndarray:
    """Returns gradients `[R, T, E]` of these inputs with changes."""
    own = dataclasses.replace(self, **changes)
    shape = own.logits.shape
    flat = (
      a.reshape(-1, a.shape[-1]) for a in (own.logits, own.ids, own.d_weights)
    )
    logits, ids, d_weights = flat
    grads = router_grad.bound_logits_grad(
      own.router, logits, own.bias, ids, bounded_values.exact(d_weights)
    )
    return grads.value.reshape(shape)


def explain(
  inputs: Inputs,
  actual: at.Float[np.ndarray, 'R T E'],
  limit: at.Float[np.ndarray, 'R T E'],
  is_bad: at.Bool[np.ndarray, 'R T E'],
) -> str:
  """Returns the mistake that makes all wrong gradients, in words, or ''."""
  experts = np.arange(actual.shape[-1])
  is_chosen = (inputs.ids[..., None] == experts).any(-2)
  is_zero = inputs.differentiate() == 0
  if is_bad.any() and not (is_bad & (is_chosen | ~is_zero)).any():
    return 'experts that were not chosen have gradients'
  for says, grads in list_mistakes(inputs):
    near = np.maximum(_NEAR_UNITS * limit, _NEAR_SHARE * np.abs(grads))
    if (np.abs(actual - grads) <= near)[is_bad].all():
      return f'as if {says}'
  return ''


def list_mistakes(inputs: Inputs) -> Iterator[tuple[str, np.ndarray]]:
  """Yields mistakes in words, and the gradients `[R, T, E]` with them."""
  router = inputs.router
  differentiate = inputs.differentiate
  if router.scale != 1:
    for power, says in ((0, 'forgotten'), (2, 'applied twice')):
      other = dataclasses.replace(router, scale=router.scale**power)
      yield (
        f'the scale {router.scale:g} was {says}',
        differentiate(router=other),
      )
  if router.top_k > 1:
    d_weights = inputs.d_weights
    for says, changed_order in (
      ('in reverse order', d_weights[..., ::-1]),
      ('of the previous slot', np.roll(d_weights, 1, -1)),
      ('of the next slot', np.roll(d_weights, -1, -1)),
    ):
      grads = differentiate(d_weights=changed_order)
      yield f'gradients of weights were {says}', grads
  weights = routing.weigh_choice(
    router, inputs.logits.astype(np.float64), inputs.bias, inputs.ids
  )
  says = 'weights were in place of their gradients'
  yield says, differentiate(d_weights=weights)
  yield 'they had the opposite sign', -differentiate()
  plain = np.zeros(inputs.logits.shape)
  np.put_along_axis(plain, inputs.ids, inputs.d_weights, -1)
  yield 'gradients of weights were those of logits', plain
  scores, of_chosen, renormalise = _kind(router.table)
  kinds = {(scores, of_chosen, renormalise)}
  for name, rule in router_lib.RULES.items():
    if renormalise and _kind(rule) == (scores, of_chosen, False):
      kinds.add(_kind(rule))
      other = dataclasses.replace(router, rule=name, groups=1, top_groups=1)
      says = 'they were those of weights that are not renormalised'
      yield says, differentiate(router=other)
      break
  for name, rule in router_lib.RULES.items():
    if _kind(rule) not in kinds:
      kinds.add(_kind(rule))
      other = dataclasses.replace(router, rule=name, groups=1, top_groups=1)
      yield f'the rule was {name}', differentiate(router=other)


def _kind(rule: router_lib.Rule) -> tuple[str, bool, bool]:
  """Returns what of a rule decides its gradients."""
  return rule.scores, rule.of_chosen, rule.renormalise
