"""Findings of the twin for small kernels, right and with one error."""

import collections
import re
import subprocess

import pytest

from hpmoe.backend_ascend.twin import twin_testing

_SOURCE = twin_testing.TWIN / 'engine/engine_test.cc'
# Of an error: a line of a kernel, or the end of one.
_PLACE = re.compile(r'\b(kernels|drills)_testing\.h:\d|at its end')
_STRICT = ('in_order', 'seeded', 'late')
_AUTO = tuple(f'auto {mode}' for mode in _STRICT)
_MODES = _STRICT + _AUTO
# Stores to polled words that nothing orders are seen the other way round in
# mode late, and with some seeds.
_OVERTAKEN = (
  'polled payload by stores without dsb',
  'polled payload by moves without barrier',
)

# The finding of each kernel in every mode and seed: kind, missing order, words
# of the text.  If instructions run in another order, an error may show as
# another kind: any of a tuple.
_RIGHT = (
  'right',
  '15 sets',
  'both AIVs set',
  'a cross flag orders',
  'neighbours',
  'neighbours by a byte',
  'two add to one',
  'polls by moves',
  'polls by moves after',
  'many tasks without a signal',
  'many waits that are met',
  'scalar stores',
  'polled payload by stores',
  'two polled words by stores',
  'polled payload by moves',
  'two polled words by moves',
  'SyncAll',
  'an odd byte',
  'padding that nobody wrote',
)
_FINDINGS = {
  # A call left out of a pair of kernels that is right with it.
  'no MTE2_V': ('hazard [MTE2_V]', 'pipe V: Sum reads UB [0x0, 0x100)'),
  'no PIPE_V': ('hazard [PipeBarrier<PIPE_V>]', 'written by V at'),
  'no V_MTE3': ('hazard [V_MTE3]', 'pipe MTE3: MoveOut reads UB'),
  'no V_MTE2': ('hazard [V_MTE2]', 'pipe MTE2: MoveIn writes UB'),
  'no S_MTE3': ('hazard [S_MTE3]', 'AddOut reads UB [0x1000, 0x1004)'),
  'no PIPE_MTE3': ('race [event]', 'written by MTE3 of AIV 1 of rank 0'),
  'no dcci': (
    'stale line [DataCacheCleanAndInvalid]',
    'AIV 1 of rank 0 wrote it at',
  ),
  'no event wait': (('race [event]', 'undefined []'), 'MoveIn reads out'),
  'no PIPE_ALL': ('hazard [PipeBarrier<PIPE_ALL>]', 'the kernel ends'),
  # Flags.
  'a flag set twice': (('flag [MTE2_V]', 'flag [V_MTE2]'), 'SetFlag<MTE2_V>'),
  'a flag left over': ('flag [MTE2_V]', 'left set for the next kernel'),
  'a flag never set': ('deadlock [MTE2_V]', 'pipe V waits at'),
  'the scalar waits for ever': ('deadlock [V_S]', 'in WaitFlag<V_S>(1)'),
  'an event of an AIC': ('refused []', 'expected one of an AIV, got M_FIX'),
  'an event of an AIV': ('refused []', 'expected one of an AIC, got V_S'),
  'a scalar load on an AIC': ('hazard [MTE3_S]', 'shared of rank 0'),
  'an id too high': ('refused []', 'id: expected 0 to 5, got 6'),
  'a bit of control': ('refused []', 'set_ctrl: bit 59: expected 0'),
  'a barrier of another core': ('refused []', 'a queue of an AIV, got M'),
  # Memories.
  'beyond UB': ('bounds []', 'UB [0x2df80, 0x2e080): expected bytes below'),
  'UB on an AIC': ('refused []', 'expected a memory of an AIC, got UB'),
  'vector work on an AIC': ('refused []', 'with a pipe V, got an AIC'),
  'outside': ('bounds []', 'the nearest is in of rank 0 + 0x20 of 0x100'),
  'a constant': ('refused []', 'in of rank 0 + 0x0 (256 B)'),
  'nobody wrote UB': ('undefined []', 'UB [0x100, 0x120), which nobody'),
  'a byte that nobody wrote': ('undefined []', 'UB [0x7, 0x8), which nobody'),
  'padding before it is there': ('hazard [MTE2_V]', 'pipe V: Look reads UB'),
  'nobody wrote it': ('undefined []', 'out of rank 0 + 0x0 (32 B)'),
  'a scalar store after a read': (('hazard [V_S]', 'hazard [MTE2_S]'), ''),
  'a scalar load of a sum': (
    ('hazard [V_S]', 'undefined []'),
    'GetValue reads',
  ),
  'a scalar load before a wait': (
    ('hazard [MTE2_S]', 'undefined []'),
    'GetValue reads',
  ),
  'a move behind a scalar load': (('hazard [MTE2_V]', 'hazard [MTE2_S]'), ''),
  'a wait behind a scalar load': (('hazard [MTE2_MTE3]', 'hazard [V_S]'), ''),
  'what a loaded sum waited for': (
    ('hazard [V_S]', 'undefined []'),
    'GetValue reads',
  ),
  'a sum behind a scalar store': (('hazard [MTE3_V]', 'hazard [MTE2_S]'), ''),
  # Its store, which only reads, needs no order to it.
  'a sum of a sum, beside its store': (
    'hazard [PipeBarrier<PIPE_V>]',
    'written by V at',
  ),
  'one target twice': ('hazard [PipeBarrier<PIPE_MTE2>]', 'UB [0x20, 0x40)'),
  # The scalar cache.
  'own write, line kept': (
    'stale line [DataCacheCleanAndInvalid]',
    'shared of rank 0 + 0x0 (4 B)',
  ),
  'own write, line stored to': (
    'dirty line [DataCacheCleanAndInvalid]',
    'over what AIV 0 of rank 0 wrote at',
  ),
  'never cleaned': ('dirty line []', 'still in the scalar cache'),
  'no dsb': ('hazard [DataSyncBarrier]', 'pipe MTE2: MoveIn reads shared'),
  'scalar stores without dsb': ('race [DataSyncBarrier]', 'GetValue reads'),
  # Several cores.
  '16 sets': ('cross flag [a flag back]', 'has 15 sets'),
  'a set left over': ('cross flag [CrossCoreWaitFlag]', 'on AIV 1 of rank 0'),
  'only one of the AIVs sets': ('deadlock []', 'in CrossCoreWaitFlag(3)'),
  'of another pipe': ('race [event]', 'written by MTE3 of AIV'),
  'two write one': ('race [event]', 'out of rank 0 + 0x80 (128 B)'),
  'a deadline': None,
  'one waits for one that is stuck': (
    'deadlock [MTE3_S]',
    'nothing can go on: AIV 1 of rank 0 waits at',
  ),
  'polls by moves without end': ('deadlock []', 'no end after 16'),
  'a poll without end': ('deadlock []', 'polls flags of rank 0 + 0x0'),
}
# What lacks in them the compiler inserts: between two of V, and between the
# scalar unit and V, MTE2 or MTE3 of an AIV.
_INSERTED = (
  'no PIPE_V',
  'a sum of a sum, beside its store',
  'no S_MTE3',
  'a scalar store after a read',
  'a scalar load of a sum',
  'a scalar load before a wait',
  'what a loaded sum waited for',
)


