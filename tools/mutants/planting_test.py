"""A bug is planted in a copy only, found, and gone afterwards."""

import json
import os
import time

import pytest

from hpmoe.tools.mutants import catalogue
from hpmoe.tools.mutants import planting

MUTANT = catalogue.Mutant(
  'm',
  'reference/a.py',
  'x + 1',
  'x + 2',
  'a slip',
  stage='y',
  tile=dict(rank=1),
)
FILES = {
  'reference/a.py': b'y = x + 1\n',
  'reference/a_test.py': b'assert True\n',
  'src/hpmoe/reference': '../../reference',
}
FINDING = dict(by=['exact'], stage='y', tile=dict(rank=1, expert=3), text='y')


class Fake(planting.Nursery):
  """A tree whose probe is given, and that needs no compiler."""

  builds = 0

  def build(self):
    self.builds += 1

  def prints(self, *lines, statement=''):
    """Makes a probe that prints some objects, then does something."""
    texts = [json.dumps(line) for line in lines]
    code = f'for line in {texts!r}: print(line, flush=True)\n{statement}\n'
    path = self.tree / 'src/hpmoe/tools/mutants/probe.py'
    path.parent.mkdir(parents=True)
    path.write_text(code)


@pytest.fixture
def nursery(tmp_path):
  return Fake(tmp_path / '0', limit_s=20)


class TestCopy:
  def test_tree_becomes_equal_and_keeps_what_is_so_or_was_built(self, nursery):
    # Given a copy with one file too many, and one that differs.
    nursery.copy(FILES | {'reference/old.py': b''})
    equal_file = nursery.tree / 'reference/a_test.py'
    os.utime(equal_file, (1, 1))
    extension = nursery.tree / 'reference/_native.so'
    extension.touch()
    (nursery.tree / 'reference/a.py').write_text('planted')
    # When.
    nursery.copy(FILES)
    # Then.
    assert planting.sources(nursery.tree) == FILES
    assert equal_file.stat().st_mtime == 1 and extension.exists()


class TestKeys:
  @pytest.mark.parametrize(
    'name, is_same_key',
    [
      ('reference/a.py', False),
      ('reference/b.py', False),
      ('reference/a_test.py', True),
      ('tools/b.py', True),
    ],
  )
  def test_what_decides_an_outcome_changes_the_key(self, name, is_same_key):
    other = FILES | {name: b'other'}
    assert (planting.digest(FILES) == planting.digest(other)) is is_same_key
    # A tool that judges decides, too.
    assert planting.digest(FILES, name) != planting.digest(other, name)

  def test_a_changed_mutant_is_another(self):
    fields = dict(vars(MUTANT), change='x')
    other = catalogue.Mutant(**fields)
    assert planting.key(MUTANT, 'tree') != planting.key(other, 'tree')
    # What is said of it decides nothing that was measured.
    renamed_place = catalogue.Mutant(**dict(vars(MUTANT), stage='dx', tile={}))
    assert planting.key(MUTANT, 'tree') == planting.key(renamed_place, 'tree')
    assert planting.key(MUTANT, 'tree') != planting.key(MUTANT, 'other')


class TestTryOut:
  def test_what_is_found_is_told_and_the_tree_is_clean_again(self, nursery):
    # Given.
    nursery.copy(FILES)
    nursery.prints(dict(rung='tiny'), dict(rung='tiny', found=FINDING))
    path = nursery.tree / MUTANT.file
    # When.
    outcome = planting.try_out(nursery, MUTANT, 'tree')
    # Then.
    assert (outcome.finders, outcome.check, outcome.stage) == (
      ('exact',),
      'tiny',
      'y',
    )
    assert planting.located(MUTANT, outcome) and nursery.builds == 1
    assert path.read_bytes() == FILES[MUTANT.file]

  @pytest.mark.parametrize(
    'test, finders', [('assert False', ('unit test',)), ('assert True', ())]
  )
  def test_what_no_check_sees_the_test_beside_the_file_may(
    self, nursery, test, finders
  ):
    code = f'def test_it():\n  {test}\n'
    nursery.copy(FILES | {'reference/a_test.py': code.encode()})
    nursery.prints(dict(rung=None))
    outcome = planting.try_out(nursery, MUTANT, 'tree')
    assert outcome.finders == finders
    assert outcome.check == ('reference/a_test.py' if finders else '')
    assert planting.located(MUTANT, outcome) is bool(finders)

  def test_a_bug_does_not_outlive_an_interrupt(self, nursery):
    nursery.copy(FILES)
    path = nursery.tree / MUTANT.file
    with pytest.raises(KeyboardInterrupt), nursery.plant(MUTANT):
      assert path.read_text() == 'y = x + 2\n'
      raise KeyboardInterrupt
    assert path.read_bytes() == FILES[MUTANT.file]


