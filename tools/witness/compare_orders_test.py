"""The vendor's synchronisation on the twin: stored answers, no wheel."""

import dataclasses

import pytest

from hpmoe.tools.witness import compare_orders
from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import main
from hpmoe.tools.witness import order
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import twin as twins
from hpmoe.tools.witness import vendor

_PROGRAMS = 12


@pytest.fixture(scope='module')
def pairs() -> list[tuple[programs.Program, hivm.Body]]:
  """Programs by one solver and by the other, in turns of two."""
  answers = [
    dict(hivm.functions((main.DATA / f'{solver}.mlir').read_text()))
    for solver in vendor.SOLVERS
  ]
  batch = [programs.write(seed) for seed in range(_PROGRAMS)]
  return [(p, hivm.read(p, answers[p.seed // 2 % 2][p.seed])) for p in batch]


@pytest.fixture(scope='module')
def verdicts(pairs) -> list[compare_orders.Verdict]:
  return main.judge_batch(pairs)


@dataclasses.dataclass
class _Says:
  """A twin that always says the same."""

  report: twins.Report | None

  def launch(self, *_, **__) -> twins.Report | None:
    return self.report


class TestTwin:
  def test_where_it_differs_from_the_vendor_it_asks_for_less(self, verdicts):
    kinds = {kind for v in verdicts for kind in (v.whole, *v.parts)}

    assert kinds >= {
      compare_orders.CLEAN,
      compare_orders.CLEAN_IF_COUNTED,
      compare_orders.REPORTED,
    }
    assert not kinds & set(compare_orders.WRONG)

  def test_it_asks_for_all_that_it_reports_the_lack_of(self, verdicts):
    for verdict in verdicts:
      reported_groups = {
        group
        for group, kind in enumerate(verdict.parts)
        if kind == compare_orders.REPORTED
      }
      # Flags that only keep another flag from being set twice aside.
      if verdict.whole == compare_orders.CLEAN:
        assert reported_groups <= set(verdict.demands)
      assert verdict.demands

  def test_a_silent_twin_is_wrong(self, pairs):
    program, body = pairs[0]

    verdict = compare_orders.judge(program, body, _Says(None))

    assert compare_orders.SILENT in verdict.parts

  def test_a_twin_that_reports_what_is_ordered_is_wrong(self, pairs):
    program, body = pairs[0]
    report = twins.Report('hazard', 0, (1,), 'MTE2_V', 'a hazard')

    verdict = compare_orders.judge(program, body, _Says(report))

    assert verdict.whole == compare_orders.UNANSWERED
    assert verdict.example == 'a hazard'


class TestVendor:
  def test_a_solver_that_leaves_a_flag_out_is_wrong(self, pairs):
    # Given a program of the vendor without one flag that the twin asks for,
    # then the vendor leaves bytes unordered.
    program, body = pairs[0]
    calls = order.Trace(body).groups[0]
    number = iter(range(len(body)))
    shorter = tuple(node for node in body if next(number) not in calls)

    (verdict,) = main.judge_batch([(program, shorter)])

    assert verdict.whole in (
      compare_orders.UNORDERED,
      compare_orders.UNANSWERED,
    )
    assert 'SetFlag/WaitFlag' in verdict.example


class TestRows:
  def test_what_is_wrong_has_a_row_where_there_is_some(self):
    right = compare_orders.Verdict(
      0, compare_orders.CLEAN, (compare_orders.REPORTED,), (0,)
    )
    wrong = dataclasses.replace(right, parts=(compare_orders.SILENT,))

    rows = main.rows({'a': [right, right], 'b': [right, wrong]})

    assert ['programs', '2', '2'] in rows
    assert [compare_orders.SILENT, '0', '1'] in rows
    assert compare_orders.ALONE not in [row[0] for row in rows]
