"""The experts of one layer in two sides: which is which, and what was done."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.parity_tests.compare.weights import weight_forms
from hpmoe.parity_tests.compare.weights import weight_orders
from hpmoe.parity_tests.compare.weights import weight_pair
from hpmoe.parity_tests.compare.weights import weight_sides

Expert = weight_sides.Expert
Pair = weight_pair.Pair
# Experts of the left that one of the right is tried against, by its length.
_CANDIDATES = 4
_UNITS = 'hidden units in another order, alike in gate, up and down'


@dataclasses.dataclass(frozen=True)
class Layer:
  """What the experts of a layer are.

  Attributes:
    findings: of groups of experts; none where all have the same bits.
    order: the left's expert in each place of the right; -1: none is known.
    distance: the largest of an expert's, relatively.
  """

  findings: tuple[weight_forms.Finding, ...]
  order: tuple[int, ...]
  distance: float


def compare_layer(
  left: weight_sides.WeightSide, right: weight_sides.WeightSide, prefix: str
) -> Layer:
  """Returns what the experts of a layer of the right are in the left's.

  Args:
    left: the reference.
    right: the candidate.
    prefix: of the layer's experts, see `parameters.experts_prefix`.
  """
  return _Comparison(left, right, prefix).run()


class _Comparison:
  """The experts of one layer; the left's lengths are computed once."""

  def __init__(
    self,
    left: weight_sides.WeightSide,
    right: weight_sides.WeightSide,
    prefix: str,
  ):
    self._left, self._right, self._prefix = left, right, prefix
    self._codes = next(
      (
        codes
        for side in (left, right)
        if (codes := side.find_codes(f'{prefix}w_down'))
      ),
      '',
    )
    self._lengths: np.ndarray | None = None
    self._changes: dict[int, list[weight_forms.Finding]] = {}

  def run(self) -> Layer:
    left, right = self._left, self._right
    count = right.config.num_experts
    order, distance = [-1] * count, 0.0
    for place in range(count):
      candidate, notes = right.read_expert(self._prefix, place)
      reference, left_notes = self._read_left(place)
      for note in [f'in left {n}' for n in left_notes if n not in notes] + [
        note for note in notes if note not in left_notes
      ]:
        self._add(place, weight_forms.Finding(weight_forms.WRONG, note))
      if not candidate or not reference:
        if reference and not notes:
          text = 'absent in right'
          self._add(place, weight_forms.Finding(weight_forms.WRONG, text))
        continue
      order[place], changes = self._find_expert(place, reference, candidate)
      if order[place] < 0:
        changes = self._explain_rest(reference, candidate)
      for change in changes:
        self._add(place, change)
      if self._changes.get(place) or order[place] != place:
        distance = max(distance, _measure(reference, candidate))
    findings = [*self._describe_order(order), *self._list_findings(count)]
    absent = left.config.num_experts - count
    if absent:
      text = f'{count} experts, left has {left.config.num_experts}'
      findings.append(weight_forms.Finding(weight_forms.WRONG, text))
    return Layer(tuple(findings), tuple(order), distance)

  def _read_left(self, place: int) -> tuple[Expert, list[str]]:
    if place >= self._left.config.num_experts:
      return {}, []
    return self._left.read_expert(self._prefix, place)

  def _add(self, place: int, change: weight_forms.Finding) -> None:
    if change.kind != weight_forms.EQUAL:
      self._changes.setdefault(place, []).append(change)

  def _list_findings(self, count: int) -> list[weight_forms.Finding]:
    """Returns one finding for all experts of which it is true."""
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for place, changes in self._changes.items():
      for change in changes:
        key = (change.kind, change.group or change.text)
        texts = groups.setdefault(key, {})
        texts.setdefault(change.text, []).append(place)
    findings = []
    for (kind, group), texts in groups.items():
      text = group if len(texts) > 1 else next(iter(texts))
      places = sorted({p for places in texts.values() for p in places})
      findings.append(
        weight_forms.Finding(kind, _name_places(text, places, count))
      )
    return findings

  def _find_expert(
    self, place: int, reference: Expert, candidate: Expert
  ) -> tuple[int, list[weight_forms.Finding]]:
    """Returns which of the left's experts it is, and what was done to it."""
    changes = _explain(reference, candidate, self._codes)
    if changes is not None:
      return place, changes
    for other in self._list_nearest(candidate):
      if other == place:
        continue
      changes = _explain(self._read_left(other)[0], candidate, self._codes)
      if changes is not None:
        return other, changes
    return -1, []

  def _list_nearest(self, candidate: Expert) -> list[int]:
    """Returns experts of the left that are about as long, the nearest first."""
    if self._lengths is None:
      self._lengths = np.array(
        [
          _measure_length(self._read_left(e)[0])
          for e in range(self._left.config.num_experts)
        ]
      )
    apart = np.abs(self._lengths - _measure_length(candidate))
    return [int(e) for e in np.argsort(apart)[:_CANDIDATES]]

  def _explain_rest(
    self, reference: Expert, candidate: Expert
  ) -> list[weight_forms.Finding]:
    """Returns what may be said of an expert that is none of the left's."""
    changes = []
    for last in reference:
      if last not in candidate:
        text = f'{last}: absent in right'
        changes.append(weight_forms.Finding(weight_forms.WRONG, text))
        continue
      pairs = list(
        weight_pair.list_pairs(reference[last], candidate[last], self._codes)
      )
      names = [last.removeprefix('w_')]
      if last == 'w_gate_up' and reference[last].shape == candidate[last].shape:
        names = ['gate', 'up']
      for number, name in enumerate(names):
        halves = [
          pair.with_arrays(
            np.split(pair.left, len(names), -1)[number],
            np.split(pair.right, len(names), -1)[number],
          )
          for pair in pairs
        ]
        changes.append(self._explain_part(name, halves))
    return changes

  def _explain_part(self, name: str, pairs: list[Pair]) -> weight_forms.Finding:
    left, right = pairs[0].left, pairs[0].right
    wrong = weight_forms.WRONG
    if any(pair.are_alike() for pair in pairs):
      return weight_forms.Finding(weight_forms.EQUAL, '')
    if not np.any(right):
      return weight_forms.Finding(wrong, f'{name}: zeros in right')
    # Files hold an expert's matrices `[out, in]`, in blocks of that.
    block = weight_sides.find_block(self._right, self._left)
    transposed = [pair.with_arrays(pair.left.T, pair.right.T) for pair in pairs]
    scale = weight_forms.find_scale(transposed, block)
    if scale is not None:
      group = f'{name}: {scale.group}' if scale.group else ''
      return weight_forms.Finding(wrong, f'{name}: {scale.text}', group=group)
    text = weight_forms.describe_difference(left, right)
    return weight_forms.Finding(
      wrong, f'{name}: {text}', group=f'{name}: of no known relation to left'
    )

  def _describe_order(self, order: list[int]) -> list[weight_forms.Finding]:
    places = range(len(order))
    if all(source in (-1, place) for place, source in enumerate(order)):
      return []
    whole = np.array(
      [p if source < 0 else source for p, source in zip(places, order)]
    )
    text = weight_orders.describe_order(whole, 'expert')
    return [weight_forms.Finding(weight_forms.WRONG, text, tuple(order))]


