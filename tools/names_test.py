"""No room has more names that say nothing than names.toml admits."""

import pytest

from hpmoe.tools import names


def test_rooms_have_no_more_such_names_than_they_had():
  counts = names.count_by_room()
  over_limit = {
    room: (count, names.OPEN.get(room, 0))
    for room, count in counts.items()
    if count > names.OPEN.get(room, 0)
  }
  assert not over_limit, (
    f'room: (names, admitted): {over_limit}; see python -m hpmoe.tools.names'
  )


@pytest.mark.parametrize(
  'line',
  [
    'def of(case): ...',
    'class Told: ...',
    'lambda which: 0',
    'held = []',
    'for one in (): ...',
    'self._made = 1',
    'with open(name) as found: ...',
  ],
)
def test_a_binding_that_says_nothing_is_named(line):
  assert len(names.find_names(line)) == 1


def test_other_names_and_mere_uses_are_none():
  text = 'rows = held[which]\ndef judge_stage(case): return of(case)\n'
  assert not names.find_names(text)


def test_a_room_without_such_names_is_not_counted_as_the_root():
  assert names.find_room('models/init.py') == 'models'
  assert names.find_room('conftest.py') == '.'
