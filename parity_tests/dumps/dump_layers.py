"""Finds the calls of MoE layers in a dump of a whole model.

A row of modules.toml says which tensor of a module is which tensor of the
layer; `msprobe_dump.RunName` describes the names.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
import re
import tomllib
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import msprobe_dump
from hpmoe.parity_tests.case import tensor_files

INPUTS = ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down')
GRADS = ('dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')
# Of modules that get sorted rows, or route by themselves: `dump_routing.py`.
COUNTS, ROUTER_LOGITS, ROUTER_BIAS, ROUTER_WEIGHT = OTHER_ROLES = (
  *('rows_per_expert', 'router_logits', 'router_bias', 'router_weight'),
)
ROLES = (*INPUTS, 'y', 'dy', *GRADS, *OTHER_ROLES)
_WORDS = ('module', 'path', 'activation', 'policy', 'policies', 'is_flat')
_LAYER = re.compile(r'(?:.*\.)?layers\.(\d+)(?:\.|$)')
# Of a router.
LOGITS = 'logits'
OF_ROUTER = ('x', LOGITS, 'weight', 'bias')


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of module.

  Attributes:
    label: its table.
    module: a regular expression of its class.
    path: likewise of its path.
    places: by role, a tensor's name after the class, without the call's number;
      where frameworks differ, several with | between.  `PATH:NAME` is a tensor
      of another module, by its path from this one; a * is a number, and such
      tensors are stacked in its order.
    layouts: by role, as in `case/layouts`.
    activation: between the two GEMMs, see `Case`.
    policy: where the module rounds, unless the user says it.
    policies: in place of it, names of which one holds, in tensors of 16 bits.
    is_flat: whether the weights of all experts are one matrix.
  """

  label: str
  module: str
  path: str
  places: Mapping[str, str]
  layouts: Mapping[str, str]
  activation: str = 'swiglu'
  policy: tuple[str, ...] = ()
  policies: tuple[str, ...] = ()
  is_flat: bool = False

  @property
  def is_router(self) -> bool:
    """Whether it chooses experts, and does not hold them."""
    return LOGITS in self.places


@dataclasses.dataclass(frozen=True)
class LayerCall:
  """One call of a MoE layer.

  Attributes:
    place: step and rank, as the dump's folders call them; '': neither.
    path: the module's name in the model.
    call: which call of it.
    kind: of the module.
    files: its tensors, by role.
  """

  place: str
  path: str
  call: int
  kind: Kind
  files: Mapping[str, tensor_files.StoredTensor]

  @property
  def name(self) -> str:
    """What reports call it."""
    prefix = f'{self.place} ' if self.place else ''
    return f'{prefix}{self.path} call {self.call}'

  @property
  def lacking(self) -> tuple[str, ...]:
    """Roles without which the forward pass cannot be judged."""
    return tuple(r for r in (*INPUTS, 'y') if r not in self.files)

  @property
  def has_backward(self) -> bool:
    """Whether the backward pass can be judged too."""
    return 'dy' in self.files and 'dx' in self.files


def read_kinds(path: str | None = None) -> tuple[Kind, ...]:
  """Returns the kinds of modules: those of a user's file first.

  Raises:
    ValueError: a table lacks its class, or has a role that no layer has.
  """
  own = pathlib.Path(__file__).with_name('modules.toml')
  files = [pathlib.Path(path)] if path else []
  kinds = []
  for file in (*files, own):
    try:
      tables = tomllib.loads(file.read_text('utf-8'))
    except (OSError, ValueError) as error:
      raise ValueError(
        f'names: expected a TOML file of modules, got {file}: {error}'
      ) from error
    for label, row in tables.items():
      if isinstance(row, dict) and row.get('like') in tables:
        tables[label] = row = {**tables[row.pop('like')], **row}
      kinds.append(_read_kind(file, label, row))
  return tuple(kinds)


def _read_kind(file: pathlib.Path, label: str, row: Any) -> Kind:
  if not isinstance(row, dict) or 'module' not in row:
    raise ValueError(
      f"names: expected module = 'CLASS' in table [{label}] of {file}, got none"
    )
  places, layouts = {}, {}
  for role, value in row.items():
    if role in _WORDS:
      continue
    roles = OF_ROUTER if LOGITS in row else ROLES
    if role not in roles or not isinstance(value, list) or len(value) != 2:
      raise ValueError(
        f'names: expected ROLE = [NAME, LAYOUT] with a role of '
        f'{", ".join(roles)} in [{label}] of {file}, got {role}'
      )
    places[role], layouts[role] = value
  return Kind(
    label,
    row['module'],
    row.get('path', '.*'),
    places,
    layouts,
    row.get('activation', 'swiglu'),
    tuple(row.get('policy', ())),
    tuple(row.get('policies', ())),
    row.get('is_flat', False),
  )


