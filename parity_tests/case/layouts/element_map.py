"""Maps each element of our tensor to its position in the user's tensor.

One function does it, `ElementMap.find_places`; applying a layout, undoing it,
and the position of an element in a report all use it.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math

import numpy as np

from hpmoe.parity_tests.case.layouts import declaration
from hpmoe.parity_tests.case.layouts import row_orders
from hpmoe.parity_tests.case.layouts import swizzles

Sizes = Mapping[str, int]
Index = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class ElementMap:
  """The map from elements of our tensor to the user's tensor.

  Attributes:
    layout: the user's layout.
    sizes: of our axes.
    user_sizes: of the user's axes, without padding.
    rows: our order of rows, if the user's is another; or None.
    slots: the user's coordinates of slots, by axis.
  """

  layout: declaration.Declaration
  sizes: Sizes
  user_sizes: Sizes
  rows: row_orders.RowOrder | None = None
  slots: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the user's tensor."""
    lengths = [*map(self._size, self.layout.axes)]
    if self.layout.swizzle:
      swizzle = swizzles.SWIZZLES[self.layout.swizzle]
      lengths[-2:] = swizzle.pad(lengths[-2:])
    return tuple(lengths)

  def find_places(self, index: Index, copy: int = 0) -> Index:
    """Returns the coordinates of elements in the user's tensor.

    Args:
      index: their coordinates in our tensor, arrays that broadcast.
      copy: the number of the copy, for experts with several copies.

    Raises:
      KeyError: an element is in a row that belongs to no slot.
    """
    layout = self.layout
    coordinates = dict(zip(layout.spec, index))
    if self.rows is not None:
      slot = self.rows.slot_of(coordinates.pop('R'), coordinates.pop('N'))
      coordinates |= {axis: values[slot] for axis, values in self.slots.items()}
    elif layout.experts:
      coordinates |= self._place_expert(coordinates, copy)
    halves_axis = layout.halves_axis
    if halves_axis in coordinates and layout.moves_halves:
      coordinates[halves_axis] = self._place_in_halves(
        coordinates[halves_axis], halves_axis[1:]
      )
    places = [self._coordinate(axis, coordinates) for axis in layout.axes]
    if layout.swizzle:
      swizzle, width = swizzles.SWIZZLES[layout.swizzle], self.shape[-1]
      places[-2:] = swizzle.place(places[-2], places[-1], width)
    return tuple(places)

  def split_ranks(
    self, places: Sequence[np.ndarray]
  ) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns ranks, and coordinates in the tensor of each rank."""
    layout = self.layout
    rank_axis = layout.rank_axis(layout.axes)
    size = self._size(layout.axes[rank_axis]) // self.sizes['R']
    rank, local = np.divmod(places[rank_axis], size)
    return rank, [*places[:rank_axis], local, *places[rank_axis + 1 :]]

  def apply(self, array: np.ndarray) -> np.ndarray:
    """Returns our tensor in the user's layout; padding is zero."""
    expected = self._own_shape(self.sizes['N'])
    if array.shape != expected:
      raise ValueError(
        f'{self.layout.name}: expected {list(expected)}, got '
        f'{list(array.shape)}'
      )
    index = self._index_all(None)
    laid_out = np.zeros(self.shape, array.dtype)
    values = array[index] if self.rows is not None else array
    if self._has_ids:
      place = list_places(self.layout.experts)[values, 0].astype(array.dtype)
      values = np.where(values < 0, values, place)
    for copy in range(self._copies):
      laid_out[self.find_places(index, copy)] = values
    return laid_out

  def undo(self, array: np.ndarray, ranks: Sequence[int] | None) -> np.ndarray:
    """Returns a tensor of the user in our layout.

    Raises:
      ValueError: its shape is wrong, copies of an expert differ, or padding
        that must be zero is not.
    """
    if array.shape != self.shape:
      raise ValueError(
        f'{self.layout.name}: expected [{" ".join(self.layout.axes)}] = '
        f'{list(self.shape)}, got {list(array.shape)}'
      )
    if self.layout.is_ours:
      return array
    rows = self.sizes['N'] if self.rows is not None else self.user_sizes['N']
    index = self._index_all(ranks)
    values = array[self.find_places(index)]
    for copy in range(1, self._copies):
      self._check_copy(values, array[self.find_places(index, copy)])
    if self.layout.zeros:
      self._check_zeros(array, index)
    if self._has_ids:
      values = self._name_experts(values)
    if self.rows is None:
      return np.ascontiguousarray(values)
    restored = np.zeros(self._own_shape(rows), array.dtype)
    restored[index] = values
    return restored

  def check_rows(self, order: np.ndarray | None) -> None:
    """Refuses rows that do not fit the user's tensor.

    Raises:
      ValueError: a row does not fit.
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
    for axis, places in self.slots.items():
      rows = self.rows
      assert rows is not None
      slots = rows.routed_slots
      required = int(places[slots].max(initial=-1)) + 1
      if required > self.user_sizes[axis]:
        expert = int(rows.expert[slots[places[slots].argmax()]])
        raise ValueError(
          f'{name}: expected {axis} of at least {required}, which expert '
          f'{expert} '
          f'needs, got {self.user_sizes[axis]}: a slot that is dropped has id '
          '-1'
        )

  @property
  def _has_ids(self) -> bool:
    return self.layout.name == 'topk_ids' and bool(self.layout.experts)

  @property
  def _copies(self) -> int:
    alone = self.rows is not None or self._has_ids or not self.layout.experts
    return 1 if alone else list_places(self.layout.experts).shape[1]

  def _index_all(self, ranks: Sequence[int] | None) -> Index:
    """Returns our coordinates of all elements that ranks have."""
    if self.rows is None:
      return np.ix_(*map(np.arange, self._own_shape(self.user_sizes['N'])))
    slots = self.rows.routed_slots
    if ranks is not None:
      slots = slots[np.isin(self.rows.owner, ranks)]
    for places in self.slots.values():
      missing = slots[places[slots] < 0]
      if missing.size:
        raise ValueError(
          f'{self.layout.name}: expected a row of slot {missing[0]} in '
          f'{self.layout.order}, got none'
        )
    columns = np.arange(self._own_shape(0)[-1])
    row = self.rows.owner[slots], self.rows.row[slots]
    return row[0][:, None], row[1][:, None], columns[None]

  def _own_shape(self, rows: int) -> tuple[int, ...]:
    sizes = {**self.sizes, 'N': rows}
    return tuple(sizes[axis] for axis in self.layout.spec)

  def _size(self, axis: str) -> int:
    """Returns the length of an axis of the user's tensor."""
    has_halves = axis == self.layout.halves_axis and self.layout.moves_halves
    parts = (axis[1:],) * 2 if has_halves else self.layout.parts(axis)
    sizes = [self._padded(part, self.user_sizes[part]) for part in parts]
    size = sum(sizes) if has_halves else math.prod(sizes)
    return self._padded(axis, size)

  def _padded(self, axis: str, size: int) -> int:
    block = dict(self.layout.pads).get(axis, 1)
    return -(-size // block) * block

  def _coordinate(
    self, axis: str, coordinates: Mapping[str, np.ndarray]
  ) -> np.ndarray:
    if axis in coordinates:
      return coordinates[axis]
    first, *rest = self.layout.parts(axis)
    coordinate = coordinates[first]
    for part in rest:
      size = self._padded(part, self.user_sizes[part])
      coordinate = coordinate * size + coordinates[part]
    return coordinate

  def _place_expert(
    self, coordinates: Mapping[str, np.ndarray], copy: int
  ) -> dict[str, np.ndarray]:
    place = list_places(self.layout.experts)[:, copy]
    if 'E' in coordinates:
      return dict(E=place[coordinates['E']])
    if 'L' not in coordinates:
      return {}
    expert_place = place[coordinates['R'] * self.sizes['L'] + coordinates['L']]
    return dict(zip('RL', np.divmod(expert_place, self.user_sizes['L'])))

  def _place_in_halves(self, column: np.ndarray, axis: str) -> np.ndarray:
    half, feature = np.divmod(column, self.sizes[axis])
    if self.layout.halves == 'interleaved':
      return feature * 2 + half
    half = 1 - half if self.layout.halves == 'up_gate' else half
    return half * self._padded(axis, self.sizes[axis]) + feature

  def _name_experts(self, ids: np.ndarray) -> np.ndarray:
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
        f'expert, got others at {expert[:-1].tolist()} of the contract'
      )

  def _check_zeros(self, array: np.ndarray, index: Index) -> None:
    rest = np.array(array)
    for copy in range(self._copies):
      rest[self.find_places(index, copy)] = 0
    bad = _bytes(rest) if rest.dtype.kind == 'V' else rest
    if bad.any():
      place = np.argwhere(bad)[0].tolist()
      raise ValueError(
        f'{self.layout.name}: expected zeros in the padding, got '
        f'{array[tuple(place)]} at {place} of the file'
      )


def list_places(experts: Sequence[int]) -> np.ndarray:
  """Returns `[E, most]`: places of each expert's copies, repeated to fill."""
  places_by_expert = {
    e: np.flatnonzero(np.array(experts) == e) for e in {*experts} - {-1}
  }
  num_places = max(map(len, places_by_expert.values()))
  return np.array(
    [
      np.resize(places_by_expert[e], num_places)
      for e in sorted(places_by_expert)
    ]
  )


def _bytes(array: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(array).view(f'u{array.dtype.itemsize}')
