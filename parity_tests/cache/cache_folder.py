"""The folder of the cache: where it is, who may use it, how large it grows.

`HPMOE_CACHE` names another folder, or is `off`.  If the user gave JAX a folder
with `JAX_COMPILATION_CACHE_DIR`, that one is used instead, by JAX alone.  The
folder holds machine code, so one that other users can write to is not used.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import os
import pathlib
import stat
import time

VARIABLE = 'HPMOE_CACHE'
DISABLED = 'off'
# Largest total size of the files of each folder.
MAX_PROGRAM_BYTES = 64 << 20
MAX_RESULT_BYTES = 1 << 30
# Folder of results in that of programs.
RESULTS = 'answers'
# A partly written file older than this was left behind by a killed process.
_STALE_S = 24 * 3600

# The folder that this process caches in; None: none.
_active_folder: pathlib.Path | None = None
# Called before the first compilation; None: already called, or not asked for.
_before_compiling: Callable[[], None] | None = None


def find_folder(
  environment: Mapping[str, str] = os.environ,
) -> pathlib.Path | None:
  """Returns the folder of the cache, or None if there is to be no cache."""
  setting = environment.get(VARIABLE)
  if setting == DISABLED or environment.get('JAX_COMPILATION_CACHE_DIR'):
    return None
  if setting:
    return pathlib.Path(setting)
  home = environment.get('HOME')
  base = environment.get('XDG_CACHE_HOME') or (home and f'{home}/.cache')
  return pathlib.Path(base) / 'hpmoe' if base else None


def active_folder() -> pathlib.Path | None:
  """Returns the folder that this process caches in, or None."""
  return _active_folder


@contextlib.contextmanager
def use_cache(
  cache: pathlib.Path | None, tell: Callable[[], None] | None = None
) -> Iterator[None]:
  """Caches below `cache`, in a folder of this machine; trims it at the end.

  Without a folder, or if other users can write to it, nothing is cached:
  results are the same and take longer.

  Args:
    cache: the folder of all machines, or None.
    tell: called before the first compilation, which may take a minute.
  """
  from hpmoe.parity_tests.cache import cache_key

  machine_folder = None
  if cache is not None:
    machine_folder = _make_private(cache / cache_key.identify_machine())
  try:
    with activate(machine_folder, tell):
      yield
  finally:
    if machine_folder is not None:
      for folder, max_bytes in (
        (machine_folder, MAX_PROGRAM_BYTES),
        (machine_folder / RESULTS, MAX_RESULT_BYTES),
      ):
        with contextlib.suppress(OSError):
          trim(folder, max_bytes)


@contextlib.contextmanager
def activate(
  folder: pathlib.Path | None, tell: Callable[[], None] | None = None
) -> Iterator[None]:
  """Caches in `folder` itself; calls `tell` before the first compilation."""
  global _active_folder, _before_compiling
  previous = _active_folder, _before_compiling
  _active_folder, _before_compiling = folder, tell
  try:
    yield
  finally:
    _active_folder, _before_compiling = previous


def announce_compilation() -> None:
  """Calls what `activate` was given to call before the first compilation."""
  global _before_compiling
  tell, _before_compiling = _before_compiling, None
  if tell is not None:
    tell()


def _make_private(folder: pathlib.Path) -> pathlib.Path | None:
  """Returns the folder, made if needed; None unless only the user can write."""
  with contextlib.suppress(OSError):
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid == os.getuid() and not writable_by_others:
      return folder
  return None


def trim(folder: pathlib.Path, max_bytes: int) -> None:
  """Removes the oldest files beyond `max_bytes`, and stale partial ones.

  Raises:
    OSError: the folder cannot be read or written.
  """
  from hpmoe.parity_tests.cache import cache_file

  files = []
  for path in folder.iterdir():
    with contextlib.suppress(OSError):  # another run removed it
      status = path.stat()
      if stat.S_ISREG(status.st_mode):
        files.append((status.st_mtime, status.st_size, path))
  total = 0
  for modified, size, path in sorted(files, reverse=True):
    if path.name.startswith(cache_file.PARTIAL_PREFIX):
      if time.time() - modified > _STALE_S:
        path.unlink(missing_ok=True)
      continue
    total += size
    if total > max_bytes:
      path.unlink(missing_ok=True)
