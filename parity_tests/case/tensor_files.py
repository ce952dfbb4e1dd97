"""Reads tensors from files that a kernel or a framework wrote.

A folder holds, for each kind of data and perhaps for each rank, one of

    real.safetensors      real.rank0.npz      real.pt
    real/                 with y.npy, gate_up.npy, ... or dump.json of msprobe

If no name begins with a kind of data, all tensors are of real data.
"""

from collections.abc import Callable, Mapping
import dataclasses
import pathlib
import re
from typing import Protocol

import numpy as np

from hpmoe.parity_tests.case import msprobe_dump
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import torch_file
from hpmoe.parity_tests.case.layouts import names as names_lib

Arrays = Mapping[str, np.ndarray]

_DATA = '|'.join(passes.DATA)
_OF_DATA = re.compile(rf'({_DATA})(?:\.rank(\d+))?')
_OF_RANK = re.compile(r'(?:.*\.)?rank(\d+)')
# A file of one step or rank of a run, by its name.
_PLACE = re.compile(r'(?:(?:step|rank)_?\d+[._-]?)+')


class Missing(ValueError):
  """There are no tensors for this kind of data."""


def find(folder: str, data: str) -> dict[int | None, pathlib.Path]:
  """Returns the path of each rank's tensors; None: of all ranks.

  Raises:
    Missing: there are none for that kind of data.
    ValueError: there is no such folder, or it has two paths for one rank.
  """
  top = pathlib.Path(folder)
  if not top.is_dir():
    raise ValueError(f'outputs: expected a folder, got {folder!r}')
  matches = {
    path: _OF_DATA.fullmatch(_stem(path)) for path in sorted(top.iterdir())
  }
  data_matches = {path: match for path, match in matches.items() if match}
  paths: dict[int | None, pathlib.Path] = {}
  for path, match in data_matches.items():
    rank = int(match[2]) if match[2] else None
    if match[1] == data and paths.setdefault(rank, path) is not path:
      raise ValueError(
        f'{folder}: expected one file or folder of {data} data, got '
        f'{paths[rank].name} and {path.name}'
      )
  if not data_matches and data == 'real' and matches:
    paths = {**_of_ranks(top)} or {None: top}
  if not paths:
    raise Missing(
      f'nothing in {folder} was computed from {data} data: expected '
      f'{data}.safetensors or the like'
    )
  return paths


