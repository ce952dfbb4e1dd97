"""What is kept of a run, and how it is told."""

import dataclasses

import pytest

from hpmoe.tools.mutants import main as mutants
from hpmoe.tools.mutants import planting
from hpmoe.tools.sync import calls
from hpmoe.tools.sync import main

CHANGE = calls.Change('a.h:1 left out', 'a.h', 1, 'Set();', 'left out', ())
OUTCOME = planting.outcome(
  CHANGE.name,
  'tree',
  'tiny',
  dict(by=['hazard'], stage='', tile={}, text='why'),
  0.0,
)
PASSED_OUTCOME = dataclasses.replace(OUTCOME, finders=(), check='')


class TestRunner:
  def test_what_does_not_compile_is_no_change_that_passed(
    self, tmp_path, monkeypatch
  ):
    # Given headers that a changed source does not compile against, when it is
    # run, then that is said: no launch found nothing.
    line = dict(case='', how='', text='a.h:1: no Wait')
    monkeypatch.setattr(
      planting.Nursery, 'probe', lambda *_: ([line], 'exit code 0')
    )
    monkeypatch.setattr(planting.Nursery, 'build', lambda _: None)
    with pytest.raises(planting.BuildError, match='no Wait'):
      mutants.Runner(tmp_path, 1, main.try_out).prepare()

  def test_two_runs_do_not_plant_in_the_same_trees(self, tmp_path):
    first = mutants.Runner(tmp_path, 1, main.try_out)
    with pytest.raises(ValueError, match='another run plants'):
      mutants.Runner(tmp_path, 1, main.try_out)
    assert first.tree


class TestVerdict:
  def test_a_change_that_no_launch_finds_has_passed(self):
    assert main.verdict(CHANGE, OUTCOME, {}) == 'hazard'
    assert main.verdict(CHANGE, PASSED_OUTCOME, {}) == 'PASSED'
    reasons = {('Set();', 'left out'): 'nothing was set'}
    assert main.verdict(CHANGE, PASSED_OUTCOME, reasons) == (
      'the same program: nothing was set'
    )

  def test_the_summary_counts_them(self):
    verdicts = ['hazard', 'the same program: x', 'PASSED']
    assert main.summary(verdicts) == (
      '3 changes: 1 reported, 1 the same program, 1 passed'
    )


class TestCounts:
  def test_of_calls_left_out_and_swapped(self):
    swapped = dataclasses.replace(CHANGE, change='swapped with Wait();')
    rows = [
      (CHANGE, OUTCOME, 'hazard'),
      (CHANGE, PASSED_OUTCOME, 'PASSED'),
      (swapped, PASSED_OUTCOME, 'the same program: x'),
    ]
    assert main.counts(rows) == [
      ['left out', 2, 1, 0, 1],
      ['swapped', 1, 0, 1, 0],
    ]
    assert main.plain(rows[:1]) == {'a.h:1 left out': 'hazard, tiny'}


class TestSource:
  def test_the_device_source_has_calls_and_reasons_name_one(self):
    changes = calls.changes(main.device_source())
    assert len(changes) > 100
    calls_and_changes = {(c.call, c.change) for c in changes}
    assert set(main.same_programs()) <= calls_and_changes

  def test_it_uses_no_unit_flag(self):
    # Products and moves out of L0C are ordered by flags alone, which the twin
    # checks: docs/on_an_npu.md says so.
    source = main.device_source()
    assert source
    assert not [name for name, text in source.items() if 'unitFlag' in text]
