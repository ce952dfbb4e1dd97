"""Matches the experts of one layer of two sides, and names their changes."""

from collections.abc import Callable
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.compare.weights import weight_forms
from hpmoe.parity_tests.compare.weights import weight_orders
from hpmoe.parity_tests.compare.weights import weight_pair
from hpmoe.parity_tests.compare.weights import weight_sides

Expert = weight_sides.Expert
Pair = weight_pair.Pair
# The most experts of the left, by length, that are tried for one of the right.
_CANDIDATES = 4
_UNITS = 'hidden units in another order, alike in gate, up and down'


@dataclasses.dataclass(frozen=True)
class Layer:
  """The findings on the experts of a layer.

  Attributes:
    findings: of groups of experts; empty if all have the same bits.
    order: the left's expert at each place of the right; -1: unknown.
    distance: the largest relative distance of an expert.
  """

  findings: tuple[weight_forms.Finding, ...]
  order: tuple[int, ...]
  distance: float


def compare_layer(
  left: weight_sides.WeightSide, right: weight_sides.WeightSide, prefix: str
) -> Layer:
  """Returns how the right's experts of a layer correspond to the left's.

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
    """Returns each finding once, for all experts that it applies to."""
    groups: dict[tuple[str, str, bool], dict[str, list[int]]] = {}
    for place, changes in self._changes.items():
      for change in changes:
        text = change.group or change.text
        key = change.kind, text, change.is_left_rounded
        texts = groups.setdefault(key, {})
        texts.setdefault(change.text, []).append(place)
    findings = []
    for (kind, group, is_left), texts in groups.items():
      text = group if len(texts) > 1 else next(iter(texts))
      places = sorted({p for places in texts.values() for p in places})
      findings.append(
        weight_forms.Finding(
          kind, _name_places(text, places, count), is_left_rounded=is_left
        )
      )
    return findings

  def _find_expert(
    self, place: int, reference: Expert, candidate: Expert
  ) -> tuple[int, list[weight_forms.Finding]]:
    """Returns the matching expert of the left, and its changes."""
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
    """Returns experts of the left with a similar norm, the nearest first."""
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
    """Returns findings on an expert that matches none of the left's."""
    changes = []
    for last in reference:
      if last not in candidate:
        text = f'{last}: absent in right'
        changes.append(weight_forms.Finding(weight_forms.WRONG, text))
        continue
      sides = [reference[last], candidate[last]]
      names = [last.removeprefix('w_')]
      if last == 'w_gate_up' and sides[0].shape == sides[1].shape:
        names = ['gate', 'up']
      parts = zip(*(np.split(side, len(names), -1) for side in sides))
      for name, (left, right) in zip(names, parts, strict=True):
        changes.append(self._explain_part(name, left, right))
    return changes

  def _explain_part(
    self, name: str, left: np.ndarray, right: np.ndarray
  ) -> weight_forms.Finding:
    wrong = weight_forms.WRONG
    pairs = weight_pair.list_pairs(left, right, self._codes)
    if any(pair.are_alike() for pair in pairs):
      return weight_forms.Finding(weight_forms.EQUAL, '')
    if not np.any(right):
      return weight_forms.Finding(wrong, f'{name}: zeros in right')
    # Files hold an expert's matrices `[out, in]`, in blocks of that.
    block = weight_sides.find_block(self._right, self._left)
    pairs = weight_pair.list_pairs(left.T, right.T, self._codes)
    scale = weight_forms.find_scale(pairs, block)
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


@dataclasses.dataclass(frozen=True)
class _Form:
  """A possible change of a matrix or bias of an expert.

  Attributes:
    finding: its name.
    move: the left's tensor -> the changed tensor.
    show: the left's tensor -> the first row of the changed one; a whole bias.
  """

  finding: weight_forms.Finding
  move: Callable[[np.ndarray], np.ndarray]
  show: Callable[[np.ndarray], np.ndarray]


