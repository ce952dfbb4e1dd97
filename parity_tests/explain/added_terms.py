"""A sum that lost a term, or has one with a wrong factor: of y and of dx.

A token's sum has a term of each of its slots, and perhaps one of the shared
experts.  Which term it is, and by how much it is off, follows from what is
wrong: `explain` then judges whether that is all.
"""

from collections.abc import Iterator
import dataclasses

import numpy as np

from hpmoe.parity_tests.explain import element_sizes
from hpmoe.parity_tests.explain import failed_stage
from hpmoe.parity_tests.explain import known_bugs

# The rows of slots, by the sum that adds them.
_SLOTS = {'y': 'returned', 'dx': 'd_returned'}
# Of a token's wrong elements, the share that one slot must explain.
_SHARE = 0.9
# A factor as near to one is a rounding.
_SMALLEST = 2.0**-9
_LOOK = 'how many slots of a token are added'


def list_changes(
  stage: failed_stage.FailedStage,
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields the words of a lost or doubled slot, where to look, and the sum."""
  name = _SLOTS.get(stage.name, '')
  if name not in stage.reads[stage.name]:
    return
  for words, factor in (('was left out', 0), ('was added twice', 2)):
    yield from _list_lost(stage, name, words, factor)


def _list_lost(
  stage: failed_stage.FailedStage, name: str, words: str, factor: int
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields the sum in which wrong tokens have one slot times a factor."""
  ids = stage.tiling.topk_ids
  changed_sum = stage.expected.copy()
  best = np.full(ids.shape[:2], _SHARE)
  slots = np.full(ids.shape[:2], -1)
  for slot in range(ids.shape[-1]):
    other = stage.recompute({stage.name: {name: _scale_slot(slot, factor)}})
    share = _share_explained(stage, other)
    is_better = share > best if slot else share >= best
    changed_sum[is_better], slots[is_better] = other[is_better], slot
    best = np.where(is_better, share, best)
  if (slots >= 0).any():
    says = f'as if {_name_slots(slots, ids)} {words} in {stage.name}'
    yield says, _LOOK, changed_sum


def _scale_slot(slot: int, factor: int) -> known_bugs.Bug:
  def scale(a: np.ndarray) -> np.ndarray:
    scaled = a.copy()
    scaled[:, :, slot] *= factor
    return scaled

  return scale


def _share_explained(
  stage: failed_stage.FailedStage, other: np.ndarray
) -> np.ndarray:
  """Returns `[R, T]`, the share of a token's wrong elements explained."""
  actual, expected, changed_sum = (
    a.astype(np.float64) for a in (stage.actual, stage.expected, other)
  )
  with np.errstate(invalid='ignore', over='ignore'):
    alike = np.abs(actual - changed_sum) <= np.abs(actual - expected) / 16
  count = np.maximum(stage.bad.sum(-1), 1)
  return (alike & stage.bad).sum(-1) / count


def _name_slots(slots: np.ndarray, ids: np.ndarray) -> str:
  """Returns which slots `[R, T]` they are, -1: none, in words."""
  places = np.argwhere(slots >= 0)
  owners = {int(ids[rank, token, slots[rank, token]]) for rank, token in places}
  numbers = {int(slots[rank, token]) for rank, token in places}
  expert = f' (expert {min(owners)})' if len(owners) == 1 else ''
  if len(places) == 1:
    return f'slot {min(numbers)}{expert} of token {places[0, 1]}'
  slot = f'slot {min(numbers)}' if len(numbers) == 1 else 'one slot'
  return f'{slot}{expert} of {len(places)} tokens'


@dataclasses.dataclass(frozen=True)
class Scaled:
  """A sum in which one addend has another factor.

  Attributes:
    says: which one, and the factor.
    changed_sum: `[R, ...]` that sum.
  """

  says: str
  changed_sum: np.ndarray


def list_scaled(stage: failed_stage.FailedStage) -> Iterator[Scaled]:
  """Yields the sum with each addend times the factor that fits best.

  None, where rows of slots are all that is added: that is a factor of the sum.
  """
  reads = stage.reads[stage.name]
  addends = [n for n in reads if known_bugs.is_addend(stage.name, n)]
  if addends and stage.name in _SLOTS:
    addends.append(_SLOTS[stage.name])
  for name in addends:
    rest_sum = stage.recompute({stage.name: {name: np.zeros_like}})
    for factor in _round_factor(_fit(stage, rest_sum)):
      changed_sum = stage.recompute({stage.name: {name: _multiply_by(factor)}})
      says = f'as if {name} was multiplied by {factor:.4g} in {stage.name}'
      yield Scaled(says, changed_sum)


def _round_factor(factor: float | None) -> list[float]:
  """Returns a fitted factor as people write it, then as it is; []: it is 1."""
  if factor is None or abs(factor - 1) < _SMALLEST:
    return []
  rounded = [round(factor, digits) for digits in (2, 3)]
  near = [r for r in rounded if abs(r - factor) <= abs(factor - 1) / 16]
  return [*dict.fromkeys((*near, factor))]


def _multiply_by(factor: float) -> known_bugs.Bug:
  return lambda a: a.astype(np.float32) * np.float32(factor)


def _fit(stage: failed_stage.FailedStage, rest_sum: np.ndarray) -> float | None:
  """Returns the factor of an addend that fits the wrong elements, or None.

  Args:
    stage: what failed.
    rest_sum: the sum that lacks the addend.
  """
  unit = element_sizes.measure_sizes(stage.expected)
  unit = np.where(unit > 0, unit, 1.0)
  actual, expected, rest = (
    (a.astype(np.float64) / unit)[stage.bad]
    for a in (stage.actual, stage.expected, rest_sum)
  )
  addend = expected - rest
  size = float(addend @ addend)
  if not 0 < size < np.inf:
    return None
  factor = 1 + float((actual - expected) @ addend) / size
  return factor if np.isfinite(factor) else None