def _name_places(text: str, places: list[int], count: int) -> str:
  if len(places) == count:
    return text
  return f'expert{"s" * (len(places) > 1)} {name_numbers(places)}: {text}'


def name_numbers(numbers: list[int]) -> str:
  """Returns ascending numbers in few words, such as '0-3, 7'."""
  runs: list[list[int]] = []
  for number in numbers:
    if runs and number == runs[-1][1] + 1:
      runs[-1][1] = number
    else:
      runs.append([number, number])
  texts = [str(a) if a == b else f'{a}-{b}' for a, b in runs]
  return ', '.join(texts[:6]) + (', ...' if len(texts) > 6 else '')


def _measure_length(expert: Expert) -> float:
  """Returns a norm that no order of elements changes."""
  total = sum(np.vdot(a, a).real for n, a in expert.items() if n[0] == 'w')
  return float(np.sqrt(total))


def _measure(reference: Expert, candidate: Expert) -> float:
  return max(
    weight_forms.measure_distance(reference[n], candidate[n])
    for n in reference
    if n in candidate
  )


def _explain(
  reference: Expert, candidate: Expert, codes: str
) -> list[weight_forms.Finding] | None:
  """Returns what was done to an expert; None: it is another one.

  What a rounding is, and what was reordered.
  """
  if set(reference) != set(candidate):
    return None
  if all(
    a.shape == candidate[n].shape and np.array_equal(a, candidate[n])
    for n, a in reference.items()
  ):
    return []
  pairs = {
    n: list(weight_pair.list_pairs(a, candidate[n], codes))
    for n, a in reference.items()
  }
  changes: dict[weight_forms.Finding, None] = {}
  for find in (_find_parts, _find_units):
    changes.clear()
    for name in pairs:
      explanation = _find_first(find, name, pairs)
      if explanation is None:
        break
      changes |= dict.fromkeys(explanation)
    else:
      return list(changes)
  return None


