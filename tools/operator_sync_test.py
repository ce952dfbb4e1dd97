"""What is said of an operator without some of its calls."""

import os

import pytest

from hpmoe.tools import operator_sync
from hpmoe.tools.sync import optional

BARRIER = optional.Call(1, 'add.h', 7, 'PipeBarrier<PIPE_V>();', '')
FLAG = optional.Call(2, 'add.h', 9, 'SetFlag<HardEvent::V_MTE3>(0);', '')


def make_run(answer):
  """Returns a launch that answers what `answer` says of its options."""
  return lambda **options: answer(options) or 'right'


def is_strict(options):
  return options.get('auto_sync') is False


@pytest.mark.parametrize(
  'call, strict, answer, kind',
  [
    (FLAG, True, lambda o: 'hazard: x', 'reported'),
    (FLAG, True, lambda o: 'wrong: y: 3 of 8 differ', 'wrong'),
    (FLAG, True, lambda o: o['seed'] == 4 and 'race: x', 'reported'),
    (FLAG, True, lambda o: is_strict(o) and 'hazard: x', 'redundant'),
    (BARRIER, False, lambda o: '', 'redundant'),
    (BARRIER, True, lambda o: '', 'unexplained'),
    (FLAG, False, lambda o: '', 'unexplained'),
  ],
)
def test_an_outcome_has_the_first_kind_that_shows(call, strict, answer, kind):
  assert operator_sync.judge(make_run(answer), (call,), strict)[0] == kind


def test_calls_are_left_out_of_launches_and_nothing_stays_so(monkeypatch):
  for name in optional.list_variables((), os.devnull):
    monkeypatch.delenv(name, raising=False)
  before = dict(os.environ)
  changes = []

  def run(**options):
    changes.append({n for n, v in os.environ.items() if before.get(n) != v})
    return 'right'

  operator_sync.judge(run, (FLAG,), True)

  assert all(changes) and dict(os.environ) == before


def test_a_call_beside_which_another_is_redundant_is_named():
  variables = optional.list_variables((1, 2), os.devnull)

  def run(**options):
    is_without_both = all(
      os.environ.get(name) == value or value == os.devnull
      for name, value in variables.items()
    )
    return 'hazard: x' if is_without_both else 'right'

  groups = [(BARRIER,), (FLAG,)]
  reason = operator_sync._beside(run, groups[0], groups, True)
  assert reason.startswith('add.h:9: SetFlag') and 'hazard: x' in reason
