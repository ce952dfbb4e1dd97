"""The memory of a device of each stage."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.backend_ascend.simulator.plan import pipeline
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs

Plan = plan_lib.Plan
Setting = plan_lib.Setting
UnitMemory = unit_costs.UnitMemory


@dataclasses.dataclass(frozen=True)
class Memory:
  """B of a device, of the fullest stage.

  Attributes:
    stage: its number.
    weights, gradients, optimizer: of its parameters.
    activations: kept for micro-batches in flight, and at work.
    host: what of them lies in the host, for each device.
  """

  stage: int
  weights: float
  gradients: float
  optimizer: float
  activations: float
  host: float = 0.0

  @property
  def total(self) -> float:
    """All but what lies in the host."""
    return self.weights + self.gradients + self.optimizer + self.activations


def parameters(
  setting: Setting,
  plan: Plan,
  unit_memory: Mapping[str, UnitMemory],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `[P]` twice: parameters of a rank, shared ones and experts."""
  shared, experts = (
    unit_costs.sum_chunks(setting, plan, unit_memory, value).sum(0)
    for value in (lambda u: u.shared, lambda u: u.experts)
  )
  return shared, experts


def memories(
  setting: Setting,
  plan: Plan,
  unit_memory: Mapping[str, UnitMemory],
) -> tuple[Memory, ...]:
  """Returns the memory of a device of each stage."""
  kept_bytes = unit_costs.sum_chunks(
    setting, plan, unit_memory, lambda u: u.saved_bytes
  )
  flying = pipeline.in_flight(plan.pp, plan.vpp, setting.micros(plan))
  active, host = (kept_bytes * flying.T).sum(0), np.zeros(plan.pp)
  if plan.offload:  # But for two units on their way.
    host = active
    active = np.minimum(
      active, 2 * max(u.saved_bytes for u in unit_memory.values())
    )
  active = active + max(u.working for u in unit_memory.values())
  shared, experts = parameters(setting, plan, unit_memory)
  whole = shared + experts
  apart = shared / plan.dp + experts * plan.ep / plan.dp
  states = setting.states
  rows = zip(
    states.weight * whole,
    states.gradient * whole,
    states.optimizer * apart,
    active,
    host,
  )
  return tuple(Memory(s, *map(float, row)) for s, row in enumerate(rows))


def fullest(
  setting: Setting,
  plan: Plan,
  unit_memory: Mapping[str, UnitMemory],
) -> Memory:
  """Returns the memory of a device of the fullest stage."""
  return max(
    memories(setting, plan, unit_memory), key=lambda memory: memory.total
  )
