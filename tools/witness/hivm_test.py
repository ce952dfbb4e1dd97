"""Programs for the vendor's compiler, and its answers."""

import re

import pytest

from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import main
from hpmoe.tools.witness import order
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import vendor


@pytest.fixture(scope='module')
def answers() -> dict[str, dict[int, list[str]]]:
  return {
    solver: dict(hivm.functions((main.DATA / f'{solver}.mlir').read_text()))
    for solver in vendor.SOLVERS
  }


@pytest.mark.parametrize('solver', vendor.SOLVERS)
class TestRead:
  def test_every_stored_program_is_as_it_is_written_now(self, answers, solver):
    # Given what the vendor answered, then it has the steps, loops and
    # addresses of the programs: else store the data again.
    assert len(answers[solver]) >= 12
    for seed, lines in answers[solver].items():
      program = programs.write(seed)
      hivm.read(program, lines)
      addresses = set(re.findall(r'constant (\d+) : i64', '\n'.join(lines)))
      operands = [o for s in program.steps() for o in (s.out, *s.ins)]
      assert addresses == {
        str(o.begin) for o in operands if isinstance(o, programs.Place)
      }

  def test_its_calls_order_every_conflict(self, answers, solver):
    for seed, lines in answers[solver].items():
      trace = order.Trace(hivm.read(programs.write(seed), lines))

      assert trace.conflicts
      assert trace.unordered() == []


class TestUnread:
  def test_another_step_is_named(self, answers):
    # Given the answer to another program.
    lines = answers[vendor.SOLVERS[0]][0]

    with pytest.raises(hivm.Unread, match='expected .*, got hivm'):
      hivm.read(programs.write(2), lines)

  def test_a_line_of_no_known_kind_is_named(self, answers):
    lines = ['hivm.hir.set_mask_norm', *answers[vendor.SOLVERS[0]][0]]

    with pytest.raises(hivm.Unread, match='got hivm.hir.set_mask_norm'):
      hivm.read(programs.write(0), lines)

  def test_a_step_that_lacks_is_named(self, answers):
    lines = [x for x in answers[vendor.SOLVERS[0]][0] if 'hir.store' not in x]

    with pytest.raises(hivm.Unread, match='expected'):
      hivm.read(programs.write(0), lines)
