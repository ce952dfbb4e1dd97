"""Names that say nothing: function words and bare participles.

Example, in a checkout:

    python -m hpmoe.tools.names parity_tests/judge

prints each name of Python files below that folder which stands in names.toml.
"""

import ast
import collections
import pathlib
import sys
import tomllib

from hpmoe.tools import import_graph

_TABLES = tomllib.loads(
  pathlib.Path(__file__).with_name('names.toml').read_text(encoding='utf-8')
)
WORDS = frozenset(
  word for group in ('function_words', 'participles') for word in _TABLES[group]
)
# Rooms that still have such names, and how many: a number may only fall.
OPEN: dict[str, int] = _TABLES['open']


def find_names(text: str) -> list[tuple[int, str]]:
  """Returns the line and the name of each binding that names.toml forbids.

  Args:
    text: of a Python file.
  """
  matches = []
  for node in ast.walk(ast.parse(text)):
    name = _bound_name(node)
    if name is not None and name.strip('_').lower() in WORDS:
      matches.append((getattr(node, 'lineno', 0), name))
  return sorted(matches)


def _bound_name(node: ast.AST) -> str | None:
  if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
    return node.name
  if isinstance(node, ast.arg):
    return node.arg
  if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
    return node.id
  if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
    return node.attr
  if isinstance(node, ast.ExceptHandler):
    return node.name
  return None


def find_room(path: str) -> str:
  """Returns the room of names.toml that a file lies in, or its top folder."""
  parents = [p.as_posix() for p in pathlib.PurePosixPath(path).parents]
  folders = [p for p in parents if p != '.'] or ['.']
  return next((p for p in folders if p in OPEN), folders[-1])


def count_by_room() -> dict[str, int]:
  """Returns how many such names each room of the tree has."""
  counts: collections.Counter[str] = collections.Counter()
  for path in _python_files():
    text = (import_graph.ROOT / path).read_text(encoding='utf-8')
    counts[find_room(path)] += len(find_names(text))
  return dict(counts)


def _python_files() -> list[str]:
  return [path for path in import_graph.files() if path.endswith('.py')]


def main() -> None:
  folders = sys.argv[1:] or ['']
  for path in _python_files():
    if path.startswith(tuple(folders)):
      text = (import_graph.ROOT / path).read_text(encoding='utf-8')
      for line, name in find_names(text):
        print(f'{path}:{line}: {name}')


if __name__ == '__main__':
  main()
