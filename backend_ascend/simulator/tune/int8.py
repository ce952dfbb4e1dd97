"""A layer whose forward products are of int8, in modelled time alone.

The oracle has it (`--weights=int8_channel --rows=int8_token`), our flow has
no such tasks: those of bfloat16 are priced with elements of a byte.  Tokens are
quantised before they are sent, and rows again behind the activation; weights in
each pass.  The backward pass stays in bfloat16, and first makes numbers of the
rows that it sums into gradients of weights.  What is priced so can be judged by
measured times of a layer of int8: `hpmoe reproduce pto-megamoe`.
"""

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.tune import tuner

_ELEMENT = 'int8'
# What products write, and what goes home, in the storage of the layer.
_STORED_BUFFERS = ('gate_up', 'expert_out', 'returned', 'y')
# Of an element: casts, absolute value, row maximum, scale and casts to int8.
_QUANTISE_OPS = 8
# A cast and a scale.
_DEQUANTISE_OPS = 2


def _width(layer: tuner.Layer) -> float:
  return float(simulate.ELEMENTS[layer.policy.storage][0])


def _convert_seconds(layer: tuner.Layer, elements: float, ops: float) -> float:
  """Returns s of a pass over codes and numbers that runs beside nothing."""
  machine = layer.machine
  memory_seconds = elements * (1 + _width(layer)) / machine['hbm']
  return max(
    memory_seconds, elements * ops / (machine['aiv'] * machine['vector'])
  )


def seconds(
  layer: tuner.Layer,
  direction: layout.Direction,
  image: image_lib.Image,
  topk_ids: np.ndarray,
) -> float:
  """Returns s of a pass; arguments as of `tuner.simulate_stored`."""
  sizes, machine = layer.config.dims(), layer.machine
  if direction == layout.Direction.BACKWARD:
    rows = int(np.bincount(topk_ids.ravel() // sizes['L']).max())
    elements = rows * (sizes['D'] + sizes['F'])
    conversion = _convert_seconds(layer, elements, _DEQUANTISE_OPS)
    return conversion + tuner.simulate_stored(layer, direction, image, topk_ids)
  weights = 3 * sizes['L'] * sizes['D'] * sizes['F']
  front = _convert_seconds(
    layer, weights + sizes['T'] * sizes['D'], _QUANTISE_OPS
  )
  # Of a written element, besides: the scales of both halves of its row.
  ops = machine['activation_ops'] + 2 + _QUANTISE_OPS
  run = simulate.simulate(
    image,
    machine.with_figures(activation_ops=ops),
    topk_ids,
    element=_ELEMENT,
    element_bytes=dict.fromkeys(_STORED_BUFFERS, _width(layer)),
  )
  return front + run.total
