"""Tensors of a folder of weights, whoever wrote it, under our names.

A folder of Hugging Face; a checkpoint of Megatron-LM (torch_dist); `.ckpt` or
`.safetensors` of MindSpore, by MindFormers' names or ours.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np

from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.checkpoint import mindspore_folder
from hpmoe.models.checkpoint import safetensors_file
from hpmoe.parity_tests.compare.weights import framework_names
from hpmoe.parity_tests.compare.weights import torch_dist


@dataclasses.dataclass(frozen=True)
class ArrayTensor:
  """A tensor in memory."""

  array: np.ndarray

  @property
  def shape(self) -> tuple[int, ...]:
    return self.array.shape

  @property
  def dtype(self) -> np.dtype:
    return self.array.dtype

  def read(self) -> np.ndarray:
    """Returns it."""
    return self.array

  def row(self, index: int) -> 'ArrayTensor':
    """Returns one row along the first axis."""
    return ArrayTensor(self.array[index])

  def reshape(self, shape: tuple[int, ...]) -> 'ArrayTensor':
    """Returns the same elements in another shape."""
    return ArrayTensor(self.array.reshape(shape))


def open_folder(name: str, path: str, other: str | None) -> hf_folder.Files:
  """Returns the tensors of a folder; reads only headers, but for `.ckpt`.

  Args:
    name: of the flag that names the folder.
    path: of the folder.
    other: a folder whose config.json counts if this one has none.

  Raises:
    OSError: a file cannot be read.
    ValueError: it is no such folder, or the model is unknown.
  """
  folder = pathlib.Path(path)
  index = _find_index(name, folder)
  if index is None:
    return hf_folder.open_files(path)
  has_config = (folder / config_file.NAME).is_file()
  fields, config = config_file.read(
    folder if has_config or other is None else pathlib.Path(other)
  )
  is_megatron = torch_dist.find_folder(folder) is not None
  own_index: Any = framework_names.rename(
    config, index, by_turns=not is_megatron
  )
  return hf_folder.Files(folder, fields, own_index, rounds=True)


def _find_index(name: str, folder: pathlib.Path) -> Mapping[str, Any] | None:
  """Returns the tensors of a framework's folder; None: it is another's."""
  if inner := torch_dist.find_folder(folder):
    return torch_dist.read_index(inner)
  if hf_folder.is_one(folder):
    return None
  files = _list_files(folder)
  if not files:
    raise ValueError(
      f'{name}: expected a folder of Hugging Face, of Megatron-LM (torch_dist) '
      f'or of MindSpore (.ckpt, .safetensors), got {str(folder)!r}'
    )
  index: dict[str, Any] = {}
  for file in files:
    tensors = _read_file(file)
    if repeats := index.keys() & tensors.keys():
      raise ValueError(
        f'{name}: expected each tensor in one file of {folder}, got '
        f'{min(repeats)} in {file.name} and another: one checkpoint, merged'
      )
    index |= tensors
  return index


def _list_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a folder; if it has none, those of its only rank.

  A merged checkpoint may lie beside the ranks that it was made of.
  """
  ranks = sorted(folder.glob('rank_*'))
  for place in (folder, *ranks):
    if place != folder and len(ranks) > 1:
      raise ValueError(
        f'{folder}: expected one checkpoint, got {len(ranks)} ranks: merge '
        'them (mindspore.unified_safetensors)'
      )
    for suffix in ('ckpt', 'safetensors'):
      if files := sorted(place.glob(f'*.{suffix}')):
        return files
  return []


def _read_file(file: pathlib.Path) -> dict[str, Any]:
  if file.suffix == '.safetensors':
    return dict(safetensors_file.read_index(file)[0])
  tensors = mindspore_folder.load_file(file)
  return {name: ArrayTensor(array) for name, array in tensors.items()}
