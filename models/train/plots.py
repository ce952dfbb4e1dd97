"""Plots of a run: the loss, and which experts have how much to do."""

import os
import pathlib

from jaxtyping import Float
from jaxtyping import Int
import numpy as np

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.reference.contract import plot_style

LOSS, LOAD = 'loss.png', 'expert_load.png'
_WINDOW = 10  # steps that a line's mean covers


def write(
  folder: str | os.PathLike[str],
  losses: Float[np.ndarray, ' N'],
  loads: Int[np.ndarray, 'N M E'],
  layers: tuple[int, ...],
  bigram: float,
  held_out: float,
  unit: str = 'byte',
) -> None:
  """Writes `LOSS` and `LOAD` into a folder.

  Args:
    folder: where.
    losses: `[N]` of each step, nats for each token.
    loads: `[N, M, E]` tokens of each expert.
    layers: `[M]` the layers' numbers.
    bigram: entropy of the text, nats for each token.
    held_out: loss on text that was not trained on, nats for each token.
    unit: what a token is called.
  """
  figure = plot_style.figure(4.5)
  _draw_loss(figure.subplots(), losses, bigram, held_out, unit)
  atomic_folder.write_png(pathlib.Path(folder) / LOSS, figure)
  figure = plot_style.figure(1 + 1.5 * len(layers))
  axes = figure.subplots(len(layers), sharex=True, squeeze=False)[:, 0]
  for axis, layer, of_layer in zip(axes, layers, loads.swapaxes(0, 1)):
    image = _draw_load(axis, layer, of_layer)
  axes[-1].set_xlabel('step')
  figure.colorbar(image, ax=axes, label='load / mean load')
  atomic_folder.write_png(pathlib.Path(folder) / LOAD, figure)


def _draw_loss(axis, losses, bigram: float, held_out: float, unit: str) -> None:
  blue, orange, green = plot_style.COLOURS[:3]
  steps = np.arange(len(losses))
  axis.plot(steps, losses, color='0.75', linewidth=1, label='each step')
  if len(losses) >= _WINDOW:
    mean = np.convolve(losses, np.full(_WINDOW, 1 / _WINDOW), 'valid')
    label = f'mean of {_WINDOW} steps'
    axis.plot(steps[_WINDOW - 1 :], mean, color=blue, label=label)
  label = f'bigram entropy {bigram:.3f}'
  axis.axhline(bigram, color=orange, linestyle='--', label=label)
  label = f'held-out text {held_out:.3f}'
  axis.plot(steps[-1:], [held_out], 'o', color=green, label=label)
  axis.set(xlabel='step', ylabel=f'loss, nats per {unit}')
  axis.legend()


def _draw_load(axis, layer: int, loads: Int[np.ndarray, 'N E']):
  """Draws a row for each expert; returns the image."""
  share = loads / loads.mean(axis=1, keepdims=True)
  axis.set(ylabel=f'layer {layer}\nexpert')
  return axis.imshow(
    share.T,
    aspect='auto',
    interpolation='nearest',
    cmap='viridis',
    vmin=0,
    vmax=3,
  )
