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


def outcome(of, *by, rung='tiny', stage='y'):
  key = planting.key(of, 'tree')
  return planting.Outcome(
    of.name, key, by, rung, stage, {}, 'a text', 1.0, '2031-05-01'
  )


FOUND = mutant('found')
ELSEWHERE = mutant('elsewhere')
SURVIVOR = mutant('survivor')
SAME = mutant('same', equivalent='it is never read')
GUARDED = mutant('guarded', guard='a_test.py')
ALL = [FOUND, ELSEWHERE, SURVIVOR, SAME, GUARDED]
OUTCOMES = {
  one.mutant: one
  for one in (
    outcome(FOUND, 'exact', 'bounded', rung=score.DEFAULT),
    outcome(ELSEWHERE, 'bounded', stage='dx'),
    outcome(SURVIVOR),
    outcome(SAME),
    outcome(GUARDED, planting.UNIT_TEST, rung='a_test.py', stage=''),
  )
}


class TestScore:
  @pytest.mark.parametrize(
    'mutants, outcomes, said',
    [
      # Of all a survivor that nobody explains,
      (ALL, OUTCOMES, 'survivor: survived: a slip'),
      # one without effect that is found, and one that was not tried.
      ([SAME], dict(same=outcome(SAME, 'exact')), 'same: .*it is never read.*'),
      ([FOUND], {}, 'found: expected an outcome, got none'),
    ],
  )
  def test_what_did_not_end_as_it_should_is_wrong(
    self, mutants, outcomes, said
  ):
    (line,) = score.wrong(mutants, outcomes)
    assert re.fullmatch(said, line)

  def test_a_find_elsewhere_is_told(self):
    assert score.misplaced(ALL, OUTCOMES) == ['elsewhere: expected y, got dx']
    known = dataclasses.replace(ELSEWHERE, elsewhere='y is not made there')
    assert score.misplaced([known], OUTCOMES) == []

  def test_every_mutant_is_counted_once(self):
    kinds = [dataclasses.replace(m, kind='a_kind') for m in ALL]
    some = {n: o for n, o in OUTCOMES.items() if n != 'same'}
    (row, everything) = score.rows(kinds, some)
    # Planted, not tried, by default, with flags, tests, without effect.
    assert row == ['a kind', 5, 1, 1, 1, 1, 0, 1, 'survivor']
    assert everything == ['all', *row[1:]]
    assert len(row) == len(score.COLUMNS)
    assert score.table(kinds, some).splitlines()[2].startswith('a kind ')


def test_the_figures_are_those_of_the_catalogue():
  everyone = catalogue.load()
  known = score.outcomes(everyone)
  assert figures.load('mutants')['rows'] == score.rows(everyone, known)
  assert score.wrong([m for m in everyone if m.name in known], known) == []


def keys(tree):
  return {one.name: planting.key(one, tree) for one in ALL}


class TestResume:
  def write(self, path, outcomes, tail=''):
    lines = [json.dumps(dataclasses.asdict(one)) for one in outcomes]
    path.write_text('\n'.join(lines) + '\n' + tail)

  @pytest.mark.parametrize('stale, count', [(False, 0), (True, 2)])
  def test_outcomes_of_another_tree_hold_only_if_asked(
    self, tmp_path, stale, count
  ):
    path = tmp_path / 'log'
    self.write(path, [OUTCOMES['found'], OUTCOMES['same']])
    assert len(main.kept(path, keys('tree'), False)) == 2
    assert len(main.kept(path, keys('other'), stale)) == count

  def test_the_last_outcome_holds_and_half_a_line_does_not(self, tmp_path):
    path = tmp_path / 'log'
    later = outcome(SURVIVOR, 'exact')
    held = [OUTCOMES['survivor'], later]
    self.write(path, held, tail='{"mutant": "same", "ke')
    assert main.kept(path, keys('tree'), False) == {'survivor': later}

  def test_what_is_done_is_not_tried_again(self, tmp_path, capsys):
    # Given a runner that finds everything, and one outcome known before.
    tried = []

    class Runner:
      jobs = 1

      def try_out(self, one):
        tried.append(one.name)
        if one.name == 'same':
          raise planting.BuildError('a.cc: error')
        return outcome(one, 'exact')

    known = {'found': OUTCOMES['found']}
    path = tmp_path / 'log'
    # When.
    broken = main.run([FOUND, SURVIVOR, SAME], known, Runner(), path, main.told)
    # Then.
    assert tried == ['survivor', 'same'] and broken == ['same: a.cc: error']
    assert len(path.read_text().splitlines()) == 1
    assert '[3/3]' in capsys.readouterr().out


class TestChosen:
  def test_patterns(self):
    assert main.chosen(ALL, ['s*', 'found']) == [FOUND, SURVIVOR, SAME]
    assert main.chosen(ALL, []) == ALL

  def test_a_pattern_that_names_nothing_is_refused(self):
    with pytest.raises(ValueError, match=r"only:.*'nobody'"):
      main.chosen(ALL, ['nobody'])
