"""BUILD files, derived from the tree: one target per module, deps = imports.

`python -m parity_tests.build_files` says what is stale, `--write` rewrites it.

Python file `a.py` -> py_library `a`; `a_test.py` -> py_test.  C++ `a.h` and
`a.cc` -> one cc_library `a_cc`; `a_binding.cc` -> nanobind_library; `a_fuzz.cc`
without a header -> cc_binary, by hand.  What pyproject.toml names is reached as
`requirement("name")`.
"""

import argparse
import ast
import collections
from collections.abc import Iterator, Mapping
import dataclasses
import difflib
import graphlib
import pathlib
import re
import sys
import tomllib

from parity_tests import import_graph

RULES = {
    'cc_binary': '@rules_cc//cc:defs.bzl',
    'cc_library': '@rules_cc//cc:defs.bzl',
    'cc_test': '@rules_cc//cc:defs.bzl',
    'nanobind_extension': '@nanobind_bazel//:build_defs.bzl',
    'nanobind_library': '@nanobind_bazel//:build_defs.bzl',
    'py_library': '@rules_python//python:defs.bzl',
    'py_test': '@rules_python//python:defs.bzl',
    'requirement': '@pip//:requirements.bzl',
}
# Attributes in buildifier's order: these first, others by name, deps last.
FIRST = ('name', 'srcs', 'hdrs')
HEADER = '# Written by `python -m parity_tests.build_files --write`.\n'

# Stands in for rules_python's hub where packages come from the interpreter.
PIP_STUB = 'bazel_stubs/pip'

# Import names that are not their distribution's name.
DISTRIBUTIONS = {'absl': 'absl-py'}
# Extras that only tests, benchmarks and developers have.
TEST_EXTRAS = ('test', 'dev')
# What a fuzzer is compiled and linked with.
FUZZ = ['-fsanitize=fuzzer,address,undefined']
# Tests of the tree itself, which a Bazel sandbox does not hold.
TREE_TESTS = (
    'parity_tests/build_files_test.py',
    'parity_tests/import_floors_test.py',
)


class Code(str):
  """Starlark that is not a literal, such as `requirement("jax")`."""


@dataclasses.dataclass(frozen=True)
class Rule:
  """One call in a BUILD file: a target, or `package` and the like."""

  kind: str
  attributes: Mapping[str, object]
  positional: tuple = ()


BuildFiles = dict[str, list[Rule]]


# --- From the tree ----------------------------------------------------------


def expected(root: pathlib.Path = import_graph.ROOT) -> BuildFiles:
  """Returns the rules of every BUILD file that the tree calls for, by folder.

  Args:
    root: folder of the tree to read.

  Raises:
    ValueError: an import names neither the standard library, nor a file of the
      project, nor a distribution that pyproject.toml gives this file; or
      targets depend on each other in a circle.
  """
  graph = import_graph.graph(root)
  targets: dict[str, list[str]] = collections.defaultdict(list)
  for path in graph:
    if path != 'conftest.py':
      targets[_label(path)].append(path)
  requirements = _Requirements(root)
  tree = _Tree(root, graph, targets, requirements)
  _refuse_circles(tree)
  stubs = [Rule('py_library', {'name': n}) for n in requirements.names()]
  packages: BuildFiles = {'': [_exports(root)], PIP_STUB: [_public(), *stubs]}
  for label, paths in sorted(targets.items(), key=_cc_last):
    packages.setdefault(_folder(label), [_public()]).append(
        _rule(tree, label, paths)
    )
  for folder, rules in packages.items():
    if folder and (root / folder / 'testdata').is_dir():
      data = Code('glob(["testdata/**"])')
      rules.append(Rule('filegroup', {'name': 'testdata', 'srcs': data}))
  return packages


class _Requirements:
  """Which distributions a file may import, from pyproject.toml."""

  def __init__(self, root: pathlib.Path):
    project = tomllib.loads((root / 'pyproject.toml').read_text())['project']
    extras = project.get('optional-dependencies', {})
    groups = {'': project['dependencies'], **extras}
    self._names = {g: {_distribution(r) for r in groups[g]} for g in groups}

  def names(self) -> list[str]:
    return sorted(set().union(*self._names.values()))

  def label(self, path: str, module: str) -> Code:
    name = DISTRIBUTIONS.get(module, module.replace('_', '-'))
    for group, names in self._names.items():
      if name in names and (group not in TEST_EXTRAS or _test_only(path)):
        return Code(f'requirement("{name}")')
    raise ValueError(
        f'{path}: expected imports that pyproject.toml gives to '
        f'{"tests" if _test_only(path) else "every user"}, got {module}'
    )


@dataclasses.dataclass(frozen=True)
class _Tree:
  root: pathlib.Path
  graph: Mapping[str, import_graph.Imports]
  targets: Mapping[str, list[str]]
  requirements: _Requirements

  def deps(self, label: str) -> set[str]:
    """Returns the labels that the files of `label` import."""
    imported = {q for p in self.targets[label] for q in self.graph[p].project}
    if label in EXTENSIONS:
      # Kernels register by linking, not by an #include.
      imported |= {p for p in self.graph if _linked(p, EXTENSIONS[label])}
    return {_label(path) for path in imported} - {label}

  def requirement_labels(self, paths: list[str]) -> set[str]:
    return {
        self.requirements.label(path, module)
        for path in paths
        for module in self.graph[path].third_party
    }