@pytest.fixture(scope='module')
def lines(tmp_path_factory) -> list[str]:
  binary = tmp_path_factory.mktemp('engine') / 'engine_test'
  twin_testing.compile_program(_SOURCE, binary)
  ran = subprocess.run([binary], capture_output=True, text=True, check=True)
  return ran.stdout.splitlines()


@pytest.fixture(scope='module')
def outcomes(lines) -> dict[tuple[str, str], list[str]]:
  """Returns the output for each mode and kernel, one entry a launch."""
  by_kernel = collections.defaultdict(list)
  for line in lines:
    head, _, text = line.partition(': ')
    mode, _, kernel = head.partition('; ')
    if kernel and mode in _MODES:
      by_kernel[mode, kernel].append(text)
  return by_kernel


class TestKernels:
  def test_every_kernel_ran_in_every_mode(self, outcomes):
    names = (*_RIGHT, *_FINDINGS, *_OVERTAKEN)
    expected = {(mode, name) for mode in _MODES for name in names}
    assert set(outcomes) == expected

  @pytest.mark.parametrize('mode', _MODES)
  @pytest.mark.parametrize('kernel', _RIGHT)
  def test_a_right_kernel_passes(self, outcomes, kernel, mode):
    assert set(outcomes[mode, kernel]) == {'ok'}

  @pytest.mark.parametrize('mode', _AUTO)
  @pytest.mark.parametrize('kernel', _INSERTED)
  def test_what_the_compiler_inserts_is_no_hazard(self, outcomes, kernel, mode):
    assert set(outcomes[mode, kernel]) == {'ok'}

  @pytest.mark.parametrize('kernel', _INSERTED)
  def test_a_hazard_names_the_option_under_which_it_is_none(
    self, outcomes, kernel
  ):
    assert 'auto_sync' in outcomes['in_order', kernel][0]

  @pytest.mark.parametrize('mode', _MODES)
  @pytest.mark.parametrize('kernel', [k for k, v in _FINDINGS.items() if v])
  def test_what_is_wrong_is_named(self, outcomes, kernel, mode):
    if mode in _AUTO and kernel in _INSERTED:
      return
    heads, words = _FINDINGS[kernel]
    for text in outcomes[mode, kernel]:
      assert text.startswith(heads), text
      assert words in text
      assert _PLACE.search(text), text

  @pytest.mark.parametrize('kernel', _OVERTAKEN)
  def test_a_flag_overtakes_a_polled_payload_that_no_barrier_is_behind(
    self, outcomes, kernel
  ):
    (late,) = outcomes['late', kernel]
    seeded = outcomes['seeded', 'polled payload by moves without barrier']

    assert 'read too early' in late
    assert any('read too early' in text for text in seeded)
    assert outcomes['in_order', kernel] == ['ok']

  @pytest.mark.parametrize('mode', _MODES)
  def test_a_kernel_s_own_deadline_fires_where_nothing_goes_on(
    self, outcomes, mode
  ):
    assert set(outcomes[mode, 'a deadline']) == {'ok'}


