"""Megatron-LM's checkpoints of format torch_dist, read without torch.

A folder has `.metadata`, a pickle of where each block of each tensor lies, and
`.distcp` files, in which each block is a file as `torch.save` writes it.  The
pickle may name what describes tensors, and nothing of it is run.
Source: torch/distributed/checkpoint/metadata.py and filesystem.py, 2.13.0.
"""

from collections.abc import Sequence
import dataclasses
import io
import pathlib
import pickle
from typing import Any

import numpy as np

from hpmoe.models.checkpoint import safetensors_file
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import torch_file
from hpmoe.parity_tests.compare.weights import framework_names

METADATA = '.metadata'
_LATEST = 'latest_checkpointed_iteration.txt'
_OF_TORCH = 'torch.distributed.checkpoint.'
_DTYPES = {
  'float64': np.dtype(np.float64),
  'float32': np.dtype(np.float32),
  'float16': np.dtype(np.float16),
  'bfloat16': safetensors_file.BFLOAT16,
  'float8_e4m3fn': safetensors_file.FLOAT8,
  'int64': np.dtype(np.int64),
  'int32': np.dtype(np.int32),
  'uint8': np.dtype(np.uint8),
  'bool': np.dtype(np.bool_),
}


def find_folder(folder: pathlib.Path) -> pathlib.Path | None:
  """Returns the folder of the checkpoint in a folder, the latest of several.

  None: there is none.
  """
  if (folder / METADATA).is_file():
    return folder
  latest = folder / _LATEST
  if not latest.is_file():
    return None
  step = latest.read_text().strip()
  name = f'iter_{int(step):07d}' if step.isdigit() else step
  inner = folder / name
  return inner if (inner / METADATA).is_file() else None


def read_index(folder: pathlib.Path) -> dict[str, 'DistTensor']:
  """Returns the tensors of a checkpoint by name; reads its metadata alone.

  Raises:
    ValueError: it is damaged, or stored in a way that is not known.
  """
  path = folder / METADATA
  try:
    with path.open('rb') as file:
      metadata = _Unpickler(file).load()
    places = {
      (key.fqn, tuple(key.offset)): place
      for key, place in metadata.storage_data.items()
      if getattr(key, 'offset', None) is not None  # of a tensor
    }
    return {
      name: _find_tensor(folder, name, entry, places)
      for name, entry in metadata.state_dict_metadata.items()
      if type(entry).__name__ == 'TensorStorageMetadata'
    }
  except Exception as error:  # of damaged files pickle raises anything
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ValueError(
      f'{path}: expected metadata of torch.distributed.checkpoint, got '
      f'{reason[:150]}'
    ) from error


def _find_tensor(folder, name: str, entry, places) -> 'DistTensor':
  blocks = []
  for chunk in entry.chunks:
    place = places[name, tuple(chunk.offsets)]
    if getattr(place, 'transform_descriptors', None):
      raise ValueError(f'{name} in blocks that were transformed')
    relative = pathlib.PurePath(place.relative_path)
    if relative.is_absolute() or '..' in relative.parts:
      raise ValueError(f'a file {relative} outside of the folder')
    blocks.append(
      Block(
        tuple(chunk.offsets),
        tuple(chunk.sizes),
        folder / relative,
        int(place.offset),
        int(place.length),
      )
    )
  dtype = _DTYPES[entry.properties.state[0]]
  return DistTensor(name, tuple(entry.size), dtype, tuple(blocks))


@dataclasses.dataclass(frozen=True)
class Block:
  """A box of a tensor, and where it lies.

  Attributes:
    offsets: of its first element in the tensor.
    sizes: of the box.
    path: of the file.
    begin: of its bytes in the file.
    length: of them.
  """

  offsets: tuple[int, ...]
  sizes: tuple[int, ...]
  path: pathlib.Path
  begin: int
  length: int

  def holds(self, leading: Sequence[int]) -> bool:
    """Returns whether the box has elements at these first indices."""
    boxes = zip(leading, self.offsets, self.sizes, strict=False)
    return all(first <= i < first + size for i, first, size in boxes)

  def read(self) -> np.ndarray:
    """Returns the elements of the box.

    Raises:
      ValueError: they cannot be read, or are of another box.
    """
    with self.path.open('rb') as file:
      file.seek(self.begin)
      content = io.BytesIO(file.read(self.length))
    array = read_case.as_numpy(np.asarray(torch_file.read(self.path, content)))
    if array.size != int(np.prod(self.sizes)):
      raise ValueError(
        f'{self.path}: expected a block {list(self.sizes)}, got '
        f'{list(array.shape)}'
      )
    return array.reshape(self.sizes)


