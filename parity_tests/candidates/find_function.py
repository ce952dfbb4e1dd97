"""Finds a candidate's function by its name, without running the user's code.

A module may bind names in ways that only its import shows.  Then nothing is
refused here, and the process that imports it reports missing names.
"""

import ast
from collections.abc import Iterator
import dataclasses
import importlib.machinery
import importlib.util
import pathlib
import sys

from hpmoe.reference.contract import messages

# A module that calls one of these may bind any name.
_DYNAMIC = frozenset(('globals', 'vars', 'locals', 'exec', 'setattr', 'eval'))


@dataclasses.dataclass(frozen=True)
class Source:
  """The source location of a function.

  Attributes:
    file: the file that defines it.
    line: the line that binds it, counted from 1.
  """

  file: pathlib.Path
  line: int


def find_source(name: str) -> Source | None:
  """Returns the source location of a candidate, or None if it is not in text.

  Args:
    name: `pkg.module:function` or `FILE.py:function`.

  Raises:
    ValueError: the file or module does not exist, or does not bind the name.
  """
  place, _, function = name.rpartition(':')
  if place.endswith('.py'):
    file = pathlib.Path(place)
    if not file.is_file():
      folder = '' if file.is_absolute() else f' in {pathlib.Path.cwd()}'
      raise ValueError(
        f'candidate: expected a file, got {place!r}: there is none{folder}'
      )
  else:
    module_file = _find_module(place)
    if module_file is None:
      return None
    file = module_file
  return _find_binding(file, place, function.partition('.')[0])


def _find_module(name: str) -> pathlib.Path | None:
  """Returns a module's source file, or None if it has none.

  Raises:
    ValueError: there is no such module.
  """
  top, *rest = name.split('.')
  search_path = [str(pathlib.Path.cwd()), *sys.path]
  # First, as the user's module may have the name of one of this process.
  spec = importlib.machinery.PathFinder.find_spec(top, search_path)
  try:
    # A name without dots imports nothing.
    spec = spec or importlib.util.find_spec(top)
  except (ImportError, ValueError):
    return None
  for part in rest:
    if spec is None or spec.submodule_search_locations is None:
      break
    package, folders = spec, spec.submodule_search_locations
    full_name = f'{package.name}.{part}'
    spec = importlib.machinery.PathFinder.find_spec(full_name, folders)
    if spec is None and _binds_by_running(package.origin):
      return None
  if spec is None or (spec.name != name and rest):
    raise ValueError(
      "candidate: expected a module in the current folder or on Python's "
      f'path, got no module {name!r}'
    )
  is_text = spec.origin is not None and spec.origin.endswith('.py')
  return pathlib.Path(spec.origin) if is_text and spec.origin else None


def _binds_by_running(origin: str | None) -> bool:
  """Says whether a package may have modules outside its folder."""
  if origin is None or not origin.endswith('.py'):
    return origin is not None
  text = pathlib.Path(origin).read_text(encoding='utf-8', errors='replace')
  return '__path__' in text or 'sys.modules' in text


def _find_binding(file: pathlib.Path, module: str, name: str) -> Source | None:
  try:
    tree = ast.parse(file.read_bytes())
  except (OSError, SyntaxError, ValueError):
    return None  # its import reports the error
  bindings: dict[str, int] = {}
  modules: set[str] = set()
  for node in _iterate_statements(tree):
    names = _list_bound_names(node)
    if isinstance(node, ast.Import):
      modules.update(names)
    for bound_name in names:
      bindings.setdefault(bound_name, node.lineno)
  if name in bindings:
    return Source(file, bindings[name])
  if '*' in bindings or '__getattr__' in bindings or _is_dynamic(tree):
    return None
  raise ValueError(
    f'candidate: expected a function in {module}, got {name!r}, which is not '
    f'in it{messages.suggest(bindings.keys() - modules, name)}'
  )


def _iterate_statements(tree: ast.AST) -> Iterator[ast.stmt]:
  """Yields the statements that run on import, without function bodies."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.stmt):
      yield node
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    if not isinstance(node, inner):
      yield from _iterate_statements(node)


def _list_bound_names(node: ast.stmt) -> list[str]:
  """Returns the names that one statement binds, '*' for any."""
  if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
    return [node.name]
  if isinstance(node, (ast.Import, ast.ImportFrom)):
    return [alias.asname or alias.name.split('.')[0] for alias in node.names]
  return [part.id for part in _iterate_targets(node)]


def _iterate_targets(node: ast.AST) -> Iterator[ast.Name]:
  """Yields the names that a statement binds, without its inner statements."""
  for child in ast.iter_child_nodes(node):
    if isinstance(child, (ast.stmt, ast.ExceptHandler)):
      continue
    if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
      yield child
    yield from _iterate_targets(child)


def _is_dynamic(tree: ast.AST) -> bool:
  return any(
    isinstance(node, ast.Name) and node.id in _DYNAMIC
    for node in ast.walk(tree)
  )
