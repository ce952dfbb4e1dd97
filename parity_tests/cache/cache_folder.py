"""The folder that keeps what XLA compiled for an oracle, and it answered.

`HPMOE_CACHE` names another folder, or is `off`.  Who gave JAX a folder by
`JAX_COMPILATION_CACHE_DIR` keeps that.  What lies in it is machine code: a
folder that others may write to is not used.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import os
import pathlib
import stat
import time

VARIABLE = 'HPMOE_CACHE'
OFF = 'off'
MOST_BYTES = 64 << 20
MOST_BYTES_OF_ANSWERS = 256 << 20
# What is being written for so long was left behind by who was killed.
_STALE_S = 24 * 3600


def folder(environment: Mapping[str, str] = os.environ) -> pathlib.Path | None:
  """Returns where compiled functions are kept, or None for nowhere."""
  asked = environment.get(VARIABLE)
  if asked == OFF or environment.get('JAX_COMPILATION_CACHE_DIR'):
    return None
  if asked:
    return pathlib.Path(asked)
  home = environment.get('HOME')
  base = environment.get('XDG_CACHE_HOME') or (home and f'{home}/.cache')
  return pathlib.Path(base) / 'hpmoe' if base else None


@contextlib.contextmanager
def kept(
  where: pathlib.Path | None, tell: Callable[[], None] | None = None
) -> Iterator[None]:
  """Uses what is kept, and keeps what is compiled meanwhile.

  `tell` is called before the first compilation, which may take a minute.
  Without effect if there is no folder, or none that is ours: what is compiled
  is the same, it only takes its time.
  """
  from hpmoe.parity_tests.cache import programs

  room = None if where is None else _made(where / programs.machine())
  try:
    with programs.kept(room, tell):
      yield
  finally:
    if room is not None:
      for held, most in (
        (room, MOST_BYTES),
        (room / programs.ANSWERS, MOST_BYTES_OF_ANSWERS),
      ):
        with contextlib.suppress(OSError):
          drop(held, most)


def _made(room: pathlib.Path) -> pathlib.Path | None:
  """Returns a folder that is there and ours alone to write to, or None."""
  with contextlib.suppress(OSError):
    room.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = room.stat()
    others = seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return room if seen.st_uid == os.getuid() and not others else None
  return None


def drop(room: pathlib.Path, most: int) -> None:
  """Removes the oldest files beyond `most` bytes, and what was left behind.

  Raises:
    OSError: the folder cannot be read or written.
  """
  from hpmoe.parity_tests.cache import programs

  seen = []
  for path in room.iterdir():
    with contextlib.suppress(OSError):  # another run dropped it
      told = path.stat()
      if stat.S_ISREG(told.st_mode):
        seen.append((told.st_mtime, told.st_size, path))
  total = 0
  for changed, size, path in sorted(seen, reverse=True):
    if path.name.startswith(programs.BEING_WRITTEN):
      if time.time() - changed > _STALE_S:
        path.unlink(missing_ok=True)
      continue
    total += size
    if total > most:
      path.unlink(missing_ok=True)
