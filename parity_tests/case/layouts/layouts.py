"""Layouts of users' tensors as data; applying and undoing them is exact.

A layout is a text: axes in the notation's letters, then words after commas.

    E 2F D               experts of all ranks stacked, each transposed
    M D                  tokens of all ranks concatenated
    R N 2F, interleaved  gate and up interleaved: g0 u0 g1 u1 ...
    R N 2F, up_gate      up before gate
    R T K, int64         another dtype, the same values
    E D 2F, pad F 128    gate and up each padded to a multiple
    E D 2F, experts 0 1 2 3 1   the expert of each place; -1: none
    M D, swizzled_128x4  the last two axes in tiles, see `swizzles`; of scales

Routed rows may have another order:

    R N D, aligned 64    rows of each expert begin at a multiple of 64
    R N D, by_source     by source rank, then by expert
    E C D, C=40          a buffer for each expert
    M K D                one row per slot, on the token's rank
    R M K D              one row per slot, on the expert's rank
    R N D, order ids     tensor `ids` has the slot of each row

Padding may hold anything, unless the layout has the word `zeros`.  The axes of
scales and zeros count groups, and those of packed codes bytes.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.case.layouts import declaration
from hpmoe.parity_tests.case.layouts import element_map
from hpmoe.parity_tests.case.layouts import exact_cast
from hpmoe.parity_tests.case.layouts import row_orders
from hpmoe.reference.contract import tensors

Sizes = element_map.Sizes


@dataclasses.dataclass(frozen=True)
class Layout(declaration.Declaration):
  """The layout of a tensor: see `declaration.Declaration`."""

  def map_elements(
    self,
    sizes: Sizes,
    ids: np.ndarray | None = None,
    order: np.ndarray | None = None,
    shape: tuple[int, ...] | None = None,
  ) -> element_map.ElementMap:
    """Returns the map from elements of our tensor to the layout's.

    Args:
      sizes: of our axes, by letter.
      ids: `[R, T, K]` experts, if routed rows have another order.
      order: the tensor that `self.order` names.
      shape: of the user's tensor, from which N and C follow; None: there is no
        such tensor yet.

    Raises:
      ValueError: a size or a row does not fit.
    """
    whole = {f'2{axis}': 2 * sizes.get(axis, 0) for axis in 'FS'}
    sizes = {**whole, **sizes, 'M': sizes['R'] * sizes['T']}
    self._check_sizes(sizes)
    user_sizes = dict(sizes)
    if self.experts:
      local = len(self.experts) // sizes['R']
      user_sizes |= dict(E=len(self.experts), L=local)
    if shape is not None and len(shape) == len(self.axes):
      axis_lengths = dict(zip(self.axes, shape))
      user_sizes |= {
        axis: self._find_rows(axis, axis_lengths[axis], sizes)
        for axis in ('N', 'C')
        if axis in axis_lengths
      }
    if self.capacity is not None:
      user_sizes['C'] = self.capacity
    if not self.moves_rows:
      return element_map.ElementMap(self, sizes, user_sizes)
    if ids is None:
      raise ValueError(f'{self.name}: expected a routing with {str(self)!r}')
    rows = row_orders.RowOrder(ids, sizes['E'])
    slots = self._slots(rows, user_sizes, order)
    if shape is None and order is not None:
      user_sizes |= dict(zip(self.row_axes, order.shape))
    elif shape is None:
      routed = {
        axis: places[rows.routed_slots] for axis, places in slots.items()
      }
      required = {
        a: int(places.max(initial=-1)) + 1 for a, places in routed.items()
      }
      user_sizes |= self._room(required, sizes)
    elements = element_map.ElementMap(self, sizes, user_sizes, rows, slots)
    elements.check_rows(order)
    return elements

  def apply(
    self,
    array: np.ndarray,
    sizes: Sizes,
    ids: np.ndarray | None = None,
    order: np.ndarray | None = None,
  ) -> np.ndarray:
    """Returns our tensor in this layout; see `map_elements`.

    Raises:
      ValueError: the tensor does not fit, or the dtype lacks its values.
    """
    laid_out = array
    if not self.is_ours:
      laid_out = self.map_elements(sizes, ids, order).apply(array)
    return (
      exact_cast.cast_exactly(self.name, laid_out, self.dtype)
      if self.dtype
      else laid_out
    )

  def undo(
    self,
    array: np.ndarray,
    sizes: Sizes,
    ids: np.ndarray | None = None,
    order: np.ndarray | None = None,
    ranks: Sequence[int] | None = None,
  ) -> np.ndarray:
    """Returns a user's tensor in our layout, in the user's dtype.

    Args:
      array: the user's tensor.
      sizes: of our axes, by letter; the number of rows in our order is the
        user's.
      ids: see `map_elements`.
      order: see `map_elements`.
      ranks: ranks that have rows; None: all.

    Raises:
      ValueError: its shape is wrong, a row is missing, copies of an expert
        differ, or padding that must be zero is not.
    """
    return self.map_elements(sizes, ids, order, array.shape).undo(array, ranks)

  def split(
    self, array: np.ndarray, sizes: Sizes, ids: np.ndarray | None = None
  ) -> list[np.ndarray]:
    """Returns our tensor in this layout, one tensor for each rank."""
    whole = self.with_ranks
    rank_axis = whole.rank_axis(whole.axes)
    laid_out = whole.apply(array, sizes, ids)
    parts = np.split(laid_out, sizes['R'], rank_axis)
    return parts if whole is self else [part[0] for part in parts]

  def join_ranks(
    self,
    parts: Mapping[int | None, np.ndarray],
    ranks: int,
    of_order: bool = False,
  ) -> np.ndarray:
    """Returns a user's tensor of all ranks from its parts.

    Args:
      parts: by rank, None for all ranks; a part may lack the rank axis.
      ranks: R; missing ranks, and shorter parts, are padded.
      of_order: whether it is the tensor that `order` names.
    """
    layout = self if None in parts else self.with_ranks
    axes = layout.row_axes if of_order else layout.axes
    parts_by_rank = {**parts}
    if 'R' in axes and (ranks == 1 or None not in parts):
      rank_axis = axes.index('R')
      parts_by_rank = {
        r: np.expand_dims(a, rank_axis) if a.ndim == len(axes) - 1 else a
        for r, a in parts_by_rank.items()
      }
    if None in parts_by_rank:
      return parts_by_rank[None]
    first = next(iter(parts_by_rank.values()))
    absent = np.full_like(first, -1) if of_order else np.zeros_like(first)
    rank_parts = [parts_by_rank.get(rank, absent) for rank in range(ranks)]
    for part in rank_parts:
      if part.ndim != len(axes):
        raise ValueError(
          f'{self.name}: expected [{" ".join(axes)}], got {list(part.shape)}'
        )
    grow = [i for i, axis in enumerate(axes) if axis in ('N', 'C')]
    lengths = list(rank_parts[0].shape)
    for i in grow:
      lengths[i] = max(part.shape[i] for part in rank_parts)
    padded = [
      _pad_ends(part, lengths, grow, -1 if of_order else 0)
      for part in rank_parts
    ]
    for rank, part in enumerate(padded):
      if [*part.shape] != lengths:
        raise ValueError(
          f'{self.name}: expected {lengths} of every rank, as rank 0 has, got '
          f'{list(part.shape)} of rank {rank}'
        )
    return np.concatenate(padded, axis=self.rank_axis(axes))

  def _find_rows(self, axis: str, length: int, sizes: Sizes) -> int:
    """Returns the rows of a user's tensor; those that fill tiles are none."""
    if not self.swizzle or axis not in sizes or axis not in self.axes[-2:]:
      return length
    tile = self.tile[self.axes[-2:].index(axis)]
    return sizes[axis] if 0 <= length - sizes[axis] < tile else length

  def _check_sizes(self, sizes: Sizes) -> None:
    axis = self.halves_axis
    if self.moves_halves and sizes[axis] != 2 * sizes[axis[1:]]:
      raise ValueError(
        f'{self.name}: expected whole groups of scales in gate and in up, got '
        f'{sizes[axis]} of both with layout {str(self)!r}'
      )
    left_out = {*self.own_axes} - {*self.split_axes}
    for part in self.own_axes:
      if part in left_out and sizes.get(part, 1) != 1:
        raise ValueError(
          f'{self.name}: expected {part}=1, which layout {str(self)!r} leaves '
          f'out, got {sizes[part]}'
        )
    experts, count = {*range(sizes['E'])}, len(self.experts)
    if self.experts and (
      {*self.experts} - {-1} != experts or count % sizes['R']
    ):
      raise ValueError(
        f'{self.name}: expected places for experts 0 to {sizes["E"] - 1}, a '
        f'multiple of R={sizes["R"]}, got layout {str(self)!r}'
      )

  def _slots(
    self, rows: row_orders.RowOrder, user_sizes: Sizes, order: np.ndarray | None
  ) -> dict[str, np.ndarray]:
    """Returns the coordinates of slots, by axis of the layout."""
    if self.order:
      return dict(zip(self.row_axes, self._read_order(rows, order)))
    row_order = rows
    if self.experts:
      place = element_map.list_places(self.experts)
      if place.shape[1] > 1:
        raise ValueError(
          f'{self.name}: expected `order` in layout {str(self)!r}, since an '
          'expert has more than one place'
        )
      ids = np.where(rows.ids < 0, rows.ids, place[rows.ids, 0])
      row_order = row_orders.RowOrder(ids, user_sizes['E'])
    if self.own_axes[1] == 'N':
      by_source = self.by_source
      return (
        row_order.order_by_source()
        if by_source
        else row_order.pack(self.block or 1)
      )
    kinds = dict(
      L=row_order.fill_buffers, T=row_order.slots, M=row_order.list_slots_of_all
    )
    return kinds[self.own_axes[1]]()

  def _read_order(
    self, rows: row_orders.RowOrder, order: np.ndarray | None
  ) -> list[np.ndarray]:
    """Returns the coordinates of slots from the tensor of `order`.

    Raises:
      ValueError: there is no such tensor, or it has a slot twice.
    """
    axes = ' '.join(self.row_axes)
    message = f'{self.name}: {self.order}: expected integers [{axes}]'
    if order is None or order.dtype.kind not in 'iu':
      actual = 'none' if order is None else order.dtype
      raise ValueError(f'{message}, the slot of each row, got {actual}')
    if order.ndim != len(self.row_axes):
      raise ValueError(f'{message}, got {list(order.shape)}')
    count = rows.ids.size
    positions = np.flatnonzero(
      (order.reshape(-1) >= 0) & (order.reshape(-1) < count)
    )
    slots = order.reshape(-1)[positions]
    counts = np.bincount(slots, minlength=count)
    if (counts > 1).any():
      raise ValueError(
        f'{message}, each slot once, got {counts.argmax()} twice'
      )
    place = np.full(count, -1)
    place[slots] = positions
    coordinates = np.unravel_index(np.maximum(place, 0), order.shape)
    return [np.where(place < 0, -1, coordinate) for coordinate in coordinates]

  def _room(self, required: Sizes, sizes: Sizes) -> dict[str, int]:
    """Returns N or C of rows that a layout is applied to."""
    if 'C' in required:
      return dict(C=required['C']) if self.capacity is None else {}
    if 'N' in required:
      block = self.block or 1
      return dict(N=-(-max(required['N'], sizes['N']) // block) * block)
    return {}


def own_layout(name: str) -> Layout:
  """Returns our own layout of a tensor."""
  return Layout(name, tuple(tensors.IN_FILES[name].shape.split()))


def _pad_ends(
  part: np.ndarray, lengths: Sequence[int], axes: Sequence[int], fill: int
) -> np.ndarray:
  """Returns a part, padded at the end of some axes."""
  lack = [(0, 0)] * part.ndim
  for axis in axes:
    lack[axis] = 0, lengths[axis] - part.shape[axis]
  if not any(after for _, after in lack):
    return part
  return np.pad(part, lack, constant_values=fill)
