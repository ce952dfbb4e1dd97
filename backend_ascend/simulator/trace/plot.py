"""A launch as a picture: the tasks of each worker, and use of the units."""

import os

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.reference.contract import plot_style

MOST_WORKERS = 160  # rows of the picture
_BINS = 240
_NAMED_ROWS = 24
_LEGEND_COLUMNS = (6, 4)  # where the entries fit in one row; where not
_UNITS = {'ms': 1e3, 'us': 1e6}


def shown_ranks(times: timeline.Timeline) -> list[int]:
  """Returns the ranks that a picture has room for: those that end last."""
  ranks = times.image.config.num_ranks
  ends = np.zeros(ranks)
  np.maximum.at(ends, times.tasks['rank'], times.end)
  options = times.image.options
  room = max(1, MOST_WORKERS // (options.num_aic + options.num_aiv))
  return sorted(np.argsort(-ends, kind='stable')[:room].tolist())


def utilisation(
  start: np.ndarray, end: np.ndarray, edges: np.ndarray
) -> np.ndarray:
  """Returns the mean number of intervals that are open in each bin, `[bins]`.

  Args:
    start: `[n]` seconds.
    end: `[n]` seconds.
    edges: `[bins + 1]` seconds, ascending.
  """

  def since(times: np.ndarray) -> np.ndarray:
    """Returns the seconds from all of `times` that lie before each edge."""
    ordered = np.sort(times)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    counts = np.searchsorted(ordered, edges)
    return counts * edges - sums[counts]

  return np.diff(since(start) - since(end)) / np.diff(edges)


def _rows(times: timeline.Timeline) -> tuple[np.ndarray, list[str]]:
  """Returns the row of each task, -1 where it is not shown, and their names."""
  if times.thread is not None:
    names = [f'thread {t}' for t in range(int(times.thread.max(initial=0)) + 1)]
    return times.thread.astype(np.int64), names
  queues = times.image.tables['queues']
  ranks = shown_ranks(times)
  is_shown = np.isin(queues['rank'], ranks)
  row = np.where(is_shown, np.cumsum(is_shown) - 1, timeline.NO_TASK)
  names = [
    f'{q["rank"]} {layout.Unit(q["unit"]).name} {q["core"]}'
    for q in queues[is_shown]
  ]
  return row[happens_before.locate_tasks(times.image)[0]], names


def colours(kinds) -> dict[layout.Kind, tuple]:
  """Returns red, green and blue of each kind of task, from 0 to 1."""
  from matplotlib.colors import to_rgb

  return {kind: to_rgb(plot_style.COLOURS[i]) for i, kind in enumerate(kinds)}


def _draw_tasks(axis, times: timeline.Timeline, scale: float) -> None:
  from matplotlib.collections import PolyCollection

  row, names = _rows(times)
  kinds = timeline.kinds(times.tasks)
  colour_of = colours(kinds)
  # Gaps between rows that are a pixel high would be stripes.
  half = 0.45 if len(names) <= _NAMED_ROWS else 0.5
  for kind in kinds:
    of_kind = (times.tasks['kind'] == kind) & (row != timeline.NO_TASK)
    left, right = times.start[of_kind] * scale, times.end[of_kind] * scale
    low, high = row[of_kind] - half, row[of_kind] + half
    ends = (left, low), (left, high), (right, high), (right, low)
    corners = np.stack([np.stack(end, -1) for end in ends], axis=1)
    axis.add_collection(
      PolyCollection(
        corners,
        facecolor=colour_of[kind],
        linewidth=0,
        label=kind.name.lower(),
        rasterized=True,
      )
    )
  axis.set_ylim(len(names) - 0.5, -0.5)
  _name_rows(axis, times, names)
  _legend(axis, len(kinds))


def _legend(axis, entries: int = 0) -> None:
  row, rows = _LEGEND_COLUMNS
  axis.legend(
    loc='lower center',
    bbox_to_anchor=(0.5, 1.0),
    ncols=row if entries <= row else rows,
    columnspacing=1.2,
    handlelength=1.4,
    frameon=False,
  )


def _name_rows(axis, times: timeline.Timeline, names: list[str]) -> None:
  if len(names) <= _NAMED_ROWS:
    axis.set_yticks(range(len(names)), names, fontsize=10)
    return
  groups = [' '.join(name.split()[:2]) for name in names]
  firsts = [i for i, g in enumerate(groups) if i == 0 or g != groups[i - 1]]
  ends = [*firsts[1:], len(names)]
  middles = [(a + b - 1) / 2 for a, b in zip(firsts, ends)]
  labels = ['rank ' + groups[a] for a in firsts]
  axis.set_yticks(middles, labels, fontsize=10)
  for first in firsts[1:]:
    axis.axhline(first - 0.5, color='black', linewidth=0.4)


def _draw_units(axis, times: timeline.Timeline, scale: float) -> None:
  tasks, options = times.tasks, times.image.options
  edges = np.linspace(0, times.total, _BINS + 1)
  middles = (edges[1:] + edges[:-1]) / 2 * scale
  ranks = times.image.config.num_ranks
  puts = timeline.is_put(tasks)
  aiv = tasks['unit'] == layout.Unit.AIV
  if times.thread is None:
    cores = {'AIC': options.num_aic * ranks, 'AIV': options.num_aiv * ranks}
  else:
    cores = dict.fromkeys(('AIC', 'AIV'), int(times.thread.max(initial=0)) + 1)
  axis.set_prop_cycle(color=plot_style.COLOURS)
  for name, mask, worker_name, line in (
    ('AIC', ~aiv, 'AIC', '-'),
    ('AIV', aiv, 'AIV', '-'),
    ('AIV, puts alone', puts, 'AIV', '--'),
  ):
    share = (
      utilisation(times.start[mask], times.end[mask], edges)
      / cores[worker_name]
    )
    axis.plot(middles, 100 * share, line, linewidth=1.5, label=name)
  axis.set_ylim(0, 102)
  worker_name = 'cores' if times.thread is None else 'threads'
  axis.set_ylabel(f'% of {worker_name}, all ranks')
  _legend(axis)


def _title(times: timeline.Timeline) -> str:
  config = times.image.config
  ranks = shown_ranks(times)
  title = (
    f'{times.image.direction.name.lower()}, {times.origin}: '
    f'{times.total * 1e3:.3f} ms, {len(times.start)} tasks'
  )
  if times.thread is None and len(ranks) < config.num_ranks:
    title += f'; shown: rank {", ".join(map(str, ranks))} of {config.num_ranks}'
  return title


def write_png(path: str | os.PathLike[str], times: timeline.Timeline) -> None:
  """Writes the picture.

  Raises:
    OSError: the file cannot be written.
    ImportError: matplotlib is missing.
  """
  unit = 'ms' if times.total >= 1e-3 else 'us'
  figure = plot_style.figure(7)
  tasks, units = figure.subplots(2, sharex=True, height_ratios=[3, 1])
  _draw_tasks(tasks, times, _UNITS[unit])
  _draw_units(units, times, _UNITS[unit])
  units.set_xlim(0, times.total * _UNITS[unit])
  units.set_xlabel(unit)
  figure.suptitle(_title(times), fontsize=11)
  plot_style.save(figure, path)
