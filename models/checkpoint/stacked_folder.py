"""Folders of parameters as the models hold them: ours, and MindSpore's.

Beside config.json lies one safetensors file, or `.ckpt` files that MindSpore
loads, under the parameters' own names. Experts stay stacked.
"""

import os
import pathlib
import re

import numpy as np

from hpmoe.models import parameters as parameters_lib
from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import mindspore_file
from hpmoe.models.checkpoint import safetensors_file
from hpmoe.models.checkpoint import weights as weights_lib

OURS = 'parameters.safetensors'
MINDSPORE = 'model.ckpt'

_SHARD = re.compile(r'model-(\d{5})-of-(\d{5})\.ckpt')


def is_ours(folder: pathlib.Path) -> bool:
  """Returns whether a folder holds parameters in our format."""
  return (folder / OURS).is_file()


def is_mindspore(folder: pathlib.Path) -> bool:
  """Returns whether a folder holds parameters in MindSpore's format."""
  return bool(_checkpoints(folder))


def read_ours(
  path: str | os.PathLike[str], dtype: str | None = None
) -> weights_lib.Weights:
  """As `hf_folder.read`, for `OURS`."""
  folder = pathlib.Path(path)
  return _read(folder, safetensors_file.read_index(folder / OURS)[0], dtype)


def read_mindspore(
  path: str | os.PathLike[str], dtype: str | None = None
) -> weights_lib.Weights:
  """As `hf_folder.read`, for one `MINDSPORE` file or its shards."""
  folder = pathlib.Path(path)
  index: safetensors_file.Index = {}
  for file in _checkpoints(folder):
    held = mindspore_file.read_index(file)
    if twice := sorted(set(held) & set(index)):
      raise ValueError(
        f'{file}: expected each tensor once, got {twice[0]} twice'
      )
    index |= held
  return _read(folder, index, dtype)


def _checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
  if (folder / MINDSPORE).is_file():
    return [folder / MINDSPORE]
  matches = [_SHARD.fullmatch(path.name) for path in folder.glob('*.ckpt')]
  found = sorted(match[0] for match in matches if match)
  counts = {match[2] for match in matches if match}
  if not found:
    return []
  want = [
    f'model-{number:05d}-of-{max(counts)}.ckpt'
    for number in range(1, int(max(counts)) + 1)
  ]
  absent = [name for name in want if not (folder / name).is_file()]
  if absent or len(counts) > 1:
    raise ValueError(
      f'{folder}: expected {len(want)} shards, got none of {absent[:10]}'
    )
  return [folder / name for name in found]


def _read(
  folder: pathlib.Path, index: safetensors_file.Index, dtype: str | None
) -> weights_lib.Weights:
  fields, config = config_file.read(folder)
  config = weights_lib.without_absent_head(config, index)
  specs = dict(parameters_lib.parameter_shapes(config, dtype))
  faults = weights_lib.Faults()
  faults.compare(specs, index, any_dtype=dtype is not None)
  faults.refuse(folder)

  def read_one(name: str) -> np.ndarray:
    array = index[name].read().astype(specs[name].dtype, copy=False)
    weights_lib.check_finite(folder, name, array)
    return array

  described = config_file.described(fields, dtype or config.dtype)
  extras = config_file.extras(folder)
  return weights_lib.Weights(described, config, specs, read_one, extras)


def write_ours(folder: pathlib.Path, weights: weights_lib.Weights) -> None:
  """Writes parameters into an empty folder, without its config.json."""
  metadata = {'format': 'hpmoe'}
  path = folder / OURS
  safetensors_file.write(path, weights.specs, weights.read, metadata)


def write_mindspore(
  folder: pathlib.Path,
  weights: weights_lib.Weights,
  max_shard_bytes: int = mindspore_file.MAX_BYTES,
) -> None:
  """Writes parameters into an empty folder, without its config.json.

  Args:
    folder: where.
    weights: what.
    max_shard_bytes: MindSpore reads no larger file than the default.

  Raises:
    ValueError: a parameter is damaged, not finite, or larger than a shard.
  """
  sizes = {
    name: mindspore_file.value_bytes(name, spec)
    for name, spec in weights.specs.items()
  }
  shards = weights_lib.shards(sizes, max_shard_bytes)
  for number, names in enumerate(shards, 1):
    file = f'model-{number:05d}-of-{len(shards):05d}.ckpt'
    path = folder / (MINDSPORE if len(shards) == 1 else file)
    specs = {name: weights.specs[name] for name in names}
    mindspore_file.write(path, specs, weights.read)
