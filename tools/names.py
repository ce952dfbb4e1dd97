"""Names that say nothing: function words and bare participles.

Example, in a checkout:

    python -m hpmoe.tools.names parity_tests/judge

prints each name of Python files below that folder which stands in names.toml.
"""

import ast
import pathlib
import sys
import tomllib

from hpmoe.tools import import_graph

_TABLES = tomllib.loads(
  pathlib.Path(__file__).with_name('names.toml').read_text(encoding='utf-8')
)
WORDS = frozenset(word for words in _TABLES.values() for word in words)


def find_names(text: str) -> list[tuple[int, str]]:
  """Returns the line and the name of each binding that names.toml forbids.

  Args:
    text: text of a Python file.
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


def list_names(folders: tuple[str, ...] = ('',)) -> list[str]:
  """Returns a line for each such name in Python files below some folders."""
  return [
    f'{path}:{line}: {name}'
    for path in import_graph.files()
    if path.endswith('.py') and path.startswith(folders)
    for line, name in find_names(
      (import_graph.ROOT / path).read_text(encoding='utf-8')
    )
  ]


if __name__ == '__main__':
  print('\n'.join(list_names(tuple(sys.argv[1:]) or ('',))))
