"""Images of few tasks, and routings for them."""

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as lowering
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

DIRECTIONS = ('forward', 'backward')
# One has parts enough for a cache that holds some of them.
SHAPES = lowering.SHAPES | {
  'many_parts': config_testing.make_config(r=2, t=24, e=4, k=2, d=24, f=16)
}


def image_of(
  shape: str = 'ragged',
  *,
  direction: str = 'forward',
  grain: str = 'row_block',
  placement: str = 'combine',
  **options,
) -> image_lib.Image:
  """Returns an image of small, awkward tiles."""
  options = dict(row_block=4, col_block=3, num_aic=2, num_aiv=3) | options
  return lowering.COMPILE[direction](
    SHAPES[shape],
    precision.PrecisionPolicy(placement=placement),
    granularity.Options(event_grain=grain, **options),
  ).image


def routing_of(image, seed: int = 0) -> np.ndarray:
  """Returns `[R, T, K]` distinct experts of each token."""
  dims = image.config.dims()
  draw = np.random.default_rng(seed).random((dims['R'], dims['T'], dims['E']))
  return np.argsort(draw, axis=-1)[..., : dims['K']].astype(np.int32)
