"""The tables of the task image as numpy dtypes, field for field `image.h`.

`layout_test.py` compares every offset and size with the C++ header.  Kinds and
buffers are the rows of `kinds.h`.
"""

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from hpmoe.backend_ascend import _native

MAGIC = 0x31474D49454F4D48
VERSION = 3
ANY_RANK = -1
NO_EXPERT = -1
ROW_BLOCK_RANGE = -1
PER_ROW = -1
TABLE_ALIGN = 64


_KINDS, _BUFFERS = _native.kinds(), _native.buffers()

# Names of storage dtypes, by their codes.
DTYPES: tuple[str, ...] = tuple(_native.dtypes())


class _Table(enum.EnumType):
  """Of enums whose members are rows of a table of `kinds.h`."""

  if TYPE_CHECKING:

    def __getattr__(cls, name: str) -> Any: ...


def _numbered(table) -> dict[str, int]:
  return {name.upper(): number for number, name in enumerate(table)}


class Kind(enum.IntEnum, metaclass=_Table):
  """Kinds of task, those of a pass in dependency order."""

  vars().update(_numbered(kind['name'] for kind in _KINDS))


class Buffer(enum.IntEnum, metaclass=_Table):
  """Buffers that regions and events name."""

  vars().update(_numbered(_BUFFERS))


class Unit(enum.IntEnum):
  """Kinds of Ascend core."""

  AIC = 0
  AIV = 1


class Direction(enum.IntEnum):
  """Which pass an image computes."""

  FORWARD = 0
  BACKWARD = 1


class View(enum.IntEnum):
  """Coordinates of a region: where rows land, or who sends them."""

  ROWS = 0
  SENDER = 1


class Grain(enum.IntEnum):
  """What one event stands for."""

  EXPERT = 0
  ROW_BLOCK = 1


class Mode(enum.IntEnum):
  """What one unit of an event's counter means."""

  COUNT_TASKS = 0
  COUNT_ROWS = 1


class Form(enum.IntEnum):
  """What the rows of a task's tile are; see `kinds.h`."""

  NONE = 0
  SLICE_PUT = 1
  EXPERT_TILE = 2
  WEIGHT_TILE = 3
  HOME_PUT = 4
  TOKEN_TILE = 5
  RELAY_TILE = 6


class Path(enum.IntEnum):
  """The images that have a kind, see `kinds.h`."""

  ANY = 0
  DIRECT = 1
  RELAYED = 2
  OF_LAYER = 3
  OF_SUBLAYER = 4


UNIT_OF_KIND = {kind: Unit(_KINDS[kind]['unit']) for kind in Kind}
DIRECTION_OF_KIND = {
  kind: Direction(_KINDS[kind]['direction']) for kind in Kind
}
FORM_OF_KIND = {kind: Form(_KINDS[kind]['form']) for kind in Kind}
PATH_OF_KIND = {kind: Path(_KINDS[kind]['path']) for kind in Kind}

# Forms whose tasks write in the sender view, and are complete at their events.
PUTS = (Form.SLICE_PUT, Form.HOME_PUT, Form.RELAY_TILE)

# What a kind of task writes, and of which rows and others, or weights, first.
WRITTEN = {kind: Buffer(_KINDS[kind]['written']) for kind in Kind}
OPERANDS = {
  kind: tuple(
    Buffer(b)
    for b in (_KINDS[kind]['left'], _KINDS[kind]['right'])
    if b < len(Buffer)
  )
  for kind in Kind
}
# The tensor, as `contract.tensors` names it, that a kind of task writes.
STAGE_OF_KIND = {kind: buffer.name.lower() for kind, buffer in WRITTEN.items()}


def kinds(
  *forms: Form,
  direction: Direction | None = None,
  relay: bool | None = None,
  sublayer: bool | None = False,
) -> tuple[Kind, ...]:
  """Returns the kinds of these forms, of all if none, in dependency order.

  Args:
    *forms: of the kinds.
    direction: of their pass; None: both.
    relay: of images with relay or without; None: both.
    sublayer: of images of a sub-layer or of a layer; None: both.
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


def _struct(fields: str) -> np.dtype:
  """Returns a packed little-endian dtype from 'name:type' words."""
  return np.dtype(
    [
      (name, '<' + code)
      for name, code in (f.split(':') for f in fields.split())
    ]
  )


TASK = _struct(
  'kind:u2 unit:u2 rank:i4 expert:i4 peer:i4 '
  'row_begin:i4 row_end:i4 col_begin:i4 col_end:i4 row_block:i4 col_block:i4 '
  'wait_begin:u4 signal_begin:u4 region_begin:u4 '
  'wait_count:u2 read_count:u1 write_count:u1 signal_count:u2 '
  'core:u2 reserved:u4'
)
WAIT = _struct('event:i4 threshold:i4')
SIGNAL = _struct('event:i4 span:i4 amount:i4 rank:i4')
REGION = _struct(
  'buffer:u2 view:u2 rank:i4 group:i4 '
  'row_begin:i4 row_end:i4 col_begin:i4 col_end:i4 reserved:i4'
)
EVENT = _struct(
  'threshold:i4 rank:i4 group:i4 part:i4 part_rows:i4 buffer:u2 mode:u2'
)
SPACE = _struct(
  'buffer:u2 view:u2 rank:i4 groups:i4 rows:i4 cols:i4 reserved:i4'
)
QUEUE = _struct('rank:i4 unit:u2 core:u2 begin:u4 count:u4')
QUEUE_TASK = np.dtype('<u4')

TABLES = {
  'tasks': TASK,
  'waits': WAIT,
  'signals': SIGNAL,
  'regions': REGION,
  'events': EVENT,
  'spaces': SPACE,
  'queues': QUEUE,
  'queue_tasks': QUEUE_TASK,
}

HEADER = np.dtype(
  _struct(
    'magic:u8 version:u4 header_bytes:u4 total_bytes:u8 crc32:u4 '
    'direction:u2 span:u1 epsilon:u1 '
    'num_ranks:i4 num_tokens:i4 num_experts:i4 top_k:i4 d_model:i4 d_ff:i4 '
    'num_rows:i4 expert_capacity:i4 dtype:u4 placement:u4 activation:u2 '
    'accumulation_order:u2 event_grain:u4 row_block:i4 col_block:i4 '
    'put_rows:i4 token_block:i4 num_aic:i4 num_aiv:i4 chain_rows:i4 relay:u4'
  ).descr
  + [(name, _struct('offset:u8 count:u8')) for name in TABLES]
)
