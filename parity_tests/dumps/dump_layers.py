"""Finds the calls of MoE layers in a dump of a whole model.

msprobe names a tensor of a module `Module.PATH.CLASS.forward.CALL.input.0`, or
`backward` and `parameters_grad` in place of `forward`; MindSpore's are `Cell`s.
A row of modules.toml says which of them is what.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
import re
import tomllib
from typing import Any

from hpmoe.parity_tests.case import dumps

INPUTS = ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down')
GRADS = ('dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')
ROLES = (*INPUTS, 'y', 'dy', *GRADS)
_NAME = re.compile(
  r'(?:Module|Cell)\.(?P<path>.+)\.(?P<module>[A-Za-z_]\w*)'
  r'\.(?P<part>forward|backward|parameters_grad)\.(?P<call>\d+)\.(?P<rest>.+)'
)


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of module.

  Attributes:
    label: its table.
    module: a regular expression of its class.
    places: by role, a tensor's name after the class, without the call's number.
    layouts: by role, as in `case/layouts`.
  """

  label: str
  module: str
  places: Mapping[str, str]
  layouts: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class LayerCall:
  """One call of a MoE layer.

  Attributes:
    place: step and rank, as the dump's folders call them; '': neither.
    path: the module's name in the model.
    call: which call of it.
    kind: of the module.
    files: of its tensors, by role.
  """

  place: str
  path: str
  call: int
  kind: Kind
  files: Mapping[str, pathlib.Path]

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
    kinds += [_read_kind(file, label, row) for label, row in tables.items()]
  return tuple(kinds)


def _read_kind(file: pathlib.Path, label: str, row: Any) -> Kind:
  if not isinstance(row, dict) or 'module' not in row:
    raise ValueError(
      f"names: expected module = 'CLASS' in table [{label}] of {file}, got none"
    )
  places, layouts = {}, {}
  for role, value in row.items():
    if role == 'module':
      continue
    if role not in ROLES or not isinstance(value, list) or len(value) != 2:
      raise ValueError(
        f'names: expected ROLE = [NAME, LAYOUT] with a role of '
        f'{", ".join(ROLES)} in [{label}] of {file}, got {role}'
      )
    places[role], layouts[role] = value
  return Kind(label, row['module'], places, layouts)


def find_calls(folder: str, kinds: tuple[Kind, ...]) -> tuple[LayerCall, ...]:
  """Returns the calls of all MoE layers, in the dump's order.

  Raises:
    ValueError: the folder holds no dump, or one of statistics alone.
  """
  top = pathlib.Path(folder)
  indices = sorted(top.rglob(dumps.MSPROBE))
  if not indices:
    raise ValueError(
      f'dump: expected a folder with a {dumps.MSPROBE} of msprobe, got {folder}'
    )
  calls: list[LayerCall] = []
  for index in indices:
    place = str(index.parent.relative_to(top))
    files = dumps.list_msprobe_files(index)
    calls += _group_calls('' if place == '.' else place, files, kinds)
  return tuple(calls)


def _group_calls(
  place: str, files: Mapping[str, pathlib.Path], kinds: tuple[Kind, ...]
) -> list[LayerCall]:
  groups: dict[tuple[str, int], tuple[Kind, dict[str, pathlib.Path]]] = {}
  for name, file in files.items():
    match = _NAME.fullmatch(name)
    if match is None:
      continue
    for kind in kinds:
      if not re.fullmatch(kind.module, match['module']):
        continue
      key = match['path'], int(match['call'])
      _, roles = groups.setdefault(key, (kind, {}))
      tensor = f'{match["part"]}.{match["rest"]}'
      roles.update(
        (role, file) for role, n in kind.places.items() if n == tensor
      )
      break
  return [
    LayerCall(place, path, call, kind, roles)
    for (path, call), (kind, roles) in groups.items()
  ]
