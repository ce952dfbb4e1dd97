"""A layer whose forward products are of int8, in modelled time.

The image is that of `--weights=int8_channel --rows=int8_token`: puts quantise
tokens, cubes write int32 sums, and the activation's tasks quantise again.
Training quantises its weights in each pass, before the launch.  The backward
pass stays in bfloat16, and first makes numbers of the rows that it sums into
gradients of weights.  What is priced so can be judged by measured times of a
layer of int8: `hpmoe reproduce pto-megamoe`.
"""

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.tune import tuner

# Of an element: casts, absolute value, row maximum, scale and casts to int8.
_QUANTISE_OPS = 8
# A cast and a scale.
_DEQUANTISE_OPS = 2


def _convert_seconds(layer: tuner.Layer, elements: float, ops: float) -> float:
  """Returns s of a pass over codes and numbers that runs beside nothing."""
  machine = layer.machine
  width = float(simulate.ELEMENTS[layer.policy.storage][0])
  memory_seconds = elements * (1 + width) / machine['hbm']
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
  sizes = layer.config.dims()
  run = tuner.simulate_stored(layer, direction, image, topk_ids)
  if direction == layout.Direction.BACKWARD:
    rows = int(np.bincount(topk_ids.ravel() // sizes['L']).max())
    elements = rows * (sizes['D'] + sizes['F'])
    return _convert_seconds(layer, elements, _DEQUANTISE_OPS) + run
  weights = 3 * sizes['L'] * sizes['D'] * sizes['F']
  return _convert_seconds(layer, weights, _QUANTISE_OPS) + run
