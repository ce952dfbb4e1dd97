"""Plots the distance of two sides from layer to layer."""

import math
import pathlib
from typing import Any

import numpy as np

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.parity_tests.compare import compare
from hpmoe.parity_tests.compare import report
from hpmoe.reference.contract import plot_style


def write(path: str, title: str, result: compare.Result) -> None:
  """Writes a PNG: the distance of each module's outputs, in each direction.

  The distance is EucDist over the reference's norm, on a logarithmic scale,
  without outputs whose bits are equal; a module without a number has a cross.

  Raises:
    ImportError: matplotlib is missing.
    OSError: the file cannot be written.
  """
  figure = plot_style.figure(9 if result.steps else 4.5)
  axes = np.atleast_1d(figure.subplots(2 if result.steps else 1))
  axis = axes[0]
  # In the order of computation; backward in the same order from left to right.
  places: dict[str, int] = {}
  for number, (way, by_module) in enumerate(report.distances(result).items()):
    for module in by_module:
      places.setdefault(module, len(places))
    _draw(axis, plot_style.COLOURS[number], way, by_module, places)
  axis.set_xticks([*places.values()], [*places], rotation=45, ha='right')
  _mark(axis, result, places)
  axis.set(ylabel='difference / norm', title=title)
  _scale(axis)
  axis.legend()
  if result.steps:
    _draw_steps(axes[1], result)
  atomic_folder.write_png(pathlib.Path(path), figure)


def _draw(
  axis, colour: str, way: str, by_module: dict[str, float], places
) -> None:
  points = sorted((places[m], far) for m, far in by_module.items() if far > 0)
  steps, fars = zip(*points) if points else ((), ())
  axis.plot(steps, fars, 'o-', color=colour, label=way)
  undefined = [places[m] for m, far in by_module.items() if far != far]
  if undefined:
    transform = axis.get_xaxis_transform()
    axis.plot(
      undefined, [0.97] * len(undefined), 'x', color=colour, transform=transform
    )


def _scale(axis) -> None:
  """Makes an axis logarithmic, unless it is empty."""
  heights = [y for line in axis.lines for y in line.get_ydata()]
  if any(y > 0 for y in heights):
    axis.set(yscale='log')


def _draw_steps(axis, result: compare.Result) -> None:
  """Draws the difference of each module by step; predictions are dashed."""
  numbers = [step.number for step in result.steps]
  for place, module in enumerate(result.steps[0].measured.modules):
    colour = plot_style.COLOURS[place % len(plot_style.COLOURS)]
    for kind, line in (('measured', '-'), ('predicted', '--')):
      fars = [getattr(s, kind).modules[module] for s in result.steps]
      label = module if kind == 'measured' else None
      heights = [far or math.nan for far in fars]
      axis.plot(numbers, heights, line, color=colour, label=label)
  label_text = 'difference / norm (dashed: predicted)'
  axis.set(xlabel='step of training', ylabel=label_text)
  _scale(axis)
  axis.legend(fontsize='small')


def _mark(axis, result: compare.Result, places: dict[str, int]) -> None:
  wrong: Any = result.wrong
  module = wrong and f'layers.{wrong.layer}'
  if module in places:
    label = f'experts of layer {wrong.layer} are wrong'
    axis.axvline(
      places[module], color=plot_style.COLOURS[3], ls='--', label=label
    )
