"""The tables of the task image as numpy dtypes, field for field `image.h`.

`layout_test.py` compares every offset and size with the C++ header.  Kinds and
buffers are the rows of `contract/kinds.toml`.
"""

import enum

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.reference.contract.kinds import DIRECTION_OF_KIND  # noqa: F401
from hpmoe.reference.contract.kinds import FORM_OF_KIND  # noqa: F401
from hpmoe.reference.contract.kinds import OPERANDS  # noqa: F401
from hpmoe.reference.contract.kinds import OUTPUT_OF_KIND  # noqa: F401
from hpmoe.reference.contract.kinds import STAGE_OF_KIND  # noqa: F401
from hpmoe.reference.contract.kinds import UNIT_OF_KIND  # noqa: F401
from hpmoe.reference.contract.kinds import Buffer  # noqa: F401
from hpmoe.reference.contract.kinds import Direction  # noqa: F401
from hpmoe.reference.contract.kinds import Form  # noqa: F401
from hpmoe.reference.contract.kinds import Kind  # noqa: F401
from hpmoe.reference.contract.kinds import Path  # noqa: F401
from hpmoe.reference.contract.kinds import Unit  # noqa: F401
from hpmoe.reference.contract.kinds import select_kinds  # noqa: F401

MAGIC = 0x31474D49454F4D48
VERSION = 3
ANY_RANK = -1
NO_EXPERT = -1
ROW_BLOCK_RANGE = -1
PER_ROW = -1
TABLE_ALIGN = 64


# Names of storage dtypes, by their codes.
DTYPES: tuple[str, ...] = tuple(_native.dtypes())


# Forms of weights and of rows, by `Quantised` of image.h: ('', '') is values.
QUANTISED = (('', ''), ('int8_channel', 'int8_token'))
# Of a policy whose activation stays wide until codes are made of it: the last
# `Quantised`.
WIDE_POINTS = ('gate_up=float32', 'activation=float32')
# Terms of two codes that an int32 can sum.
MAX_CODE_DEPTH = (2**31 - 1) // 128**2

# Forms whose tasks write in the sender view, and are complete at their events.
PUTS = (Form.SLICE_PUT, Form.HOME_PUT, Form.RELAY_TILE)


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
    'put_rows:i4 token_block:i4 num_aic:i4 num_aiv:i4 chain_rows:i4 '
    'relay:u2 quantised:u2'
  ).descr
  + [(name, _struct('offset:u8 count:u8')) for name in TABLES]
)
