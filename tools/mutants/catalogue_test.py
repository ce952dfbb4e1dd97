"""Every mutant of the catalogue can still be planted in this tree."""

import pytest

from hpmoe.tools.mutants import catalogue
from hpmoe.tools.mutants import planting

MUTANTS = catalogue.load()


def test_each_place_is_there_once():
  for mutant in MUTANTS:
    text = (planting.ROOT / mutant.file).read_text()
    assert mutant.plant(text) != text  # an error names the mutant
    assert not mutant.guard or (planting.ROOT / mutant.guard).is_file()


class TestCatalogue:
  FIELDS = dict(file='a.py', find='x', change='y', imitates='a slip')

  def test_a_place_that_is_there_twice_is_refused(self):
    mutant = catalogue.Mutant('m', **self.FIELDS, stage='y')
    with pytest.raises(ValueError, match=r'm: find: expected once.*got 2'):
      mutant.plant('x x')

  @pytest.mark.parametrize(
    'fields, message',
    [
      (dict(stage=''), 'm: stage'),
      (dict(stage='y', equivalent='same'), 'm: stage'),
      (dict(stage='y', change='x'), 'm: change'),
      (dict(stage='y', imitates=''), 'm: imitates'),
    ],
  )
  def test_a_mutant_that_says_too_little_is_refused(self, fields, message):
    with pytest.raises(ValueError, match=message):
      catalogue.Mutant('m', **self.FIELDS | fields)

  def test_a_name_stands_once(self, tmp_path):
    table = "[m]\nfile='f'\nfind='x'\nchange='y'\nimitates='z'\nstage='s'\n"
    (tmp_path / 'a.toml').write_text(table)
    (tmp_path / 'b.toml').write_text(table)
    with pytest.raises(ValueError, match=r'b\.toml: m: expected one'):
      catalogue.load(tmp_path)

  def test_an_unknown_field_is_told_with_its_file(self, tmp_path):
    (tmp_path / 'a.toml').write_text("[m]\nwhere='f'\n")
    with pytest.raises(ValueError, match=r'a\.toml: m:.*where'):
      catalogue.load(tmp_path)
