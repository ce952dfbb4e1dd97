"""What XLA compiled for an oracle, kept between runs.

JAX keeps compiled functions in a folder, but writes them in place: who is
killed leaves half of one, and who reads meanwhile finds it.  So a run has a
folder of its own, of links to what is kept, and what it adds is moved among the
kept ones, whole, when it ends.  The name of a kept file holds its digest: an
oracle that a disk or a person changed is thrown away, not believed.

`HPMOE_CACHE` names another folder, or is `off`.  Who gave JAX a folder by
`JAX_COMPILATION_CACHE_DIR` keeps that.
"""

from collections.abc import Iterator, Mapping
import contextlib
import hashlib
import os
import pathlib
import platform
import shutil
import tempfile
import time

VARIABLE = 'HPMOE_CACHE'
OFF = 'off'
MOST_BYTES = 64 << 20
_RUN = 'run-'
# A folder of a run so old is of one that was killed.
_STALE_S = 24 * 3600
_SUFFIX = '-cache'  # JAX's, of its entries


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
def kept(where: pathlib.Path | None) -> Iterator[None]:
  """Lets JAX use what is kept, and keeps what it compiles meanwhile.

  Without effect if there is no folder, or none that can be written: what is
  compiled is the same, it only takes its time.
  """
  run = None
  if where is not None:
    with contextlib.suppress(OSError):
      run = begin(where / _machine())
  if run is None:
    yield
    return
  try:
    _use(run)
    yield
  finally:
    with contextlib.suppress(OSError):
      end(run)


def _use(run: pathlib.Path) -> None:
  import jax

  jax.config.update('jax_compilation_cache_dir', str(run))
  # Their folder would be part of every key, and they are for GPUs.
  jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def _machine() -> str:
  """Returns what compiled code runs on: JAX's own keys do not tell CPUs."""
  cpu = [platform.machine()]
  with contextlib.suppress(OSError):
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    names = ('model name', 'flags', 'Features', 'CPU part')
    cpu += sorted({line for line in lines if line.startswith(names)})
  return hashlib.sha256('\n'.join(cpu).encode()).hexdigest()[:16]


def begin(where: pathlib.Path) -> pathlib.Path:
  """Returns a new folder in `where`, with a link to each kept entry.

  Raises:
    OSError: it cannot be made.
  """
  where.mkdir(mode=0o700, parents=True, exist_ok=True)
  run = pathlib.Path(tempfile.mkdtemp(prefix=_RUN, dir=where))
  for path in where.glob(f'*{_SUFFIX}.*'):
    with contextlib.suppress(OSError):  # another run dropped it
      name, _, digest = path.name.rpartition('.')
      if _digest(path) == digest:
        os.link(path, run / name)
      else:
        path.unlink()
  return run


def end(run: pathlib.Path) -> None:
  """Keeps what was added to a folder of `begin`, and removes it.

  Raises:
    OSError: something could not be moved.
  """
  where = run.parent
  try:
    for path in run.glob(f'*{_SUFFIX}'):
      if path.stat().st_nlink == 1:  # no link to what is kept
        os.replace(path, where / f'{path.name}.{_digest(path)}')
  finally:
    shutil.rmtree(run, ignore_errors=True)
  _drop(where)


def _digest(path: pathlib.Path) -> str:
  return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _drop(where: pathlib.Path) -> None:
  """Removes the oldest entries beyond MOST_BYTES, and what was left behind."""
  seen = []
  for path in where.iterdir():
    with contextlib.suppress(OSError):
      seen.append((path.stat().st_mtime, path.stat().st_size, path))
  total = 0
  for changed, size, path in sorted(seen, reverse=True):
    if path.name.startswith(_RUN):
      if time.time() - changed > _STALE_S:
        shutil.rmtree(path, ignore_errors=True)
      continue
    total += size
    if total > MOST_BYTES:
      path.unlink(missing_ok=True)
