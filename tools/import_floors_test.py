"""Imports run down the floors only, and down the rooms of each."""

import pathlib
import tomllib

import pytest

from hpmoe.tools import import_graph

# The words of the contract: all that an upper floor may know of the oracle
# while it is being checked against it.
VOCABULARY = 'reference/contract/'
# Folder -> folders it may import besides itself.
FLOORS = {
  'reference': (),
  'backend_ascend': (),
  'models': ('reference', 'backend_ascend'),
  'parity_tests': ('reference', 'models'),
  'tools': ('reference', 'backend_ascend', 'models', 'parity_tests'),
  'benchmarks': (*import_graph.FOLDERS,),
}

# The backend's candidates and commands: the judge finds them by entry points.
BACKEND_SIDE = 'parity_tests/ascend/'

# `rooms.toml`, tier by tier; '' is the floor's own folder.
ROOMS = {
  floor: [[name.strip('.') for name in tier.split()] for tier in tiers]
  for floor, tiers in tomllib.loads(
    (import_graph.ROOT / 'tools/rooms.toml').read_text()
  ).items()
}
# So that a reader can hold a floor's tiers in mind.
MOST_TIERS = 11
# Not held to rooms: they test, or show all of a floor to Python.
_ANYWHERE = (
  '_test.py',
  '_testing.py',
  'test_util.py',
  '_test.cc',
  '_testing.h',
  '_binding.cc',
  '_module.cc',
)


def room_of(path: str) -> tuple[int, str]:
  """Returns the tier and the name of the room that a file lies in.

  Raises:
    ValueError: it lies in none.
  """
  floor, _, inside = path.partition('/')
  names = {n: i for i, tier in enumerate(ROOMS[floor]) for n in tier}
  parents = [p.as_posix() for p in pathlib.PurePosixPath(inside).parents][:-1]
  for name in (inside, *(parents or [''])):
    if name in names:
      return names[name], name
  raise ValueError(f'{path}: expected it in a room of rooms.toml, got none')


def climbs(graph: dict[str, import_graph.Imports]) -> list[str]:
  """Returns one line per import that climbs inside its floor."""
  lines = []
  for path, imports in graph.items():
    floor = path.split('/')[0]
    if floor not in ROOMS or path.endswith(_ANYWHERE):
      continue
    tier, room = room_of(path)
    for target in sorted(imports.project):
      if target in import_graph.EXTENSIONS.values():
        continue
      if not target.startswith(f'{floor}/'):
        continue
      below, other = room_of(target)
      if other != room and below >= tier:
        lines.append(f'{path}: expected imports of rooms below, got {target}')
  return lines


def two_way(graph: dict[str, import_graph.Imports]) -> list[str]:
  """Returns one line per pair of files that import each other."""
  return [
    f'{path}: expected imports one way, got {target} and back'
    for path, imports in graph.items()
    for target in sorted(imports.project)
    if path < target and path in graph[target].project
  ]


def violations(graph: dict[str, import_graph.Imports]) -> list[str]:
  """Returns one line per import of a room that may not be imported there."""
  lines = []
  for path, imports in graph.items():
    folder = path.split('/')[0]
    may_import = (folder, *FLOORS.get(folder, FLOORS))
    # The judge runs without a backend; tests of both may have one.
    if path.startswith(BACKEND_SIDE) or path.endswith(_ANYWHERE):
      may_import = (*may_import, 'backend_ascend')
    elif folder == 'parity_tests':
      lines += [
        f'{path}: expected a judge that does without the backend, got {target}'
        for target in sorted(imports.project)
        if target.startswith(BACKEND_SIDE)
      ]
    for target in sorted(imports.project):
      if folder == 'backend_ascend' and target.startswith(VOCABULARY):
        continue
      if target.split('/')[0] not in may_import:
        lines.append(f'{path}: expected imports of {may_import}, got {target}')
  return lines


