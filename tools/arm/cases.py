"""Launches of which another machine must give the bits, and the bits."""

from collections.abc import Iterator
import dataclasses
import pathlib

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.parity_tests.ascend.determinism import interleavings
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import precision

# Several ranks in one process; a layer that no vector length divides; routing
# weights that travel with their rows.
_CORES = ((3, 5),)
_ORDERS = precision.ACCUMULATION_ORDERS
LAYERS = (
  interleavings.Plan(
    preset='tiny', ranks=4, layouts=_CORES, accumulation_orders=_ORDERS
  ),
  interleavings.Plan(
    preset='tiny',
    ranks=2,
    placement='before_down',
    routing='text',
    layouts=_CORES,
    accumulation_orders=_ORDERS,
  ),
  interleavings.Plan(
    preset='odd', ranks=1, layouts=_CORES, accumulation_orders=_ORDERS
  ),
)
# What the first input is multiplied by: subnormal numbers of its dtype.
_SUBNORMAL = dict(float32=2.0**-140, bfloat16=2.0**-130, float16=2.0**-18)


@dataclasses.dataclass(frozen=True)
class Case:
  """One image and its inputs.

  Attributes:
    name: of layer, data, pass and dtype: what fixes the bits.
    image, inputs: as `runtime.launch` takes them.
  """

  name: str
  image: image_lib.Image
  inputs: dict[str, np.ndarray]


def cases(layers=LAYERS) -> Iterator[Case]:
  """Yields both passes of each layer, in every dtype, order and granularity.

  The first layer comes again with a subnormal first input.
  """
  for i, plan in enumerate(layers):
    for dtype, order in plan.sums:
      layer_inputs = interleavings.make_inputs(plan, dtype, order)
      yield from _passes(plan, layer_inputs, 'drawn')
      if i == 0:
        yield from _passes(plan, layer_inputs, 'subnormal', _SUBNORMAL[dtype])


def _passes(
  plan: interleavings.Plan, layer_inputs, data: str, scale=1.0
) -> Iterator[Case]:
  for pass_ in (passes.FORWARD, passes.BACKWARD):
    inputs = dict(
      interleavings.select_pass_inputs(plan, pass_, layer_inputs).arrays
    )
    first = arrays.INPUTS[pass_.direction][0]
    inputs[first] = _times(inputs[first], scale)
    sums = interleavings.describe_sums(layer_inputs)
    name = ' '.join(
      (plan.preset, f'R={plan.ranks}', plan.placement, data, pass_.name, sums)
    )
    for options in plan.options():
      yield Case(
        name, interleavings.compile_image(pass_, layer_inputs, options), inputs
      )


def _times(array: np.ndarray, scale: float) -> np.ndarray:
  return (array.astype(np.float64) * scale).astype(array.dtype)


def write(case: Case, folder: pathlib.Path) -> None:
  """Writes a case's image and inputs as `launch_files` reads them."""
  folder.mkdir(parents=True)
  (folder / 'image.bin').write_bytes(case.image)
  for name in arrays.INPUTS[case.image.direction]:
    if name in case.inputs:
      array = arrays.fitting(case.image, name, case.inputs[name])
      (folder / f'{name}.in').write_bytes(array.tobytes())


def read(case: Case, folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the outputs of `launch_files`, by name."""
  return {
    name: np.fromfile(
      folder / f'{name}.out', arrays.dtype(case.image, name)
    ).reshape(arrays.shape(case.image, name))
    for name in arrays.OUTPUTS[case.image.direction]
    if (folder / f'{name}.out').exists()
  }


def run_here(case: Case) -> dict[str, np.ndarray]:
  """Returns the outputs of a launch on this machine."""
  return runtime.launch(case.image, case.inputs)
