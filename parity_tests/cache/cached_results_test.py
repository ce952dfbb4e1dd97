"""Results are found again for the same arguments, or else computed again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.parity_tests.cache import cache_file
from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import cache_key
from hpmoe.parity_tests.cache import cached_results
from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.cache import programs_testing as testing

without_jax_cache = testing.without_jax_cache
no_results = testing.no_results


def _return_tree(factor, x):
  return {'sum': x + factor, 'pair': (-0.0 * x, x.astype(jnp.bfloat16))}


class TestAnswers:
  """Results of programs."""

  @pytest.fixture
  def path(self, tmp_path):
    testing.run_checked(tmp_path)
    (path,) = (tmp_path / cache_folder.RESULTS).iterdir()
    return path

  def count_runs(self, folder, monkeypatch, **arguments) -> int:
    """Returns how often a program was run to answer, rightly."""
    load_and_run, runs = programs._load_and_run, []

    def load_and_count(*args):
      runs.append(args)
      return load_and_run(*args)

    monkeypatch.setattr(programs, '_load_and_run', load_and_count)
    testing.run_checked(folder, **arguments)
    monkeypatch.setattr(programs, '_load_and_run', load_and_run)
    return len(runs)

  def test_are_found_without_a_program(self, path, monkeypatch):
    assert self.count_runs(path.parents[1], monkeypatch) == 0

  def test_have_the_bits_and_the_shape_of_what_was_computed(self, tmp_path):
    results = []
    for _ in range(2):
      with cache_folder.activate(tmp_path):
        results.append(programs.Program(_return_tree, 1)(2, testing.MATRIX))
    assert sorted(results[1]) == sorted(results[0])
    assert type(results[1]['pair']) is tuple
    for computed, recalled in zip(*map(jax.tree.leaves, results), strict=True):
      assert isinstance(recalled, np.ndarray) and not isinstance(
        computed, np.ndarray
      )
      assert (
        computed.dtype == recalled.dtype and computed.shape == recalled.shape
      )
      assert np.asarray(computed).tobytes() == recalled.tobytes()

  @pytest.mark.parametrize(
    'change', ['value', 'bit', 'shape', 'static', 'kind']
  )
  def test_are_of_their_arguments_alone(self, path, monkeypatch, change):
    x, factor = testing.MATRIX.copy(), 3
    if change == 'value':
      x[3, 3] = 2
    elif change == 'bit':
      x[3, 3] += 2.0**-10  # no sum rounds
    elif change == 'shape':
      x = np.ones((2, 8), np.float32) @ np.ones((8, 2), np.float32) / 8
    elif change == 'kind':
      x = x.view(np.int32)
      x[:] = 1
    else:
      factor = 4
    folder = path.parents[1]
    assert self.count_runs(folder, monkeypatch, x=x, factor=factor) == 1
    assert self.count_runs(folder, monkeypatch, x=x, factor=factor) == 0

  def test_that_are_whole_but_make_no_sense(self, path, monkeypatch):
    key = testing.key_of_ones()
    place = cached_results.CachedResult.locate(
      path.parents[1], key, [testing.MATRIX]
    )
    cache_file.write(place._folder, place._key, b'\x09\0\0\0no answer')
    assert self.count_runs(path.parents[1], monkeypatch) == 1

  @pytest.mark.parametrize(
    'max_bytes', [testing.MATRIX.nbytes - 1, testing.MATRIX.nbytes]
  )
  def test_that_are_large_are_not_kept(self, tmp_path, monkeypatch, max_bytes):
    monkeypatch.setattr(cached_results, 'MAX_BYTES', max_bytes)
    testing.run_checked(tmp_path)
    assert (tmp_path / cache_folder.RESULTS).exists() == (
      max_bytes == testing.MATRIX.nbytes
    )


class TestRemembered:
  """Data that are drawn and proved once."""

  def count_computations(self, folder, key_parts=(1,), x=testing.MATRIX) -> int:
    """Returns how often it was computed, rightly."""
    computations = []

    def compute():
      computations.append(1)
      return {'twice': 2 * x}

    with cache_folder.activate(folder):
      actual = cached_results.get_or_compute(
        'hpmoe.reference', key_parts, [x], compute
      )
    np.testing.assert_array_equal(actual['twice'], 2 * x)
    return len(computations)

  def test_once(self, tmp_path):
    assert self.count_computations(tmp_path) == 1
    assert self.count_computations(tmp_path) == 0
    assert self.count_computations(None) == 1

  def test_for_what_is_said_and_given(self, tmp_path):
    assert self.count_computations(tmp_path) == 1
    assert self.count_computations(tmp_path, key_parts=(2,)) == 1
    assert self.count_computations(tmp_path, x=3 * testing.MATRIX) == 1

  def test_by_the_text_that_computes(self, tmp_path, monkeypatch):
    assert self.count_computations(tmp_path) == 1
    monkeypatch.setattr(cache_key, 'digest_package', lambda *_: 'other text')
    assert self.count_computations(tmp_path) == 1

  def test_if_it_is_small(self, tmp_path, no_results):
    assert (
      self.count_computations(tmp_path)
      == self.count_computations(tmp_path)
      == 1
    )