class TestExamine:
  @pytest.mark.parametrize(
    'limit_s, statement, text',
    [
      (20, 'raise MemoryError("no room")', 'MemoryError: no room'),
      (20, 'import os; os.abort()', 'exit code -6'),
      (2, 'import time; time.sleep(60)', 'no end within 2 s'),
    ],
  )
  def test_a_crash_or_hang_is_found_at_its_rung(
    self, tmp_path, limit_s, statement, text
  ):
    nursery = Fake(tmp_path / '0', limit_s)
    nursery.prints(dict(rung='tiny'), statement=statement)
    check, finding = nursery.examine()
    assert (check, finding['by']) == ('tiny', ['launch'])
    assert text in finding['text']

  def test_what_the_clean_tree_took_is_the_measure(self, tmp_path, monkeypatch):
    # Given a machine so busy that the tree without a bug takes longer than any
    # number that was thought of, then it passes, and a mutant may take longer.
    monkeypatch.setattr(planting, '_LEAST_LIMIT_S', 0.2)
    nursery = Fake(tmp_path / '0')
    nursery.prints(
      dict(rung='tiny'), dict(rung=None), statement='import time; time.sleep(1)'
    )
    start = time.monotonic()
    assert nursery.examine() == ('', None)
    nursery.set_limit(time.monotonic() - start)
    assert nursery.examine() == ('', None)
    nursery.set_limit(0.1)
    assert (
      'no end within 0.5 s' in nursery.probe('hpmoe.tools.mutants.probe')[1]
    )

  def test_a_tree_that_cannot_be_imported(self, nursery):
    nursery.copy({'src/hpmoe/tools/mutants/probe.py': b'import nothing_such'})
    check, finding = nursery.examine()
    assert check == 'import' and 'nothing_such' in finding['text']


class TestGuarded:
  TESTS = b"""
import time
import pytest
def test_fast(): assert %s
@pytest.mark.slow
def test_slow(): time.sleep(%d) or pytest.fail("slow")
"""

  @pytest.mark.parametrize(
    'passes, seconds, limit_s, slow, text',
    [
      (b'False', 0, 20, True, 'test_fast'),
      # One that hangs ends nothing else.
      (b'True', 60, 0.5, True, 'no end within 2 s'),
      # Slow ones are left out where nobody named them.
      (b'True', 60, 20, False, None),
    ],
  )
  def test_what_a_test_finds(
    self, tmp_path, passes, seconds, limit_s, slow, text
  ):
    nursery = Fake(tmp_path / '0', limit_s)
    nursery.copy({'a_test.py': self.TESTS % (passes, seconds)})
    test, finding = nursery.guarded('a_test.py', slow=slow)
    if text is None:
      assert (test, finding) == ('', None)
      return
    assert (test, finding['by']) == ('a_test.py', [planting.UNIT_TEST])
    assert text in finding['text']


class TestLocated:
  @pytest.mark.parametrize(
    'change, expected',
    [
      ({}, True),
      (dict(stage='dx'), False),
      (dict(tile=dict(rank=0)), False),
      (dict(by=[]), False),
      (dict(by=['proof'], stage='', text='race on y of rank 1'), True),
      (dict(by=['proof'], stage='', text='race on dx of rank 1'), False),
    ],
  )
  def test_stage_and_tile_decide(self, change, expected):
    fields = dict(mutant='m', key='', rung='tiny', seconds=1.0)
    outcome = planting.from_json(fields | FINDING | change)
    assert planting.located(MUTANT, outcome) is expected
