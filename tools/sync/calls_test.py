"""Which changes are made of a source."""

import pytest

from hpmoe.tools.sync import calls

SOURCE = """
// SetFlag<HardEvent::V_MTE3>(0); in a comment is no call.
void Copy(int row) {
  WaitFlag<HardEvent::MTE3_MTE2>(row);
  DataCopy(a, b, 8);
  SetFlag<HardEvent::MTE2_V>(0);
  WaitFlag<HardEvent::MTE2_V>(0);
  if (row > 0) PipeBarrier<PIPE_V>();
  int32_t next = row + 1; CompilerBarrier();
  SetFlag<HardEvent::V_S>(1);
  WaitFlag<HardEvent::V_S>(1);
  SetFlag<HardEvent::S_MTE3>(0);
  WaitFlag<HardEvent::S_MTE3>(0);
}
void Order() {
  SetFlag<HardEvent::V_S>(1);
  WaitFlag<HardEvent::V_S>(1);
}
void User() { Order(); }
"""


@pytest.fixture(name='changes')
def made_fixture():
  return calls.changes({'copy.h': SOURCE})


class TestLeftOut:
  def test_each_call_once(self, changes):
    out = [c for c in changes if c.change == 'left out']
    assert [c.line for c in out] == [4, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19]

  def test_lines_stay_and_control_goes_with_its_call(self, changes):
    barrier = next(c for c in changes if 'PIPE_V' in c.call)
    text = barrier.plant(SOURCE)
    assert text.count('\n') == SOURCE.count('\n')
    assert 'PIPE_V' not in text and 'row > 0' not in text

  def test_what_only_synchronises_is_a_call_of_its_own(self, changes):
    assert calls.helpers({'copy.h': SOURCE}) == ('Order',)
    assert [c.call for c in changes if c.line == 19] == ['Order();']


class TestSwapped:
  def test_neighbours_of_one_queue_or_an_unknown_one(self, changes):
    swapped = {(c.call, c.change) for c in changes if c.change != 'left out'}
    wait = 'WaitFlag<HardEvent::MTE3_MTE2>(row);'
    assert (wait, 'swapped with DataCopy(a, b, 8);') in swapped
    # MTE2 sets it and V waits: each queue gets the same.
    assert not any('MTE2_V>(0)' in a and 'MTE2_V>(0)' in b for a, b in swapped)
    # MTE3 waits in its own queue, whatever the scalar unit does meanwhile.
    assert not any('S_MTE3' in a and 'S_MTE3' in b for a, b in swapped)
    # The scalar unit would wait before it sets.
    assert any('V_S>(1)' in a and 'V_S>(1)' in b for a, b in swapped)

  def test_a_declaration_parts_neighbours(self, changes):
    assert not any('PIPE_V' in c.call and 'V_S' in c.change for c in changes)

  def test_what_is_no_instruction_is_no_neighbour(self, changes):
    assert not any('CompilerBarrier' in c.call + c.change for c in changes)

  def test_both_stand_in_each_others_place(self, changes):
    change = next(c for c in changes if c.line == 4 and c.change != 'left out')
    lines = change.plant(SOURCE).splitlines()
    assert lines[3].strip() == 'DataCopy(a, b, 8);'
    assert 'MTE3_MTE2' in lines[4]
