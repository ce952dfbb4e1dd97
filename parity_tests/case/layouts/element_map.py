"""Where each element of a tensor of ours is in somebody else's.

One function says it, `Placed.there`; that a tensor is laid out, that this is
undone, and the place of an element in a report all follow from it.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from hpmoe.parity_tests.case.layouts import row_orders

if TYPE_CHECKING:
  from hpmoe.parity_tests.case.layouts import layouts

Sizes = Mapping[str, int]
Index = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Placed:
  """Where each element of a tensor of ours is in theirs.

  Attributes:
    layout: theirs.
    sizes: of our axes.
    theirs: the same there, but for what is padding.
    rows: our order of rows, where theirs is another; or None.
    slots: there, coordinates of slots, by axis.
  """

  layout: 'layouts.Layout'
  sizes: Sizes
  theirs: Sizes
  rows: row_orders.Rows | None = None
  slots: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def shape(self) -> tuple[int, ...]:
    """Theirs."""
    return tuple(map(self._size, self.layout.axes))

  def there(self, index: Index, copy: int = 0) -> Index:
    """Returns the coordinates of elements in theirs.

    Args:
      index: their coordinates in ours, arrays that broadcast.
      copy: which place of an expert that has several.

    Raises:
      KeyError: it is in a row that is no slot.
    """
    layout = self.layout
    at = dict(zip(layout.spec, index))
    if self.rows is not None:
      slot = self.rows.slot_of(at.pop('R'), at.pop('N'))
      at |= {axis: of[slot] for axis, of in self.slots.items()}
    elif layout.experts:
      at |= self._of_expert(at, copy)
    both = layout.both
    if both in at:
      at[both] = self._in_halves(at[both], both[1:])
    return tuple(self._coordinate(axis, at) for axis in layout.axes)

  def of_rank(
    self, there: Sequence[np.ndarray]
  ) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns ranks, and coordinates in what each of them has."""
    layout = self.layout
    at = layout.rank_axis(layout.axes)
    size = self._size(layout.axes[at]) // self.sizes['R']
    rank, local = np.divmod(there[at], size)
    return rank, [*there[:at], local, *there[at + 1 :]]

  def apply(self, array: np.ndarray) -> np.ndarray:
    """Returns a tensor of ours as theirs; padding is zero."""
    expected = self._own_shape(self.sizes['N'])
    if array.shape != expected:
      raise ValueError(
        f'{self.layout.name}: expected {list(expected)}, got '
        f'{list(array.shape)}'
      )
    every = self._every(None)
    there = np.zeros(self.shape, array.dtype)
    held = array[every] if self.rows is not None else array
    if self._has_ids:
      place = places(self.layout.experts)[held, 0].astype(array.dtype)
      held = np.where(held < 0, held, place)
    for copy in range(self._copies):
      there[self.there(every, copy)] = held
    return there

  def undo(self, array: np.ndarray, ranks: Sequence[int] | None) -> np.ndarray:
    """Returns a tensor of theirs as ours.

    Raises:
      ValueError: its shape is another, copies of an expert differ, or what
        must be zero is not.
    """
    if array.shape != self.shape:
      raise ValueError(
        f'{self.layout.name}: expected [{" ".join(self.layout.axes)}] = '
        f'{list(self.shape)}, got {list(array.shape)}'
      )
    if self.layout.is_ours:
      return array
    rows = self.sizes['N'] if self.rows is not None else self.theirs['N']
    every = self._every(ranks)
    held = array[self.there(every)]
    for copy in range(1, self._copies):
      self._check_copy(held, array[self.there(every, copy)])
    if self.layout.zeros:
      self._check_zeros(array, every)
    if self._has_ids:
      held = self._experts_of(held)
    if self.rows is None:
      return np.ascontiguousarray(held)
    ours = np.zeros(self._own_shape(rows), array.dtype)
    ours[every] = held
    return ours

  def check_rows(self, order: np.ndarray | None) -> None:
    """Refuses rows that have no room.

    Raises:
      ValueError: there is one.
    """
    name, axes = self.layout.name, self.layout.row_axes
    if order is not None:
      expected = tuple(map(self._size, axes))
      if order.shape != expected:
        raise ValueError(
          f'{name}: {self.layout.order}: expected [{" ".join(axes)}] = '
          f'{list(expected)}, got {list(order.shape)}'
        )
      return
    for axis, of in self.slots.items():
      rows = self.rows
      assert rows is not None
      at = rows.used
      most = int(of[at].max(initial=-1)) + 1
      if most > self.theirs[axis]:
        expert = int(rows.expert[at[of[at].argmax()]])
        raise ValueError(
          f'{name}: expected {axis} of at least {most}, which expert {expert} '
          f'needs, got {self.theirs[axis]}: a slot that is dropped has id -1'
        )

  @property
  def _has_ids(self) -> bool:
    return self.layout.name == 'topk_ids' and bool(self.layout.experts)

  @property
  def _copies(self) -> int:
    alone = self.rows is not None or self._has_ids or not self.layout.experts
    return 1 if alone else places(self.layout.experts).shape[1]

  def _every(self, ranks: Sequence[int] | None) -> Index:
    """Returns the coordinates in ours of all that is theirs."""
    if self.rows is None:
      return np.ix_(*map(np.arange, self._own_shape(self.theirs['N'])))
    slots = self.rows.used
    if ranks is not None:
      slots = slots[np.isin(self.rows.owner, ranks)]
    for of in self.slots.values():
      lost = slots[of[slots] < 0]
      if lost.size:
        raise ValueError(
          f'{self.layout.name}: expected a row of slot {lost[0]} in '
          f'{self.layout.order}, got none'
        )
    columns = np.arange(self._own_shape(0)[-1])
    row = self.rows.owner[slots], self.rows.row[slots]
    return row[0][:, None], row[1][:, None], columns[None]

  def _own_shape(self, rows: int) -> tuple[int, ...]:
    sizes = {**self.sizes, 'N': rows}
    return tuple(sizes[axis] for axis in self.layout.spec)

  def _size(self, axis: str) -> int:
    """Returns the length of an axis of theirs."""
    both = axis == self.layout.both
    parts = (axis[1:],) * 2 if both else self.layout.parts(axis)
    sizes = [self._padded(part, self.theirs[part]) for part in parts]
    size = sum(sizes) if both else math.prod(sizes)
    return self._padded(axis, size)

  def _padded(self, axis: str, size: int) -> int:
    block = dict(self.layout.pads).get(axis, 1)
    return -(-size // block) * block

  def _coordinate(self, axis: str, at: Mapping[str, np.ndarray]) -> np.ndarray:
    if axis in at:
      return at[axis]
    first, *rest = self.layout.parts(axis)
    coordinate = at[first]
    for part in rest:
      size = self._padded(part, self.theirs[part])
      coordinate = coordinate * size + at[part]
    return coordinate

  def _of_expert(
    self, at: Mapping[str, np.ndarray], copy: int
  ) -> dict[str, np.ndarray]:
    place = places(self.layout.experts)[:, copy]
    if 'E' in at:
      return dict(E=place[at['E']])
    if 'L' not in at:
      return {}
    found = place[at['R'] * self.sizes['L'] + at['L']]
    return dict(zip('RL', np.divmod(found, self.theirs['L'])))

  def _in_halves(self, column: np.ndarray, axis: str) -> np.ndarray:
    half, feature = np.divmod(column, self.sizes[axis])
    if self.layout.halves == 'interleaved':
      return feature * 2 + half
    half = 1 - half if self.layout.halves == 'up_gate' else half
    return half * self._padded(axis, self.sizes[axis]) + feature

  def _experts_of(self, ids: np.ndarray) -> np.ndarray:
    experts = np.array(self.layout.experts)
    outside = ids[(ids < -1) | (ids >= len(experts))]
    if outside.size:
      raise ValueError(
        f'topk_ids: expected places 0 to {len(experts) - 1}, got {outside[0]}'
      )
    return np.where(ids < 0, ids, experts[ids]).astype(ids.dtype)

  def _check_copy(self, first: np.ndarray, other: np.ndarray) -> None:
    apart = _bytes(first) != _bytes(other)
    if apart.any():
      expert = np.argwhere(apart)[0]
      raise ValueError(
        f'{self.layout.name}: expected the same bits in each place of an '
        f'expert, got others at {expert[:-1].tolist()} of ours'
      )

  def _check_zeros(self, array: np.ndarray, every: Index) -> None:
    rest = np.array(array)
    for copy in range(self._copies):
      rest[self.there(every, copy)] = 0
    bad = _bytes(rest) if rest.dtype.kind == 'V' else rest
    if bad.any():
      at = np.argwhere(bad)[0].tolist()
      raise ValueError(
        f'{self.layout.name}: expected zeros in the padding, got '
        f'{array[tuple(at)]} at {at} of theirs'
      )


def places(experts: Sequence[int]) -> np.ndarray:
  """Returns `[E, most]`: places of each expert, again where it has fewer."""
  of = {e: np.flatnonzero(np.array(experts) == e) for e in {*experts} - {-1}}
  most = max(map(len, of.values()))
  return np.array([np.resize(of[e], most) for e in sorted(of)])


def _bytes(array: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(array).view(f'u{array.dtype.itemsize}')