def _rule(tree: _Tree, label: str, paths: list[str]) -> Rule:
  if not paths[0].endswith('.py'):
    return _cc_rule(tree, label, paths)
  (path,) = paths
  test = _test(path)
  deps = tree.deps(label)
  data = EXTENSIONS.keys() & deps
  if 'testdata' in (tree.root / path).read_text():
    data |= _testdata(tree.root)
  imported = [path, 'conftest.py'] if test else [path]
  attributes: dict[str, object] = {
      'name': label.partition(':')[2],
      'srcs': [path.rpartition('/')[2]] + ['//:conftest.py'] * test,
      'deps': (deps - data) | tree.requirement_labels(imported),
      'data': data | ({'//:pyproject.toml'} if test else set()),
  }
  if test:
    attributes |= {'args': [path], 'main': '//:conftest.py'}
    attributes['tags'] = ['manual'] if path in TREE_TESTS else []
  return _made('py_test' if test else 'py_library', label, attributes)


def _cc_rule(tree: _Tree, label: str, paths: list[str]) -> Rule:
  sources = [p.rpartition('/')[2] for p in paths if p.endswith('.cc')]
  headers = [p.rpartition('/')[2] for p in paths if p.endswith('.h')]
  attributes: dict[str, object] = {
      'name': label.partition(':')[2],
      'srcs': sources,
      'hdrs': headers,
      'deps': tree.deps(label),
  }
  if label in EXTENSIONS:
    return _made('nanobind_extension', label, attributes)
  if paths[0].endswith('_binding.cc'):
    return _made('nanobind_library', label, attributes)
  if _test(paths[0]):
    return _made('cc_test', label, attributes)
  if paths[0].endswith('_fuzz.cc') and not headers:
    attributes |= {'copts': FUZZ, 'linkopts': FUZZ, 'tags': ['manual']}
    return _made('cc_binary', label, attributes)
  if not headers:
    attributes['alwayslink'] = True  # declared in a header of another target
  return _made('cc_library', label, attributes)


def _made(kind: str, label: str, attributes: Mapping[str, object]) -> Rule:
  """Returns the rule with lists sorted, labels shortened, empty lists gone."""
  folder = _folder(label)
  made = {}
  for name, value in attributes.items():
    if isinstance(value, set):
      value = sorted((_short(v, folder) for v in value), key=_label_order)
    if value != []:
      made[name] = value
  return Rule(kind, made)


def _exports(root: pathlib.Path) -> Rule:
  names = ('conftest.py', 'pyproject.toml', 'requirements_lock.txt')
  present = [name for name in names if (root / name).is_file()]
  return Rule('exports_files', {}, (present,))


def _public() -> Rule:
  return Rule('package', {'default_visibility': ['//visibility:public']})


def _testdata(root: pathlib.Path) -> set[str]:
  folders = (p for p in root.glob('*/testdata') if p.is_dir())
  return {f'//{p.parent.name}:testdata' for p in folders}


def _refuse_circles(tree: _Tree) -> None:
  edges = {label: tree.deps(label) for label in tree.targets}
  try:
    graphlib.TopologicalSorter(edges).prepare()
  except graphlib.CycleError as e:
    circle = ' -> '.join(reversed(e.args[1]))
    raise ValueError(f'deps: expected no circle, got {circle}') from e


def _test(path: str) -> bool:
  return path.endswith(('_test.py', '_test.cc'))


def _test_only(path: str) -> bool:
  helper = path.endswith(('_testing.py', 'test_util.py'))
  return _test(path) or helper or path.startswith(('benchmarks/', 'conftest'))


def _distribution(requirement: str) -> str:
  name = re.match(r'[\w.-]+', requirement)
  assert name, requirement
  return re.sub(r'[-_.]+', '-', name.group()).lower()


def _label(path: str) -> str:
  folder, _, name = path.rpartition('/')
  stem, _, suffix = name.rpartition('.')
  for module, source in import_graph.EXTENSIONS.items():
    if path == source:
      return f'//{folder}:{module.rpartition(".")[2]}'
  return f'//{folder}:{stem}{"" if suffix == "py" else "_cc"}'


def _linked(path: str, source: str) -> bool:
  """Returns whether the extension of `source` links the C++ file `path`.

  It links what lies beside or below it, and the libraries of the extension
  whose folder it lies in; bindings are those of one extension only.
  """
  if not path.endswith('.cc') or path.endswith(('_test.cc', '_fuzz.cc')):
    return False
  folders = {s.rpartition('/')[0] + '/': s for s in EXTENSIONS.values()}
  owner = max((f for f in folders if path.startswith(f)), key=len)
  if folders[owner] == source:
    return True
  library = not path.endswith(('_binding.cc', '_module.cc'))
  return library and source.startswith(owner)


