"""Tensors that a kernel left in files, whoever wrote them.

A folder holds, for each kind of data and perhaps for each rank, one of

    real.safetensors      real.rank0.npz      real.pt
    real/                 with y.npy, gate_up.npy, ... or dump.json of msprobe

Where no name begins with a kind of data, all of it is of real data.
"""

from collections.abc import Callable, Iterator, Mapping
import json
import pathlib
import re

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import torch_file
from hpmoe.parity_tests.case.layouts import names as names_lib

Arrays = Mapping[str, np.ndarray]

_DATA = '|'.join(passes.DATA)
_OF_DATA = re.compile(rf'({_DATA})(?:\.rank(\d+))?')
_OF_RANK = re.compile(r'(?:.*\.)?rank(\d+)')
# What msprobe calls its description, and the folder of its tensors.
MSPROBE, _MSPROBE_TENSORS = 'dump.json', 'dump_tensor_data'


class Missing(ValueError):
  """Nothing was computed from this kind of data."""


def find(folder: str, data: str) -> dict[int | None, pathlib.Path]:
  """Returns where each rank's tensors are; None: those of all ranks.

  Raises:
    Missing: there are none of that kind of data.
    ValueError: there is no such folder, or it has two for the same.
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

  bfloat16 is `read_case.BFLOAT16`, where the file says so.

  Args:
    path: where.
    raw: what else is in a folder, by name.

  Raises:
    ValueError: it cannot be read.
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
  except Exception as error:  # of damaged files libraries raise anything
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
  dump_files = sorted(path.rglob(MSPROBE))
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
  """Returns all tensors of a dump, by the names that it gives them."""
  if len(dump_files) > 1:
    raise ValueError(
      f'{dump_files[0].parent}: expected the dump of one step and rank, got '
      f'{len(dump_files)}'
    )
  (path,) = dump_files
  tensors: dict[str, np.ndarray] = {}
  for name, file in list_msprobe_files(path).items():
    (tensors[name],) = read(file)[0].values()
  return tensors


def list_msprobe_files(path: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the files of all tensors that a dump.json names, by their names.

  Raises:
    ValueError: it is no dump of msprobe, or has statistics alone.
  """
  try:
    calls = json.loads(path.read_text())['data']
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f'{path}: expected a dump of msprobe, got {error!r}'
    ) from error
  folder = path.parent / _MSPROBE_TENSORS
  files = {pathlib.PurePath(n).stem: folder / n for n in _names(calls)}
  if not files:
    raise ValueError(
      f'{path}: expected tensors, got statistics alone: dump with task "tensor"'
    )
  return files


def _names(node: object) -> Iterator[str]:
  """Yields the names of files below a node of dump.json."""
  if isinstance(node, dict):
    if isinstance(node.get('data_name'), str):
      yield node['data_name']
    for value in node.values():
      yield from _names(value)
  elif isinstance(node, list):
    for value in node:
      yield from _names(value)


def _read_npz(path):
  with np.load(path, allow_pickle=False) as archive:
    return {name: archive[name] for name in archive.files}, {}


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
