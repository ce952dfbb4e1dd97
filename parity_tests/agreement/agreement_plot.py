"""Draws two runs by layer: tokens with other experts, and what that costs."""

import math
import pathlib

import numpy as np

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.parity_tests.agreement import agreement
from hpmoe.parity_tests.agreement import choices as choices_lib
from hpmoe.reference.contract import plot_style

_REASONS = (
  (choices_lib.TIE, plot_style.COLOURS[0]),
  (choices_lib.UPSTREAM, plot_style.COLOURS[1]),
  (choices_lib.UNEXPLAINED, plot_style.COLOURS[3]),
  ('', plot_style.COLOURS[7]),
)
_LINES = (
  ('x_apart', 'what layers read (median of tokens)', '-'),
  ('y_apart', 'what experts return', '-'),
  ('y_replayed', "the same with left's routing", '--'),
)


def write(path: str, title: str, result: agreement.Result) -> None:
  """Writes a PNG: shares of tokens by reason, and distances, by layer.

  Several steps and ranks are joined: shares are of all, distances the mean.

  Raises:
    ImportError: matplotlib is missing.
    OSError: the file cannot be written.
  """
  figure = plot_style.figure(6)
  upper, lower = figure.subplots(2, sharex=True)
  names = list(dict.fromkeys(row.name for row in result.rows))
  by_layer = [[r for r in result.rows if r.name == n] for n in names]
  places = np.arange(len(names))
  _draw_shares(upper, places, by_layer)
  upper.set(ylabel='% of tokens with other experts', title=title)
  for field, label, line in _LINES:
    means = [_average([getattr(r, field) for r in rows]) for rows in by_layer]
    if not all(map(math.isnan, means)):
      lower.plot(places, means, f'o{line}', markersize=4, label=label)
  lower.set(ylabel='difference / norm')
  heights = [y for line in lower.lines for y in line.get_ydata()]
  if any(y > 0 for y in heights):
    lower.set(yscale='log')
  step = max(1, math.ceil(len(names) / 24))
  labels = [str(rows[0].number) for rows in by_layer]
  lower.set_xticks(places[::step], labels[::step])
  lower.set(xlabel='layer')
  for axis in (upper, lower):
    if axis.get_legend_handles_labels()[0]:
      axis.legend(fontsize='small')
  atomic_folder.write_png(pathlib.Path(path), figure)


def _draw_shares(axis, places, by_layer) -> None:
  bottom = np.zeros(len(places))
  for reason, colour in _REASONS:
    shares = np.array(
      [
        100
        * sum(r.choices.count(reason) for r in rows)
        / max(1, sum(r.tokens for r in rows))
        for rows in by_layer
      ]
    )
    if shares.any():
      label = reason or 'not known'
      axis.bar(places, shares, bottom=bottom, color=colour, label=label)
    bottom = bottom + shares


def _average(values: list[float]) -> float:
  finite = [value for value in values if not math.isnan(value) and value > 0]
  return sum(finite) / len(finite) if finite else math.nan
