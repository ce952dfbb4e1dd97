"""A dump of a model's run: inputs, outputs and parameters of each module."""

from collections.abc import Mapping
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from hpmoe.models import families
from hpmoe.models.checkpoint import expert_layout
from hpmoe.models.checkpoint import hf_folder
from hpmoe.parity_tests.case import msprobe_dump
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.compare.weights import weight_sides

_FIRST = 'model.embed_tokens'
_PARAMETER = 'parameters.'
# Of transformers' ERNIE-4.5, whose files have another name.
_BIAS_MODULE, _BIAS_FILE = '.mlp.gate.moe_statics.', '.mlp.moe_statics.'


@dataclasses.dataclass(frozen=True)
class DumpTensor:
  """A tensor of a dump as `safetensors_file.StoredTensor` is one of a file."""

  tensor: tensor_files.StoredTensor

  def read(self) -> np.ndarray:
    """Returns the tensor; bfloat16 as ml_dtypes has it."""
    return read_case.as_numpy(self.tensor.read())

  @property
  def shape(self) -> tuple[int, ...]:
    return self.read().shape

  @property
  def dtype(self) -> np.dtype:
    return self.read().dtype

  def row(self, index: int) -> '_Row':
    """Returns one row along the first axis."""
    return _Row(self, index)


@dataclasses.dataclass(frozen=True)
class _Row:
  tensor: DumpTensor
  index: int

  def read(self) -> np.ndarray:
    return self.tensor.read()[self.index]


@dataclasses.dataclass(frozen=True)
class RunDump:
  """The first call of each module in the dump of one step and rank.

  Attributes:
    name: the user's name for it.
    tensors: by path of a module and name, such as ('lm_head', 'output.0').
    family: of the model, which may call modules otherwise than we do; None for
      our names.
  """

  name: str
  tensors: Mapping[tuple[str, str], DumpTensor]
  family: families.Family | None = None

  def read(self, slot: tuple[str, str]) -> np.ndarray | None:
    """Returns a tensor, by our name of its module; None: the dump has none."""
    path, rest = slot
    tensor = self.tensors.get((self.find_path(path), rest))
    return None if tensor is None else tensor.read()

  def find_path(self, path: str) -> str:
    """Returns the name that the dump has for a module of ours.

    That of the family's files, ours, or that of newer transformers, which
    calls every family's block of experts mlp.
    """
    if self.family is None:
      return path
    in_files = expert_layout.rename(self.family, f'{path}.weight')
    names = [
      in_files.removesuffix('.weight'),
      path,
      f'{path}.'.replace(f'.{self.family.block}.', '.mlp.', 1)[:-1],
    ]
    return next((name for name in names if name in self._paths), path)

  @functools.cached_property
  def _paths(self) -> set[str]:
    return {path for path, _ in self.tensors}

  def open_weights(
    self, files: hf_folder.Files
  ) -> weight_sides.WeightSide | None:
    """Returns the parameters in the dump, or None if it has none.

    Args:
      files: of the model, whose config.json the run had.
    """
    index: Any = {
      f'{path}.{rest.removeprefix(_PARAMETER)}'.replace(
        _BIAS_MODULE, _BIAS_FILE
      ): tensor
      for (path, rest), tensor in self.tensors.items()
      if rest.startswith(_PARAMETER)
    }
    if not index:
      return None
    own_files = hf_folder.Files(
      pathlib.Path(self.name), files.fields, index, True
    )
    return weight_sides.open_files(self.name, own_files)


def open_dump(folder: str) -> RunDump:
  """Returns the dump of a run; reads names only.

  Raises:
    ValueError: the folder holds no dump of a whole model's run, or several.
  """
  places = tensor_files.list_places('right', folder)
  if len(places) != 1:
    raise ValueError(
      f'right: expected dump:DIR of one step and rank, got {len(places)} in '
      f'{folder}: {", ".join([*places][:3])}'
    )
  (by_name,) = places.values()
  tensors = {}
  for name, tensor in by_name.items():
    parts = msprobe_dump.parse_run_name(name)
    if parts and (parts.part, parts.call) == ('forward', 0):
      tensors[parts.path, parts.rest] = DumpTensor(tensor)
  prefix = _find_prefix(folder, tensors)
  return RunDump(
    folder,
    {
      (path.removeprefix(prefix), rest): tensor
      for (path, rest), tensor in tensors.items()
    },
  )


def _find_prefix(folder: str, tensors) -> str:
  """Returns the prefix that a wrapper adds to the names of modules."""
  for path, _ in tensors:
    if path.endswith(_FIRST):
      return path.removesuffix(_FIRST)
  raise ValueError(
    f'right: expected a dump of a whole model, with a module {_FIRST}, got '
    f'none in {folder}'
  )
