"""Small programs for tests of the cache, with compilations counted."""

import json

import jax
from jax.experimental.compilation_cache import compilation_cache
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import cached_results
from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.cache import trees

MATRIX = np.ones((4, 4), np.float32)


def scaled(factor, x):
  return x @ x * factor + 1


def transposed(factor, x):
  return x.T @ x - factor


def sorted_rows(factor, x):
  return jnp.sort(x * factor, axis=0)


class CountedProgram:
  """A program whose compilations are counted."""

  def __init__(self, function=scaled):
    self.program = programs.Program(function, 1)
    self.compiled = 0
    jit = self.program._jit
    self.program._jit = self
    self._lower = jit.lower

  def lower(self, *args):
    self.compiled += 1
    return self._lower(*args)

  def _cache_size(self):
    return 0

  def __call__(self, folder, factor=3, x=MATRIX):
    """Returns the result, by a cache in a folder."""
    with cache_folder.activate(folder):
      return np.asarray(self.program(factor, x))


def run_checked(folder, function=scaled, factor=3, x=MATRIX):
  """Returns how often a new process would compile to run a program, checked."""
  program = CountedProgram(function)
  actual = program(folder, factor, x)
  np.testing.assert_array_equal(actual, function(factor, x))
  return program.compiled


def list_entries(folder):
  return sorted(folder.iterdir())


def key_of_ones() -> bytes:
  """Returns the key of the program that `run_checked` runs by default."""
  _, tree = trees.flatten((MATRIX,))
  arguments = ((3,), json.dumps(tree), ((MATRIX.shape, 'float32'),))
  return programs.Program(scaled, 1).build_key(arguments)


# A test module takes these fixtures by assigning them to names of its own.
@pytest.fixture(autouse=True)
def without_jax_cache():
  """Switches JAX's own compilation cache off."""
  folder = jax.config.jax_compilation_cache_dir
  compilation_cache.reset_cache()
  jax.config.update('jax_compilation_cache_dir', None)
  yield
  compilation_cache.reset_cache()
  jax.config.update('jax_compilation_cache_dir', folder)


@pytest.fixture
def no_results(monkeypatch):
  """Caches programs alone."""
  monkeypatch.setattr(cached_results, 'MAX_BYTES', -1)
