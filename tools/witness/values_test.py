"""What differs between two computations, and how it is told."""

import numpy as np
import pytest

from hpmoe.tools.witness import cpu
from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import instructions
from hpmoe.tools.witness import main
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import twin as twins
from hpmoe.tools.witness import values

_NAN = np.array([0x7FC00001], np.uint32).view(np.float32)[0]
_STEP = np.nextafter(np.float32(1), np.float32(2))


class _Numpy:
  """A lowering of programs of one instruction: what numpy computes."""

  def __init__(self, function):
    self._function = function

  def run(self, program, arrays):
    return [*arrays[:-1], self._function(*arrays[:-1]).astype(arrays[-1].dtype)]


def _single(name: str, dtype: str) -> programs.Program:
  (program,) = (p for n, d, p in values.singles() if (n, d) == (name, dtype))
  return program


def _synchronised(program: programs.Program) -> hivm.Body:
  """Returns a program of one loop with a barrier after each step."""
  (loop,) = program.body
  barrier = hivm.Sync('barrier', 'ALL')
  body = tuple(node for step in loop.body for node in (step, barrier))
  return (hivm.Round(loop.rounds, body),)


class TestKinds:
  @pytest.mark.parametrize(
    ('twin_value', 'vendor_value', 'kind'),
    [
      (np.float32('nan'), _NAN, values.NAN),
      (np.float32(0), np.float32(-0.0), values.ZERO),
      (np.float32(1), _STEP, values.LAST),
      (np.float32(1), np.float32(2), values.OTHER),
      (np.float16(1), np.float16('nan'), values.OTHER),
      (np.int32(1), np.int32(2), values.OTHER),
    ],
  )
  def test_a_difference_has_a_kind(self, twin_value, vendor_value, kind):
    assert values._kind(twin_value, vendor_value) == kind


@pytest.fixture(scope='module')
def twin(tmp_path_factory):
  batch = [_single('add', 'f16'), _single('sub', 'i16')]
  folder = tmp_path_factory.mktemp('values')
  pairs = [(program, _synchronised(program)) for program in batch]
  with twins.Twin(pairs, folder) as twin:
    yield twin


@pytest.mark.filterwarnings('ignore:overflow', 'ignore:invalid value')
class TestRun:
  def test_the_twin_adds_as_numpy_does(self, twin, tmp_path):
    # Given all halves in two orders, then sums have numpy's bits but for NaNs.
    program = _single('add', 'f16')

    elements, differences = values.run(program, _Numpy(np.add), twin, tmp_path)

    assert elements == 1 << 16
    assert {difference.kind for difference in differences} <= {values.NAN}

  def test_another_operation_is_told_with_an_example(self, twin, tmp_path):
    program = _single('sub', 'i16')
    count = values.Count('sub i16')

    differing = values.run(program, _Numpy(np.add), twin, tmp_path)
    count.add(program.seed, *differing)

    assert count.kinds[values.OTHER] > 60000
    assert 'the twin' in count.example
    assert not count.is_explained


class TestReasons:
  def test_a_twin_that_is_not_nearest_has_none(self):
    program = _single('exp', 'f32')
    (x,) = values.inputs(program)[:1]
    k = int(np.flatnonzero(np.abs(x) < 1)[0])
    exact = np.float32(np.exp(np.float64(x[k])))
    other = np.nextafter(exact, np.float32(0))

    def is_nearest(*pair):
      last = values.Difference(values.LAST, *pair, x.size + k)
      return values.is_nearest('exp', program, [last])

    assert is_nearest(exact, other)
    assert not is_nearest(other, exact)


class TestPrograms:
  def test_reasons_are_of_instructions_that_have_a_stand_in(self):
    assert set(values.REASONS) <= set(instructions.TABLE)
    for program in map(programs.write, range(40)):
      names = {s.name for s in values.comparable(program).steps()}
      assert not names & set(values.REASONS)

  def test_three_of_four_programs_can_be_lowered(self):
    for program in map(programs.write, range(40)):
      assert values.is_lowered(program) or program.seed % 4 == 3


class TestRows:
  def test_what_differs_has_a_row_and_what_is_alike_shares_one(self):
    counts = [values.Count(name) for name in ('a', 'b', 'c', 'programs')]
    unit = np.float32(1)
    nan = values.Difference(values.NAN, unit, unit, 0)
    last = values.Difference(values.LAST, unit, _STEP, 1)
    for count, differences in zip(counts, ([], [nan], [last], [])):
      count.add(0, 10, differences)

    rows = values.rows(counts)

    assert rows == [
      ['c', '10', '0', '0', '1', '0', ''],
      ['others', '20', '1', '0', '0', '0', ''],
      ['programs', '10', '0', '0', '0', '0', ''],
    ]
    assert [count.is_explained for count in counts] == [True, True, False, True]


def test_without_tools_values_are_left_out_in_one_line(monkeypatch, capsys):
  monkeypatch.setattr(cpu.shutil, 'which', lambda tool: tool == 'cc')

  assert not main._run_values(None, range(1))

  (line,) = capsys.readouterr().out.splitlines()
  assert 'expected mlir-translate-19 llc-19. On Debian' in line
