"""The state of a training run on disk, bit for bit.

    folder/
      step-00000100/state.safetensors   every array of the state; what is no
                                        array is in the header, as JSON
      step-00000100/...                 files that belong to it
      step-00000200/...

A step is there whole or not at all. The newest `keep` stay.
"""

from collections.abc import Mapping
import json
import os
import pathlib
import re
from typing import Any

import jax
import numpy as np

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.models.checkpoint import safetensors_file

_FILE = 'state.safetensors'
_HEADER = 'run'
_STEP = re.compile(r'step-(\d{8,})')


def save(
  folder: str | os.PathLike[str],
  step: int,
  tree: Any,
  header: Mapping[str, Any] | None = None,
  keep: int = 2,
  files: Mapping[str, bytes] | None = None,
) -> pathlib.Path:
  """Writes the state of a run after `step`; returns the folder it lies in.

  One process writes a folder at a time.

  Args:
    folder: of the run; made if it is not there.
    step: steps done, from 0.
    tree: of arrays, any pytree: parameters, optimizer state, random keys.
    header: what else resuming needs, as JSON: place in the data, seeds.
    keep: so many of the newest stay.
    files: name -> content of what else lies in the step's folder.

  Raises:
    OSError: a file cannot be written.
    ValueError: the step is there already, or `keep` is below 1.
  """
  if keep < 1:
    raise ValueError(f'keep: expected at least 1, got {keep}')
  root = pathlib.Path(folder)
  root.mkdir(parents=True, exist_ok=True)
  atomic_folder.remove_unfinished(root)
  arrays = {name: np.asarray(leaf) for name, leaf in _leaves(tree).items()}
  text = json.dumps(dict(header or {}, step=step), allow_nan=False)
  target = root / f'step-{step:08d}'
  with atomic_folder.writing(target) as unfinished:
    safetensors_file.write(
      unfinished / _FILE, arrays, arrays.__getitem__, {_HEADER: text}
    )
    for name, content in (files or {}).items():
      (unfinished / name).write_bytes(content)
  for old in _steps(root)[:-keep]:
    atomic_folder.remove(old)
  return target


def latest(folder: str | os.PathLike[str]) -> pathlib.Path | None:
  """Returns the newest state of a run; None if there is none."""
  steps = _steps(pathlib.Path(folder))
  return steps[-1] if steps else None


def _steps(root: pathlib.Path) -> list[pathlib.Path]:
  folders = {
    int(match[1]): path
    for path in root.glob('step-*')
    if (match := _STEP.fullmatch(path.name))
  }
  return [folders[step] for step in sorted(folders)]


def header(path: str | os.PathLike[str]) -> dict[str, Any]:
  """Returns the header of the state in a folder that `save` returned.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is damaged.
  """
  file = pathlib.Path(path) / _FILE
  return _header(file, safetensors_file.read_index(file)[1])


def _header(file: pathlib.Path, metadata: Mapping[str, str]) -> dict[str, Any]:
  try:
    return json.loads(metadata[_HEADER])
  except (KeyError, ValueError) as error:
    raise ValueError(
      f'{file}: expected a header of a run, got {metadata}'
    ) from error


def load(path: str | os.PathLike[str], like: Any) -> tuple[Any, dict[str, Any]]:
  """Returns the state in a folder that `save` returned, and its header.

  Args:
    path: the folder.
    like: a tree of the structure, shapes and dtypes that are expected; its
      leaves may be arrays or `jax.ShapeDtypeStruct`.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is damaged, or does not hold such a tree; names what differs.
  """
  file = pathlib.Path(path) / _FILE
  index, metadata = safetensors_file.read_index(file)
  expected = _leaves(like)
  if odd := sorted(set(expected) ^ set(index)):
    kind = 'missing' if odd[0] in expected else 'unexpected'
    raise ValueError(
      f'{file}: expected the state of this run, got {len(odd)} leaves missing '
      f'or unexpected, such as {odd[0]}, {kind}'
    )
  header = _header(file, metadata)
  leaves = []
  for name, leaf in expected.items():
    array = index[name].read()
    try:
      safetensors_file.check_spec(name, leaf, array)
    except ValueError as error:
      raise ValueError(f'{file}: {error}') from error
    leaves.append(array)
  return jax.tree.unflatten(jax.tree.structure(like), leaves), header


def _leaves(tree: Any) -> dict[str, Any]:
  """Returns the leaves of a tree by their paths, in its order."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
