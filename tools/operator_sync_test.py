"""What is said of an operator without some of its calls."""

import os

import pytest

from hpmoe.tools import operator_sync
from hpmoe.tools.sync import graph
from hpmoe.tools.sync import optional

BARRIER = optional.Call(1, 'add.h', 7, 'PipeBarrier<PIPE_V>();', '')
FLAG = optional.Call(2, 'add.h', 9, 'SetFlag<HardEvent::V_MTE3>(0);', '')
WAIT = optional.Call(3, 'add.h', 10, 'WaitFlag<HardEvent::V_MTE3>(0);', '')


def make_run(answer):
  """Returns a launch that answers what `answer` says of its options."""
  return lambda **options: answer(options) or 'right'


def read_launch(*lines):
  """Returns a launch of lines: kind, pipe, other pipe, line, spans."""
  text = []
  for line in lines:
    kind, pipe, other, place, *spans = line.split(' ')
    head = f'{kind} 0 AIV 0 0 {pipe} {other} 0 0 0 0 call a/add.h:{place}'
    text.append(' '.join([head, *spans]))
  return graph.Launch(graph.read('\n'.join(text)))


STORE = 'work V S 1 w UB 0 64 1 0'
COPY = 'work MTE3 S 20 r UB 0 64 1 0'
FLAGS = ('set V MTE3 9', 'wait MTE3 V 10')


@pytest.mark.parametrize(
  'answer, kind',
  [
    (lambda o: 'hazard: x', 'reported'),
    (lambda o: 'wrong: y: 3 of 8 differ', 'wrong'),
    (lambda o: o['seed'] == 4 and 'race: x', 'reported'),
    (lambda o: '', 'unexplained'),
  ],
)
def test_an_outcome_has_the_first_kind_that_shows(answer, kind):
  assert operator_sync.judge(make_run(answer), (FLAG,), None)[0] == kind


@pytest.mark.parametrize(
  'lines, kind, text',
  [
    # Nothing else orders the copy: a launch without a report has missed it.
    ((STORE, *FLAGS, COPY), 'missed', 'nothing orders call at a/add.h:1'),
    # A barrier of all pipes does.
    ((STORE, *FLAGS, 'drain S S 15', COPY), 'redundant', '(add.h:15)'),
    # The compiler does, of a vector core.
    (
      (STORE, 'barrier V S 9', 'work V S 20 r UB 0 64 1 0'),
      'redundant',
      'the compiler inserts it (auto_sync): call at a/add.h:1',
    ),
    # No bytes meet.
    (
      (STORE, *FLAGS, 'work MTE3 S 20 r UB 64 64 1 0'),
      'redundant',
      'the 1 pairs of accesses that it alone orders have no bytes in common',
    ),
    # It is nowhere.
    ((STORE, 'drain S S 15', COPY), 'unexplained', 'at add.h:9, got none'),
  ],
)
def test_why_nothing_shows_is_told_by_a_graph(lines, kind, text):
  group = (FLAG, WAIT) if FLAGS[0] in lines else (FLAG,)

  verdict, reason = operator_sync.explain(read_launch(*lines), group)

  assert verdict == kind and text in reason


@pytest.mark.parametrize(
  'verdict, kind', [('hazard: x', 'redundant'), ('right', 'missed')]
)
def test_inputs_for_which_a_call_is_needed_are_named(verdict, kind):
  # Given a flag that the graph of other inputs needs, when it is left out of
  # their launch, then a report is told; and none is a miss.
  launches = {'4 rows': read_launch(STORE, *FLAGS, COPY)}

  def run_without(**options):
    assert options['inputs'] == '4 rows' and options['calls'] == (FLAG, WAIT)
    return verdict

  outcome = operator_sync._try_inputs(
    run_without, (FLAG, WAIT), launches, 'why'
  )

  assert outcome[0] == kind and '4 rows' in outcome[1]


def test_calls_are_left_out_of_launches_and_nothing_stays_so(monkeypatch):
  for name in optional.list_variables((), os.devnull):
    monkeypatch.delenv(name, raising=False)
  before = dict(os.environ)
  changes = []

  def run(**options):
    changes.append({n for n, v in os.environ.items() if before.get(n) != v})
    return 'right'

  operator_sync.judge(run, (FLAG,), None)

  assert all(changes) and dict(os.environ) == before


def test_calls_are_read_from_the_name_of_their_group():
  name = operator_sync._name((BARRIER, FLAG))

  calls = operator_sync._read_calls(name)

  assert [(c.file, c.line) for c in calls] == [('add.h', 7), ('add.h', 9)]
