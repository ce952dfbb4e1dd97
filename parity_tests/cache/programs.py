"""Functions of the oracle, compiled once for a shape, and kept as such.

JAX's own cache is asked when a function has been traced and lowered, which
takes longer than to load what XLA made of it.  A `Program` is asked by what it
is made from: the text of the oracle, the versions of what compiles it, the CPU,
its arguments' shapes.

Beside the machine code lies what it answered, if that is small, under the same
key and a digest of every byte of its arguments: the same code on the same bytes
answers the same.  Who finds an answer loads no code, and no JAX.

A kept file says itself what it is, and ends in a digest of all it says.  One
that is cut, changed, of another key or of another place is as good as none.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import pickle
import platform
import sys
import tempfile
from typing import Any

import ml_dtypes  # noqa: F401  its dtypes are named
import numpy as np

SUFFIX = '.program'
# Answers have a folder of their own in that of programs.
ANSWERS = 'answers'
# Of arguments and results together: more takes as long to read as to compute.
MOST_BYTES_OF_ANSWER = 32 << 20
BEING_WRITTEN = 'new-'
_MAGIC = b'hpmoe program 2\n'
_DIGEST = 32
_PIECE = 1 << 19  # bytes, of which a digest is made
_SIZE = 4  # bytes of a head's length
# Compiled for a process to hold of one function; each is a megabyte or so.
MOST_HELD = 100
_SETTINGS = ('JAX_', 'XLA_')

Compiled = Callable[..., Any]

# Where this process keeps programs; None: nowhere.
_folder: pathlib.Path | None = None
# Called before the first compilation; None: it was, or nobody asked.
_before_compiling: Callable[[], None] | None = None


def folder() -> pathlib.Path | None:
  """Returns where this process keeps programs, or None for nowhere."""
  return _folder


@contextlib.contextmanager
def kept(
  folder: pathlib.Path | None, tell: Callable[[], None] | None = None
) -> Iterator[None]:
  """Keeps programs in a folder meanwhile; `tell` is called if one is made."""
  global _folder, _before_compiling
  before = _folder, _before_compiling
  _folder, _before_compiling = folder, tell
  try:
    yield
  finally:
    _folder, _before_compiling = before


def _tell_once() -> None:
  global _before_compiling
  tell, _before_compiling = _before_compiling, None
  if tell is not None:
    tell()


class Program:
  """A function of static arguments, then arrays, compiled for each shape."""

  def __init__(
    self,
    function: Callable[..., Any] | str,
    static: int,
    compiled: bool = True,
  ):
    """Wraps a function.

    Args:
      function: what JAX can trace, of a module of this project; or where it is
        found when it must be, 'module:name'.
      static: how many of its first arguments are no arrays.
      compiled: or else it runs operation by operation, and answers are kept.
    """
    self._function, self._static = function, static
    self._compiled = compiled
    self._made: dict[bytes, Compiled] = {}

  @functools.cached_property
  def _jit(self):
    import jax

    function = self._function
    if isinstance(function, str):
      module, _, name = function.partition(':')
      function = getattr(importlib.import_module(module), name)
    # Of its own, so that what it compiled can be let go of.
    mine = lambda *args: function(*args)
    if not self._compiled:
      return mine
    return jax.jit(mine, static_argnums=tuple(range(self._static)))

  def count(self) -> int:
    """Returns how many this process holds."""
    traced = self.__dict__.get('_jit') if self._compiled else None
    return len(self._made) + (traced._cache_size() if traced else 0)

  def forget(self) -> None:
    """Lets go of what was compiled."""
    self._made.clear()
    self.__dict__.pop('_jit', None)

  def __call__(self, *args):
    static, arrays = args[: self._static], args[self._static :]
    leaves, tree = flatten(arrays)
    if self.count() >= MOST_HELD:
      self.forget()
    if _folder is None or not all(map(_is_plain, leaves)):
      _tell_once()
      return self._jit(*args)
    kinds = tuple((leaf.shape, leaf.dtype.name) for leaf in leaves)
    key = self.key((static, json.dumps(tree), kinds))
    return _answered(_folder, key, leaves, lambda: self._run(key, args))

  def _run(self, key: bytes, args: tuple):
    import jax

    arrays = args[self._static :]
    if not self._compiled:
      return jax.block_until_ready(self._jit(*args))
    held = self._made.get(key)
    if held is not None:
      return jax.block_until_ready(held(*arrays))
    found = _found(_folder, key, arrays)
    if found is None:
      _tell_once()
      found = _made(_folder, key, self._jit.lower(*args).compile(), arrays)
    self._made[key], result = found
    return result

  def key(self, of: tuple) -> bytes:
    """Returns all that decides what is compiled."""
    function = self._function
    if isinstance(function, str):
      module, _, name = function.partition(':')
    else:
      module, name = function.__module__, function.__qualname__
    said = (f'{module}.{name}', _text_of(module), *map(repr, of))
    return '\n'.join((*_surroundings(), *said)).encode()


def flatten(tree) -> tuple[list[Any], Any]:
  """Returns the arrays of a tree, and what is left without them: plain data.

  A tree is an array, None, or a tuple, list or dict of trees.
  """
  if tree is None:
    return [], None
  if isinstance(tree, dict):
    names = sorted(tree)
    leaves, of = flatten([tree[name] for name in names])
    return leaves, {'names': names, 'of': of['of']}
  if isinstance(tree, (tuple, list)):
    parts = [flatten(part) for part in tree]
    leaves = [leaf for part, _ in parts for leaf in part]
    return leaves, {'kind': type(tree).__name__, 'of': [t for _, t in parts]}
  return [tree], 'array'


def unflatten(tree, leaves: Iterator[np.ndarray]):
  """Returns what `flatten` took apart; of tuples, plain ones alone."""
  if tree is None:
    return None
  if tree == 'array':
    return next(leaves)
  parts = [unflatten(part, leaves) for part in tree['of']]
  if 'names' in tree:
    return dict(zip(tree['names'], parts, strict=True))
  return {'tuple': tuple, 'list': list}[tree['kind']](parts)


class Answer:
  """What a program answered to some arguments, on disk."""

  def __init__(self, folder: pathlib.Path, key: bytes):
    self._folder, self._key = folder / ANSWERS, key

  @classmethod
  def of(cls, folder: pathlib.Path, key: bytes, leaves) -> 'Answer | None':
    """Returns where an answer would lie; None if it is too large for that."""
    if sum(leaf.nbytes for leaf in leaves) > MOST_BYTES_OF_ANSWER:
      return None
    digest = _digest([_bytes_of(leaf) for leaf in leaves])
    return cls(folder, b'answer ' + digest + b'\n' + key)

  def found(self):
    """Returns the answer, or None where it is not there and whole."""
    data = read(self._folder, self._key)
    if data is None:
      return None
    # Whatever is wrong with it, it can be computed anew.
    with contextlib.suppress(Exception):
      begin = _SIZE + int.from_bytes(data[:_SIZE], 'little')
      said = json.loads(bytes(data[_SIZE:begin]))
      leaves = []
      for shape, dtype in said['kinds']:
        of = np.dtype(dtype)
        end = begin + int(np.prod(shape)) * of.itemsize
        leaves.append(np.frombuffer(data[begin:end], of).reshape(shape))
        begin = end
      return unflatten(said['tree'], iter(leaves))
    return None

  def keep(self, result) -> None:
    """Writes an answer, if it is small and can be."""
    leaves, tree = flatten(result)
    leaves = [np.asarray(leaf) for leaf in leaves]
    if sum(leaf.nbytes for leaf in leaves) > MOST_BYTES_OF_ANSWER:
      return
    kinds = [(leaf.shape, leaf.dtype.name) for leaf in leaves]
    said = json.dumps({'tree': tree, 'kinds': kinds}).encode()
    head = len(said).to_bytes(_SIZE, 'little') + said
    body = b''.join(map(_bytes_of, leaves))
    # What cannot be kept is used all the same.
    with contextlib.suppress(OSError):
      self._folder.mkdir(mode=0o700, exist_ok=True)
      write(self._folder, self._key, head + body)


def _answered(folder: pathlib.Path, key: bytes, leaves, compute):
  """Returns what is kept of a key and arrays, or computes and keeps it."""
  told = Answer.of(folder, key, leaves)
  result = None if told is None else told.found()
  if result is None:
    result = compute()
    if told is not None:
      told.keep(result)
  return result


def _bytes_of(leaf) -> memoryview:
  """Returns an array's bytes, row after row; dtypes of ours have no buffer."""
  return memoryview(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))


