"""Where the fields of a kernel's tiling lie, as its compiler has laid them out.

Clang's debug information has every struct: its fields, their types and offsets.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import re

import numpy as np

_NODE = re.compile(
  r'^!(\d+) = (?:distinct )?!(?:(DI\w+)\((.*)\)|\{(.*)\})$', re.M
)
_WORD = re.compile(r'(\w+): (?:"((?:[^"\\]|\\.)*)"|([^,()]+(?:\([^()]*\))?))')
_READ = 'ReadTiling<'
_KINDS = {
  'DW_ATE_signed': 'i',
  'DW_ATE_signed_char': 'i',
  'DW_ATE_unsigned': 'u',
  'DW_ATE_unsigned_char': 'u',
  'DW_ATE_boolean': 'u',
  'DW_ATE_float': 'f',
}


class Wrong(ValueError):
  """A value does not fit the struct: which field, and what was expected."""


@dataclasses.dataclass(frozen=True)
class Field:
  """A number of a struct, or an array of them.

  Attributes:
    name: with those of the structs around it: `matmul.M`.
    offset: in bytes.
    dtype: of a number.
    count: of numbers; 0: it is no array.
  """

  name: str
  offset: int
  dtype: np.dtype
  count: int


@dataclasses.dataclass(frozen=True)
class Layout:
  """A struct.

  Attributes:
    name: of it.
    size: in bytes.
    fields: in order.
  """

  name: str
  size: int
  fields: tuple[Field, ...]

  def pack(self, values: Mapping[str, object]) -> bytes:
    """Returns the struct that holds values.

    Args:
      values: of fields, by name; of structs in it, mappings like this.  A field
        without one is 0, as the host's code leaves it.

    Raises:
      Wrong: there is no such field, or it does not hold the value.
    """
    out = bytearray(self.size)
    fields = {field.name: field for field in self.fields}
    for name, value in _flat(values):
      field = fields.get(name)
      if field is None:
        near = ', '.join(list(fields)[:12])
        raise Wrong(
          f'tiling: expected a field of {self.name}: {near}; got {name}'
        )
      out[field.offset : field.offset + _bytes(field)] = _pack(field, value)
    return bytes(out)


def _bytes(field: Field) -> int:
  return field.dtype.itemsize * max(field.count, 1)


def _pack(field: Field, value: object) -> bytes:
  numbers = np.ravel(np.asarray(value))
  if numbers.size > max(field.count, 1):
    raise Wrong(
      f'tiling: expected {max(field.count, 1)} for {field.name}, got '
      f'{numbers.size}'
    )
  cast = numbers.astype(field.dtype)
  if field.dtype.kind != 'f' and not np.array_equal(
    cast.astype(object), numbers.astype(object)
  ):
    raise Wrong(f'tiling: expected {field.dtype} for {field.name}, got {value}')
  whole = np.zeros(max(field.count, 1), field.dtype)
  whole[: cast.size] = cast
  return whole.tobytes()


def _flat(
  values: Mapping[str, object], before: str = ''
) -> Iterator[tuple[str, object]]:
  for name, value in values.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f'{before}{name}.')
    elif isinstance(value, Sequence) and any(
      isinstance(v, Mapping) for v in value
    ):
      for i, item in enumerate(value):
        yield from _flat(item, f'{before}{name}[{i}].')
    else:
      yield before + name, value


class _Types:
  """The types that a module's debug information has."""

  def __init__(self, text: str):
    self.nodes: dict[str, dict[str, str]] = {}
    self.lists: dict[str, list[str]] = {}
    for number, kind, body, nodes in _NODE.findall(text):
      if kind:
        words = {n: quoted or plain for n, quoted, plain in _WORD.findall(body)}
        self.nodes[number] = words | {'kind': kind}
      else:
        self.lists[number] = re.findall(r'!(\d+)', nodes)

  def position(self, reference: str) -> dict[str, str]:
    return self.nodes.get(reference.lstrip('!'), {})

  def bare(self, reference: str) -> dict[str, str]:
    """Returns a type without the names that stand for it."""
    node = self.position(reference)
    while node.get('tag') in (
      'DW_TAG_typedef',
      'DW_TAG_const_type',
      'DW_TAG_volatile_type',
    ):
      node = self.position(node.get('baseType', ''))
    return node

  def elements(self, node: Mapping[str, str]) -> list[dict[str, str]]:
    nodes = self.lists.get(node.get('elements', '').lstrip('!'), [])
    return [self.position(item) for item in nodes]

  def fields(
    self, node: Mapping[str, str], name: str, offset: int
  ) -> Iterator[Field]:
    """Yields the numbers that a type of this name and offset consists of."""
    tag = node.get('tag', '')
    if tag in ('DW_TAG_structure_type', 'DW_TAG_class_type'):
      for member in self.elements(node):
        if 'StaticMember' in member.get('flags', ''):
          continue
        position = offset + int(member.get('offset', 0)) // 8
        base = self.bare(member.get('baseType', ''))
        if member.get('tag') == 'DW_TAG_inheritance':
          yield from self.fields(base, name, position)
        elif member.get('tag') == 'DW_TAG_member':
          before = f'{name}.' if name else ''
          yield from self.fields(base, before + member['name'], position)
    elif tag == 'DW_TAG_array_type':
      count = 1
      for item in self.elements(node):
        count *= int(item.get('count', 1))
      inner = self.bare(node.get('baseType', ''))
      if number := _number(inner):
        yield Field(name, offset, number, count)
      else:
        size = int(inner.get('size', 0)) // 8
        for i in range(count):
          yield from self.fields(inner, f'{name}[{i}]', offset + i * size)
    elif number := _number(node):
      yield Field(name, offset, number, 0)

  def read(self, struct: str) -> Iterator[dict[str, str]]:
    """Yields the struct of a name, or, of '', those that the code reads."""
    for node in list(self.nodes.values()):
      name = node.get('name', '')
      if struct:
        if name == struct.split('::')[-1] and node.get('size'):
          yield node
      elif name.startswith(_READ):
        nodes = self.lists.get(node.get('templateParams', '').lstrip('!'), [])
        if len(nodes) > 1:
          yield self.bare(self.position(nodes[1])['type'])

  def layout(self, node: Mapping[str, str]) -> Layout:
    fields = tuple(self.fields(node, '', 0))
    return Layout(node.get('name', ''), int(node['size']) // 8, fields)


def _number(node: Mapping[str, str]) -> np.dtype | None:
  """Returns the dtype of a type that is a number."""
  size = int(node.get('size', 0) or 0) // 8
  if node.get('tag') == 'DW_TAG_enumeration_type':
    return np.dtype(f'i{size}')
  kind = _KINDS.get(node.get('encoding', ''))
  return np.dtype(f'{kind}{size}') if kind and size else None


def read(texts: Sequence[str], struct: str = '') -> Layout:
  """Returns the layout of what a kernel reads as its tiling.

  Args:
    texts: LLVM IR of the kernel for each type of core, with debug information.
    struct: its name; '': the one that the code reads.

  Raises:
    Wrong: there is none, or several.
  """
  layouts: dict[str, Layout] = {}
  for text in texts:
    types = _Types(text)
    for node in types.read(struct):
      layouts[node.get('name', '')] = types.layout(node)
  if len(layouts) != 1:
    names = ', '.join(sorted(layouts)) or 'none'
    raise Wrong(f'struct: expected one that the kernel reads, got {names}')
  return next(iter(layouts.values()))
