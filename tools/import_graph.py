"""Import graph: every `import` and `#include` of the project, by file.

Files are named by their path from the root of the tree, with forward slashes.
Nothing is executed: Python is parsed, C++ is searched.
"""

import ast
import dataclasses
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

# The one import name; its folder links to those below.
PACKAGE = 'hpmoe'

# What `import hpmoe` may load: the highest that is behind its names.
FACE = 'parity_tests/api.py'

# Top-level folders that hold code; a folder that is not there yet is skipped.
FOLDERS = (
  'reference',
  'backend_ascend',
  'models',
  'parity_tests',
  'benchmarks',
  'tools',
)
# Not in the package: they run from the root of the tree, which is no floor.
OUTSIDE = ('benchmarks',)
SUFFIXES = ('.py', '.cc', '.h')

# Extension modules have no Python file: the C++ files that define them.
EXTENSIONS = {
  'backend_ascend._native': 'backend_ascend/native_module.cc',
  'backend_ascend.frontends._jax_ffi': (
    'backend_ascend/frontends/jax_ffi_module.cc'
  ),
  'backend_ascend.frontends._mindspore_ffi': (
    'backend_ascend/frontends/mindspore_ffi_module.cc'
  ),
  'backend_ascend.device.twin_launch._ascend_twin': (
    'backend_ascend/device/twin_launch/twin_binding.cc'
  ),
  'parity_tests.case.values._normals': (
    'parity_tests/case/values/normals_binding.cc'
  ),
  'parity_tests.judge.limits._chunk_sums': (
    'parity_tests/judge/limits/chunk_sums_binding.cc'
  ),
  'parity_tests.judge.limits.weights._products': (
    'parity_tests/judge/limits/weights/products_binding.cc'
  ),
}

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# What CANN gives, and stand-ins in its place.
_TOOLKIT = {
  'acl/acl.h',
  'kernel_operator.h',
  'register/op_def_registry.h',
  'shmem.h',
  'tiling/platform/platform_ascendc.h',
}


@dataclasses.dataclass(frozen=True)
class Imports:
  """What one file imports.

  Attributes:
    project: files of the project.
    third_party: top-level names of modules that are neither the project's nor
      the standard library's.
  """

  project: frozenset[str]
  third_party: frozenset[str] = frozenset()


def files(root: pathlib.Path = ROOT) -> tuple[str, ...]:
  """Returns every Python and C++ file of the project, sorted."""
  paths = list(root.glob('*.py'))
  for folder in FOLDERS:
    paths += (p for p in (root / folder).rglob('*') if p.suffix in SUFFIXES)
  return tuple(sorted(p.relative_to(root).as_posix() for p in paths))


def graph(root: pathlib.Path = ROOT) -> dict[str, Imports]:
  """Returns the imports of each of `files`.

  Args:
    root: folder of the tree to read.

  Raises:
    ValueError: an import is relative or names no file of the project.
  """
  return {
    path: _python_imports(root, path)
    if path.endswith('.py')
    else _includes(root, path)
    for path in files(root)
  }


@functools.cache
def of_tree() -> dict[str, Imports]:
  """Returns `graph` of the project, read once."""
  return graph()


def closure(graph_: dict[str, Imports], path: str) -> frozenset[str]:
  """Returns the files that `path` imports, directly or not."""
  reachable: set[str] = set()
  todo = [path]
  while todo:
    new = graph_[todo.pop()].project - reachable
    reachable |= new
    todo += new
  return frozenset(reachable)


def _python_imports(root: pathlib.Path, path: str) -> Imports:
  project, third_party = set(), set()
  for node in ast.walk(ast.parse((root / path).read_text(), path)):
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
      continue
    for module, name in _imported(node, path):
      top, _, inside = module.partition('.')
      location = f'{path}:{node.lineno}'
      if module == PACKAGE and not (name and (root / name).is_dir()):
        project.add(FACE)
      elif top == PACKAGE:
        project.add(_resolve(root, inside, name, location))
      elif top in OUTSIDE:
        project.add(_resolve(root, module, name, location))
      elif top in FOLDERS:
        raise ValueError(
          f'{location}: expected an import of {PACKAGE}.{module}, got {module}'
        )
      elif top not in sys.stdlib_module_names:
        third_party.add(top)
  return Imports(frozenset(project - {path}), frozenset(third_party))


def _imported(
  node: ast.Import | ast.ImportFrom, path: str
) -> list[tuple[str, str | None]]:
  """Returns (module, name taken from it) of each import that `node` makes."""
  if isinstance(node, ast.Import):
    return [(alias.name, None) for alias in node.names]
  if node.level or node.module is None:
    raise ValueError(
      f'{path}:{node.lineno}: expected an absolute import, got a relative one'
    )
  return [(node.module, alias.name) for alias in node.names]


def _resolve(
  root: pathlib.Path, module: str, name: str | None, location: str
) -> str:
  """Returns the file that `from module import name` reads."""
  candidates = [f'{module}.{name}'] if name else []
  for dotted in [*candidates, module]:
    if dotted in EXTENSIONS:
      return EXTENSIONS[dotted]
    stem = dotted.replace('.', '/')
    for path in (f'{stem}.py', f'{stem}/__init__.py'):
      if (root / path).is_file():
        return path
  raise ValueError(
    f'{location}: expected a module of the project, got {module}'
  )


def _includes(root: pathlib.Path, path: str) -> Imports:
  included = set(_INCLUDE.findall((root / path).read_text())) - _TOOLKIT
  for name in sorted(included):
    if not (root / name).is_file():
      raise ValueError(
        f'{path}: expected an #include by its path from the root, got {name}'
      )
  return Imports(frozenset(included))
