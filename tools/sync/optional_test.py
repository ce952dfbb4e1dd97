"""Calls become optional in their lines, and are left out by number."""

from hpmoe.tools.sync import optional

TEXT = """\
  if (last) SetFlag<E>(0);  // DeQue()
  auto x = in.DeQue<T>();
  pool[i]->FreeTensor(x); Add(x);
  WaitFlag<E>(0);
  in.EnQue(y);
"""


def test_calls_and_the_flags_of_queues_can_be_left_out_in_their_lines():
  text, calls = optional.make_optional(TEXT, file='add.cpp')

  assert text.splitlines() == [
    '  if (last) {if(!HpmoeLeftOut(1)){SetFlag<E>(0);}}  // DeQue()',
    '  auto x = (HpmoeQuiet(2),in.DeQue<T>());',
    '  (HpmoeQuiet(3),pool[i]->FreeTensor(x)); Add(x);',
    '  {if(!HpmoeLeftOut(4)){WaitFlag<E>(0);}}',
    '  (HpmoeQuiet(5),in.EnQue(y));',
  ]
  assert [call.line for call in calls] == [1, 2, 3, 4, 5]
  assert {call.file for call in calls} == {'add.cpp'}


def test_flags_are_left_out_alone_and_in_pairs_and_queues_in_pairs_alone():
  _, calls = optional.make_optional(TEXT)

  groups = [{call.line for call in g} for g in optional.list_groups(calls)]

  assert groups == [{1}, {4}, {1, 4}, {2, 5}]


def test_notes_tell_calls_that_ran_from_calls_that_took_a_flag(tmp_path):
  notes = tmp_path / 'notes'
  assert optional.read_notes(notes) == (set(), set())
  notes.write_text('call 2\nflag 2\ncall 3\n')
  assert optional.read_notes(notes) == ({2, 3}, {2})
