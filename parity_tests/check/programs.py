"""Functions of the oracle, compiled once for a shape, and kept as such.

JAX's own cache is asked when a function has been traced and lowered, which
takes longer than to load what XLA made of it.  A `Program` is asked by what it
is made from: the text of the oracle, the versions of what compiles it, the CPU,
its arguments' shapes.  Only machine code is kept, never what it computed.

A kept file says itself what it is, and ends in a digest of all it says.  One
that is cut, changed, of another key or of another place is as good as none.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import hashlib
import inspect
import os
import pathlib
import pickle
import platform
import sys
import tempfile
from typing import Any

import jax
from jax.experimental import serialize_executable
import ml_dtypes  # noqa: F401  its version is told
import numpy as np

SUFFIX = '.program'
BEING_WRITTEN = 'new-'
_MAGIC = b'hpmoe program 1\n'
_DIGEST = 32
_SETTINGS = ('JAX_', 'XLA_')

Compiled = Callable[..., Any]

# Where this process keeps programs; None: nowhere.
_folder: pathlib.Path | None = None


def folder() -> pathlib.Path | None:
  """Returns where this process keeps programs, or None for nowhere."""
  return _folder


@contextlib.contextmanager
def kept(folder: pathlib.Path | None) -> Iterator[None]:
  """Keeps programs in a folder meanwhile."""
  global _folder
  before, _folder = _folder, folder
  try:
    yield
  finally:
    _folder = before


class Program:
  """A function of static arguments, then arrays, compiled for each shape."""

  def __init__(self, function: Callable[..., Any], static: int):
    """Wraps a function.

    Args:
      function: what JAX can trace; of a module of this project.
      static: how many of its first arguments are no arrays.
    """
    self._function, self._static = function, static
    self._jit = jax.jit(function, static_argnums=tuple(range(static)))
    self._made: dict[tuple, Compiled] = {}

  def __call__(self, *args):
    static, arrays = args[: self._static], args[self._static :]
    leaves, tree = jax.tree.flatten(arrays)
    if _folder is None or not all(map(_is_plain, leaves)):
      return self._jit(*args)
    kinds = tuple((leaf.shape, leaf.dtype.name) for leaf in leaves)
    of = (static, tree, kinds)
    if of in self._made:
      return self._made[of](*arrays)
    key = self.key(of)
    found = _found(_folder, key, arrays)
    if found is None:
      found = _made(_folder, key, self._jit.lower(*args).compile(), arrays)
    self._made[of], result = found
    return result

  def key(self, of: tuple) -> bytes:
    """Returns all that decides what is compiled."""
    function = self._function
    name = f'{function.__module__}.{function.__qualname__}'
    text = _text_of(function.__module__)
    return '\n'.join((*_surroundings(), name, text, *map(repr, of))).encode()


def _is_plain(leaf) -> bool:
  """Says whether an argument is an array whose dtype JAX leaves as it is."""
  plain = isinstance(leaf, (np.ndarray, jax.Array))
  plain &= not isinstance(leaf, jax.core.Tracer)
  return plain and leaf.dtype.itemsize <= 4


def _surroundings() -> tuple[str, ...]:
  settings = sorted(
    f'{name}={value}'
    for name, value in os.environ.items()
    if name.startswith(_SETTINGS)
  )
  x64 = f'x64={jax.config.read("jax_enable_x64")}'
  return (*_versions(), sources(), x64, *settings)


@functools.cache
def _versions() -> tuple[str, ...]:
  packages = ('jax', 'jaxlib', 'numpy', 'ml_dtypes')
  versions = [f'{name} {sys.modules[name].__version__}' for name in packages]
  return (*versions, sys.version, machine())


@functools.cache
def machine() -> str:
  """Returns what compiled code runs on: JAX's own keys do not tell CPUs."""
  cpu = [platform.machine(), f'{os.cpu_count()} cores']
  with contextlib.suppress(OSError):
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    names = ('model name', 'flags', 'Features', 'CPU part')
    cpu += sorted({line for line in lines if line.startswith(names)})
  return hashlib.sha256('\n'.join(cpu).encode()).hexdigest()[:16]


@functools.cache
def _text_of(module: str) -> str:
  """Returns a digest of a module's text: it may wrap what the oracle has."""
  text = inspect.getsource(sys.modules[module])
  return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def sources() -> str:
  """Returns a digest of the oracle's text."""
  import hpmoe.reference

  found = []
  for folder in hpmoe.reference.__path__:
    found += sorted(pathlib.Path(folder).rglob('*.py'))
  digest = hashlib.sha256()
  for path in found:
    text = path.read_bytes()
    digest.update(f'{path.name} {len(text)}\n'.encode() + text)
  return digest.hexdigest()


def _place(folder: pathlib.Path, key: bytes) -> pathlib.Path:
  return folder / f'{hashlib.sha256(key).hexdigest()[:32]}{SUFFIX}'


def read(folder: pathlib.Path, key: bytes) -> bytes | None:
  """Returns what was written of a key; None where it is not all there."""
  try:
    data = _place(folder, key).read_bytes()
  except OSError:
    return None
  body, digest = data[:-_DIGEST], data[-_DIGEST:]
  head = _MAGIC + key + b'\n\n'
  if hashlib.sha256(body).digest() != digest or not body.startswith(head):
    return None
  return body[len(head) :]


def write(folder: pathlib.Path, key: bytes, data: bytes) -> None:
  """Writes a file at once, or not at all.

  Raises:
    OSError: it cannot be written.
  """
  body = _MAGIC + key + b'\n\n' + data
  handle, name = tempfile.mkstemp(prefix=BEING_WRITTEN, dir=folder)
  try:
    with os.fdopen(handle, 'wb') as file:
      file.write(body + hashlib.sha256(body).digest())
    os.replace(name, _place(folder, key))
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(name)
    raise


def _found(folder: pathlib.Path, key: bytes, arrays):
  """Returns what is kept of a key, and what it makes of arrays; or None."""
  data = read(folder, key)
  if data is None:
    return None
  # Whatever is wrong with it shows when it is loaded or first run; it can be
  # compiled anew.
  with contextlib.suppress(Exception):
    made = _loaded(data)
    return made, jax.block_until_ready(made(*arrays))
  return None


def _made(folder: pathlib.Path, key: bytes, made: Compiled, arrays):
  """Returns a program and what it makes of arrays, and keeps it.

  If it does the same once it has been written and read: of what came from
  JAX's own cache XLA writes a part only.
  """
  data = None
  # What cannot be kept is used all the same.
  with contextlib.suppress(Exception):
    # Before it runs: a sort that has run cannot be written.
    data = pickle.dumps(serialize_executable.serialize(made))
  result = jax.block_until_ready(made(*arrays))
  with contextlib.suppress(Exception):
    if data is not None and _same(_loaded(data)(*arrays), result):
      write(folder, key, data)
  return made, result


def _loaded(data: bytes) -> Compiled:
  return serialize_executable.deserialize_and_load(*pickle.loads(data))


def _same(one, other) -> bool:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return all(
    np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
  )
