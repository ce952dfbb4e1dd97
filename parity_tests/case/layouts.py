"""How somebody else lays a tensor out, as data, applied and undone exactly.

A layout is a text: axes in the notation's letters, then words after commas.

    E 2F D               experts of all ranks stacked, each transposed
    M D                  tokens of all ranks in a row
    R N 2F, interleaved  gate and up by turns: g0 u0 g1 u1 ...
    R N 2F, up_gate      up before gate
    R T K, int64         another dtype, of the same values
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# What several axes of ours are called as one.
MERGED = {'E': ('R', 'L'), 'M': ('R', 'T'), 'S': ('T', 'K')}
# Order of the halves of 2F.
HALVES = ('gate_up', 'up_gate', 'interleaved')
DTYPES = ('int32', 'int64', 'float32', 'bfloat16', 'float16')


@dataclasses.dataclass(frozen=True)
class Layout:
  """How a tensor is laid out.

  Attributes:
    name: of the tensor, of `tensors.SPECS`.
    axes: theirs, each one of ours or of `MERGED`; an axis of one element may
      be left out.
    halves: one of `HALVES`.
    dtype: theirs; '': as the policy has it.
  """

  name: str
  axes: tuple[str, ...]
  halves: str = 'gate_up'
  dtype: str = ''

  def __str__(self) -> str:
    words = [' '.join(self.axes)]
    words += [self.halves] if self.halves != HALVES[0] else []
    return ', '.join(words + ([self.dtype] if self.dtype else []))

  def apply(self, array: np.ndarray) -> np.ndarray:
    """Returns a tensor of ours as they lay it out.

    Raises:
      ValueError: an axis that they leave out has more than one element.
    """
    own, sizes = self._own, self._sizes(array.shape)
    gone = [axis for axis in own if axis not in self._split()]
    for axis in gone:
      if sizes[axis] != 1:
        raise ValueError(
          f'{self.name}: expected {axis}=1, which layout {str(self)!r} leaves '
          f'out, got {sizes[axis]}'
        )
    order = [own.index(axis) for axis in (*gone, *self._split())]
    turned = self._turned(array, undo=False).transpose(order)
    there = turned.reshape(self.shape(sizes))
    return there.astype(_numpy(self.dtype), copy=False) if self.dtype else there

  def undo(self, array: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
    """Returns a tensor of theirs as ours, with their dtype.

    Args:
      array: theirs.
      sizes: of our axes, by letter; N is as many rows as they have.

    Raises:
      ValueError: its shape is another.
    """
    if 'N' in self.axes and len(array.shape) == len(self.axes):
      sizes = {**sizes, 'N': array.shape[self.axes.index('N')]}
    expected = self.shape(sizes)
    if array.shape != expected:
      raise ValueError(
        f'{self.name}: expected [{" ".join(self.axes)}] = {list(expected)}, '
        f'got {list(array.shape)}'
      )
    split, own = self._split(), self._own
    gone = [axis for axis in own if axis not in split]
    every = (*gone, *split)
    wide = array.reshape([sizes[axis] for axis in every])
    back = wide.transpose([every.index(axis) for axis in own])
    return self._turned(np.ascontiguousarray(back), undo=True)

  def with_rank(self, array: np.ndarray, ranks: int) -> np.ndarray:
    """Returns a tensor of one rank with its axis, where that was left out."""
    is_left_out = array.ndim == len(self.axes) - 1
    if ranks == 1 and 'R' in self.axes and is_left_out:
      return np.expand_dims(array, self.axes.index('R'))
    return array

  def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns their shape, given the sizes of our axes."""
    return tuple(
      int(np.prod([sizes[part] for part in self._of(axis)]))
      for axis in self.axes
    )

  @property
  def _own(self) -> tuple[str, ...]:
    return tuple(tensors.SPECS[self.name].shape.split())

  def _of(self, axis: str) -> tuple[str, ...]:
    """Returns the axes of ours that are one of theirs."""
    return (axis,) if axis in self._own else MERGED.get(axis, (axis,))

  def _split(self) -> tuple[str, ...]:
    """Returns their axes, each merged one as ours."""
    return tuple(part for axis in self.axes for part in self._of(axis))

  def _sizes(self, shape: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(self._own, shape, strict=True))

  def _turned(self, array: np.ndarray, undo: bool) -> np.ndarray:
    """Returns `[..., 2F, ...]` of ours with its halves in their order."""
    if self.halves == HALVES[0]:
      return array
    at = self._own.index('2F')
    wide = np.moveaxis(array, at, -1)
    if self.halves == 'up_gate':
      turned = np.concatenate(np.split(wide, 2, axis=-1)[::-1], axis=-1)
    else:
      cut = (-1, 2) if undo else (2, -1)
      pairs = wide.reshape(*wide.shape[:-1], *cut).swapaxes(-1, -2)
      turned = pairs.reshape(wide.shape)
    return np.moveaxis(turned, -1, at)


