"""Bugs of planted_bugs.toml as kernels: what each change does to a value.

A change is called with the value that it spoils and with what it was made of;
`coded_kernel.Kernel` says which.  Axes of rows are `[n, G]`, those of weights
and their scales `[E, depth, columns]`.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
import tomllib
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import coded_kernel

_TAIL, _PADDING = 8, 16


@dataclasses.dataclass(frozen=True)
class Bug:
  """A row of planted_bugs.toml.

  Attributes:
    layer: its table.
    bug: what is wrong.
    point: where in the kernel.
    stage: where a judge that gets every stage must find it.
    change: of `CHANGES`; '': fields of a quantiser change.
    fields: those.
    source: a report of such a bug, or ''.
  """

  layer: str
  bug: str
  point: str
  stage: str
  change: str = ''
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  source: str = ''


@dataclasses.dataclass(frozen=True)
class Layer:
  """A table of planted_bugs.toml.

  Attributes:
    form: of `coded_kernel.FORMS`.
    case: fields of a `Case`; none: the contest's definition.
    bugs: of its kernel.
  """

  form: str
  case: Mapping[str, str]
  bugs: tuple[Bug, ...]

  def make_kernel(self, bug: Bug | None = None) -> coded_kernel.Kernel:
    """Returns its kernel, right or with a bug."""
    form = coded_kernel.FORMS[self.form]
    if bug is None:
      return coded_kernel.Kernel(form)
    if bug.change:
      return coded_kernel.Kernel(form, bug.point, CHANGES[bug.change])
    return coded_kernel.Kernel(
      form, bug.point, lambda value, _: dataclasses.replace(value, **bug.fields)
    )


def _read_layer(name: str, table: dict[str, Any]) -> Layer:
  bugs = tuple(Bug(name, **row) for row in table.pop('bugs'))
  return Layer(table['form'], table.get('case', {}), bugs)


LAYERS = {
  name: _read_layer(name, table)
  for name, table in tomllib.loads(
    pathlib.Path(__file__).with_name('planted_bugs.toml').read_text('utf-8')
  ).items()
}


def make_solution(number: int | None = None):
  """Returns a solution of the contest's definition, with one of its bugs."""
  layer = LAYERS['contest']
  bug = None if number is None else layer.bugs[number]
  return coded_kernel.make_solution(layer.make_kernel(bug))


# --- Scales ---------------------------------------------------------------


def _depth(values: np.ndarray) -> int:
  """Returns the axis of groups along the depth."""
  return -1 if values.ndim == 2 else -2


def _next_group(values, _):
  return np.roll(values, -1, _depth(values))


def _last_group_ones(values, _):
  values = values.copy()
  np.moveaxis(values, _depth(values), 0)[-1] = 1
  return values


def _gate_for_up(values, _):
  half = values.shape[-1] // 2
  return np.concatenate([values[..., :half]] * 2, -1)


def _every_second(values, _):
  size = values.shape[-2]
  return np.repeat(values[:, ::2], 2, -2)[:, :size]


def _next_group_read(values, group):
  return np.roll(values, -group, -1)


def _swap_pairs(values, _):
  pairs = values.reshape(len(values), -1, 2)
  return pairs[..., ::-1].reshape(values.shape)


# --- Nibbles --------------------------------------------------------------


def _across(nibbles, words):
  pairs = np.stack([words & 15, words >> 4], -1)
  return pairs.reshape(nibbles.shape).astype(np.int32)


def _in_halves(nibbles, words):
  return np.concatenate([words & 15, words >> 4], 1).astype(np.int32)


# --- Rows -----------------------------------------------------------------


def _pad_split(halves, gate_up):
  zeros = np.zeros((len(gate_up), 2 * _PADDING), gate_up.dtype)
  size = gate_up.shape[1] // 2 + _PADDING
  padded = np.concatenate([gate_up, zeros], 1)
  return [half[:, : len(halves[0].T)] for half in np.split(padded, [size], 1)]


def _quantise_silu(_, halves):
  gate, up = halves
  quantiser = coded_kernel.FORMS['fp8_rows'].activation
  codes, scales = quantiser.quantise(gate / (1 + np.exp(-gate)))
  return codes * np.repeat(scales, coded_kernel.BLOCK, 1) * up


