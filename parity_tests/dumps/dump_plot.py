"""Draws a dump by layer: the largest error of each tensor over its limit."""

from collections.abc import Sequence
import math
import pathlib

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.parity_tests.dumps import dump_check
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.reference.contract import plot_style

_STAGES = ('y', *dump_layers.GRADS)


def write(path: str, title: str, rows: Sequence[dump_check.Verdict]) -> None:
  """Writes a PNG: of the calls of each layer the largest share of a limit.

  A layer that could not be judged has a cross on top.

  Raises:
    ImportError: matplotlib is missing.
    OSError: the file cannot be written.
  """
  figure = plot_style.figure(4.5)
  axis = figure.subplots()
  layers: dict[str, list[dump_check.Verdict]] = {}
  for row in rows:
    layers.setdefault(row.call.path, []).append(row)
  for stage, colour in zip(_STAGES, plot_style.COLOURS):
    shares = [_find_share(calls, stage) for calls in layers.values()]
    if not all(map(math.isnan, shares)):
      axis.plot(shares, 'o-', markersize=4, color=colour, label=stage)
  absent = [
    place
    for place, calls in enumerate(layers.values())
    if any(call.report is None for call in calls)
  ]
  if absent:
    transform = axis.get_xaxis_transform()
    heights = [0.97] * len(absent)
    axis.plot(absent, heights, 'kx', transform=transform, label='not judged')
  axis.axhline(1, color=plot_style.COLOURS[3], ls='--', label='limit')
  axis.set(yscale='log', ylabel='largest error / limit', xlabel='layer')
  step = max(1, math.ceil(len(layers) / 24))
  axis.set_xticks(
    range(0, len(layers), step), [_name(path) for path in layers][::step]
  )
  axis.set_title(title)
  axis.legend(fontsize='small')
  atomic_folder.write_png(pathlib.Path(path), figure)


def _find_share(calls: Sequence[dump_check.Verdict], stage: str) -> float:
  shares = [call.shares.get(stage, math.nan) for call in calls]
  finite = [share for share in shares if math.isfinite(share) and share > 0]
  return max(finite, default=math.nan)


def _name(path: str) -> str:
  number = dump_layers.find_number(path)
  return path if number < 0 else str(number)
