"""Results in the cache: small outputs, found by their key and their inputs.

The key of a result is the key of the program and a digest of every byte of its
arguments, or of what drew them: the same code on the same bytes gives the same
result.  A check that finds a result loads no program, and no JAX.
"""

from collections.abc import Callable
import contextlib
import json
import pathlib
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  registers its dtypes by name
import numpy as np

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.cache import cache_file
from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import cache_key
from hpmoe.parity_tests.cache import trees

# Largest size of arguments and of a result, unless their caller knows better:
# reading more takes as long as computing it.
MAX_BYTES = 32 << 20
_SIZE_BYTES = 4  # of the header's length


class Limits(NamedTuple):
  """Largest sizes in bytes, of arrays that are hashed and of a result."""

  arguments: int
  result: int


class CachedResult:
  """The result of a program on some arguments, on disk."""

  def __init__(self, folder: pathlib.Path, key: bytes, max_bytes: int):
    self._folder, self._key = folder / cache_folder.RESULTS, key
    self._max_bytes = max_bytes

  @property
  def digest(self) -> bytes:
    """Of the program and of its arguments."""
    return cache_file.digest([memoryview(self._key)])

  @classmethod
  def locate(
    cls, folder: pathlib.Path, key: bytes, leaves, limits: Limits | None = None
  ) -> 'CachedResult | None':
    """Returns the place of a result; None if the arguments are too large."""
    limits = limits or Limits(MAX_BYTES, MAX_BYTES)
    digests = [array_recipes.find(leaf) for leaf in leaves]
    unknown = [leaf for leaf, d in zip(leaves, digests) if d is None]
    if sum(leaf.nbytes for leaf in unknown) > limits.arguments:
      return None
    digest = cache_file.digest(
      [
        _view_bytes(leaf) if d is None else memoryview(b'recipe ' + d)
        for leaf, d in zip(leaves, digests)
      ]
    )
    return cls(folder, b'answer ' + digest + b'\n' + key, limits.result)

  def load(self):
    """Returns the result, or None if it is absent or damaged."""
    data = cache_file.read(self._folder, self._key)
    if data is None:
      return None
    # A damaged result is computed again.
    with contextlib.suppress(Exception):
      begin = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], 'little')
      description = json.loads(bytes(data[_SIZE_BYTES:begin]))
      leaves = []
      for shape, dtype_name in description['kinds']:
        dtype = np.dtype(dtype_name)
        end = begin + int(np.prod(shape)) * dtype.itemsize
        leaves.append(np.frombuffer(data[begin:end], dtype).reshape(shape))
        begin = end
      return trees.unflatten(description['tree'], iter(leaves))
    return None

  def store(self, result) -> None:
    """Writes a result, unless it is too large or cannot be written."""
    leaves, tree = trees.flatten(result)
    leaves = [np.asarray(leaf) for leaf in leaves]
    if sum(leaf.nbytes for leaf in leaves) > self._max_bytes:
      return
    kinds = [(leaf.shape, leaf.dtype.name) for leaf in leaves]
    description = json.dumps({'tree': tree, 'kinds': kinds}).encode()
    head = len(description).to_bytes(_SIZE_BYTES, 'little') + description
    # A result that cannot be cached is used all the same.
    with contextlib.suppress(OSError):
      self._folder.mkdir(mode=0o700, exist_ok=True)
      views = map(_view_bytes, leaves)
      cache_file.write(self._folder, self._key, head, *views)


def get_or_run(cached: CachedResult | None, compute: Callable[[], Any]):
  """Returns a cached result, or computes and caches it.

  Args:
    cached: the place of the result; None: it is not to be cached.
    compute: computes a tree of arrays.
  """
  result = None if cached is None else cached.load()
  if result is None:
    result = compute()
    if cached is not None:
      cached.store(result)
  return result


def _view_bytes(leaf) -> memoryview:
  """Returns an array's bytes in row-major order, whatever its dtype.

  ml_dtypes' arrays have no buffer of their own.
  """
  return memoryview(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))


def get_or_compute(
  package: str,
  key_parts: tuple,
  leaves: list[np.ndarray],
  compute: Callable[[], Any],
  limits: Limits | None = None,
):
  """Returns the cached result of a computation on arrays, or computes it.

  Args:
    package: the package whose source text, beside the oracle's, decides the
      result.
    key_parts: plain data that decides the result too.
    leaves: the arrays.
    compute: computes a tree of arrays.
    limits: beyond them nothing is cached; None: `MAX_BYTES` for both.
  """
  folder = cache_folder.active_folder()
  if folder is None:
    return compute()
  environment = cache_key.describe_environment()
  text = cache_key.digest_package(package)
  key = '\n'.join((*environment, text, *map(repr, key_parts)))
  cached = CachedResult.locate(folder, key.encode(), leaves, limits)
  return get_or_run(cached, compute)
