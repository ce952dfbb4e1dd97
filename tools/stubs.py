"""Writes the type stubs of the extension modules, from what they declare.

`python -m hpmoe.tools.stubs` after a change of a binding; a test compares.
"""

import ast
import importlib
import pathlib
import subprocess
import sys

from nanobind import stubgen  # type: ignore[import-untyped]

MODULES = (
  'backend_ascend._native',
  'backend_ascend.frontends._jax_ffi',
  'backend_ascend.frontends._mindspore_ffi',
  'backend_ascend.kernels.ascendc.twin.launch._ascend_twin',
  'parity_tests.judge.limits._chunk_sums',
)
ROOT = pathlib.Path(__file__).resolve().parents[1]


def path(name: str) -> pathlib.Path:
  """Returns where the stub of a module lies."""
  return ROOT / f'{name.replace(".", "/")}.pyi'


def generate(name: str) -> str:
  """Returns the stub of a module as it was built."""
  module = importlib.import_module(f'hpmoe.{name}')
  generator = stubgen.StubGen(module)
  generator.put(module)
  return generator.get()


def declarations(text: str) -> list[str]:
  """Returns what a stub declares: names, arguments, defaults and types.

  Docstrings and the values of a module's constants are no part of it.
  """
  tree = ast.parse(text)
  for node in ast.walk(tree):
    body = getattr(node, 'body', None)
    if isinstance(body, list):
      node.body = [one for one in body if not _is_text(one)]  # type: ignore
    if isinstance(node, ast.AnnAssign):
      node.value = None
  return [ast.unparse(one) for one in tree.body]


def _is_text(node: ast.AST) -> bool:
  # Of a docstring, or the dots in its place.
  return isinstance(node, (ast.Pass, ast.Expr))


def main() -> None:
  for name in MODULES:
    path(name).write_text(generate(name))
  command = [sys.executable, '-m', 'ruff', 'format', '--quiet']
  subprocess.run([*command, *map(path, MODULES)], check=True)


if __name__ == '__main__':
  main()