def read(
  path: pathlib.Path, raw: Mapping[str, names_lib.Raw] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Returns (tensors by name, notes) of a file or folder.

  bfloat16 is `read_case.BFLOAT16` if the file has that dtype.

  Args:
    path: of the file or folder.
    raw: further tensors of a folder, by name.

  Raises:
    ValueError: the file cannot be read.
  """
  if path.is_dir():
    return _read_folder(path, raw or {})
  if path.suffix not in _READERS:
    raise ValueError(
      f'{path}: expected one of {", ".join(_READERS)} or a folder, got '
      f'{path.suffix!r}'
    )
  try:
    return _READERS[path.suffix](path)
  except Exception as error:  # libraries raise any error for a damaged file
    if str(error).startswith(f'{path}: '):
      raise
    message = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ValueError(
      f'{path}: expected a readable {path.suffix} file, got {message}'
    ) from error


def _stem(path: pathlib.Path) -> str:
  return path.stem if path.suffix in _READERS else path.name


def _of_ranks(top: pathlib.Path) -> dict[int | None, pathlib.Path]:
  matches = {path: _OF_RANK.fullmatch(_stem(path)) for path in top.iterdir()}
  return {int(match[1]): path for path, match in matches.items() if match}


def _read_folder(
  path: pathlib.Path, raw: Mapping[str, names_lib.Raw]
) -> tuple[dict, dict]:
  dump_files = sorted(path.rglob(msprobe_dump.MSPROBE))
  if dump_files:
    return _read_msprobe(dump_files), {}
  tensors = {name: file.read(path) for name, file in raw.items()}
  notes: dict[str, str] = {}
  for file in sorted(path.iterdir()):
    if file.suffix in _READERS:
      file_tensors, file_notes = read(file)
      for name in {*file_tensors} & {*tensors}:
        raise ValueError(f'{path}: expected one tensor {name!r}, got two')
      tensors |= file_tensors
      notes |= file_notes
  if not tensors:
    raise ValueError(
      f'{path}: expected files that end in {", ".join(_READERS)}, got none'
    )
  return tensors, notes


def _read_msprobe(dump_files: list[pathlib.Path]) -> dict[str, np.ndarray]:
  """Returns all tensors of a dump, by their names in it."""
  if len(dump_files) > 1:
    raise ValueError(
      f'{dump_files[0].parent}: expected the dump of one step and rank, got '
      f'{len(dump_files)}'
    )
  (path,) = dump_files
  tensors: dict[str, np.ndarray] = {}
  for name, file in msprobe_dump.list_files(path).items():
    (tensors[name],) = read(file)[0].values()
  return tensors


@dataclasses.dataclass(frozen=True)
class RunTensor:
  """A tensor of a run, in its own file or under a name in a file."""

  file: pathlib.Path
  name: str = ''

  def read(self) -> np.ndarray:
    """Returns its bits; bfloat16 is `read_case.BFLOAT16`.

    Raises:
      ValueError: the file cannot be read.
    """
    tensors = read(self.file)[0]
    if self.name:
      return np.asarray(tensors[self.name])
    (array,) = tensors.values()
    return np.asarray(array)


@dataclasses.dataclass(frozen=True)
class ArrayTensor:
  """A tensor of a run that is in memory."""

  array: np.ndarray

  def read(self) -> np.ndarray:
    """Returns its bits."""
    return self.array


class StoredTensor(Protocol):
  """The place of a tensor of a run."""

  def read(self) -> np.ndarray:
    """Returns its bits."""


RunTensors = Mapping[str, StoredTensor]


def list_places(flag: str, folder: str) -> dict[str, RunTensors]:
  """Returns the tensors of each step and rank of a dumped run, by its name.

  A place is a folder with a dump.json of msprobe; if there is none, a file such
  as step0.rank1.npz, or a folder with files of `SUFFIXES`, whose tensors have
  msprobe's names.  Steps and ranks are ordered by number.

  Args:
    flag: that named the folder.
    folder: the dump's.

  Raises:
    ValueError: the folder holds no dump, or one of statistics alone.
  """
  top = pathlib.Path(folder)
  indices = sorted(top.rglob(msprobe_dump.MSPROBE), key=_order_numbers)
  if indices:
    places: dict[str, RunTensors] = {}
    for index in indices:
      files = msprobe_dump.list_files(index)
      places[_name_place(top, index.parent)] = {
        name: RunTensor(file) for name, file in files.items()
      }
    return places
  plain_places = _list_plain_places(top)
  if not plain_places:
    raise ValueError(
      f'{flag}: expected a folder with a {msprobe_dump.MSPROBE} of msprobe, or '
      f'with {", ".join(SUFFIXES)} of tensors under such names, got {folder}'
    )
  return plain_places


def _list_plain_places(top: pathlib.Path) -> dict[str, RunTensors]:
  places: dict[str, dict[str, StoredTensor]] = {}
  files = [f for f in top.rglob('*') if f.suffix in SUFFIXES]
  for file in sorted(files, key=_order_numbers):
    is_place = _PLACE.fullmatch(file.stem)
    place = file.with_suffix('') if is_place else file.parent
    tensors = {
      name: RunTensor(file, name)
      for name in read(file)[0]
      if msprobe_dump.parse_run_name(name)
    }
    if tensors:
      places.setdefault(_name_place(top, place), {}).update(tensors)
  return dict(places)


def _name_place(top: pathlib.Path, place: pathlib.Path) -> str:
  name = str(place.relative_to(top))
  return '' if name == '.' else name


def _order_numbers(path: pathlib.Path) -> tuple:
  """Returns a sort key by which step2 comes before step10."""
  parts = re.split(r'(\d+)', str(path))
  return tuple((int(p), '') if p.isdigit() else (-1, p) for p in parts)


def _read_npz(path):
  with np.load(path, allow_pickle=False) as archive:
    arrays = {name: archive[name] for name in archive.files}
  for name, array in arrays.items():
    if array.dtype == np.dtype('V1'):
      raise ValueError(
        f'{path}: {name}: expected a dtype that .npz keeps, got bytes without '
        'one: numpy forgets which FP8 they were; save a .safetensors file'
      )
  return arrays, {}


def _read_npy(path):
  return {path.stem: np.load(path, allow_pickle=False, mmap_mode='r')}, {}


def _read_torch(path):
  content = torch_file.read(path)
  tensors_by_name = (
    content if isinstance(content, Mapping) else {path.stem: content}
  )
  wrong = [
    n
    for n, value in tensors_by_name.items()
    if not isinstance(value, np.ndarray)
  ]
  if wrong:
    raise ValueError(f'{path}: expected tensors by name, got {wrong[0]!r}')
  return dict(tensors_by_name), {}


_READERS: Mapping[str, Callable[[pathlib.Path], tuple[dict, dict]]] = {
  '.safetensors': read_case.read,
  '.npz': _read_npz,
  '.npy': _read_npy,
  '.pt': _read_torch,
}
# Of files with several tensors, by name.
SUFFIXES = ('.safetensors', '.npz', '.pt')
