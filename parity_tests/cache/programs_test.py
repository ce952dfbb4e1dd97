"""Compiled functions are cached, and damaged files are not used."""

import os
import pickle
import subprocess
import sys

import jax
from jax.experimental import serialize_executable
import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.cache import cache_file
from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.cache import programs_testing as testing

without_jax_cache = testing.without_jax_cache
no_results = testing.no_results


@pytest.mark.usefixtures('no_results')
class TestCached:
  @pytest.mark.parametrize('function', [testing.scaled, testing.sorted_rows])
  def test_what_was_compiled_is_found(self, tmp_path, function):
    assert testing.run_checked(tmp_path, function) == 1
    assert testing.run_checked(tmp_path, function) == 0
    assert len(testing.list_entries(tmp_path)) == 1

  def test_a_program_asks_once(self, tmp_path):
    program = testing.CountedProgram()
    program(tmp_path)
    (path,) = testing.list_entries(tmp_path)
    path.unlink()
    program(tmp_path)
    assert program.compiled == 1

  @pytest.mark.parametrize('cached', (True, False))
  def test_a_process_holds_no_more_than_it_may(
    self, tmp_path, monkeypatch, cached
  ):
    monkeypatch.setattr(programs, 'MAX_COMPILED', 2)
    program = programs.Program(testing.scaled, 1)

    with cache_folder.activate(tmp_path if cached else None):
      for factor in range(5):
        actual = np.asarray(program(factor, testing.MATRIX))

        np.testing.assert_array_equal(
          actual, testing.scaled(factor, testing.MATRIX)
        )
        assert 1 <= program.count_compiled() <= 2

  def test_other_arguments_are_another_program(self, tmp_path):
    testing.run_checked(tmp_path)
    narrow = testing.MATRIX.astype(np.float16)
    for arguments in (dict(factor=4), dict(x=np.ones((3, 3), np.float32))):
      assert testing.run_checked(tmp_path, **arguments) == 1
    assert testing.run_checked(tmp_path, x=narrow) == 1
    assert testing.run_checked(tmp_path, testing.transposed) == 1
    assert len(testing.list_entries(tmp_path)) == 5

  def test_wide_numbers_are_left_to_jax(self, tmp_path):
    wide = testing.MATRIX.astype(np.float64)
    assert programs.Program(testing.scaled, 1)(3, wide).shape == wide.shape
    with cache_folder.activate(tmp_path):
      programs.Program(testing.scaled, 1)(3, wide)
    assert not testing.list_entries(tmp_path)

  def test_another_byte_order_is_another_argument(self, tmp_path):
    # given: the same bytes in another order, which are other numbers; then: the
    # result of the first is not found for them.
    testing.run_checked(tmp_path)
    swapped = testing.MATRIX.view('>f4')
    assert swapped.tobytes() == testing.MATRIX.tobytes()
    with (
      cache_folder.activate(tmp_path),
      pytest.raises(TypeError, match='argument'),
    ):
      programs.Program(testing.scaled, 1)(3, swapped)

  def test_two_at_once_leave_one(self, tmp_path):
    command = [sys.executable, '-c', _OTHER_PROCESS, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(testing.list_entries(tmp_path)) == 1


_OTHER_PROCESS = """
import pathlib, sys
import ml_dtypes
import numpy as np
from hpmoe.parity_tests.cache import cache_folder, cached_results, programs
from hpmoe.parity_tests.cache import programs_testing as testing
cached_results.MAX_BYTES = -1
with cache_folder.activate(pathlib.Path(sys.argv[1])):
  program = programs.Program(testing.scaled, 1)
  assert (np.asarray(program(3, testing.MATRIX)) == 13).all()
"""


@pytest.mark.usefixtures('no_results')
class TestDamage:
  """Whatever a file holds, the result is right and the file is replaced."""

  @pytest.fixture
  def path(self, tmp_path):
    testing.run_checked(tmp_path)
    (path,) = testing.list_entries(tmp_path)
    return path

  def check_replaced(self, path):
    assert testing.run_checked(path.parent) == 1
    assert testing.run_checked(path.parent) == 0

  def test_a_changed_byte_or_a_part(self, path):
    whole = path.read_bytes()
    damaged = [whole[:size] for size in (0, 10, 1000)]
    for offset in (0, 20, 2000, -40, -1):
      data = bytearray(whole)
      data[offset] ^= 1
      damaged.append(data)
    for data in damaged:
      path.write_bytes(data)
      self.check_replaced(path)

  def test_a_folder_in_its_place(self, path):
    path.unlink()
    path.mkdir()
    assert testing.run_checked(path.parent) == 1

  def test_another_program_under_its_name(self, path):
    displaced = path.with_name('other')
    path.rename(displaced)
    testing.run_checked(path.parent, testing.transposed)
    (transposed,) = path.parent.glob(f'*{cache_file.SUFFIX}')
    transposed.rename(path)
    self.check_replaced(path)

  def test_what_is_no_program_but_whole(self, path):
    key = testing.key_of_ones()
    cache_file.write(path.parent, key, b'no program')
    self.check_replaced(path)

  def test_a_program_of_other_shapes_but_whole(self, path):
    jit = jax.jit(testing.scaled, static_argnums=0)
    program = jit.lower(3, np.ones((2, 2), np.float32)).compile()
    data = pickle.dumps(serialize_executable.serialize(program))
    cache_file.write(path.parent, testing.key_of_ones(), data)
    self.check_replaced(path)


@pytest.mark.usefixtures('no_results')
class TestBits:
  """Arrays of two-byte floats enter a program as their bits."""

  @pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
  def test_no_program_copies_them(self, dtype, tmp_path):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    program = programs.Program(testing.transposed, 1)
    with cache_folder.activate(tmp_path):
      result = program(3, x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, testing.transposed(3, x))
    (compiled,) = program._programs.values()
    (argument,) = compiled.in_avals[0]
    assert argument.dtype == np.uint16

  def test_arrays_of_jax_are_as_those_of_numpy(self, tmp_path):
    x = np.arange(12).reshape(3, 4).astype(np.float16)
    program = programs.Program(testing.transposed, 1)
    with cache_folder.activate(tmp_path):
      for array in (x, jax.numpy.asarray(x), x):
        np.testing.assert_array_equal(program(3, array), x.T @ x - 3)
    assert program.count_compiled() == 1

  def test_integers_of_two_bytes_stay_such(self, tmp_path):
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    program = programs.Program(testing.transposed, 1)
    with cache_folder.activate(tmp_path):
      np.testing.assert_array_equal(program(3, x), x.T @ x - 3)

  def test_other_floats_of_the_same_bits_are_another_program(self, tmp_path):
    bits = np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000
    program = programs.Program(testing.scaled, 1)
    for dtype in (np.float16, ml_dtypes.bfloat16, np.uint16):
      x = np.ascontiguousarray(bits[:, :3].view(dtype))
      with cache_folder.activate(tmp_path):
        np.testing.assert_array_equal(program(3, x), testing.scaled(3, x))
    assert program.count_compiled() == 3


@pytest.mark.usefixtures('no_results')
class TestNotCached:
  def test_where_nothing_can_be_written(self, tmp_path, monkeypatch):
    def full(*_):
      raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', full)
    assert (
      testing.run_checked(tmp_path)
      == testing.run_checked(tmp_path / 'gone')
      == 1
    )
    assert not testing.list_entries(tmp_path)

  def test_what_does_not_do_the_same_once_read(self, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, '_have_same_bits', lambda *_: False)
    monkeypatch.setattr(programs, '_has_own_cache', lambda: True)
    assert testing.run_checked(tmp_path) == 1
    assert not testing.list_entries(tmp_path)

  def test_what_cannot_be_read(self, tmp_path, monkeypatch):
    def fail(*_):
      raise ValueError('a part of a program')

    monkeypatch.setattr(programs, '_deserialize', fail)
    assert testing.run_checked(tmp_path) == 1
    assert not testing.list_entries(tmp_path)

  def test_a_program_runs_once_unless_jax_has_a_cache(
    self, tmp_path, monkeypatch
  ):
    comparisons = []
    monkeypatch.setattr(
      programs, '_have_same_bits', lambda *_: not comparisons.append('compared')
    )
    testing.run_checked(tmp_path / 'alone')
    assert not comparisons
    jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'of jax'))
    testing.run_checked(tmp_path / 'beside')
    assert comparisons == ['compared']

  def test_same_tells_bits_apart(self):
    assert programs._have_same_bits(
      {'a': testing.MATRIX}, {'a': testing.MATRIX}
    )
    assert not programs._have_same_bits(
      {'a': 0 * testing.MATRIX}, {'a': -0.0 * testing.MATRIX}
    )


_OTHER_DEVICE = """
import jax
import ml_dtypes
import numpy as np
from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.cache import programs_testing as testing

# A second device stands for a GPU, which JAX would use by default.
jax.config.update('jax_default_device', jax.devices()[1])
programs.hide_accelerators()
result = programs.Program(testing.scaled, 1)(3, testing.MATRIX)
print(jax.numpy.ones(1).device.id, result.device.id)
print(jax.config.jax_platforms)
"""


def test_the_oracle_runs_on_the_cpu_whatever_else_there_is():
  flags = '--xla_force_host_platform_device_count=2'
  process = subprocess.run(
    [sys.executable, '-c', _OTHER_DEVICE],
    env=os.environ | dict(XLA_FLAGS=flags, JAX_PLATFORMS='', HPMOE_CACHE='off'),
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  assert process.stdout.splitlines() == ['1 0', 'cpu']
