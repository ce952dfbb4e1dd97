"""What flags and barriers order, in small programs."""

from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import order
from hpmoe.tools.witness import programs

_X = programs.Place(0, 'f32', 64)
_Y = programs.Place(128, 'f32', 64)  # its first half is the second of _X
_Z = programs.Place(1024, 'f32', 64)
_IN = programs.Slice(0, 0, 'f32', 64)
_LOAD = programs.Step('load', _X, (_IN,))
_EXP = programs.Step('exp', _Z, (_Y,))
_SET = hivm.Sync('set', 'MTE2', 'V', 0)
_WAIT = hivm.Sync('wait', 'MTE2', 'V', 0)
_BARRIER = hivm.Sync('barrier', 'V')


def _kinds(trace: order.Trace, absent=()) -> list[str]:
  return [conflict.kind for conflict in trace.unordered(absent)]


class TestUnordered:
  def test_bytes_in_common_are_a_conflict_that_a_flag_orders(self):
    # Given a load and a read of half of its bytes, then only the flag's wait
    # after its set orders them.
    assert _kinds(order.Trace((_LOAD, _EXP))) == ['RAW']
    assert _kinds(order.Trace((_LOAD, _SET, _WAIT, _EXP))) == []
    assert _kinds(order.Trace((_SET, _LOAD, _WAIT, _EXP))) == ['RAW']
    assert _kinds(order.Trace((_LOAD, _SET, _EXP, _WAIT))) == ['RAW']

  def test_neighbours_are_none(self):
    step = programs.Step('exp', _Z, (programs.Place(256, 'f32', 64),))

    assert order.Trace((_LOAD, step)).conflicts == []

  def test_one_pipe_begins_in_order_and_ends_in_any(self):
    second = programs.Step('abs', _Z, (_Z,))

    assert _kinds(order.Trace((_EXP, second))) == ['RAW']
    assert _kinds(order.Trace((_EXP, _BARRIER, second))) == []

  def test_a_flag_orders_what_its_pipe_waited_for(self):
    # Given MTE2 to V to MTE3, then the store follows the load, too.
    out = programs.Slice(1, 0, 'f32', 64)
    body = (
      _LOAD,
      _SET,
      _WAIT,
      _EXP,
      hivm.Sync('set', 'V', 'MTE3', 0),
      hivm.Sync('wait', 'V', 'MTE3', 0),
      programs.Step('store', out, (_X,)),
    )

    assert _kinds(order.Trace(body)) == []
    assert _kinds(order.Trace(body), [1]) == ['RAW']
    assert _kinds(order.Trace(body), [0]) == ['RAW', 'RAW']

  def test_slices_of_rounds_are_apart(self):
    # Given a loop that loads and stores slices side by side, then rounds
    # conflict on the chip alone.
    inside = programs.Slice(0, 0, 'f32', 64, stride=64)
    body = (hivm.Round(2, (programs.Step('store', inside, (_X,)),)),)

    assert order.Trace(body).conflicts == []
    assert len(order.Trace((hivm.Round(2, (_LOAD,)),)).conflicts) == 1


class TestResets:
  def test_a_flag_is_safe_once_its_wait_is_known(self):
    # Given a second set, then it needs an order after the first one's wait.
    back = hivm.Sync('set', 'V', 'MTE2', 0), hivm.Sync('wait', 'V', 'MTE2', 0)

    assert order.Trace((_SET, _WAIT, _SET, _WAIT)).resets() == [(0, 2)]
    assert order.Trace((_SET, _SET, _WAIT, _WAIT)).resets() == [(0, 1)]
    assert order.Trace((_SET, _WAIT, *back, _SET, _WAIT)).resets() == []


class TestGroups:
  def test_calls_that_meet_are_one_group(self):
    # Given a flag before, in and behind a loop, then it is left out whole.
    body = (
      _SET,
      hivm.Round(2, (_WAIT, _SET, _BARRIER)),
      _WAIT,
      _SET,
      _WAIT,
    )

    assert order.Trace(body).groups == [(0, 1, 2, 4), (3,), (5, 6)]