def _explain(
  reference: Expert, candidate: Expert, codes: str
) -> list[weight_forms.Finding] | None:
  """Returns the changes of an expert; None if it is another expert.

  The changes are roundings and reorderings.
  """
  if set(reference) != set(candidate):
    return None
  changes: dict[weight_forms.Finding, None] = {}
  for name, left in reference.items():
    findings = _find_form(name, left, candidate[name], codes)
    if findings is None:
      return _find_units(reference, candidate, codes)
    changes |= dict.fromkeys(findings)
  return list(changes)


def _find_form(
  name: str, left: np.ndarray, right: np.ndarray, codes: str
) -> list[weight_forms.Finding] | None:
  """Returns the changes of one part; tries a form on one row first."""
  for form in _list_forms(name, left.shape):
    row, first = form.show(left), right[:1] if right.ndim > 1 else right
    rows = weight_pair.list_pairs(row, first, codes)
    if row.shape != first.shape or not any(r.may_be_alike() for r in rows):
      continue
    for pair in weight_pair.list_pairs(form.move(left), right, codes):
      if pair.are_alike():
        return _list_changes(form.finding, pair)
  return None


def _list_changes(
  finding: weight_forms.Finding, pair: Pair
) -> list[weight_forms.Finding]:
  findings = (finding, weight_forms.name_rounding(pair))
  return [f for f in findings if f.kind != weight_forms.EQUAL]


@functools.cache
def _list_forms(name: str, shape: tuple[int, ...]) -> tuple[_Form, ...]:
  """Returns the forms of a part, the likeliest first."""

  def make_order(text: str, order: np.ndarray) -> _Form:
    return _Form(
      weight_forms.Finding(weight_forms.WRONG, text),
      lambda part: part[..., order],
      lambda part: (part[:1] if part.ndim > 1 else part)[..., order],
    )

  def make_turn(text: str, count: int) -> _Form:
    """Returns the form of adjacent matrices that are transposed."""

    def turn(part: np.ndarray) -> np.ndarray:
      halves = np.split(part, count, axis=-1)
      return np.concatenate([half.T for half in halves], axis=-1)

    def show(part: np.ndarray) -> np.ndarray:
      halves = np.split(part, count, axis=-1)
      return np.concatenate([half[:, :1].T for half in halves], axis=-1)

    return _Form(weight_forms.Finding(weight_forms.WRONG, text), turn, show)

  forms = [
    _Form(
      weight_forms.Finding(weight_forms.EQUAL, ''),
      lambda part: part,
      lambda part: part[:1] if part.ndim > 1 else part,
    )
  ]
  is_gate_up = 'gate_up' in name
  if is_gate_up:
    forms += [
      make_order(words, order)
      for words, order in weight_orders.list_half_orders(shape[-1])
    ]
  if len(shape) == 2:
    forms.append(make_turn(f'{name.removeprefix("w_")}: transposed', 1))
    if is_gate_up and shape[1] == 2 * shape[0]:
      forms.append(make_turn('gate and up: transposed', 2))
  return tuple(forms)


def _find_units(
  reference: Expert, candidate: Expert, codes: str
) -> list[weight_forms.Finding] | None:
  """Returns the finding that hidden units have another order in all parts."""
  shapes = [
    [part.shape for part in side.values()] for side in (reference, candidate)
  ]
  if codes or 'w_gate_up' not in reference or shapes[0] != shapes[1]:
    return None
  gates = [np.split(s['w_gate_up'], 2, -1)[0] for s in (reference, candidate)]
  rows = weight_pair.list_pairs(*(np.sort(gate[:1]) for gate in gates))
  if not any(row.are_alike() for row in rows):
    return None
  pairs = weight_pair.list_pairs(gates[0].T, gates[1].T)
  orders = (weight_orders.match_rows(pair.left, pair.right) for pair in pairs)
  order = next((order for order in orders if order is not None), None)
  if order is None:
    return None
  finding = weight_forms.Finding(weight_forms.REORDERED, _UNITS)
  changes: dict[weight_forms.Finding, None] = {}
  for name, left in reference.items():
    if 'gate_up' in name:
      left = left[..., np.concatenate([order, order + len(order)])]
    elif name[0] == 'w':
      left = left[order]
    for pair in weight_pair.list_pairs(left, candidate[name]):
      if pair.are_alike():
        changes |= dict.fromkeys(_list_changes(finding, pair))
        break
    else:
      return None
  return list(changes)
