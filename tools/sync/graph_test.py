"""What orders accesses: small launches, with and without their calls."""

import pytest

from hpmoe.tools.sync import graph

# Kind, pipe, other pipe, flag, line, spans; the rest is the same in all.
_LOAD = 'work MTE2 S 0 1 r GM 0 64 1 0 w UB 0 64 1 0'
_SET = 'set MTE2 V 0 2'
_WAIT = 'wait V MTE2 0 3'
_ADD = 'work V S 0 4 r UB 0 64 1 0 w UB 64 64 1 0'
_DRAIN = 'drain S S 0 5'


def read(*lines, core='AIV', index=0):
  """Returns events of one core, of lines as above."""
  text = ['launch']
  for line in lines:
    kind, pipe, other, flag, place, *spans = line.split(' ')
    head = f'{kind} 0 {core} {index} 0 {pipe} {other} {flag} 0 0 0'
    text.append(' '.join([head, f'{kind}-call', f'k.cpp:{place}', *spans]))
  return graph.read('\n'.join(text))


def list_lines(pairs):
  return [tuple(event.place[6:] for event in pair) for pair in pairs]


def test_a_flag_orders_what_is_before_its_set_and_after_its_wait():
  launch = graph.Launch(read(_LOAD, _SET, _WAIT, _ADD))

  assert not launch.find_unordered()
  rest = launch.drop({'k.cpp:2', 'k.cpp:3'})
  assert list_lines(rest.find_unordered()) == [('1', '4')]
  assert graph.count_orders(launch, rest) == 1


@pytest.mark.parametrize(
  'events, unordered',
  [
    # The wait stands after what reads.
    ((_LOAD, _SET, _ADD, _WAIT), [('1', '4')]),
    # The set stands before what writes.
    ((_SET, _LOAD, _WAIT, _ADD), [('1', '4')]),
    # Another pipe's queue.
    ((_LOAD, 'barrier MTE2 S 0 2', _ADD), [('1', '4')]),
    ((_LOAD, _DRAIN, _ADD), []),
    # Other bytes, by one byte and between rows.
    ((_LOAD, 'work V S 0 4 w UB 64 8 1 0'), []),
    ((_LOAD, 'work V S 0 4 w UB 63 8 1 0'), [('1', '4')]),
    (('work V S 0 1 w UB 0 8 3 32', 'work V S 0 4 r UB 8 24 1 0'), []),
    (
      ('work V S 0 1 w UB 0 8 3 32', 'work V S 0 4 r UB 8 25 1 0'),
      [('1', '4')],
    ),
    # One pipe ends in any order, two reads in none that matters.
    (('work V S 0 1 w UB 0 8 1 0', _ADD), [('1', '4')]),
    ((_ADD, 'work V S 0 5 r UB 0 8 1 0'), []),
    (('work V S 0 1 w UB 0 8 1 0', 'barrier V S 0 2', _ADD), []),
    # The scalar unit keeps its own order, and no other's.
    (('store S S 0 1 w UB 0 4 1 0', 'load S S 0 2 r UB 0 4 1 0'), []),
    (('store S S 0 1 w UB 0 4 1 0', _ADD), [('1', '4')]),
    (('store S S 0 1 w UB 0 4 1 0', 'set S V 0 2', 'wait V S 0 3', _ADD), []),
  ],
)
def test_pairs_that_nothing_orders_are_found(events, unordered):
  launch = graph.Launch(read(*events), inserted=False)

  assert list_lines(launch.find_unordered()) == unordered


@pytest.mark.parametrize('core, ordered', [('AIV', True), ('AIC', False)])
def test_a_vector_cores_compiler_orders_what_meets(core, ordered):
  events = read('work V S 0 1 w UB 0 8 1 0', _ADD, core=core)

  assert bool(graph.Launch(events).find_unordered()) != ordered
  assert graph.Launch(events).drop(inserted=False).find_unordered()


def test_a_set_that_all_cores_of_a_group_made_lets_them_go_on():
  # Given two cores that write and read each other's bytes, when each waits for
  # a set of waits, then they are ordered; and not without one's set.
  sets = 'cross_set MTE3 S 12 2', 'cross_wait S S 12 3'
  own = read('work MTE3 S 0 1 w GM 0 64 1 0', sets[0])
  other = read('work MTE3 S 0 1 w GM 64 64 1 0', sets[0], index=1)
  waits = read(sets[1], 'work MTE2 S 0 4 r GM 64 64 1 0')
  events = [*own, *other, *waits]

  assert not graph.Launch(events).find_unordered()
  with pytest.raises(graph.GraphError, match='expected its set before it'):
    assert graph.Launch([*own, *waits]).drop({'k.cpp:2'}).reach


def test_calls_are_the_places_of_sets_with_their_waits():
  launch = graph.Launch(read(_LOAD, _SET, _WAIT, _ADD, _DRAIN))

  assert launch.calls == [{'k.cpp:2', 'k.cpp:3'}, {'k.cpp:5'}]


def test_polled_words_and_several_launches_are_refused():
  with pytest.raises(graph.GraphError, match='no polled words'):
    read('polled S S 0 1')
  with pytest.raises(graph.GraphError, match='one launch'):
    graph.read('launch\n' + 'drain 0 AIV 0 0 S S 0 0 0 0 c k.cpp:1\nlaunch\n')
