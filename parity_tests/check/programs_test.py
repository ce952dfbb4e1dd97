"""What is kept of compiled functions, and what is not believed."""

import os
import pickle
import subprocess
import sys

from jax.experimental import serialize_executable
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.parity_tests.check import programs

ONES = np.ones((4, 4), np.float32)


def _scaled(factor, x):
  return x @ x * factor + 1


def _turned(factor, x):
  return x.T @ x - factor


def _sorted(factor, x):
  return jnp.sort(x * factor, axis=0)


class Tried:
  """A program whose compilations are counted."""

  def __init__(self, function=_scaled):
    self.program = programs.Program(function, 1)
    self.compiled = 0
    jit = self.program._jit
    self.program._jit = self
    self._lower = jit.lower

  def lower(self, *args):
    self.compiled += 1
    return self._lower(*args)

  def __call__(self, folder, factor=3, x=ONES):
    with programs.kept(folder):
      return np.asarray(self.program(factor, x))


def answer(folder, function=_scaled, factor=3, x=ONES):
  """Returns what a program says that knows nothing but what is kept."""
  tried = Tried(function)
  got = tried(folder, factor, x)
  np.testing.assert_array_equal(got, function(factor, x))
  return tried.compiled


def entries(folder):
  return sorted(folder.iterdir())


class TestKept:
  def test_what_was_compiled_is_found(self, tmp_path):
    assert answer(tmp_path) == 1
    assert answer(tmp_path) == 0
    assert len(entries(tmp_path)) == 1

  def test_a_sort_is_kept_like_any_other(self, tmp_path):
    assert answer(tmp_path, _sorted) == 1
    assert answer(tmp_path, _sorted) == 0

  def test_a_program_asks_once(self, tmp_path):
    tried = Tried()
    tried(tmp_path)
    (path,) = entries(tmp_path)
    path.unlink()
    tried(tmp_path)
    assert tried.compiled == 1

  def test_other_arguments_are_another_program(self, tmp_path):
    answer(tmp_path)
    narrow = ONES.astype(np.float16)
    for other in (dict(factor=4), dict(x=np.ones((3, 3), np.float32))):
      assert answer(tmp_path, **other) == 1
    assert answer(tmp_path, x=narrow) == 1
    assert answer(tmp_path, _turned) == 1
    assert len(entries(tmp_path)) == 5

  def test_wide_numbers_are_left_to_jax(self, tmp_path):
    wide = ONES.astype(np.float64)
    assert programs.Program(_scaled, 1)(3, wide).shape == wide.shape
    with programs.kept(tmp_path):
      programs.Program(_scaled, 1)(3, wide)
    assert not entries(tmp_path)

  def test_two_at_once_leave_one(self, tmp_path):
    command = [sys.executable, '-c', _OTHER_PROCESS, str(tmp_path)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(entries(tmp_path)) == 1


_OTHER_PROCESS = """
import pathlib, sys
import numpy as np
from hpmoe.parity_tests.check import programs, programs_test
with programs.kept(pathlib.Path(sys.argv[1])):
  program = programs.Program(programs_test._scaled, 1)
  assert (np.asarray(program(3, programs_test.ONES)) == 13).all()
"""


class TestDamage:
  """Whatever lies in the folder, the answer is right and it is mended."""

  @pytest.fixture
  def path(self, tmp_path):
    answer(tmp_path)
    (path,) = entries(tmp_path)
    return path

  def mended(self, path):
    assert answer(path.parent) == 1
    assert answer(path.parent) == 0

  @pytest.mark.parametrize('at', [0, 20, 2000, -40, -1])
  def test_a_changed_byte(self, path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    self.mended(path)

  @pytest.mark.parametrize('size', [0, 10, 1000])
  def test_a_part(self, path, size):
    path.write_bytes(path.read_bytes()[:size])
    self.mended(path)

  def test_a_folder_in_its_place(self, path):
    path.unlink()
    path.mkdir()
    assert answer(path.parent) == 1

  def test_another_program_under_its_name(self, path):
    other = path.with_name('other')
    path.rename(other)
    answer(path.parent, _turned)
    (turned,) = path.parent.glob(f'*{programs.SUFFIX}')
    turned.rename(path)
    self.mended(path)

  def test_what_is_no_program_but_whole(self, path):
    key = self.key()
    programs.write(path.parent, key, b'no program')
    self.mended(path)

  def test_a_program_of_other_shapes_but_whole(self, path):
    jit = programs.jax.jit(_scaled, static_argnums=0)
    made = jit.lower(3, np.ones((2, 2), np.float32)).compile()
    data = pickle.dumps(serialize_executable.serialize(made))
    programs.write(path.parent, self.key(), data)
    self.mended(path)

  def key(self):
    program = programs.Program(_scaled, 1)
    tree = programs.jax.tree.structure((ONES,))
    return program.key(((3,), tree, ((ONES.shape, 'float32'),)))


class TestSurroundings:
  @pytest.mark.parametrize('name', ['_versions', 'sources'])
  def test_what_compiles_and_what_is_compiled(
    self, tmp_path, monkeypatch, name
  ):
    answer(tmp_path)
    other = {'_versions': ('jax 0',), 'sources': 'other text'}[name]
    monkeypatch.setattr(programs, name, lambda: other)
    assert answer(tmp_path) == 1

  def test_settings_of_xla(self, tmp_path, monkeypatch):
    answer(tmp_path)
    monkeypatch.setenv('XLA_FLAGS_OF_TEST', '1')
    assert answer(tmp_path) == 1

  def test_versions_name_all_that_compile(self):
    said = ' '.join(programs._versions())
    for name in ('jax', 'jaxlib', 'numpy', 'ml_dtypes'):
      assert f'{name} {sys.modules[name].__version__}' in said
    assert sys.version in said and programs.machine() in said

  def test_sources_are_read(self, monkeypatch, tmp_path):
    import hpmoe.reference

    before = programs.sources.__wrapped__()
    (tmp_path / 'combine.py').write_text('# changed')
    monkeypatch.setattr(
      hpmoe.reference, '__path__', [*hpmoe.reference.__path__, str(tmp_path)]
    )
    assert programs.sources.__wrapped__() != before


class TestNotKept:
  def test_where_nothing_can_be_written(self, tmp_path, monkeypatch):
    def full(*_):
      raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', full)
    assert answer(tmp_path) == 1
    assert not entries(tmp_path)

  def test_in_a_folder_that_is_not_there(self, tmp_path):
    assert answer(tmp_path / 'gone') == 1

  def test_what_does_not_do_the_same_once_read(self, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, '_same', lambda *_: False)
    assert answer(tmp_path) == 1
    assert not entries(tmp_path)

  def test_same_tells_bits_apart(self):
    assert programs._same({'a': ONES}, {'a': ONES})
    assert not programs._same({'a': 0 * ONES}, {'a': -0.0 * ONES})