def _find_first(
  find, name: str, pairs: Mapping[str, list[Pair]]
) -> list[weight_forms.Finding] | None:
  for pair in pairs[name]:
    form = find(name, pair, pairs)
    if form is not None:
      rounding = weight_forms.name_rounding(pair)
      findings = (form, rounding)
      return [f for f in findings if f.kind != weight_forms.EQUAL]
  return None


def _match(gate_up: Pair) -> np.ndarray | None:
  """Returns the left's hidden unit in each place of the right."""
  if gate_up.left.shape != gate_up.right.shape:
    return None
  sides = (gate_up.left, gate_up.right)
  gates = [np.split(side, 2, axis=-1)[0].T for side in sides]
  return weight_orders.match_rows(*gates)


def _find_parts(
  name: str, pair: Pair, pairs: Mapping[str, list[Pair]]
) -> weight_forms.Finding | None:
  """Returns what was done to one matrix or bias of an expert."""
  del pairs
  if pair.are_alike():
    return weight_forms.Finding(weight_forms.EQUAL, '')
  wrong = weight_forms.WRONG
  if 'gate_up' in name:
    for words, order in weight_orders.list_half_orders(pair.left.shape[-1]):
      if pair.are_alike(pair.left[..., order]):
        return weight_forms.Finding(wrong, words)
  if pair.left.ndim != 2:
    return None
  if pair.are_alike(pair.left.T):
    return weight_forms.Finding(wrong, f'{name[2:]}: transposed')
  if 'gate_up' not in name:
    return None
  halves = np.split(pair.left, 2, axis=-1)
  if halves[0].shape == halves[0].T.shape:
    transposed = np.concatenate([half.T for half in halves], axis=-1)
    if pair.are_alike(transposed):
      return weight_forms.Finding(wrong, 'gate and up: transposed')
  return None


def _find_units(
  name: str, pair: Pair, pairs: Mapping[str, list[Pair]]
) -> weight_forms.Finding | None:
  """As `_find_parts`, of hidden units that are in another order in all."""
  if pair.codes or 'w_gate_up' not in pairs:
    return None
  orders = filter(lambda o: o is not None, map(_match, pairs['w_gate_up']))
  order = next(orders, None)
  if order is None:
    return None
  if 'gate_up' in name:
    columns = np.concatenate([order, order + len(order)])
    reordered = pair.left[..., columns]
  else:
    reordered = pair.left if name[0] == 'b' else pair.left[order]
  if not pair.are_alike(reordered):
    return None
  return weight_forms.Finding(weight_forms.REORDERED, _UNITS)