class TestModes:
  def test_a_seed_gives_one_order_and_seeds_give_several(self, lines):
    first, repeat = (
      [line.partition(':')[2] for line in lines if line.startswith(word)]
      for word in ('seed:', 'again:')
    )
    assert first == repeat
    assert len(set(first)) > 1

  def test_late_runs_what_flags_allow_in_another_order(self, lines):
    in_order, late = (
      next(line for line in lines if line.startswith(word)).partition(':')[2]
      for word in ('in order:', 'late:')
    )
    assert in_order.split() == [str(n) for n in range(10)]
    assert sorted(late.split(), key=int) == in_order.split()
    assert late != in_order

  def test_sums_of_a_pipe_into_one_word_are_in_either_order_but_for_a_barrier(
    self, lines
  ):
    assert 'sums in order: 0 1 2' in lines
    assert 'sums late: 1 0 2' in lines


def test_counts_are_those_of_each_core_and_task(lines):
  assert [line for line in lines if ' tag ' in line] == [
    'AIC 0 tag 7: MTE2 0 0 B, MTE3 0 0 B, V 0, waits 0, barriers 1',
    'AIV 0 tag 7: MTE2 1 512 B, MTE3 0 0 B, V 0, waits 0, barriers 1',
    'AIV 1 tag 7: MTE2 2 512 B, MTE3 3 516 B, V 4, waits 7, barriers 4',
  ]


@pytest.mark.parametrize('mode', _STRICT)
def test_times_are_those_of_flags_whatever_ran_first(lines, mode):
  # Reads end at 1 and 2 and are seen at 3 and 4, sums end at 4 and 5, writes at
  # 5 and 6; then one more read, behind a barrier of all.
  assert [line for line in lines if line.startswith(f'{mode} time')] == [
    f'{mode} time -1: MTE2 2, V 2, MTE3 2, ended 6',
    f'{mode} time 1: MTE2 1, V 0, MTE3 0, ended 9',
  ]


def test_flags_that_merge_let_a_kernel_that_counts_them_wait_for_ever(lines):
  (merging,) = (x for x in lines if x.startswith('merging; 15 sets: '))

  assert 'deadlock' in merging
  assert 'in CrossCoreWaitFlag(5)' in merging


def test_where_sources_disagree_an_aic_has_scalar_flags_or_none(lines):
  disputed, strict = (
    line.partition('; a scalar flag of an AIC: ')[2]
    for line in lines
    if '; a scalar flag of an AIC: ' in line
  )

  assert disputed == 'ok'
  assert strict.startswith('refused')
  assert 'by no_aic_scalar_flags: ' in strict and 'S_MTE3' in strict


def test_a_wrong_request_is_answered_not_run(lines):
  answers = [x.partition('] ')[2] for x in lines if x.startswith('request: ')]

  assert [text.split(' at its end')[0] for text in answers[:3]] == [
    'entry: expected a kernel, got none',
    'ranks, blocks: expected at least 1, got 1, 0',
    'globals: expected ranges that do not overlap, got out and out',
  ]
  assert answers[3].endswith('expected none, got an exception: thrown')
