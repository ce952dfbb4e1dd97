"""No name in the tree is one that names.toml forbids."""

import pytest

from hpmoe.tools import import_graph
from hpmoe.tools import names


def test_no_name_says_nothing():
  assert not names.list_names()


def test_a_name_is_listed_with_its_file_and_line(tmp_path, monkeypatch):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a/b.py').write_text('x = 1\nheld = 2\n')
  monkeypatch.setattr(import_graph, 'ROOT', tmp_path)
  monkeypatch.setattr(import_graph, 'files', lambda: ['a/b.py', 'a/b.txt'])

  assert names.list_names() == names.list_names(('a/',)) == ['a/b.py:2: held']
  assert not names.list_names(('b',))


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
