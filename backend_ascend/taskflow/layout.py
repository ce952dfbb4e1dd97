"""The tables of the task image as numpy dtypes, field for field `image.h`.

`layout_test.py` compares every offset and size with the C++ header.
"""

import enum

import numpy as np

MAGIC = 0x31474D49454F4D48
VERSION = 2
ANY_RANK = -1
NO_EXPERT = -1
ROW_BLOCK_RANGE = -1
PER_ROW = -1
TABLE_ALIGN = 64


class Kind(enum.IntEnum):
  """Kinds of task, in dependency order."""

  DISPATCH = 0
  GATE_UP = 1
  SWIGLU = 2
  DOWN = 3
  RETURN = 4
  COMBINE = 5
  DISPATCH_GRAD = 6
  DOWN_GRAD = 7
  DOWN_WEIGHT_GRAD = 8
  SWIGLU_GRAD = 9
  GATE_UP_GRAD = 10
  GATE_UP_WEIGHT_GRAD = 11
  RETURN_GRAD = 12
  COMBINE_GRAD = 13
  TOPK_WEIGHT_GRAD = 14


class Unit(enum.IntEnum):
  """Kinds of Ascend core."""

  AIC = 0
  AIV = 1


class Buffer(enum.IntEnum):
  """Buffers that regions and events name."""

  X = 0
  W_GATE_UP = 1
  W_DOWN = 2
  EXPERT_IN = 3
  GATE_UP = 4
  ACTIVATION = 5
  EXPERT_OUT = 6
  RETURNED = 7
  Y = 8
  DY = 9
  D_EXPERT_OUT = 10
  D_ACTIVATION = 11
  D_W_DOWN = 12
  D_GATE_UP = 13
  D_W_GATE_UP = 14
  D_EXPERT_IN = 15
  D_RETURNED = 16
  DX = 17
  D_TOPK_WEIGHTS = 18


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


UNIT_OF_KIND = {
  Kind.DISPATCH: Unit.AIV,
  Kind.GATE_UP: Unit.AIC,
  Kind.SWIGLU: Unit.AIV,
  Kind.DOWN: Unit.AIC,
  Kind.RETURN: Unit.AIV,
  Kind.COMBINE: Unit.AIV,
  Kind.DISPATCH_GRAD: Unit.AIV,
  Kind.DOWN_GRAD: Unit.AIC,
  Kind.DOWN_WEIGHT_GRAD: Unit.AIC,
  Kind.SWIGLU_GRAD: Unit.AIV,
  Kind.GATE_UP_GRAD: Unit.AIC,
  Kind.GATE_UP_WEIGHT_GRAD: Unit.AIC,
  Kind.RETURN_GRAD: Unit.AIV,
  Kind.COMBINE_GRAD: Unit.AIV,
  Kind.TOPK_WEIGHT_GRAD: Unit.AIV,
}

# The tensor, as `contract.tensors` names it, that a kind of task writes.
STAGE_OF_KIND = {
  Kind.DISPATCH: 'expert_in',
  Kind.GATE_UP: 'gate_up',
  Kind.SWIGLU: 'activation',
  Kind.DOWN: 'expert_out',
  Kind.RETURN: 'returned',
  Kind.COMBINE: 'y',
  Kind.DISPATCH_GRAD: 'd_expert_out',
  Kind.DOWN_GRAD: 'd_activation',
  Kind.DOWN_WEIGHT_GRAD: 'd_w_down',
  Kind.SWIGLU_GRAD: 'd_gate_up',
  Kind.GATE_UP_GRAD: 'd_expert_in',
  Kind.GATE_UP_WEIGHT_GRAD: 'd_w_gate_up',
  Kind.RETURN_GRAD: 'd_returned',
  Kind.COMBINE_GRAD: 'dx',
  Kind.TOPK_WEIGHT_GRAD: 'd_topk_weights',
}


def _struct(*fields: str) -> np.dtype:
  """Returns a packed little-endian dtype from 'name:type' strings."""
  return np.dtype(
    [(name, '<' + code) for name, code in (f.split(':') for f in fields)]
  )


TASK = _struct(
  'kind:u2',
  'unit:u2',
  'rank:i4',
  'expert:i4',
  'peer:i4',
  'row_begin:i4',
  'row_end:i4',
  'col_begin:i4',
  'col_end:i4',
  'row_block:i4',
  'col_block:i4',
  'wait_begin:u4',
  'signal_begin:u4',
  'region_begin:u4',
  'wait_count:u2',
  'read_count:u1',
  'write_count:u1',
  'signal_count:u2',
  'core:u2',
  'reserved:u4',
)
WAIT = _struct('event:i4', 'threshold:i4')
SIGNAL = _struct('event:i4', 'span:i4', 'amount:i4', 'rank:i4')
REGION = _struct(
  'buffer:u2',
  'view:u2',
  'rank:i4',
  'group:i4',
  'row_begin:i4',
  'row_end:i4',
  'col_begin:i4',
  'col_end:i4',
  'reserved:i4',
)
EVENT = _struct(
  'threshold:i4',
  'rank:i4',
  'group:i4',
  'part:i4',
  'part_rows:i4',
  'buffer:u2',
  'mode:u2',
)
SPACE = _struct(
  'buffer:u2',
  'view:u2',
  'rank:i4',
  'groups:i4',
  'rows:i4',
  'cols:i4',
  'reserved:i4',
)
QUEUE = _struct('rank:i4', 'unit:u2', 'core:u2', 'begin:u4', 'count:u4')
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
  [
    ('magic', '<u8'),
    ('version', '<u4'),
    ('header_bytes', '<u4'),
    ('total_bytes', '<u8'),
    ('crc32', '<u4'),
    ('direction', '<u4'),
  ]
  + [
    (name, '<i4')
    for name in (
      'num_ranks',
      'num_tokens',
      'num_experts',
      'top_k',
      'd_model',
      'd_ff',
      'num_rows',
      'expert_capacity',
    )
  ]
  + [
    (name, '<u4')
    for name in ('dtype', 'placement', 'activation', 'event_grain')
  ]
  + [
    (name, '<i4')
    for name in (
      'row_block',
      'col_block',
      'put_rows',
      'token_block',
      'num_aic',
      'num_aiv',
      'chain_rows',
    )
  ]
  + [('reserved0', '<u4')]
  + [(name, [('offset', '<u8'), ('count', '<u8')]) for name in TABLES]
)
