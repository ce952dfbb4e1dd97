"""Work of tiles on a core's pipes, as a table for a cost model."""

import collections
from collections.abc import Iterator
import csv
import dataclasses
from typing import TextIO

import numpy as np
from numpy.lib import recfunctions

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.twin_launch import twin_report
from hpmoe.backend_ascend.host.checks import faults

# Counts of a tile.  `ns` is the time from the end of the task before it on its
# core to its own end, without waits for other cores.
COUNT_NAMES = (*tuple(twin_report.COUNTS.fields or ())[4:-1], 'ns')
# A core's work outside of tasks: its handshake, and waits for a task's events.
OUTSIDE = 'outside'

_DEPTHS = {
  layout.Kind.GATE_UP: 'd_model',
  layout.Kind.DOWN: 'd_ff',
  layout.Kind.DOWN_GRAD: 'd_model',
  layout.Kind.GATE_UP_GRAD: '2 d_ff',
}
_WEIGHT_TILES = layout.select_kinds(layout.Form.WEIGHT_TILE)


@dataclasses.dataclass(frozen=True)
class Tile:
  """The mean work of tasks of one kind and shape.

  Attributes:
    direction: 'forward' or 'backward'.
    kind: a name of `layout.Kind`, in small letters, or OUTSIDE.
    unit: 'aic' or 'aiv'.
    rows: real rows of the tile: rows of an expert, tokens, or rows of a weight.
    cols: columns of the tile.
    depth: terms of each sum of a cube tile; 0 of a vector tile.
    tasks: number of tasks; of OUTSIDE, number of cores.
    mean_counts: the mean of a task, for each of COUNT_NAMES.
  """

  direction: str
  kind: str
  unit: str
  rows: int
  cols: int
  depth: int
  tasks: int
  mean_counts: dict[str, float]

  def row(self) -> dict[str, object]:
    """Returns the tile as one flat record."""
    fields = dataclasses.asdict(self)
    return fields | fields.pop('mean_counts')


def list_tiles(
  image: image_lib.Image,
  plan_counts: np.ndarray,
  counts: np.ndarray,
  relayed: np.ndarray | None = None,
) -> list[Tile]:
  """Returns the tiles of each kind and shape.

  Args:
    image: what was launched.
    plan_counts: `[R, E]` i32, counts of the routing plan.
    counts: `[n]` `twin_report.COUNTS` of the launch.
    relayed: as in `faults.real_rows`.
  """
  groups: dict[tuple, list[np.void]] = collections.defaultdict(list)
  shapes = list(_shapes(image, plan_counts, relayed))
  for row in _measure_tasks(counts):
    task = int(row['task'])
    unit = layout.Unit(int(row['unit'])).name.lower()
    inside = 0 <= task < len(shapes)
    groups[shapes[task] if inside else (OUTSIDE, unit, 0, 0, 0)].append(row)
  direction = image.direction.name.lower()
  tiles = []
  for (kind, unit, rows, cols, depth), group_rows in sorted(groups.items()):
    mean = {
      n: float(np.mean([task_counts[n] for task_counts in group_rows]))
      for n in COUNT_NAMES
    }
    tiles.append(
      Tile(direction, kind, unit, rows, cols, depth, len(group_rows), mean)
    )
  return tiles


def _measure_tasks(counts: np.ndarray) -> np.ndarray:
  """Returns counts, with each task's time in place of its end."""
  order = np.lexsort([counts[n] for n in ('ns_ended', 'core', 'unit', 'rank')])
  rows = counts[order]
  core = [rows[n] for n in ('rank', 'unit', 'core')]
  on_same_core = np.all([np.equal(n[1:], n[:-1]) for n in core], axis=0)
  end_times = rows['ns_ended'].copy()
  rows['ns_ended'][1:] -= np.where(on_same_core, end_times[:-1], 0)
  return recfunctions.rename_fields(rows, {'ns_ended': 'ns'})


def _shapes(image: image_lib.Image, plan_counts, relayed) -> Iterator[tuple]:
  """Yields (kind, unit, rows, cols, depth) of each task."""
  real = faults.real_rows(image, plan_counts, relayed)
  config = image.config
  widths = {
    'd_model': config.d_model,
    'd_ff': config.d_ff,
    '2 d_ff': 2 * config.d_ff,
  }
  for task, rows in zip(image.tables['tasks'], real):
    kind = layout.Kind(int(task['kind']))
    depth = widths[_DEPTHS[kind]] if kind in _DEPTHS else 0
    if kind in _WEIGHT_TILES:
      # A weight tile sums over its real rows.
      depth, rows = rows, task['row_end'] - task['row_begin']
    yield (
      kind.name.lower(),
      layout.Unit(int(task['unit'])).name.lower(),
      int(rows),
      int(task['col_end'] - task['col_begin']),
      int(depth),
    )


def write_csv(table: list[Tile], file: TextIO) -> None:
  """Writes one line for each tile, under a line of names."""
  names = [field.name for field in dataclasses.fields(Tile)][:-1]
  writer = csv.DictWriter(file, [*names, *COUNT_NAMES], lineterminator='\n')
  writer.writeheader()
  for tile in table:
    row = tile.row()
    writer.writerow(
      {n: f'{v:g}' if isinstance(v, float) else v for n, v in row.items()}
    )
