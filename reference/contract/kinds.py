"""Kinds of task, the buffers that they name, and what each reads and writes.

Compiler, runtimes and judge all read `kinds.toml`.
"""

import enum
import pathlib
import tomllib
from typing import TYPE_CHECKING, Any

_TABLES = tomllib.loads(
  pathlib.Path(__file__).with_name('kinds.toml').read_text(encoding='utf-8')
)
_ROWS: list[dict[str, Any]] = _TABLES['kinds']


class _Table(enum.EnumType):
  """The type of enums whose members are the rows of a table."""

  if TYPE_CHECKING:

    def __getattr__(cls, name: str) -> Any: ...


def _number(names) -> dict[str, int]:
  return {name.upper(): number for number, name in enumerate(names)}


class Kind(enum.IntEnum, metaclass=_Table):
  """Kinds of task; those of a pass are in dependency order."""

  vars().update(_number(row['name'] for row in _ROWS))


class Buffer(enum.IntEnum, metaclass=_Table):
  """Buffers that regions and events name."""

  vars().update(_number(_TABLES['buffers']))


class Unit(enum.IntEnum):
  """Kinds of Ascend core."""

  AIC = 0
  AIV = 1


class Direction(enum.IntEnum):
  """The pass that an image computes."""

  FORWARD = 0
  BACKWARD = 1


class Form(enum.IntEnum):
  """The shape of a task's tile; see `kinds.h`."""

  NO_TILE = 0
  SLICE_PUT = 1
  EXPERT_TILE = 2
  WEIGHT_TILE = 3
  HOME_PUT = 4
  TOKEN_TILE = 5
  RELAY_TILE = 6


class Path(enum.IntEnum):
  """The images that have a kind; see `kinds.h`."""

  ANY = 0
  DIRECT = 1
  RELAYED = 2
  OF_LAYER = 3
  OF_SUBLAYER = 4


def _column(name: str, members: Any) -> dict[Kind, Any]:
  return {kind: members[_ROWS[kind][name].upper()] for kind in Kind}


UNIT_OF_KIND: dict[Kind, Unit] = _column('unit', Unit)
DIRECTION_OF_KIND: dict[Kind, Direction] = _column('direction', Direction)
FORM_OF_KIND: dict[Kind, Form] = _column('form', Form)
PATH_OF_KIND: dict[Kind, Path] = _column('path', Path)

# The buffer that a kind of task writes.
OUTPUT_OF_KIND: dict[Kind, Buffer] = _column('written', Buffer)
# The buffers that it reads: rows first, then other rows or weights.
OPERANDS = {
  kind: tuple(Buffer[name.upper()] for name in _ROWS[kind]['operands'])
  for kind in Kind
}
# The tensor that it writes, by its name in `contract.tensors`.
STAGE_OF_KIND: dict[Kind, str] = {
  kind: buffer.name.lower() for kind, buffer in OUTPUT_OF_KIND.items()
}


def select_kinds(
  *forms: Form,
  direction: Direction | None = None,
  relay: bool | None = None,
  sublayer: bool | None = False,
) -> tuple[Kind, ...]:
  """Returns the kinds of these forms, or of all forms, in dependency order.

  Args:
    *forms: forms to select; none selects every form.
    direction: the pass of the kinds; None selects both.
    relay: whether the kinds are of images with relay; None selects both.
    sublayer: whether they are of images of a sub-layer; None selects both.
  """
  absent = (
    {None: None, True: Path.DIRECT, False: Path.RELAYED}[relay],
    {None: None, True: Path.OF_LAYER, False: Path.OF_SUBLAYER}[sublayer],
  )
  return tuple(
    kind
    for kind in Kind
    if (not forms or FORM_OF_KIND[kind] in forms)
    and direction in (None, DIRECTION_OF_KIND[kind])
    and PATH_OF_KIND[kind] not in absent
  )
