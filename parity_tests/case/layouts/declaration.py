"""The axes, words and row order that a layout declares."""

import dataclasses
from typing import Self

from hpmoe.parity_tests.case.layouts import swizzles
from hpmoe.reference.contract import tensors

# Names of several of our axes merged into one.
MERGED_AXES = {
  'E': ('R', 'L'),
  'M': ('R', 'T'),
  'S': ('T', 'K'),
  'A': ('R', 'T', 'K'),
}
# Axes of all ranks' tokens, and of one rank's.
_TOKENS_OF_RANK = {'M': 'T', 'A': 'S'}
# Order of the halves of 2F.
HALVES = ('gate_up', 'up_gate', 'interleaved')
DTYPES = ('int32', 'int64', 'float32', 'bfloat16', 'float16')


@dataclasses.dataclass(frozen=True)
class Declaration:
  """What the text of a layout says of a tensor.

  Attributes:
    name: of the tensor, of `tensors.IN_FILES`.
    axes: the layout's axes, each one of ours or of `MERGED_AXES`; an axis of
      length 1 may be left out.
    halves: one of `HALVES`.
    dtype: of its elements; '': the policy's.
    pads: pairs of an axis and the divisor of its padded length.
    experts: the expert of each place, -1 for none; (): our order.
    block: rows of an expert begin at a multiple of this.
    by_source: whether rows are ordered by source rank first.
    capacity: C; None: from the tensor's shape, or of the fullest expert.
    order: the tensor that has the slot of each row; '': none.
    zeros: whether padding must be zero.
    swizzle: the order of the last two axes, of `swizzles.SWIZZLES`; '': none.
  """

  name: str
  axes: tuple[str, ...]
  halves: str = 'gate_up'
  dtype: str = ''
  pads: tuple[tuple[str, int], ...] = ()
  experts: tuple[int, ...] = ()
  block: int = 0
  by_source: bool = False
  capacity: int | None = None
  order: str = ''
  zeros: bool = False
  swizzle: str = ''

  def __str__(self) -> str:
    words = [' '.join(self.axes)]
    words += [self.halves] if self.halves != HALVES[0] else []
    words += [f'pad {axis} {size}' for axis, size in self.pads]
    words += [f'experts {" ".join(map(str, self.experts))}'] * (
      self.experts != ()
    )
    words += [f'aligned {self.block}'] * (self.block > 0)
    words += ['by_source'] * self.by_source
    words += [f'C={self.capacity}'] * (self.capacity is not None)
    words += [f'order {self.order}'] * (self.order != '')
    words += [self.swizzle] * (self.swizzle != '')
    words += ['zeros'] * self.zeros
    return ', '.join(words + ([self.dtype] if self.dtype else []))

  @property
  def is_ours(self) -> bool:
    """Whether it is our own layout."""
    return self == type(self)(self.name, self.spec, dtype=self.dtype)

  @property
  def halves_axis(self) -> str:
    """The axis of gate and up, 2F or 2S; '': none."""
    return next((axis for axis in self.spec if axis[0] == '2'), '')

  @property
  def moves_rows(self) -> bool:
    """Whether routed rows have another order, which depends on the routing."""
    is_packed = self.own_axes[1] == 'N' and not self.experts
    own_layout = is_packed and not (self.block or self.by_source or self.order)
    return 'N' in self.spec and not own_layout

  @property
  def is_of_tokens(self) -> bool:
    """Whether a rank has the rows of its own tokens."""
    return self.own_axes[1] == 'T'

  @property
  def with_ranks(self) -> Self:
    """The layout with a rank axis.

    Tokens of all ranks that are padded or in tiles are so on each rank alone,
    which has an axis of its own then.
    """
    if not any('R' in self.parts(axis) for axis in self.axes):
      return dataclasses.replace(self, axes=('R', *self.axes))
    for tokens, of_rank in _TOKENS_OF_RANK.items():
      if tokens in self.axes and self._is_padded(tokens):
        axes = [of_rank if axis == tokens else axis for axis in self.axes]
        pads = [(of_rank if a == tokens else a, n) for a, n in self.pads]
        return dataclasses.replace(self, axes=('R', *axes), pads=tuple(pads))
    return self

  def _is_padded(self, axis: str) -> bool:
    return self._is_in_tiles(axis) or axis in dict(self.pads)

  def _is_in_tiles(self, axis: str) -> bool:
    return self.swizzle != '' and axis in self.axes[-2:]

  @property
  def row_axes(self) -> tuple[str, ...]:
    """The axes of rows with the rank axis, which a tensor of `order` has."""
    return tuple(axis for axis in self.axes if axis != self.spec[-1])

  @property
  def own_axes(self) -> tuple[str, ...]:
    """The axes of our tensor; rows have those of the layout's row order."""
    if 'N' not in self.spec:
      return self.spec
    axes = {*self.axes}
    if 'C' in axes:
      rows: tuple[str, ...] = ('R', 'L', 'C')
    elif 'N' in axes or not axes & {'K', 'S', 'A'}:
      rows = ('R', 'N')
    else:
      rows = ('R', 'M' if 'R' in axes and axes & {'M', 'A'} else 'T', 'K')
    return *rows, self.spec[-1]

  @property
  def spec(self) -> tuple[str, ...]:
    """The axes of our tensor."""
    return tuple(tensors.IN_FILES[self.name].shape.split())

  def parts(self, axis: str) -> tuple[str, ...]:
    """Returns the axes of our tensor that one of the layout's axes merges."""
    if axis in self.own_axes:
      return (axis,)
    if axis == 'A' and 'M' in self.own_axes:
      return 'M', 'K'
    return MERGED_AXES.get(axis, (axis,))

  @property
  def split_axes(self) -> tuple[str, ...]:
    """The layout's axes, with merged axes split into ours."""
    return tuple(part for axis in self.axes for part in self.parts(axis))

  def rank_axis(self, axes: tuple[str, ...]) -> int:
    """Returns the position of the rank axis among axes of the layout.

    Raises:
      ValueError: that axis is padded or in tiles, so it cannot be divided among
        ranks.
    """
    (position,) = (
      i for i, axis in enumerate(axes) if self.parts(axis)[0] == 'R'
    )
    axis = axes[position]
    if self._is_in_tiles(axis) or (axis != 'R' and axis in dict(self.pads)):
      raise ValueError(
        f'{self.name}: expected no padding of {axes[position]} in files of one '
        'rank '
        f'each, got layout {str(self)!r}'
      )
    return position

  @property
  def tile(self) -> tuple[int, int]:
    """The lengths of a tile along the last two axes; (1, 1): there is none."""
    return swizzles.SWIZZLES[self.swizzle].tile if self.swizzle else (1, 1)

  @property
  def moves_halves(self) -> bool:
    """Whether gate and up do not just follow each other."""
    is_padded = self.halves_axis[1:] in dict(self.pads)
    return is_padded or self.halves != HALVES[0]