@dataclasses.dataclass(frozen=True)
class DistTensor:
  """A tensor, or a row of one, whose blocks lie in several files.

  Attributes:
    name: of the tensor.
    full_shape: of all of it.
    dtype: of its elements.
    blocks: of all of it.
    leading: the first indices of the row.
  """

  name: str
  full_shape: tuple[int, ...]
  dtype: np.dtype
  blocks: tuple[Block, ...]
  leading: tuple[int, ...] = ()

  @property
  def shape(self) -> tuple[int, ...]:
    return self.full_shape[len(self.leading) :]

  def row(self, index: int) -> 'DistTensor':
    """Returns one row along the first axis."""
    return dataclasses.replace(self, leading=(*self.leading, index))

  def reshape(self, shape: tuple[int, ...]) -> framework_names.View:
    """Returns the same elements in another shape."""
    return framework_names.View(self, shape, lambda a: a.reshape(shape))

  def read(self) -> np.ndarray:
    """Returns the tensor.

    Raises:
      ValueError: blocks cannot be read, or do not fill it once.
    """
    blocks = [b for b in self.blocks if b.holds(self.leading)]
    _check_boxes(self.name, self.full_shape, blocks)
    out, count = np.empty(self.shape, self.dtype), 0
    for block in blocks:
      depth = len(self.leading)
      firsts = zip(self.leading, block.offsets, strict=False)
      part = block.read()[tuple(i - first for i, first in firsts)]
      boxes = zip(block.offsets[depth:], block.sizes[depth:], strict=True)
      out[tuple(slice(first, first + size) for first, size in boxes)] = part
      count += part.size
    if count != out.size:
      raise ValueError(
        f'{self.name}: expected blocks of {out.size} elements, got {count}'
      )
    return out


def _check_boxes(
  name: str, shape: tuple[int, ...], blocks: Sequence[Block]
) -> None:
  """Refuses blocks that overlap, or leave the tensor."""
  if not blocks or not shape:
    return
  begins = np.array([block.offsets for block in blocks])
  ends = begins + np.array([block.sizes for block in blocks])
  for i, block in enumerate(blocks):
    is_inside = (begins[i] >= 0).all() and (ends[i] <= shape).all()
    first, last = (
      np.maximum(begins[:i], begins[i]),
      np.minimum(ends[:i], ends[i]),
    )
    if not is_inside or (first < last).all(axis=1).any():
      raise ValueError(
        f'{name}: expected blocks of {list(shape)} that do not overlap, got '
        f'{list(block.sizes)} at {list(block.offsets)}'
      )


class _Record:
  """What a class of torch's metadata holds; a state that is no dict as such."""

  def __init__(self, *_):
    self.state: Any = None

  def __setstate__(self, state):
    if isinstance(state, dict):
      self.__dict__.update(state)
    else:
      self.state = state


class _Unpickler(pickle.Unpickler):
  """Makes records of torch's descriptions of tensors; refuses all else."""

  def find_class(self, module: str, name: str):
    if f'{module}.'.startswith(_OF_TORCH):
      return type(name, (_Record,), {})
    if module == 'torch' and name in _DTYPES:
      return name  # A pickle can change a dtype itself, of the whole process.
    classes = {
      ('torch', 'Size'): tuple,
      ('torch.serialization', '_get_layout'): str,
      ('collections', 'OrderedDict'): dict,
    }
    if (module, name) not in classes:
      raise pickle.UnpicklingError(f'{module}.{name}, which is no tensor')
    return classes[module, name]
