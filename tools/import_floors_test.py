"""Imports run down the floors only."""

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
  'benchmarks': ('reference', 'backend_ascend', 'models', 'parity_tests'),
  'tools': ('reference', 'backend_ascend', 'models', 'parity_tests'),
  'parity_tests': ('reference', 'backend_ascend', 'models'),
}


def violations(graph: dict[str, import_graph.Imports]) -> list[str]:
  """Returns one line per import that climbs."""
  lines = []
  for path, imports in graph.items():
    folder = path.split('/')[0]
    allowed = (folder, *FLOORS.get(folder, FLOORS))
    for target in sorted(imports.project):
      if folder == 'backend_ascend' and target.startswith(VOCABULARY):
        continue
      if target.split('/')[0] not in allowed:
        lines.append(f'{path}: expected imports of {allowed}, got {target}')
  return lines


class TestImportFloors:
  def test_tree(self):
    graph = import_graph.graph()
    assert len(graph) > 10
    assert not violations(graph), '\n'.join(violations(graph))

  def test_vocabulary_leads_to_no_computation(self):
    graph = import_graph.graph()
    words = [path for path in graph if path.startswith(VOCABULARY)]
    assert words
    for word in words:
      for reached in import_graph.closure(graph, word):
        assert reached.startswith(VOCABULARY), (word, reached)

  def test_device_headers_include_nothing_of_the_host(self):
    graph = import_graph.graph()
    for path in graph:
      folder, _, name = path.rpartition('/')
      if folder == 'backend_ascend/kernels' and name.endswith('.h'):
        reached = import_graph.closure(graph, path)
        assert not [p for p in reached if '/kernels/host/' in p], path

  @pytest.mark.parametrize(
    'path, line',
    [
      ('reference/a.py', 'from hpmoe.backend_ascend import b'),
      ('reference/a.py', 'import hpmoe.parity_tests.c'),
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
