"""Folders and files that are whole or not there, whenever the writer dies."""

from collections.abc import Iterator
import contextlib
import io
import os
import pathlib
import shutil
import tempfile
from typing import Any

from hpmoe.reference.contract import plot_style

_UNFINISHED = '.unfinished-'


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields an empty folder beside `path`, and renames it to `path` at the end.

  All files are on the disk before the folder is renamed. After an error the
  folder is removed; `remove_unfinished` removes those of killed processes.

  Raises:
    ValueError: something is there already, or the folder above it is not.
  """
  target = pathlib.Path(path)
  if os.path.lexists(target):
    raise ValueError(f'{target}: expected nothing there yet, got something')
  if not target.parent.is_dir():
    raise ValueError(f'{target}: expected a folder {target.parent}, got none')
  prefix = f'{_UNFINISHED}{target.name}-'
  unfinished = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
  try:
    unfinished.chmod(0o777 & ~_umask())  # mkdtemp's is the owner's alone
    yield unfinished
    for file in unfinished.rglob('*'):
      _sync(file)
    _sync(unfinished)
    unfinished.rename(target)
  except BaseException:
    shutil.rmtree(unfinished, ignore_errors=True)
    raise
  _sync(target.parent)


def write_file(path: pathlib.Path, content: bytes) -> None:
  """Writes a file; an old one stays until the new one is on the disk."""
  with replacing(path) as unfinished:
    unfinished.write_bytes(content)


def write_png(path: pathlib.Path, figure: Any) -> None:
  """Writes a figure of `plot_style` as `write_file` does.

  Raises:
    OSError: the file cannot be written.
  """
  png = io.BytesIO()
  plot_style.save(figure, png)
  write_file(path, png.getvalue())


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the path of a file to write, and renames it to `path` at the end.

  An old file stays until the new one is on the disk.
  """
  unfinished = path.with_name(f'{_UNFINISHED}{path.name}')
  try:
    yield unfinished
    _sync(unfinished)
    unfinished.replace(path)
  except BaseException:
    unfinished.unlink(missing_ok=True)
    raise
  _sync(path.parent)


def append(path: pathlib.Path, content: bytes) -> None:
  """Adds to the end of a file; it is on the disk when this returns."""
  with open(path, 'ab') as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def remove(path: pathlib.Path) -> None:
  """Removes a folder, which at no time is there in part under its name."""
  doomed = path.with_name(f'{_UNFINISHED}{path.name}')
  shutil.rmtree(doomed, ignore_errors=True)
  path.rename(doomed)
  shutil.rmtree(doomed)


def remove_unfinished(folder: pathlib.Path) -> None:
  """Removes what killed writers left in a folder that one process writes."""
  for left in folder.glob(f'{_UNFINISHED}*'):
    if left.is_dir():
      shutil.rmtree(left, ignore_errors=True)
    else:
      left.unlink()


def _sync(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask
