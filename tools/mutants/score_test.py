"""A survivor without a reason is told, and counts."""

import dataclasses
import json
import re

import pytest

from hpmoe.tools.docs import figures
from hpmoe.tools.mutants import catalogue
from hpmoe.tools.mutants import main
from hpmoe.tools.mutants import planting
from hpmoe.tools.mutants import score


def mutant(name, **fields):
  plain = dict(file='a.py', find='x', change='y', imitates='a slip')
  return catalogue.Mutant(name, **plain | (fields or dict(stage='y')))


def outcome(mutant_, *finders, check='tiny', stage='y'):
  key = planting.key(mutant_, 'tree')
  return planting.Outcome(
    mutant_.name, key, finders, check, stage, {}, 'a text', 1.0, '2031-05-01'
  )


DETECTED = mutant('found')
ELSEWHERE = mutant('elsewhere')
SURVIVOR = mutant('survivor')
EQUIVALENT = mutant('same', equivalent='it is never read')
GUARDED = mutant('guarded', guard='a_test.py')
ALL = [DETECTED, ELSEWHERE, SURVIVOR, EQUIVALENT, GUARDED]
OUTCOMES = {
  outcome_.mutant: outcome_
  for outcome_ in (
    outcome(DETECTED, 'exact', 'bounded', check=score.DEFAULT),
    outcome(ELSEWHERE, 'bounded', stage='dx'),
    outcome(SURVIVOR),
    outcome(EQUIVALENT),
    outcome(GUARDED, planting.UNIT_TEST, check='a_test.py', stage=''),
  )
}


class TestScore:
  @pytest.mark.parametrize(
    'mutants, outcomes, pattern',
    [
      # Of all a survivor that nobody explains,
      (ALL, OUTCOMES, 'survivor: survived: a slip'),
      # one without effect that is found, and one that was not tried.
      (
        [EQUIVALENT],
        dict(same=outcome(EQUIVALENT, 'exact')),
        'same: .*it is never read.*',
      ),
      ([DETECTED], {}, 'found: expected an outcome, got none'),
    ],
  )
  def test_what_did_not_end_as_it_should_is_wrong(
    self, mutants, outcomes, pattern
  ):
    (line,) = score.wrong(mutants, outcomes)
    assert re.fullmatch(pattern, line)

  def test_a_find_elsewhere_is_told(self):
    assert score.misplaced(ALL, OUTCOMES) == ['elsewhere: expected y, got dx']
    explained_mutant = dataclasses.replace(
      ELSEWHERE, elsewhere='y is not made there'
    )
    assert score.misplaced([explained_mutant], OUTCOMES) == []

  def test_every_mutant_is_counted_once(self):
    kinds = [dataclasses.replace(m, kind='a_kind') for m in ALL]
    outcomes_but_one = {n: o for n, o in OUTCOMES.items() if n != 'same'}
    (row, everything) = score.rows(kinds, outcomes_but_one)
    # Planted, not tried, by default, with flags, tests, without effect.
    assert row == ['a kind', 5, 1, 1, 1, 1, 0, 1, 'survivor']
    assert everything == ['all', *row[1:]]
    assert len(row) == len(score.COLUMNS)
    assert (
      score.table(kinds, outcomes_but_one).splitlines()[2].startswith('a kind ')
    )


def test_the_figures_are_those_of_the_catalogue():
  everyone = catalogue.load()
  outcomes = score.outcomes(everyone)
  assert figures.load('mutants')['rows'] == score.rows(everyone, outcomes)
  assert (
    score.wrong([m for m in everyone if m.name in outcomes], outcomes) == []
  )


def keys(tree):
  return {mutant_.name: planting.key(mutant_, tree) for mutant_ in ALL}


class TestResume:
  def write(self, path, outcomes, tail=''):
    lines = [json.dumps(planting.to_json(outcome_)) for outcome_ in outcomes]
    path.write_text('\n'.join(lines) + '\n' + tail)

  @pytest.mark.parametrize('stale, count', [(False, 0), (True, 2)])
  def test_outcomes_of_another_tree_hold_only_if_asked(
    self, tmp_path, stale, count
  ):
    path = tmp_path / 'log'
    self.write(path, [OUTCOMES['found'], OUTCOMES['same']])
    assert len(main.load_outcomes(path, keys('tree'), False)) == 2
    assert len(main.load_outcomes(path, keys('other'), stale)) == count

  def test_the_last_outcome_holds_and_half_a_line_does_not(self, tmp_path):
    path = tmp_path / 'log'
    later = outcome(SURVIVOR, 'exact')
    lines = [OUTCOMES['survivor'], later]
    self.write(path, lines, tail='{"mutant": "same", "ke')
    assert main.load_outcomes(path, keys('tree'), False) == {'survivor': later}

  def test_what_is_done_is_not_tried_again(self, tmp_path, capsys):
    # Given a runner that finds everything, and one outcome known before.
    names_tried = []

    class Runner:
      jobs = 1

      def try_out(self, change):
        names_tried.append(change.name)
        if change.name == 'same':
          raise planting.BuildError('a.cc: error')
        return outcome(change, 'exact')

    outcomes = {'found': OUTCOMES['found']}
    path = tmp_path / 'log'
    # When.
    broken_changes = main.run(
      [DETECTED, SURVIVOR, EQUIVALENT],
      outcomes,
      Runner(),
      path,
      main.format_progress,
    )
    # Then.
    assert names_tried == ['survivor', 'same'] and broken_changes == [
      'same: a.cc: error'
    ]
    assert len(path.read_text().splitlines()) == 1
    assert '[3/3]' in capsys.readouterr().out


class TestChosen:
  def test_patterns(self):
    assert main.select(ALL, ['s*', 'found']) == [DETECTED, SURVIVOR, EQUIVALENT]
    assert main.select(ALL, []) == ALL

  def test_a_pattern_that_names_nothing_is_refused(self):
    with pytest.raises(ValueError, match=r"only:.*'nobody'"):
      main.select(ALL, ['nobody'])
