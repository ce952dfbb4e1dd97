"""The structs of tiling that macros of an operator's host code define."""

import ast
from collections.abc import Collection, Mapping, Sequence
import dataclasses
import operator
import re

_STRUCT = re.compile(
  r'BEGIN_TILING_DATA_DEF\s*\(\s*(\w+)\s*\)(.*?)END_TILING_DATA_DEF', re.S
)
_FIELD = re.compile(
  r'TILING_DATA_FIELD_DEF(_ARR|_STRUCT)?\s*\(((?:[^()]|\([^()]*\))*)\)'
)
_REGISTERED = re.compile(
  r'REGISTER_TILING_DATA_CLASS\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)'
)
_CONSTANT = re.compile(
  r'(?:#define\s+(\w+)\s+([^\n]+)'
  r'|\bconst(?:expr)?\s+(?:static\s+)?[\w:]+\s+(\w+)\s*=\s*([^;]+);)'
)
_SUFFIX = re.compile(r'\b(\d+)[uUlL]+\b')
_WHOLE = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.FloorDiv: operator.floordiv,
  ast.Div: operator.floordiv,
  ast.LShift: operator.lshift,
}


class Wrong(ValueError):
  """A definition is none: the length of an array is no constant."""


@dataclasses.dataclass(frozen=True)
class Structs:
  """Structs that macros of `op_host` define.

  Attributes:
    text: their definitions in C++, in an order that compiles.
    names: of all.
    registered: the struct of an operator's name, or of its name and tiling key.
  """

  text: str
  names: tuple[str, ...]
  registered: Mapping[str, str]


def _whole(text: str, constants: Mapping[str, str], depth: int = 8) -> int:
  """Returns a constant expression's value."""

  def value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
      return node.value
    if isinstance(node, ast.Name) and depth and node.id in constants:
      return _whole(constants[node.id], constants, depth - 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _WHOLE:
      return _WHOLE[type(node.op)](value(node.left), value(node.right))
    raise Wrong(f'tiling: expected a constant length, got {text.strip()}')

  plain = _SUFFIX.sub(r'\1', text.strip()).replace('::', '_')
  try:
    return value(ast.parse(plain, mode='eval').body)
  except SyntaxError:
    raise Wrong(
      f'tiling: expected a constant length, got {text.strip()}'
    ) from None


def _field(kind: str, words: str, constants: Mapping[str, str]) -> str:
  """Returns one field in C++."""
  parts = [word.strip() for word in words.split(',')]
  if kind == '_ARR':
    return f'  {parts[0]} {parts[2]}[{_whole(parts[1], constants)}];'
  return f'  {parts[0]} {parts[1]};'


def read(texts: Sequence[str], excluded: Collection[str] = ()) -> Structs:
  """Returns the structs that sources define by macros.

  Args:
    texts: of the sources.
    excluded: names of structs that somebody else defines.
  """
  constants: dict[str, str] = {}
  for text in texts:
    for macro, value, name, constant in _CONSTANT.findall(text):
      constants.setdefault(macro or name, value or constant)
  fields: dict[str, list[tuple[str, str]]] = {}
  registered: dict[str, str] = {}
  for text in texts:
    for name, body in _STRUCT.findall(text):
      if name not in excluded:
        fields.setdefault(name, _FIELD.findall(body))
    registered |= {n: s for n, s in _REGISTERED.findall(text)}
  texts_of: dict[str, str] = {}

  def write(name: str) -> None:
    if name in texts_of:
      return
    for kind, words in fields[name]:
      inner = words.split(',')[0].strip().split('::')[-1]
      if kind == '_STRUCT' and inner in fields:
        write(inner)
    lines = [_field(kind, words, constants) for kind, words in fields[name]]
    texts_of[name] = '\n'.join((f'struct {name} {{', *lines, '};'))

  for name in fields:
    write(name)
  body = '\n'.join(texts_of.values())
  text = (
    f'#pragma pack(push, 8)\n{body}\n#pragma pack(pop)\n' if texts_of else ''
  )
  return Structs(text, tuple(texts_of), registered)