def parse_numbers(text: str | None) -> frozenset[int] | None:
  """Returns the numbers of layers in a text such as 3,5:8; None: all.

  5:8 is 5, 6 and 7.

  Raises:
    ValueError: it is no such text.
  """
  if text is None:
    return None
  numbers: set[int] = set()
  for word in text.split(','):
    match = re.fullmatch(r'(\d+)(?::(\d+))?', word.strip())
    last = int(match[2]) if match and match[2] else None
    if not match or (last is not None and last <= int(match[1])):
      raise ValueError(
        f'layers: expected numbers and ranges such as 3,5:8, got {text!r}'
      )
    numbers.update(range(int(match[1]), last or int(match[1]) + 1))
  return frozenset(numbers)


def find_number(path: str) -> int:
  """Returns the number of the layer that a module is in; -1: none."""
  match = _LAYER.match(path)
  return int(match[1]) if match else -1


def find_calls(folder: str, kinds: tuple[Kind, ...]) -> tuple[LayerCall, ...]:
  """Returns the calls of all MoE layers, in the dump's order.

  Raises:
    ValueError: the folder holds no dump, or one of statistics alone.
  """
  experts = tuple(kind for kind in kinds if not kind.is_router)
  calls: list[LayerCall] = []
  for place, tensors in tensor_files.list_places('dump', folder).items():
    calls += group_calls(place, tensors, experts)
  return tuple(calls)


def group_calls(
  place: str, tensors: tensor_files.RunTensors, kinds: tuple[Kind, ...]
) -> list[LayerCall]:
  """Returns the calls of modules of some kinds.

  Args:
    place: the step and rank.
    tensors: of it.
    kinds: the first that is a module's class is its kind.
  """
  index: dict[tuple[str, int], dict[str, tensor_files.StoredTensor]] = {}
  kind_of: dict[tuple[str, int], Kind] = {}
  for name, tensor in tensors.items():
    parts = msprobe_dump.parse_run_name(name)
    if not parts:
      continue
    key = (parts.path, parts.call)
    index.setdefault(key, {})[f'{parts.part}.{parts.rest}'] = tensor
    kind = _find_kind(kinds, parts)
    if kind:
      kind_of.setdefault(key, kind)
  calls = []
  for (path, call), kind in kind_of.items():
    files = _find_files(index, path, call, kind)
    calls.append(LayerCall(place, path, call, kind, files))
  return calls


@dataclasses.dataclass(frozen=True)
class StackedTensor:
  """Tensors of several experts, stacked along a new first axis."""

  tensors: tuple[tensor_files.StoredTensor, ...]

  def read(self) -> np.ndarray:
    """Returns their bits.

    Raises:
      ValueError: a file cannot be read, or shapes differ.
    """
    return np.stack([tensor.read() for tensor in self.tensors])


def _find_files(
  index: Mapping[tuple[str, int], Mapping[str, tensor_files.StoredTensor]],
  path: str,
  call: int,
  kind: Kind,
) -> dict[str, tensor_files.StoredTensor]:
  """Returns the tensors of one call, by role."""
  files: dict[str, tensor_files.StoredTensor] = {}
  for role, places in kind.places.items():
    for place in places.split('|'):
      module, colon, name = place.rpartition(':')
      if not colon:
        tensor = index[path, call].get(place)
      else:
        tensor = _find_elsewhere(index, _join_path(path, module), call, name)
      if tensor is not None:
        files.setdefault(role, tensor)
  return files


def _join_path(path: str, module: str) -> str:
  """Returns the path of a module, of which `../` leaves a name of the first."""
  while module.startswith('../'):
    path, module = path.rpartition('.')[0], module.removeprefix('../')
  return f'{path}.{module}' if path else module


def _find_elsewhere(
  index: Mapping[tuple[str, int], Mapping[str, tensor_files.StoredTensor]],
  path: str,
  call: int,
  name: str,
) -> tensor_files.StoredTensor | None:
  """Returns a tensor of another module, or those of a pattern, stacked."""
  if '*' not in path + name:
    return index.get((path, call), {}).get(name)
  of_path, of_name = (
    re.compile(re.escape(text).replace(r'\*', r'(\d+)'))
    for text in (path, name)
  )
  tensors: dict[int, tensor_files.StoredTensor] = {}
  for (other, number), tensors_of_call in index.items():
    match = of_path.fullmatch(other) if number == call else None
    for place, tensor in tensors_of_call.items() if match else ():
      if match and (name_match := of_name.fullmatch(place)):
        tensors[int((match.groups() + name_match.groups())[0])] = tensor
  if [*sorted(tensors)] != [*range(len(tensors))] or not tensors:
    return None
  return StackedTensor(tuple(tensors[n] for n in sorted(tensors)))


def _find_kind(
  kinds: tuple[Kind, ...], name: msprobe_dump.RunName
) -> Kind | None:
  for kind in kinds:
    patterns = ((kind.module, name.module), (kind.path, name.path))
    if all(re.fullmatch(*pattern) for pattern in patterns):
      return kind
  return None
