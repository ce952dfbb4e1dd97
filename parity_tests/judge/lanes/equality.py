"""Rules under which a tensor must equal another."""

from collections.abc import Callable

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import tile_lanes

ORACLE_RULE = 'equals the oracle'
WIDE_RULE = 'equals the oracle on wide data'
SERIAL_RULE = 'equals its kernels run serially'
USED_RULE = 'equals the launch that front ends make'
ORDERED_RULE = 'equals the oracle in its order'


def compare_equal(
  name: str,
  lane: str,
  rule: str,
  actual: passes.Tensors,
  expected: passes.Tensors,
  tiling: tiles.Tiling,
) -> verdicts.Result:
  """Compares one tensor; if it was not returned, the row says so."""
  if name not in actual:
    return verdicts.not_captured(name, lane, rule, name)
  return tile_lanes.compare(
    name, lane, rule, actual[name], expected[name], tiling
  )


def select_unequal(
  actual: passes.Tensors, expected: passes.Tensors, lane: str = 'bitwise'
) -> Callable[[str], np.ndarray]:
  """Returns a function: stage name -> `[R, ...]` bool, refused elements."""
  return lambda name: tile_lanes.differs(lane, actual[name], expected[name])
