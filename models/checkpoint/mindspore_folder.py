"""Folders of MindSpore: config.json, and `.ckpt` files of stacked experts.

MindSpore itself reads and writes them, a file at a time, under the parameters'
own names.  Importing this module does not import MindSpore, calling it does.
"""

import os
import pathlib
import re
from typing import Any

import numpy as np

from hpmoe.models import parameters as parameters_lib
from hpmoe.models.checkpoint import config_file
from hpmoe.models.checkpoint import weights as weights_lib

HELP = "MindSpore's .ckpt, experts stacked"
SINGLE = 'model.ckpt'
_SHARD = re.compile(r'model-(\d{5})-of-(\d{5})\.ckpt')
# protobuf parses no message of 2 GiB; beside a tensor stand name and shape.
MAX_BYTES = 2**31 - 2**16


def is_one(folder: pathlib.Path) -> bool:
  """Returns whether a folder holds weights in this format."""
  return bool(_files(folder))


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  if (folder / SINGLE).is_file():
    return [folder / SINGLE]
  matches = [_SHARD.fullmatch(path.name) for path in folder.glob('*.ckpt')]
  count = max((int(match[2]) for match in matches if match), default=0)
  names = [weights_lib.shard_name(i + 1, count, '.ckpt') for i in range(count)]
  want = [folder / name for name in names]
  if absent := [path.name for path in want if not path.is_file()]:
    raise ValueError(
      f'{folder}: expected {count} shards, got none of {absent[:10]}'
    )
  return want


def _mindspore() -> Any:
  # It sets names of NumPy's types, which its frontend's module sets right.
  from hpmoe.backend_ascend.frontends import mindspore_layer

  return mindspore_layer


def load_file(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the tensors of a `.ckpt`.

  Raises:
    ModuleNotFoundError: there is no MindSpore.
    ValueError: it is no such file.
  """
  frontend = _mindspore()
  try:
    tensors = frontend.ms.load_checkpoint(str(path))
  except ValueError as error:
    reason = ' '.join(str(error).split())
    raise ValueError(
      f'{path}: expected a checkpoint of MindSpore, got {reason[:200]}'
    ) from error
  return {name: frontend.to_numpy(tensor) for name, tensor in tensors.items()}


def read(
  path: str | os.PathLike[str], dtype: str | None = None
) -> weights_lib.Weights:
  """As `hf_folder.read`; all weights are in memory from here on.

  Raises:
    ModuleNotFoundError: there is no MindSpore.
  """
  folder = pathlib.Path(path)
  arrays: dict[str, np.ndarray] = {}
  for file in _files(folder):
    arrays |= load_file(file)
  fields, config = config_file.read(folder)
  config = weights_lib.without_absent_head(config, arrays)
  specs = dict(parameters_lib.parameter_shapes(config, dtype))
  faults = weights_lib.Faults()
  faults.compare(specs, arrays, any_dtype=dtype is not None)
  faults.refuse(folder)

  def read_one(name: str) -> np.ndarray:
    array = arrays[name].astype(specs[name].dtype, copy=False)
    weights_lib.check_finite(folder, name, array)
    return array

  stored_fields = config_file.describe(fields, dtype or config.dtype)
  extras = config_file.extras(folder)
  return weights_lib.Weights(stored_fields, config, specs, read_one, extras)


def write(
  folder: pathlib.Path,
  weights: weights_lib.Weights,
  max_shard_bytes: int = MAX_BYTES,
) -> None:
  """Writes weights into an empty folder, without its config.json.

  Args:
    folder: where.
    weights: what; a file of them is in memory at a time.
    max_shard_bytes: MindSpore reads no larger file than the default.

  Raises:
    ModuleNotFoundError: there is no MindSpore.
    ValueError: a parameter is damaged, not finite, or larger than a file.
  """
  ms = _mindspore().ms
  for name, spec in weights.specs.items():
    if (size := weights_lib.num_bytes(spec)) > MAX_BYTES:
      raise ValueError(
        f'{name}: expected at most {MAX_BYTES} bytes, which is what MindSpore '
        f'reads, got {size}'
      )
  shards = weights_lib.shards(weights.specs, max_shard_bytes, '.ckpt')
  for file, names in shards.items():
    content = [{'name': n, 'data': ms.Tensor(weights.read(n))} for n in names]
    ms.save_checkpoint(content, str(folder / file))
