"""What tiles take of a core's pipes, as a table that a cost model can read."""

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

# What is counted of a tile; `ns` is from the end of the task before it on its
# core to its own, waits for other cores left out.
COUNTED = (*tuple(twin_report.COUNTS.fields or ())[4:-1], 'ns')
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
  """What tasks of one kind and shape took.

  Attributes:
    direction: 'forward' or 'backward'.
    kind: a name of `layout.Kind`, in small letters, or OUTSIDE.
    unit: 'aic' or 'aiv'.
    rows: of the tile that are real: rows of an expert, tokens, or rows of a
      weight.
    cols: of the tile.
    depth: terms of each sum of a cube tile; 0 of a vector tile.
    tasks: how many there were; of OUTSIDE, cores.
    counted: for each of COUNTED, the mean of a task.
  """

  direction: str
  kind: str
  unit: str
  rows: int
  cols: int
  depth: int
  tasks: int
  counted: dict[str, float]

  def row(self) -> dict[str, object]:
    """Returns it as one flat record."""
    fields = dataclasses.asdict(self)
    return fields | fields.pop('counted')


def tiles(
  image: image_lib.Image,
  plan_counts: np.ndarray,
  counts: np.ndarray,
  relayed: np.ndarray | None = None,
) -> list[Tile]:
  """Returns what tiles of each kind and shape took.

  Args:
    image: what was launched.
    plan_counts: `[R, E]` i32, of its routing.
    counts: `[n]` `twin_report.COUNTS`, of the launch.
    relayed: as of `faults.real_rows`.
  """
  groups: dict[tuple, list[np.void]] = collections.defaultdict(list)
  shapes = list(_shapes(image, plan_counts, relayed))
  for row in _timed(counts):
    task = int(row['task'])
    unit = layout.Unit(int(row['unit'])).name.lower()
    inside = 0 <= task < len(shapes)
    groups[shapes[task] if inside else (OUTSIDE, unit, 0, 0, 0)].append(row)
  direction = image.direction.name.lower()
  made = []
  for (kind, unit, rows, cols, depth), held in sorted(groups.items()):
    mean = {n: float(np.mean([one[n] for one in held])) for n in COUNTED}
    made.append(Tile(direction, kind, unit, rows, cols, depth, len(held), mean))
  return made


def _timed(counts: np.ndarray) -> np.ndarray:
  """Returns counts, the end of each replaced by its time."""
  order = np.lexsort([counts[n] for n in ('ns_ended', 'core', 'unit', 'rank')])
  rows = counts[order]
  core = [rows[n] for n in ('rank', 'unit', 'core')]
  same = np.all([np.equal(n[1:], n[:-1]) for n in core], axis=0)
  ended = rows['ns_ended'].copy()
  rows['ns_ended'][1:] -= np.where(same, ended[:-1], 0)
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
      # Its real rows are those that it sums.
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
  writer = csv.DictWriter(file, [*names, *COUNTED], lineterminator='\n')
  writer.writeheader()
  for tile in table:
    row = tile.row()
    writer.writerow(
      {n: f'{v:g}' if isinstance(v, float) else v for n, v in row.items()}
    )