def _digest(parts: Sequence[memoryview]) -> bytes:
  """Returns a digest of bytes: of those of their pieces, made by two threads.

  All of a small check's arguments and answers pass here: a tenth of its time.
  """
  pieces = [
    part[at : at + _PIECE]
    for part in parts
    for at in range(0, part.nbytes, _PIECE)
  ]
  half = len(pieces) // 2
  if half:
    others = _helper().submit(_digests, pieces[half:])
    made = _digests(pieces[:half]) + others.result()
  else:
    made = _digests(pieces)
  sizes = [part.nbytes for part in parts]
  return hashlib.sha256(repr(sizes).encode() + made).digest()


def _digests(pieces: Sequence[memoryview]) -> bytes:
  return b''.join(hashlib.sha256(piece).digest() for piece in pieces)


@functools.cache
def _helper() -> futures.ThreadPoolExecutor:
  return futures.ThreadPoolExecutor(1)


# A child of a fork has none of the parent's threads.
os.register_at_fork(after_in_child=_helper.cache_clear)


def _is_plain(leaf) -> bool:
  """Says whether an argument is an array whose dtype JAX leaves as it is."""
  plain = isinstance(leaf, np.ndarray)
  jax = sys.modules.get('jax')
  if jax is not None and isinstance(leaf, jax.Array):
    plain = not isinstance(leaf, jax.core.Tracer)
  # Of another byte order, the same bytes are other values.
  return plain and leaf.dtype.itemsize <= 4 and leaf.dtype.isnative


