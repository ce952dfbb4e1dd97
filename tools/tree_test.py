"""The tree: rooms of a size, named in docs and BUILD files, and links."""

import ast
import glob
import itertools
import os
import pathlib
import re
import tomllib

from hpmoe.tools import import_graph

ROOT = import_graph.ROOT
# A newcomer should know from a folder's name what may lie in it.
MOST_SOURCES = 20
# One idea a file: a reader sees the whole of it.
MOST_LINES = 700
MOST_FOLDERS = 5
_TESTS = ('_test.py', '_testing.py', '_test.cc', '_testing.h', '__init__.py')


def rooms(paths) -> dict[str, list[str]]:
  """Returns the sources of each folder that holds any."""
  by_folder = itertools.groupby(
    sorted(paths, key=os.path.dirname), os.path.dirname
  )
  return {folder: list(sources) for folder, sources in by_folder if folder}


def crowded(paths) -> list[str]:
  """Returns a line for each folder with too many sources that are no tests."""
  return [
    f'{folder}: expected at most {MOST_SOURCES} sources, got {len(sources)}'
    for folder, sources in rooms(
      p for p in paths if not p.endswith(_TESTS)
    ).items()
    if len(sources) > MOST_SOURCES
  ]


def longest(paths, root: pathlib.Path = ROOT) -> list[str]:
  """Returns a line for each file with too many lines."""
  lengths = {p: len((root / p).read_text().splitlines()) for p in paths}
  return [
    f'{path}: expected at most {MOST_LINES} lines, got {length}'
    for path, length in lengths.items()
    if length > MOST_LINES
  ]


def deep(paths) -> list[str]:
  """Returns a line for each file below too many folders."""
  depths = {path: path.count('/') for path in paths}
  return [
    f'{path}: expected at most {MOST_FOLDERS} folders, got {depth}'
    for path, depth in depths.items()
    if depth > MOST_FOLDERS
  ]


def equal_names(paths) -> list[str]:
  """Returns a line for each name that several headers of ours have."""
  by_name: dict[str, list[str]] = {}
  for path in sorted(paths):
    # A stand-in's header has the name of the header that it replaces.
    if path.endswith('.h') and not _OF_HEADERS(path):
      by_name.setdefault(os.path.basename(path), []).append(path)
  return [
    f'{name}: expected one header, got {" and ".join(headers)}'
    for name, headers in by_name.items()
    if len(headers) > 1
  ]


def calls(path: pathlib.Path) -> dict[str, dict[str, ast.expr]]:
  """Returns the arguments of each call in a BUILD file, by function."""
  # BUILD files are Python as far as its grammar goes.
  tree = ast.parse(path.read_text())
  return {
    node.func.id: {k.arg: k.value for k in node.keywords}
    for node in ast.walk(tree)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
  }


def strings(path: pathlib.Path) -> set[str]:
  """Returns every string of a BUILD file."""
  tree = ast.parse(path.read_text())
  return {
    node.value
    for node in ast.walk(tree)
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
  }


_NAMED_FILE = re.compile(r'`([\w./*-]*\w\.(?:py|cc|h|toml|\*)|[\w./-]+/)`')


def missing_files(folder: pathlib.Path, text: str, root=ROOT) -> list[str]:
  """Returns the files that a folder's README names and that do not exist.

  A name with a slash may start at any folder above, up to `root`.
  """
  above = [p for p in folder.parents if p.is_relative_to(root)]

  def exists(name: str) -> bool:
    places = [folder, *(above if '/' in name else ())]
    return any(glob.glob(str(place / name)) for place in places)

  return [name for name in _NAMED_FILE.findall(text) if not exists(name)]


# Folders of stand-in headers: the README above them speaks for them.
_OF_HEADERS = re.compile(r'/(include|fake_cann)(/|$)').search
MOST_README_LINES = 15


def unexplained(root: pathlib.Path, folders) -> list[str]:
  """Returns a line for each folder without a README, or with a long one."""
  readmes = {folder: root / folder / 'README.md' for folder in folders}
  lengths = {
    folder: len(path.read_text().splitlines()) if path.exists() else 0
    for folder, path in readmes.items()
  }
  return [
    f'{folder}: expected a README of at most {MOST_README_LINES} lines, got '
    f'{length}'
    for folder, length in lengths.items()
    if not 0 < length <= MOST_README_LINES
  ]


FLOORS = [f for f in import_graph.FOLDERS if (ROOT / 'src/hpmoe' / f).exists()]
INSIDE = [f for f in rooms(import_graph.files()) if f.split('/')[0] in FLOORS]


