"""What is kept of compiled functions, and what is not believed."""

import hashlib
import json
import os
import pathlib
import pickle
import subprocess
import sys

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.parity_tests.cache import programs

ONES = np.ones((4, 4), np.float32)


@pytest.fixture(autouse=True)
def anew():
  """What JAX keeps itself is not kept again."""
  folder = jax.config.jax_compilation_cache_dir
  compilation_cache.reset_cache()
  jax.config.update('jax_compilation_cache_dir', None)
  yield
  compilation_cache.reset_cache()
  jax.config.update('jax_compilation_cache_dir', folder)


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

  def _cache_size(self):
    return 0

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


def _key_of_ones() -> bytes:
  """Returns the key of what `answer` asks."""
  _, tree = programs.flatten((ONES,))
  of = ((3,), json.dumps(tree), ((ONES.shape, 'float32'),))
  return programs.Program(_scaled, 1).key(of)


@pytest.fixture
def no_answers(monkeypatch):
  """Keeps programs alone."""
  monkeypatch.setattr(programs, 'MOST_BYTES_OF_ANSWER', -1)


@pytest.mark.usefixtures('no_answers')
class TestKept:
  @pytest.mark.parametrize('function', [_scaled, _sorted])
  def test_what_was_compiled_is_found(self, tmp_path, function):
    assert answer(tmp_path, function) == 1
    assert answer(tmp_path, function) == 0
    assert len(entries(tmp_path)) == 1

  def test_a_program_asks_once(self, tmp_path):
    tried = Tried()
    tried(tmp_path)
    (path,) = entries(tmp_path)
    path.unlink()
    tried(tmp_path)
    assert tried.compiled == 1

  @pytest.mark.parametrize('kept', (True, False))
  def test_a_process_holds_no_more_than_it_may(
    self, tmp_path, monkeypatch, kept
  ):
    monkeypatch.setattr(programs, 'MOST_HELD', 2)
    program = programs.Program(_scaled, 1)

    with programs.kept(tmp_path if kept else None):
      for factor in range(5):
        got = np.asarray(program(factor, ONES))

        np.testing.assert_array_equal(got, _scaled(factor, ONES))
        assert 1 <= program.count() <= 2

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

  def test_another_byte_order_is_no_answer(self, tmp_path):
    # Given the same bytes in another order, which are other numbers, then what
    # was answered to the first is not found for them.
    answer(tmp_path)
    swapped = ONES.view('>f4')
    assert swapped.tobytes() == ONES.tobytes()
    with programs.kept(tmp_path), pytest.raises(TypeError, match='argument'):
      programs.Program(_scaled, 1)(3, swapped)

  def test_two_at_once_leave_one(self, tmp_path):
    command = [sys.executable, '-c', _OTHER_PROCESS, str(tmp_path)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(entries(tmp_path)) == 1


_OTHER_PROCESS = """
import pathlib, sys
import numpy as np
from hpmoe.parity_tests.cache import programs, programs_test
programs.MOST_BYTES_OF_ANSWER = -1
with programs.kept(pathlib.Path(sys.argv[1])):
  program = programs.Program(programs_test._scaled, 1)
  assert (np.asarray(program(3, programs_test.ONES)) == 13).all()
"""


@pytest.mark.usefixtures('no_answers')
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

  def test_a_changed_byte_or_a_part(self, path):
    whole = path.read_bytes()
    damaged = [whole[:size] for size in (0, 10, 1000)]
    for at in (0, 20, 2000, -40, -1):
      data = bytearray(whole)
      data[at] ^= 1
      damaged.append(data)
    for data in damaged:
      path.write_bytes(data)
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
    key = _key_of_ones()
    programs.write(path.parent, key, b'no program')
    self.mended(path)

  def test_a_program_of_other_shapes_but_whole(self, path):
    jit = jax.jit(_scaled, static_argnums=0)
    made = jit.lower(3, np.ones((2, 2), np.float32)).compile()
    data = pickle.dumps(serialize_executable.serialize(made))
    programs.write(path.parent, _key_of_ones(), data)
    self.mended(path)


@pytest.mark.usefixtures('no_answers')
class TestSurroundings:
  @pytest.mark.parametrize(
    ('name', 'other'),
    [
      ('_versions', ('jax 0',)),
      ('texts', 'other text'),
      ('_text_of', 'other text'),
      ('_is_wide', not programs._is_wide()),
      ('XLA_FLAGS_OF_TEST', ''),
    ],
  )
  def test_what_compiles_and_what_is_compiled(
    self, tmp_path, monkeypatch, name, other
  ):
    answer(tmp_path)
    if name.startswith('XLA'):
      monkeypatch.setenv(name, other)
    else:
      monkeypatch.setattr(programs, name, lambda *_: other)
    assert answer(tmp_path) == 1

  def test_the_text_is_that_of_the_file(self):
    text = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    assert programs._text_of(__name__) == text

  def test_versions_name_all_that_compile(self):
    said = ' '.join(programs._versions())
    for name in ('jax', 'jaxlib', 'numpy', 'ml_dtypes'):
      assert f'{name} {sys.modules[name].__version__}' in said
    assert sys.version in said and programs.machine() in said

  def test_a_version_is_found_where_no_folder_tells_it(self, monkeypatch):
    told = programs._version('numpy')
    monkeypatch.setattr(programs.importlib.util, 'find_spec', lambda _: None)
    assert programs._version('numpy') == told == np.__version__

  def test_sources_are_read(self, monkeypatch, tmp_path):
    import hpmoe.reference

    before = programs.texts.__wrapped__('hpmoe.reference')
    (tmp_path / 'combine.py').write_text('# changed')
    monkeypatch.setattr(
      hpmoe.reference, '__path__', [*hpmoe.reference.__path__, str(tmp_path)]
    )
    assert programs.texts.__wrapped__('hpmoe.reference') != before


@pytest.mark.usefixtures('no_answers')
class TestNotKept:
  def test_where_nothing_can_be_written(self, tmp_path, monkeypatch):
    def full(*_):
      raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', full)
    assert answer(tmp_path) == answer(tmp_path / 'gone') == 1
    assert not entries(tmp_path)

  def test_what_does_not_do_the_same_once_read(self, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, '_same', lambda *_: False)
    assert answer(tmp_path) == 1
    assert not entries(tmp_path)

  def test_same_tells_bits_apart(self):
    assert programs._same({'a': ONES}, {'a': ONES})
    assert not programs._same({'a': 0 * ONES}, {'a': -0.0 * ONES})


def _several(factor, x):
  return {'sum': x + factor, 'pair': (-0.0 * x, x.astype(jnp.bfloat16))}


class TestAnswers:
  """What a program answered is found again, or else computed again."""

  @pytest.fixture
  def path(self, tmp_path):
    answer(tmp_path)
    (path,) = (tmp_path / programs.ANSWERS).iterdir()
    return path

  def loads(self, folder, monkeypatch, **arguments) -> int:
    """Returns how often a program was run to answer, rightly."""
    plain, run = programs._found, []

    def found(*args):
      run.append(args)
      return plain(*args)

    monkeypatch.setattr(programs, '_found', found)
    answer(folder, **arguments)
    monkeypatch.setattr(programs, '_found', plain)
    return len(run)

  def test_are_found_without_a_program(self, path, monkeypatch):
    assert self.loads(path.parents[1], monkeypatch) == 0

  def test_have_the_bits_and_the_shape_of_what_was_computed(self, tmp_path):
    got = []
    for _ in range(2):
      with programs.kept(tmp_path):
        got.append(programs.Program(_several, 1)(2, ONES))
    assert sorted(got[1]) == sorted(got[0])
    assert type(got[1]['pair']) is tuple
    for one, other in zip(*map(jax.tree.leaves, got), strict=True):
      assert isinstance(other, np.ndarray) and not isinstance(one, np.ndarray)
      assert one.dtype == other.dtype and one.shape == other.shape
      assert np.asarray(one).tobytes() == other.tobytes()

  @pytest.mark.parametrize(
    'change', ['value', 'bit', 'shape', 'static', 'kind']
  )
  def test_are_of_their_arguments_alone(self, path, monkeypatch, change):
    x, factor = ONES.copy(), 3
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
    assert self.loads(folder, monkeypatch, x=x, factor=factor) == 1
    assert self.loads(folder, monkeypatch, x=x, factor=factor) == 0

  def test_that_are_whole_but_make_no_sense(self, path, monkeypatch):
    key = _key_of_ones()
    place = programs.Answer.of(path.parents[1], key, [ONES])
    programs.write(place._folder, place._key, b'\x09\0\0\0no answer')
    assert self.loads(path.parents[1], monkeypatch) == 1

  @pytest.mark.parametrize('most', [ONES.nbytes - 1, ONES.nbytes])
  def test_that_are_large_are_not_kept(self, tmp_path, monkeypatch, most):
    monkeypatch.setattr(programs, 'MOST_BYTES_OF_ANSWER', most)
    answer(tmp_path)
    assert (tmp_path / programs.ANSWERS).exists() == (most == ONES.nbytes)


class TestDigest:
  """Of bytes in pieces."""

  @pytest.fixture(autouse=True)
  def small_pieces(self, monkeypatch):
    monkeypatch.setattr(programs, '_PIECE', 8)

  @pytest.mark.parametrize('size', [1, 8, 17, 40])
  def test_each_byte_counts(self, size):
    seen = {programs._digest([memoryview(bytes(size))])}
    for at in range(size):
      changed = bytearray(size)
      changed[at] = 1
      seen.add(programs._digest([memoryview(changed)]))
    assert len(seen) == size + 1

  def test_arrays_end_somewhere(self):
    cuts = [(3, 13), (8, 8), (16, 0), (16,), (0, 16)]
    seen = {
      programs._digest([memoryview(bytes(size)) for size in cut])
      for cut in cuts
    }
    assert len(seen) == len(cuts)

  def test_a_child_of_a_fork_makes_its_own(self):
    subprocess.run([sys.executable, '-c', _FORKED], check=True, timeout=60)


class TestRemembered:
  """Data that are drawn and proved once."""

  def asked(self, folder, said=(1,), x=ONES) -> int:
    """Returns how often it was computed, rightly."""
    computed = []

    def compute():
      computed.append(1)
      return {'twice': 2 * x}

    with programs.kept(folder):
      got = programs.remembered('hpmoe.reference', said, [x], compute)
    np.testing.assert_array_equal(got['twice'], 2 * x)
    return len(computed)

  def test_once(self, tmp_path):
    assert self.asked(tmp_path) == 1
    assert self.asked(tmp_path) == 0
    assert self.asked(None) == 1

  def test_for_what_is_said_and_given(self, tmp_path):
    assert self.asked(tmp_path) == 1
    assert self.asked(tmp_path, said=(2,)) == 1
    assert self.asked(tmp_path, x=3 * ONES) == 1

  def test_by_the_text_that_computes(self, tmp_path, monkeypatch):
    assert self.asked(tmp_path) == 1
    monkeypatch.setattr(programs, 'texts', lambda *_: 'other text')
    assert self.asked(tmp_path) == 1

  def test_if_it_is_small(self, tmp_path, no_answers):
    assert self.asked(tmp_path) == self.asked(tmp_path) == 1


_FORKED = """
import os
from hpmoe.parity_tests.cache import programs
data = memoryview(bytes(3 << 20))
expected = programs._digest([data])
child = os.fork()
if not child:
  os._exit(programs._digest([data]) != expected)
assert os.waitpid(child, 0)[1] == 0
"""