def _surroundings() -> tuple[str, ...]:
  settings = sorted(
    f'{name}={value}'
    for name, value in os.environ.items()
    if name.startswith(_SETTINGS)
  )
  return (
    *_versions(),
    texts('hpmoe.reference'),
    f'x64={_is_wide()}',
    *settings,
  )


def _is_wide() -> bool:
  """Says whether JAX knows 64 bits, or would; its settings are told beside."""
  if 'jax' not in sys.modules:
    return False
  import jax

  return jax.config.read('jax_enable_x64')


@functools.cache
def _versions() -> tuple[str, ...]:
  packages = ('jax', 'jaxlib', 'numpy', 'ml_dtypes')
  versions = [f'{name} {_version(name)}' for name in packages]
  return (*versions, sys.version, machine())


def _version(package: str) -> str:
  """Returns an installed version, by the name of the folder that tells it.

  To load importlib.metadata takes a small check longer than to load itself.
  """
  spec = importlib.util.find_spec(package)
  if spec is not None and spec.origin is not None:
    beside = pathlib.Path(spec.origin).parents[1]
    found = [path.stem for path in beside.glob(f'{package}-*.dist-info')]
    if len(found) == 1:
      return found[0].removeprefix(f'{package}-')
  from importlib import metadata

  return metadata.version(package)


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
  spec = importlib.util.find_spec(module)
  assert spec is not None and spec.origin is not None
  text = pathlib.Path(spec.origin).read_bytes()
  return hashlib.sha256(text).hexdigest()


@functools.cache
def texts(package: str) -> str:
  """Returns a digest of the text of a package and all in it."""
  found = []
  for folder in importlib.import_module(package).__path__:
    found += sorted(pathlib.Path(folder).rglob('*.py'))
  digest = hashlib.sha256()
  for path in found:
    text = path.read_bytes()
    digest.update(f'{path.name} {len(text)}\n'.encode() + text)
  return digest.hexdigest()


def remembered(
  package: str,
  said: tuple,
  leaves: list[np.ndarray],
  compute: Callable[[], Any],
):
  """Returns what is computed of arrays, or what is kept of that.

  Args:
    package: whose text, beside the oracle's, decides what is computed.
    said: what else does, as plain data.
    leaves: the arrays.
    compute: makes a tree of arrays of them.
  """
  if _folder is None:
    return compute()
  key = '\n'.join((*_surroundings(), texts(package), *map(repr, said)))
  return _answered(_folder, key.encode(), leaves, compute)


def _place(folder: pathlib.Path, key: bytes) -> pathlib.Path:
  return folder / f'{hashlib.sha256(key).hexdigest()[:32]}{SUFFIX}'


def read(folder: pathlib.Path, key: bytes) -> memoryview | None:
  """Returns what was written of a key; None where it is not all there."""
  try:
    data = _place(folder, key).read_bytes()
  except OSError:
    return None
  # Views: an answer may be large.
  whole = memoryview(data)
  body, digest = whole[:-_DIGEST], whole[-_DIGEST:]
  head = _MAGIC + key + b'\n\n'
  if body[: len(head)] != head or _digest([body]) != digest:
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
      file.write(body + _digest([memoryview(body)]))
    os.replace(name, _place(folder, key))
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(name)
    raise


def _found(folder: pathlib.Path, key: bytes, arrays):
  """Returns what is kept of a key, and what it makes of arrays; or None."""
  import jax

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
  import jax
  from jax.experimental import serialize_executable

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


def _loaded(data: bytes | memoryview) -> Compiled:
  from jax.experimental import serialize_executable

  return serialize_executable.deserialize_and_load(*pickle.loads(data))


def _same(one, other) -> bool:
  pairs = zip(flatten(one)[0], flatten(other)[0], strict=True)
  return all(
    np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
  )
