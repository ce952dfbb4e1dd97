"""Null predictors: they predict a row without a simulation.

A simulator that predicts held-out rows no better has no skill.  One predictor
repeats the nearest fitted row.  The second, a roofline, scales that row by the
time of the busiest resource at its peak; without a fitted row it uses the
machine's own scale.  Two more know the held-out rows: they repeat the best
constant for all rows of a group, or scale the roofline by one, in hindsight.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.orders import model
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.reference.contract import config as config_lib

NEAREST, ROOFLINE = 'nearest fitted row', 'roofline'
CONSTANT, SCALED = 'best constant', 'best-scaled roofline'
NAMES = (NEAREST, ROOFLINE, CONSTANT, SCALED)


def best_constant(published: Sequence[float]) -> float:
  """Returns the constant with the least mean absolute relative error.

  It is one of the values: between two of them the error is linear.
  """

  def error(constant: float) -> float:
    return sum(abs(constant / value - 1) for value in published)

  return min(published, key=error)


def _scaled(
  rows: Sequence[witness_lib.Row], plain: witness_lib.Values
) -> dict[str, float]:
  """Returns `plain`, scaled by the best constant of a group.

  Of the rows that are evidence and that `plain` knows.
  """
  groups: dict[str, list[witness_lib.Row]] = {}
  for row in rows:
    if row.counts and plain.get(row.name):
      groups.setdefault(row.group, []).append(row)
  return {
    row.name: scale * plain[row.name]
    for group in groups.values()
    for scale in [best_constant([x.published / plain[x.name] for x in group])]
    for row in group
  }


def predictions(
  witness: witness_lib.Witness, machines: witness_lib.Machines
) -> dict[str, dict[str, float]]:
  """Returns the predictions by name of the predictor and by row.

  A row has no roofline where that of the row that it is scaled by is unknown.
  """
  rows = {row.name: row for row in witness.rows}
  near = {n: rows[row.nearest] for n, row in rows.items() if row.nearest}
  plain = witness.roofline(machines)
  scale = {n: 1.0 for n in rows if n not in near} | {
    n: other.published / plain[other.name]
    for n, other in near.items()
    if other.name in plain
  }
  return {
    NEAREST: {n: other.published for n, other in near.items()},
    ROOFLINE: {n: x * scale[n] for n, x in plain.items() if n in scale},
    CONSTANT: _scaled(witness.rows, dict.fromkeys(rows, 1.0)),
    SCALED: _scaled(witness.rows, plain),
  }


@dataclasses.dataclass(frozen=True)
class Roofline:
  """Seconds that each resource of a pass needs at its peak.

  Attributes:
    products: of all AIC of the busiest rank.
    memory: to read the weights of a rank once, and each row.
    exchange: of the busiest link, there and back.
  """

  products: float
  memory: float
  exchange: float

  @property
  def fused(self) -> float:
    """Seconds if all resources work at the same time."""
    return max(self.products, self.memory, self.exchange)

  @property
  def operators(self) -> float:
    """Seconds if operators run one after the other."""
    return max(self.products, self.memory) + self.exchange


def roofline(
  config: config_lib.MoEConfig,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
  direction: layout.Direction = layout.Direction.FORWARD,
  element: str = 'bfloat16',
  home_bytes: float | None = None,
) -> Roofline:
  """Returns the roofline of a pass.

  Args:
    config: sizes.
    machine: its published rates; no efficiency.
    topk_ids: `[R, T, K]` i32.
    direction: the pass; a backward one has twice the products.
    element: of what products read, a name of `simulate.ELEMENTS`.
    home_bytes: of an element on its way home, if it is another.
  """
  width, cube, _ = simulate.ELEMENTS[element]
  traffic = model.traffic(config, machine, topk_ids)
  size = config.dims()
  weights = 3 * size['D'] * size['F']
  passes = 1 if direction == layout.Direction.FORWARD else 2
  rows = float(traffic.rows.sum())
  dispatch_seconds, return_seconds = traffic.link_s
  seconds = size['D'] * (
    dispatch_seconds * width + return_seconds * (home_bytes or width)
  )
  return Roofline(
    passes * 2 * rows * weights / (machine['aic'] * machine[cube]),
    (size['L'] * weights + rows * size['D']) * width / machine['hbm'],
    float(seconds.max(initial=0.0)),
  )