def _idle_left_out(_, counts):
  return np.maximum(np.cumsum(counts > 0) - 1, 0)


def _odd_row_zero(rows, _):
  rows = rows.copy()
  rows[len(rows) // 2 * 2 :] = 0
  return rows


def _first_slot_zero(weights, _):
  weights = weights.copy()
  weights[:, 0] = 0
  return weights


def _tail_zero(rows, _):
  rows = rows.copy()
  rows[len(rows) // _TAIL * _TAIL :] = 0
  return rows


def _stale_rows(rows, ids):
  idle = (ids < 0).all(-1, keepdims=True)
  return np.where(idle, np.roll(rows, 1, 0), rows)


_last_outputs: dict[tuple[int, ...], np.ndarray] = {}


def _added_to_last(rows, _):
  rows = rows + _last_outputs.get(rows.shape, 0)
  _last_outputs[rows.shape] = rows
  return rows


def _view(values, dtype):
  return values.view(np.uint8).view(dtype)


CHANGES: dict[str, coded_kernel.Change] = {
  'next_group': _next_group,
  'next_group_read': _next_group_read,
  'pairs_swapped': _swap_pairs,
  'at_most_240': lambda v, _: np.clip(v, -240, 240),
  'doubled': lambda v, _: v * 2,
  'next_column': lambda v, _: np.roll(v, -1, -1),
  'next_row': lambda v, _: np.roll(v, -1, 0),
  'next_expert': lambda v, _: np.roll(v, -1, 0),
  'transposed': lambda v, _: np.swapaxes(v, -1, -2).reshape(v.shape),
  'last_group_ones': _last_group_ones,
  'gate_for_up': _gate_for_up,
  'first_column': lambda v, _: np.broadcast_to(v[..., :1], v.shape),
  'every_second': _every_second,
  'ones': lambda v, _: np.ones_like(v),
  'zero': lambda v, _: 0 * v,
  'negative': lambda v, _: -v,
  'tenth_more': lambda v, _: v * np.float32(1.1),
  'hundredth_more': lambda v, _: v * np.float32(1.01),
  'first_slot_zero': _first_slot_zero,
  # Sums from the last product to the first.
  'descending': lambda _, pair: pair[0][:, ::-1] @ pair[1][::-1],
  'plus_one': lambda v, _: v + 1,
  'squared': lambda v, _: v * v,
  'inverse': lambda v, _: 1 / v,
  'absolute': lambda v, _: np.abs(v),
  'over_scales': lambda v, scales: v / scales,
  'in_bfloat16': lambda v, _: v.astype(ml_dtypes.bfloat16).astype(np.float32),
  'power_of_two': lambda v, _: np.exp2(np.ceil(np.log2(v))),
  'of_first_gemm': lambda v, first: np.broadcast_to(first, v.shape),
  'as_e5m2': lambda v, _: _view(v, ml_dtypes.float8_e5m2),
  'as_e4m3fnuz': lambda v, _: _view(v, ml_dtypes.float8_e4m3fnuz),
  'as_unsigned': lambda v, _: v.view(np.uint8),
  'nibbles_swapped': lambda v, _: v << 4 | v >> 4,
  'nibbles_across': _across,
  'nibbles_in_halves': _in_halves,
  'nibbles_as_they_are': lambda v, nibbles: nibbles,
  'nibbles_less_8': lambda v, nibbles: nibbles - 8,
  'without_subnormals': lambda v, _: np.where(np.abs(v) < 1, 0, v),
  'swapped': lambda v, _: v[::-1],
  'padded': _pad_split,
  'interleaved': lambda v, gate_up: (gate_up[:, ::2], gate_up[:, 1::2]),
  'quantised_silu': _quantise_silu,
  'idle_left_out': _idle_left_out,
  'odd_row_zero': _odd_row_zero,
  'tail_zero': _tail_zero,
  'stale_rows': _stale_rows,
  'added_to_last': _added_to_last,
  'at_least_zero': lambda v, _: np.maximum(v, 0),
  'take_source': lambda v, source: source,
  'as_it_lies': lambda v, source: source,
}
