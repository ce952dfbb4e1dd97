"""The space of schedules, as data: choices, each with its options.

A point takes one option of each choice.  What an option changes are fields of
`flow.Options`, and after `order.` those of `flow.Order`; nothing else knows of
a choice, so another one is a few lines here.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

import numpy as np

from hpmoe.backend_ascend.schedule import model
from hpmoe.backend_ascend.schedule import orders
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.reference.contract import config as config_lib

Fields = Mapping[str, Any]
Choices = Mapping[str, Mapping[str, Fields]]


# What a field means where it is None.
_UNSET = {
  'put_rows': 'row_block',
  'vector_rows': 'row_block',
  'token_block': 'row_block',
  'chain_rows': 'all',
  'weight_rows': 'col_block',
  'order.lag': 'all',
  'order.lead': 'all',
}


def _word(field: str, value: Any) -> str:
  if value is None and field in _UNSET:
    return _UNSET[field]
  return str(value).lower()


def _values(field: str, *values: Any) -> dict[str, Fields]:
  return {_word(field, value): {field: value} for value in values}


# Sums that L0C holds (CANN Ascend910_9382.ini: 128 KiB, float32).
_SUMS = 32768


def _tile(rows: int, cols: int) -> Fields:
  """Returns tiles of so many rows, or as high ones as L0C holds of weights."""
  height = None if cols * cols <= _SUMS else _SUMS // cols
  return {'row_block': rows, 'col_block': cols, 'weight_rows': height}


# The published system (arXiv 2605.23764): events by expert, half of the AIVs,
# queues operator by operator, tiles that L0C holds.
PUBLISHED = flow_lib.Options(
  event_grain='expert',
  **_tile(128, 256),
  num_aiv=24,
  order=flow_lib.PUBLISHED_ORDER,
)


def on(choices: Choices, aiv: int) -> Choices:
  """Returns choices whose AIVs are one of each core, or both: all `aiv`."""
  if 'aiv' not in choices:
    return choices
  return {**choices, 'aiv': _values('num_aiv', aiv // 2, aiv)}


_WEIGHT_GRADS: dict[str, Fields] = {
  'published': {'order.weight_lag': -0.5, 'order.gate_weight_lag': None},
  'beside': {'order.weight_lag': 0.0, 'order.gate_weight_lag': 0.0},
  'gate_last': {'order.weight_lag': 0.0, 'order.gate_weight_lag': None},
  'last': {'order.weight_lag': None, 'order.gate_weight_lag': None},
}

# What the analytical model searches whole.
GRID: Choices = {
  'event_grain': _values('event_grain', 'expert', 'row_block'),
  'tile': {
    f'{rows}x{cols}': _tile(rows, cols)
    for rows in (64, 128, 192, 256)
    for cols in (64, 128, 160, 256, 512)
  },
  'put_rows': _values('put_rows', 16, 32, 64, 128),
  'vector_rows': _values('vector_rows', None, 64, 32),
  'token_block': _values('token_block', 16, 128),
  'aiv': _values('num_aiv', 24, 48),
  'put_aiv': _values('order.comm_share', 0.0, 0.25, 0.5),
  'lag': _values('order.lag', None, 1.0, 0.25, 0.0),
  'lead': _values('order.lead', None, 2.0),
  'row_order': _values('order.row_order', *flow_lib.ROW_ORDERS),
  'weight_grads': _WEIGHT_GRADS,
}

# What only the simulator tries, around the best of the grid.
BESIDE: Choices = {
  'put_rows': _values('put_rows', 8, 16, 32, 64, 128, 256),
  'vector_rows': _values('vector_rows', None, 64, 32, 16),
  'token_block': _values('token_block', 8, 16, 32, 64, 128),
  'put_aiv': _values('order.comm_share', 0.0, 0.25, 0.375, 0.5, 0.625, 0.75),
  'lag': _values('order.lag', None, 2.0, 1.0, 0.5, 0.25, 0.0),
  'lead': _values('order.lead', None, 2.0, 1.0),
  'swizzle': _values('order.swizzle', 1, 2, 4, 8, 0),
  'rotate': _values('order.rotate', True, False),
  'expert_order': _values('order.expert_order', *flow_lib.EXPERT_ORDERS),
  'chain_rows': _values('chain_rows', None, 2048, 1024),
  # Refused where the target does not hold as many sums.
  'weight_rows': _values('weight_rows', None, 128, 64),
  'policy': _values('order.policy', *flow_lib.ORDER_POLICIES),
  'relay': _values('relay', False, True),
}

NAMES = tuple(dict.fromkeys([*GRID, *BESIDE]))


def changed(options: flow_lib.Options, fields: Fields) -> flow_lib.Options:
  """Returns options with other fields.

  Raises:
    ValueError: they do not go together.
  """
  order = {n[6:]: v for n, v in fields.items() if n.startswith('order.')}
  own = {n: v for n, v in fields.items() if not n.startswith('order.')}
  return dataclasses.replace(
    options, **own, order=dataclasses.replace(options.order, **order)
  )


def fields_of(name: str) -> tuple[str, ...]:
  """Returns the fields that a choice changes."""
  options = {**GRID, **BESIDE}[name]
  return tuple(next(iter(options.values())))


def value(options: flow_lib.Options, field: str) -> Any:
  """Returns a field by its name in the space."""
  of, _, name = field.rpartition('.')
  return getattr(options.order if of else options, name)


def label(options: flow_lib.Options, name: str) -> str:
  """Returns which option of a choice options have, in words."""
  mine = {field: value(options, field) for field in fields_of(name)}
  for choices in (GRID, BESIDE):
    for word, fields in choices.get(name, {}).items():
      if mine == dict(fields):
        return word
  return ' '.join(_word(field, of) for field, of in mine.items())


@dataclasses.dataclass(frozen=True)
class Grid:
  """All points of some choices that can be compiled.

  Attributes:
    choices: by name.
    base: what no choice changes.
    picked: `[choices, points]` i2, which option of each choice.
    table: `[points, model.COLUMNS]` f8.
  """

  choices: Choices
  base: flow_lib.Options
  picked: np.ndarray
  table: np.ndarray

  def options(self, point: int) -> flow_lib.Options:
    """Returns a point as options."""
    fields: dict[str, Any] = {}
    for options, pick in zip(self.choices.values(), self.picked[:, point]):
      fields |= list(options.values())[pick]
    return changed(self.base, fields)


def grid(
  config: config_lib.MoEConfig,
  base: flow_lib.Options,
  choices: Choices = GRID,
  tiles: Callable[[Fields], bool] = lambda fields: True,
) -> Grid:
  """Returns all points of choices.

  Args:
    config: sizes of the layer.
    base: what no choice changes.
    choices: by name.
    tiles: whether GEMM tiles of such fields can be run.

  Raises:
    ValueError: none can be compiled.
  """
  choices = allowed(choices, tiles)
  counts = [len(options) for options in choices.values()]
  none = [name for name, options in choices.items() if not options]
  if none:
    raise ValueError(
      f'space: expected a point that can be run, got no {none[0]} for one'
    )
  picked = np.indices(counts, np.int16).reshape(len(counts), -1)
  total = picked.shape[1]
  known = _columns(config, base, choices, picked)
  # As `flow.Options` says.
  feasible = np.broadcast_to(
    (np.mod(known['row_block'], known['vector_rows']) == 0)
    & ((known['by_row'] == 1) | (np.mod(known['lag'], 1) == 0)),
    total,
  )
  if not feasible.any():
    raise ValueError('space: expected a point that can be compiled, got none')
  table = np.empty((int(feasible.sum()), len(model.COLUMNS)))
  for column, name in enumerate(model.COLUMNS):
    table[:, column] = np.broadcast_to(known[name], total)[feasible]
  return Grid(choices, base, picked[:, feasible], table)


def allowed(
  choices: Choices, tiles: Callable[[Fields], bool]
) -> dict[str, dict[str, Fields]]:
  """Returns choices without tiles that cannot be run."""
  return {
    name: {
      word: fields
      for word, fields in options.items()
      if 'col_block' not in fields or tiles(fields)
    }
    for name, options in choices.items()
  }


def _columns(config, base, choices: Choices, picked) -> dict[str, np.ndarray]:
  """Returns what `model.columns` would of each point, in one go."""
  known = dict(zip(model.COLUMNS, map(np.asarray, model.columns(config, base))))
  known['comm_share'] = np.asarray(base.order.comm_share)
  known['vector_rows'] = np.asarray(float(base.vector_rows or 0))
  known['put_rows'] = np.asarray(float(base.put_rows or 0))
  known['token_block'] = np.asarray(float(base.token_block or 0))
  known['weight_rows'] = np.asarray(float(base.weight_rows or 0))
  for options, pick in zip(choices.values(), picked):
    made = [_column(config, fields) for fields in options.values()]
    for name in made[0]:
      known[name] = np.array([one[name] for one in made])[pick]
  rows = known['row_block']
  for name in ('vector_rows', 'put_rows', 'token_block'):
    known[name] = np.where(known[name] == 0, rows, known[name])
  known['weight_rows'] = np.where(
    known['weight_rows'] == 0, known['col_block'], known['weight_rows']
  )
  capacity = base.resolve(config).expert_capacity or 0
  known['expert_capacity'] = np.ceil(capacity / rows) * rows
  chain = base.chain_rows or capacity
  known['chain_rows'] = np.minimum(
    np.ceil(chain / rows) * rows, known['expert_capacity']
  )
  share, aiv = known['comm_share'], known['num_aiv']
  return known | dict(put_aiv=orders.communicating(share, aiv))


_CODES: dict[str, tuple[str, Callable[[Any, int], float]]] = {
  'event_grain': ('by_row', lambda v, _: v == 'row_block'),
  'order.row_order': ('row_order', lambda v, _: flow_lib.ROW_ORDERS.index(v)),
  'order.expert_order': (
    'expert_order',
    lambda v, _: flow_lib.EXPERT_ORDERS.index(v),
  ),
  **{
    f'order.{name}': (name, functools.partial(orders.rule, name))
    for name in orders.RULES
  },
}


def _column(config, fields: Fields) -> dict[str, float]:
  """Returns what fields are in the model, by column."""
  made = {}
  for field, of in fields.items():
    name, code = _CODES.get(
      field, (field.rpartition('.')[2], lambda v, _: 0 if v is None else v)
    )
    made[name] = float(code(of, config.experts_per_rank))
  return made
