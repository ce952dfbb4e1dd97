"""Functions of the oracle, compiled once for each shape and cached.

JAX looks into its own cache after it has traced and lowered a function, which
takes longer than to load the compiled code.  A `Program` is looked up by what
it is made from: the source text of the oracle, the versions of the libraries
that compile it, the CPU, and its arguments' shapes.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import importlib
import json
import pathlib
import pickle
import sys
from typing import Any

import numpy as np

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.cache import cache_file
from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import cache_key
from hpmoe.parity_tests.cache import cached_results
from hpmoe.parity_tests.cache import trees

# Compiled programs of one function in memory; each takes about a megabyte.
MAX_COMPILED = 100

Compiled = Callable[..., Any]

_CPU = 'cpu'
_settings = {'hides_accelerators': False}


def hide_accelerators() -> None:
  """Keeps JAX in this process off every device but the CPU.

  Otherwise its first use takes most of the memory of a GPU, which the kernel
  under test needs.  For a process that runs no code of the user.
  """
  _settings['hides_accelerators'] = True


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
  """Runs JAX on the CPU: there the oracle has one order of additions."""
  import jax

  if _settings['hides_accelerators']:
    jax.config.update('jax_platforms', _CPU)
  with jax.default_device(jax.local_devices(backend=_CPU)[0]):
    yield


class Program:
  """A function of static arguments, then arrays, compiled for each shape."""

  def __init__(
    self,
    function: Callable[..., Any] | str,
    static: int,
    compiled: bool = True,
    max_result: int | None = None,
  ):
    """Wraps a function.

    Args:
      function: a function of this project that JAX can trace; or 'module:name',
        to import it only when it is needed.
      static: how many of its first arguments are not arrays.
      compiled: False: it runs operation by operation; only results are cached.
      max_result: bytes, the largest result that is cached; None:
        `cached_results.MAX_BYTES`.
    """
    self._function, self._static = function, static
    self._compiled, self._max_result = compiled, max_result
    self._programs: dict[bytes, Compiled] = {}

  @functools.cached_property
  def _jit(self):
    import jax

    function = self._function
    if isinstance(function, str):
      module, _, name = function.partition(':')
      function = getattr(importlib.import_module(module), name)
    if not self._compiled:
      return lambda dtypes, *args: function(*args)

    # A function object of its own, so that JAX can free what it compiled.
    def run_on_bits(dtypes, *args):
      static, leaves = args[: self._static], args[self._static :]
      return function(*static, *_restore(leaves, dtypes))

    return jax.jit(run_on_bits, static_argnums=tuple(range(1 + self._static)))

  def count_compiled(self) -> int:
    """Returns how many compiled programs are in memory."""
    traced = self.__dict__.get('_jit') if self._compiled else None
    return len(self._programs) + (traced._cache_size() if traced else 0)

  def drop_compiled(self) -> None:
    """Frees the compiled programs."""
    self._programs.clear()
    self.__dict__.pop('_jit', None)

  def __call__(self, *args):
    static, arrays = args[: self._static], args[self._static :]
    leaves, tree = trees.flatten(arrays)
    if self.count_compiled() >= MAX_COMPILED:
      self.drop_compiled()
    folder = cache_folder.active_folder()
    if folder is None or not all(map(_is_plain, leaves)):
      cache_folder.announce_compilation()
      dtypes, arrays = self._take_bits(arrays)
      with on_cpu():
        return self._jit(dtypes, *static, *arrays)
    kinds = tuple((leaf.shape, leaf.dtype.name) for leaf in leaves)
    key = self.build_key((static, json.dumps(tree), kinds))

    def run():
      with on_cpu():
        return self._run(folder, key, args)

    limit = cached_results.MAX_BYTES
    limits = cached_results.Limits(limit, self._max_result or limit)
    cached = cached_results.CachedResult.locate(folder, key, leaves, limits)
    result = cached_results.get_or_run(cached, run)
    if cached is None or not array_recipes.is_large(result):
      return result
    # It need not be hashed where it is read.
    return array_recipes.note_digest(np.asarray(result), cached.digest)

  def _run(self, folder: pathlib.Path, key: bytes, args: tuple):
    import jax

    static = args[: self._static]
    dtypes, arrays = self._take_bits(args[self._static :])
    if not self._compiled:
      return jax.block_until_ready(self._jit(dtypes, *static, *arrays))
    program = self._programs.get(key)
    if program is not None:
      return jax.block_until_ready(program(*arrays))
    program_and_result = _load_and_run(folder, key, arrays)
    if program_and_result is None:
      cache_folder.announce_compilation()
      program = self._jit.lower(dtypes, *static, *arrays).compile()
      program_and_result = _run_and_store(folder, key, program, arrays)
    self._programs[key], result = program_and_result
    return result

  def _take_bits(self, arrays: tuple) -> tuple[tuple[str, ...], tuple]:
    """Returns names of two-byte float dtypes, and arrays with their bits.

    A program that reads such an array as bits would copy it as a whole first:
    gigabytes of weights.  As an argument, bits are a view.

    Returns:
      For each leaf the dtype that `_restore` gives it, or ''; the arrays.
    """
    from jax import tree_util

    if not self._compiled:
      return (), arrays
    leaves, tree = tree_util.tree_flatten(arrays)
    dtypes = tuple(map(_name_narrow_float, leaves))
    bits = [
      np.asarray(leaf).view(np.uint16) if dtype else leaf
      for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
    return dtypes, tree_util.tree_unflatten(tree, bits)

  def build_key(self, arguments: tuple) -> bytes:
    """Returns a key of everything that decides what is compiled."""
    function = self._function
    if isinstance(function, str):
      module, _, name = function.partition(':')
    else:
      module, name = function.__module__, function.__qualname__
    text = cache_key.digest_module(module)
    parts = (f'{module}.{name}', text, *map(repr, arguments))
    return '\n'.join((*cache_key.describe_environment(), *parts)).encode()


def _name_narrow_float(leaf) -> str:
  """Returns the dtype of an array of two-byte floats that has bits, or ''."""
  if not _is_plain(leaf) or leaf.dtype.itemsize != 2 or leaf.dtype.kind in 'iu':
    return ''
  return leaf.dtype.name


def _restore(arrays: tuple, dtypes: tuple[str, ...]) -> tuple:
  """Returns arrays whose bits `Program._take_bits` took, as their dtypes."""
  from jax import lax
  from jax import tree_util

  leaves, tree = tree_util.tree_flatten(arrays)
  values = [
    lax.bitcast_convert_type(leaf, dtype) if dtype else leaf
    for leaf, dtype in zip(leaves, dtypes, strict=True)
  ]
  return tree_util.tree_unflatten(tree, values)


def _is_plain(leaf) -> bool:
  """Returns whether an argument is an array whose dtype JAX keeps."""
  plain = isinstance(leaf, np.ndarray)
  jax = sys.modules.get('jax')
  if jax is not None and isinstance(leaf, jax.Array):
    plain = not isinstance(leaf, jax.core.Tracer)
  # In another byte order, the same bytes are other values.
  return plain and leaf.dtype.itemsize <= 4 and leaf.dtype.isnative


def _load_and_run(folder: pathlib.Path, key: bytes, arrays):
  """Returns the cached program of a key and its result; None if absent."""
  import jax

  data = cache_file.read(folder, key)
  if data is None:
    return None
  # A damaged program fails when it is loaded or first run; then it is compiled
  # again.
  with contextlib.suppress(Exception):
    program = _deserialize(data)
    return program, jax.block_until_ready(program(*arrays))
  return None


def _run_and_store(folder: pathlib.Path, key: bytes, program: Compiled, arrays):
  """Returns a program and its result on arrays, and caches the program.

  XLA writes only a part of a program that came from JAX's own cache.  Where it
  may have, the program is cached only if it gives the same bits after it was
  serialised and read back.
  """
  import jax
  from jax.experimental import serialize_executable

  data = None
  # A program that cannot be cached is used all the same.
  with contextlib.suppress(Exception):
    # Before it runs: a sort that has run cannot be serialised.
    data = pickle.dumps(serialize_executable.serialize(program))
  result = jax.block_until_ready(program(*arrays))
  with contextlib.suppress(Exception):
    if data is not None:
      copy = _deserialize(data)
      if not _has_own_cache() or _have_same_bits(copy(*arrays), result):
        cache_file.write(folder, key, data)
  return program, result


def _has_own_cache() -> bool:
  """Returns whether JAX may have read a program from its own cache."""
  import jax

  # JAX makes these attributes when it runs.
  config: Any = jax.config
  folder = config.jax_compilation_cache_dir
  return bool(config.jax_enable_compilation_cache and folder)


def _deserialize(data: bytes | memoryview) -> Compiled:
  from jax.experimental import serialize_executable

  code, in_tree, out_tree = pickle.loads(data)
  return serialize_executable.deserialize_and_load(
    code, in_tree, out_tree, backend=_CPU
  )


def _have_same_bits(first, second) -> bool:
  pairs = zip(trees.flatten(first)[0], trees.flatten(second)[0], strict=True)
  return all(
    np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
  )