def _folder(label: str) -> str:
  return label[2:].partition(':')[0]


def _short(label: str, folder: str) -> str:
  prefix = f'//{folder}:'
  return label[len(prefix) - 1 :] if label.startswith(prefix) else label


def _label_order(label: str) -> tuple:
  return isinstance(label, Code), not label.startswith(':'), label


def _cc_last(item: tuple[str, list[str]]) -> tuple[bool, str]:
  return not item[1][0].endswith('.py'), item[0]


EXTENSIONS = {_label(s): s for s in import_graph.EXTENSIONS.values()}


# --- From and to text -------------------------------------------------------


def parse(text: str) -> list[Rule]:
  """Returns the rules of a BUILD file; `load` follows from them.

  Args:
    text: Starlark that is also Python.

  Raises:
    ValueError: the text holds more than calls with literal attributes.
  """
  rules = []
  for node in ast.parse(text).body:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
      raise ValueError(f'line {node.lineno}: expected a call of a rule')
    attributes = {str(k.arg): _value(k.value) for k in call.keywords}
    positional = tuple(_value(a) for a in call.args)
    if call.func.id != 'load':
      rules.append(Rule(call.func.id, attributes, positional))
  return rules


def _value(node: ast.expr) -> object:
  if isinstance(node, ast.List):
    return [_value(element) for element in node.elts]
  if isinstance(node, ast.Call):
    return Code(ast.unparse(node).replace("'", '"'))
  return ast.literal_eval(node)


def render(rules: list[Rule]) -> str:
  """Returns the text of a BUILD file, laid out as buildifier does."""
  used = {rule.kind for rule in rules}
  text = ''.join(_render_rule(rule) for rule in rules)
  if 'requirement("' in text:
    used.add('requirement')
  files = collections.defaultdict(list)
  for kind in sorted(used & RULES.keys()):
    files[RULES[kind]].append(f'"{kind}"')
  loads = [f'load("{f}", {", ".join(files[f])})\n' for f in sorted(files)]
  return HEADER + ''.join(['\n', *loads] if loads else []) + text


def _render_rule(rule: Rule) -> str:
  values = [*rule.positional]
  lines = [f'{_render(value)}' for value in values]
  for name in sorted(rule.attributes, key=_attribute_order):
    lines.append(f'{name} = {_render(rule.attributes[name])}')
  if len(lines) == 1:
    inner = lines[0].replace('\n    ', '\n')
    return f'\n{rule.kind}({inner})\n'
  return f'\n{rule.kind}(\n' + ''.join(f'    {x},\n' for x in lines) + ')\n'


def _render(value: object) -> str:
  if isinstance(value, list) and len(value) > 1:
    return '[\n' + ''.join(f'        {_render(v)},\n' for v in value) + '    ]'
  if isinstance(value, list):
    return f'[{"".join(_render(v) for v in value)}]'
  if isinstance(value, Code) or not isinstance(value, str):
    return str(value)
  return f'"{value}"'


def _attribute_order(name: str) -> tuple:
  place = FIRST.index(name) if name in FIRST else len(FIRST)
  return place, name == 'deps', name


# --- The check --------------------------------------------------------------


def differences(root: pathlib.Path = import_graph.ROOT) -> Iterator[str]:
  """Yields a unified diff, stale to expected, of every BUILD file.

  Layout and comments do not count: both sides are laid out alike first.
  """
  wanted = expected(root)
  for folder in sorted(wanted.keys() | _folders_with_build_file(root)):
    path = root / folder / 'BUILD'
    have = render(parse(path.read_text())) if path.is_file() else ''
    want = render(wanted[folder]) if folder in wanted else ''
    name = path.relative_to(root).as_posix()
    yield from difflib.unified_diff(
        have.splitlines(), want.splitlines(), name, 'the tree', n=3, lineterm=''
    )


def write(root: pathlib.Path = import_graph.ROOT) -> None:
  """Makes every BUILD file what the tree calls for."""
  wanted = expected(root)
  for folder in _folders_with_build_file(root) - wanted.keys():
    (root / folder / 'BUILD').unlink()
  for folder, rules in wanted.items():
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / 'BUILD').write_text(render(rules))


def _folders_with_build_file(root: pathlib.Path) -> set[str]:
  found = [root / 'BUILD'] if (root / 'BUILD').is_file() else []
  for folder in (*import_graph.FOLDERS, PIP_STUB):
    found += (root / folder).rglob('BUILD')
  return {
      p.parent.relative_to(root).as_posix().removeprefix('.') for p in found
  }


def main() -> int:
  """Returns 0 if the BUILD files agree with the tree."""
  parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
  parser.add_argument('--write', action='store_true', help='rewrite them')
  if parser.parse_args().write:
    write()
  lines = list(differences())
  print('\n'.join(lines) if lines else 'BUILD files agree with the tree')
  return bool(lines)


if __name__ == '__main__':
  sys.exit(main())
