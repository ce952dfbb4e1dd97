"""The space of schedules, as data: choices, each with its options.

A point takes one option of each choice.  What an option changes are fields of
`granularity.Options`, and after `order.` those of `granularity.Order`; nothing
else knows of a choice, so another one is a few lines here.
"""

from collections.abc import Callable, Mapping
import dataclasses
import itertools
from typing import Any

import numpy as np

from hpmoe.backend_ascend.compiler.orders import model
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity

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
PUBLISHED = granularity.Options(
  event_grain='expert',
  **_tile(128, 256),
  num_aiv=24,
  order=granularity.PUBLISHED_ORDER,
)


def choose_cores(choices: Choices, aiv: int) -> Choices:
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
  'row_order': _values('order.row_order', *granularity.ROW_ORDERS),
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
  'expert_order': _values('order.expert_order', *granularity.EXPERT_ORDERS),
  'chain_rows': _values('chain_rows', None, 2048, 1024),
  # Refused where the target does not hold as many sums.
  'weight_rows': _values('weight_rows', None, 128, 64),
  'policy': _values('order.policy', *granularity.ORDER_POLICIES),
  'relay': _values('relay', False, True),
}

# Choices of which one gives a field of another its value, or forbids it.
_COUPLED = (
  ('tile', 'put_rows', 'vector_rows', 'token_block', 'chain_rows'),
  ('aiv', 'put_aiv'),
  ('event_grain', 'lag'),
)

NAMES = tuple(dict.fromkeys([*GRID, *BESIDE]))


def replace_fields(
  options: granularity.Options, fields: Fields
) -> granularity.Options:
  """Returns options in which some fields are replaced.

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


def value(options: granularity.Options, field: str) -> Any:
  """Returns a field by its name in the space."""
  group, _, name = field.rpartition('.')
  return getattr(options.order if group else options, name)


def label(options: granularity.Options, name: str) -> str:
  """Returns which option of a choice options have, in words."""
  current = {field: value(options, field) for field in fields_of(name)}
  for choices in (GRID, BESIDE):
    for word, fields in choices.get(name, {}).items():
      if current == dict(fields):
        return word
  return ' '.join(_word(field, x) for field, x in current.items())


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
  base: granularity.Options
  indices: np.ndarray
  table: np.ndarray

  def options(self, point: int) -> granularity.Options:
    """Returns a point as options."""
    fields: dict[str, Any] = {}
    for options, pick in zip(self.choices.values(), self.indices[:, point]):
      fields |= list(options.values())[pick]
    return replace_fields(self.base, fields)


def grid(
  config: config_lib.MoEConfig,
  base: granularity.Options,
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
  choices = drop_tiles(choices, tiles)
  counts = [len(options) for options in choices.values()]
  empty = [name for name, options in choices.items() if not options]
  if empty:
    raise ValueError(
      f'space: expected a point that can be run, got no {empty[0]} for one'
    )
  indices = np.indices(counts, np.int16).reshape(len(counts), -1)
  groups = _groups(list(choices))
  parts = [
    _columns(config, base, [list(choices.values())[axis] for axis in axes])
    for axes in groups
  ]

  def place(axes) -> np.ndarray:
    """Returns `[points]`, which of the points of a group of choices."""
    return np.ravel_multi_index(indices[axes], [counts[axis] for axis in axes])

  can_be = [valid[place(axes)] for axes, (_, valid) in zip(groups, parts)]
  indices = indices[:, np.logical_and.reduce(can_be)]
  if not indices.size:
    raise ValueError('space: expected a point that can be compiled, got none')
  base_columns = np.array(model.columns(config, base))
  table = np.tile(base_columns, (indices.shape[1], 1))
  for axes, (columns, valid) in zip(groups, parts):
    differs = (columns[valid] != base_columns).any(0)
    table[:, differs] = columns[:, differs][place(axes)]
  return Grid(choices, base, indices, table)


def drop_tiles(
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


def _groups(names: list[str]) -> list[list[int]]:
  """Returns numbers of choices, those together that depend on each other."""
  coupled = [set(group) & set(names) for group in _COUPLED]
  alone = [{name} for name in names if not any(name in g for g in coupled)]
  return [
    sorted(names.index(name) for name in group)
    for group in (*coupled, *alone)
    if group
  ]


def _columns(config, base, choices) -> tuple[np.ndarray, np.ndarray]:
  """Returns `model.columns` of all points of choices, and which can be."""
  rows = []
  for fields in itertools.product(*(options.values() for options in choices)):
    try:
      options_of_point = replace_fields(
        base, {n: v for group in fields for n, v in group.items()}
      )
    except ValueError:
      rows.append([np.nan] * len(model.COLUMNS))
    else:
      rows.append(model.columns(config, options_of_point))
  table = np.array(rows)
  return table, ~np.isnan(table).any(1)