def parse(name: str, text: str) -> Layout:
  """Returns the layout that a text describes.

  Raises:
    ValueError: the tensor or a word is unknown, an axis is named twice, or the
      axes are not those of the tensor.
  """
  if name not in tensors.SPECS:
    raise ValueError(
      f'layouts: expected tensors among {", ".join(tensors.SPECS)}, got {name}'
    )
  axes, *words = (word.strip() for word in text.split(','))
  fields: dict[str, str] = {}
  for word in words:
    for field, known in (('halves', HALVES), ('dtype', DTYPES)):
      if word in known:
        fields[field] = word
    if word not in (*HALVES, *DTYPES):
      raise ValueError(
        f'{name}: expected words among {", ".join((*HALVES, *DTYPES))} after '
        f'the axes, got {word!r}'
      )
  layout = Layout(name, tuple(axes.split()), **fields)
  _check_axes(layout)
  return layout


def of(texts: Mapping[str, str]) -> dict[str, Layout]:
  """Returns layouts by tensor; see `parse`."""
  return {name: parse(name, text) for name, text in texts.items()}


def as_stored(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
  """Returns the same values in the dtype that the policy has.

  Raises:
    ValueError: they are others in that dtype.
  """
  wanted = _numpy(dtype)
  if array.dtype == wanted:
    return array
  bare = array.dtype.kind in 'Vui' and array.dtype.itemsize == wanted.itemsize
  if bare and wanted.kind != 'i' and wanted.itemsize == 2:
    return array.view(wanted)
  is_float = array.dtype.kind == 'f' or array.dtype.name == 'bfloat16'
  if not (is_float if wanted.kind != 'i' else array.dtype.kind in 'iu'):
    raise ValueError(f'{name}: expected {dtype}, got {array.dtype}')
  with np.errstate(over='ignore', invalid='ignore'):
    cast = array.astype(wanted)
    lost = (cast != array) & ~(np.isnan(cast) & np.isnan(array))
  if lost.any():
    at = tuple(int(i) for i in np.argwhere(lost)[0])
    raise ValueError(
      f'{name}: expected values of {dtype}, got {array.dtype} {array[at]} at '
      f'{list(at)}, which {dtype} has not: {_how_to_store(name, dtype)}'
    )
  return cast


def _how_to_store(name: str, dtype: str) -> str:
  if name in precision.INTERMEDIATES:
    return f'round it to {dtype}, or export the case with --unrounded={name}'
  return f'round it to {dtype} before it is written'


def _numpy(dtype: str) -> np.dtype:
  row = storage.FORMATS.get(dtype)
  return np.dtype(dtype) if row is None else row.numpy


def _check_axes(layout: Layout) -> None:
  own, split = layout._own, layout._split()
  if len({*split}) != len(split) or not {*split} <= {*own}:
    raise ValueError(
      f'{layout.name}: expected axes of [{" ".join(own)}], some in one '
      f'({_merged()}), '
      f'each once, got [{" ".join(layout.axes)}]'
    )
  if layout.halves != HALVES[0] and '2F' not in own:
    raise ValueError(
      f'{layout.name}: expected no order of halves, as [{" ".join(own)}] has '
      f'no 2F, got {layout.halves}'
    )


def _merged() -> str:
  return ', '.join(f'{name}: {" ".join(of)}' for name, of in MERGED.items())