class TestFolders:
  def test_no_folder_is_crowded(self):
    assert not crowded(import_graph.files())

  def test_a_crowded_folder_is_named(self):
    paths = [f'a/b/{n}.py' for n in range(MOST_SOURCES + 1)]
    assert crowded(paths) == ['a/b: expected at most 20 sources, got 21']
    assert not crowded(paths[1:] + ['a/b/x_test.py', 'a/c/y.py'])

  def test_no_path_is_deep(self):
    assert not deep(import_graph.files())

  def test_a_deep_path_is_named(self):
    message = 'a/b/c/d/e/f/g.py: expected at most 5 folders, got 6'
    assert deep(['a/b/c/d/e/f/g.py', 'a/b/c/d/e/f.py']) == [message]

  def test_no_two_headers_have_one_name(self):
    assert not equal_names(import_graph.files())

  def test_a_name_of_two_headers_is_given(self):
    paths = ['a/x.h', 'b/x.h', 'b/y.h', 'a/include/y.h', 'a/x.cc', 'b/x.cc']
    message = 'x.h: expected one header, got a/x.h and b/x.h'
    assert equal_names(paths) == [message]

  def test_no_source_is_long(self):
    assert not longest(import_graph.files())

  def test_a_long_source_is_named(self, tmp_path):
    (tmp_path / 'a.py').write_text('x = 1\n' * (MOST_LINES + 1))
    (tmp_path / 'b.cc').write_text('\n' * MOST_LINES)
    message = 'a.py: expected at most 700 lines, got 701'
    assert longest(['a.py', 'b.cc'], tmp_path) == [message]

  def test_architecture_names_every_room(self):
    text = (ROOT / 'docs/architecture.md').read_text()
    rooms_named = set(re.findall(r'^\| ?`([^`]+)/`', text, re.M))
    assert rooms_named == set(rooms(import_graph.files())) - {'hpmoe'}

  def test_hpmoe_links_to_every_floor(self):
    links = [p for p in (ROOT / 'src/hpmoe').iterdir() if p.is_symlink()]
    assert sorted(p.name for p in links) == sorted(FLOORS)
    assert all(os.readlink(p) == f'../../{p.name}' for p in links)
    top_folders = {f.split('/')[0] for f in rooms(import_graph.files())}
    assert top_folders - {'hpmoe', 'benchmarks'} == set(FLOORS)


class TestReadmes:
  def test_each_room_has_a_short_one(self):
    assert not unexplained(ROOT, [f for f in INSIDE if not _OF_HEADERS(f)])

  def test_a_room_without_a_short_one_is_named(self, tmp_path):
    for room, lines in (('a', 15), ('b', 16)):
      (tmp_path / room).mkdir()
      (tmp_path / room / 'README.md').write_text('x\n' * lines)
    assert unexplained(tmp_path, ['a', 'b', 'c']) == [
      'b: expected a README of at most 15 lines, got 16',
      'c: expected a README of at most 15 lines, got 0',
    ]

  def test_each_file_that_a_room_names_exists(self):
    for folder in map(ROOT.joinpath, INSIDE):
      readme = folder / 'README.md'
      text = readme.read_text() if readme.exists() else ''
      assert not missing_files(folder, text), readme

  def test_a_missing_file_is_named(self, tmp_path):
    # Given a room with a file and a folder, beside another room,
    (tmp_path / 'room/inside').mkdir(parents=True)
    (tmp_path / 'room/law.cc').touch()
    (tmp_path / 'beside.py').touch()
    text = (
      '`law.cc` `law.*` `inside/` `room/law.cc` `../beside.py` `law(x)` '
      '`beside.py` `gone.toml` `room/gone.h` `gone/`'
    )

    # then a bare name is one of the room's own.
    assert missing_files(tmp_path / 'room', text, tmp_path) == [
      *('beside.py', 'gone.toml', 'room/gone.h', 'gone/'),
    ]


class TestBuildFiles:
  def test_every_folder_makes_its_targets_and_a_floor_lists_its_rooms(self):
    for folder in INSIDE:
      rules = calls(ROOT / folder / 'BUILD')
      assert ('floor' if folder in FLOORS else 'room') in rules, folder
    for floor in FLOORS:
      inside = {
        f[len(floor) + 1 :] for f in INSIDE if f.startswith(f'{floor}/')
      }
      strings_listed = strings(ROOT / floor / 'BUILD')
      rooms_ = {
        s for s in strings_listed if (ROOT / floor / s / 'BUILD').exists()
      }
      assert rooms_ == inside, floor

  def test_bazel_reads_a_floor_under_one_name(self):
    ignored = (ROOT / '.bazelignore').read_text().split()
    assert set(FLOORS) <= set(ignored)

  def test_every_package_that_is_imported_is_a_dependency(self):
    graph = import_graph.of_tree()
    imported = set().union(
      *(i.third_party for p, i in graph.items() if p.split('/')[0] in FLOORS)
    )
    packages_named = {
      s.replace('-', '_') for s in strings(ROOT / 'tools/room.bzl')
    }
    # Distributions whose module has another name, and those that a test does
    # without.
    module_names = {'absl': 'absl_py'}
    optional = {
      'flashinfer_bench',
      'cells_torch_testing',
      'megatron',
      'mindspore',
      'msprobe',
      'msprobe_torch_testing',
      'qwen3_torch_testing',
      'torch',
      'transformers',
      'scikit_build_core',
      'mpi4py',
      # A copy of ours, beside a user's script.
      'capture',
      'read_case',
    }
    assert {
      module_names.get(m, m) for m in imported
    } - optional <= packages_named


def test_a_release_has_one_version():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  released = re.search(
    r'^## \[(\d.*?)\]', (ROOT / 'CHANGELOG.md').read_text(), re.M
  )

  module = ast.literal_eval(calls(ROOT / 'MODULE.bazel')['module']['version'])
  assert released and {released[1], module} == {project['version']}