class TestImportFloors:
  def test_tree(self):
    graph = import_graph.of_tree()
    assert len(graph) > 10
    assert not violations(graph), '\n'.join(violations(graph))

  def test_rooms(self):
    lines = climbs(import_graph.of_tree())
    assert not lines, '\n'.join(lines)

  def test_a_floor_has_few_tiers(self):
    assert {floor for floor in ROOMS if len(ROOMS[floor]) > MOST_TIERS} == set()

  def test_no_two_files_import_each_other(self):
    lines = two_way(import_graph.of_tree())
    assert not lines, '\n'.join(lines)

  def test_two_files_that_import_each_other_are_named(self, tmp_path):
    (tmp_path / 'parity_tests').mkdir()
    for name, other in (('a', 'b'), ('b', 'a'), ('c', 'a')):
      line = f'def f():\n  from hpmoe.parity_tests import {other}'
      (tmp_path / f'parity_tests/{name}.py').write_text(line)
    assert two_way(import_graph.graph(tmp_path)) == [
      'parity_tests/a.py: expected imports one way, got parity_tests/b.py and '
      'back'
    ]

  def test_every_room_is_there(self):
    for floor, tiers in ROOMS.items():
      for name in (name for tier in tiers for name in tier):
        assert (import_graph.ROOT / floor / name).exists(), name

  @pytest.mark.parametrize(
    ('path', 'line'),
    [
      ('case/a.py', 'from hpmoe.parity_tests.judge import b'),
      ('judge/limits/a.py', 'from hpmoe.parity_tests.judge import b'),
      ('compare/a.py', 'from hpmoe.parity_tests.commands import b'),
      (
        'report/a.py',
        'def f():\n  from hpmoe.parity_tests.determinism import b',
      ),
      ('report/a.py', 'import hpmoe'),
    ],
  )
  def test_an_import_that_climbs_inside_is_named(self, tmp_path, path, line):
    for room in ('case', 'judge/limits', 'judge', 'compare', 'commands'):
      (tmp_path / 'parity_tests' / room).mkdir(parents=True, exist_ok=True)
      (tmp_path / 'parity_tests' / room / 'b.py').touch()
    for room in ('determinism', 'report'):
      (tmp_path / 'parity_tests' / room).mkdir(parents=True, exist_ok=True)
      (tmp_path / 'parity_tests' / room / 'b.py').touch()
    (tmp_path / 'parity_tests' / path).write_text(line)
    (message,) = climbs(import_graph.graph(tmp_path))
    assert message.startswith(f'parity_tests/{path}: ')

  def test_a_file_in_no_room_is_named(self):
    with pytest.raises(ValueError, match='parity_tests/new/a.py: expected'):
      room_of('parity_tests/new/a.py')

  def test_vocabulary_leads_to_no_computation(self):
    graph = import_graph.of_tree()
    words = [path for path in graph if path.startswith(VOCABULARY)]
    assert words
    for word in words:
      for imported_file in import_graph.closure(graph, word):
        assert imported_file.startswith(VOCABULARY), (word, imported_file)

  def test_device_headers_include_nothing_of_the_host(self):
    graph = import_graph.of_tree()
    for path in graph:
      folder, _, name = path.rpartition('/')
      if folder == 'backend_ascend/image' and name.endswith('.h'):
        imported_files = import_graph.closure(graph, path)
        assert not [p for p in imported_files if '/host/' in p], path

  @pytest.mark.parametrize(
    'path, line',
    [
      ('reference/a.py', 'from hpmoe.backend_ascend import b'),
      ('reference/a.py', 'import hpmoe.parity_tests.c'),
      ('parity_tests/c.py', 'from hpmoe.backend_ascend import b'),
      ('backend_ascend/b.py', 'from hpmoe.reference import a'),
      ('backend_ascend/b.py', 'from hpmoe.reference.a import f'),
      ('backend_ascend/b.py', 'def f():\n  from hpmoe.parity_tests import c'),
      ('models/d.py', 'from hpmoe.parity_tests import c'),
    ],
  )
  def test_climbing_import_is_named(self, tmp_path, path, line):
    for name in ('reference/a', 'backend_ascend/b', 'parity_tests/c'):
      (tmp_path / name).parent.mkdir()
      (tmp_path / f'{name}.py').touch()
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(line)
    (message,) = violations(import_graph.graph(tmp_path))
    assert message.startswith(path)

  def test_vocabulary_is_open_to_the_backend(self, tmp_path):
    for folder in ('reference/contract', 'backend_ascend'):
      (tmp_path / folder).mkdir(parents=True)
    (tmp_path / 'reference/contract/config.py').touch()
    (tmp_path / 'backend_ascend/b.py').write_text(
      'from hpmoe.reference.contract import config as config_lib'
    )
    assert not violations(import_graph.graph(tmp_path))

  def test_relative_import_is_refused(self, tmp_path):
    (tmp_path / 'reference').mkdir()
    (tmp_path / 'reference/a.py').write_text('from . import b')
    with pytest.raises(ValueError, match=r'reference/a\.py:1.*relative'):
      import_graph.graph(tmp_path)
