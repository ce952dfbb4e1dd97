"""What a step of training costs.

One rank of each stage stands for all: data- and tensor-parallel ranks do the
same, and so do ranks of an expert group where routing is even.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.backend_ascend.simulator.plan import device_memory as memory_lib
from hpmoe.backend_ascend.simulator.plan import pipeline
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs

Plan = plan_lib.Plan
Setting = plan_lib.Setting
UnitTimes = unit_costs.UnitTimes


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of a training step under a plan.

  Attributes:
    plan: the plan.
    seconds: of a step.
    pipeline: s of it until the last backward pass ends.
    gradients: s of exposed sums of gradients and gathered weights.
    optimizer: s of its update.
    bubble: part of the pipeline in which a stage waits, on average.
    memory: of the fullest stage.
    tokens_per_second: of one device.
    mfu: `sizes.Model.flops` of that over the peak in bfloat16.
  """

  plan: Plan
  seconds: float
  pipeline: float
  gradients: float
  optimizer: float
  bubble: float
  memory: memory_lib.Memory
  tokens_per_second: float
  mfu: float


def hop(setting: Setting, plan: Plan) -> float:
  """Returns s from one stage to the next, 0 where it is hidden."""
  if plan.pp == 1 or 'pipeline' in setting.overlap:
    return 0.0
  size = 2 * setting.share(plan).own * setting.model.hidden
  return collectives.send(setting.machine, size, plan.tp * plan.dp)


def passes(
  setting: Setting,
  plan: Plan,
  unit_times: Mapping[str, UnitTimes],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `[P * V]` s of a micro-batch's passes through each chunk."""
  forward, backward = (
    unit_costs.sum_chunks(
      setting, plan, unit_times, lambda u, i=i: u.exposed_passes[i].seconds
    ).ravel()
    for i in range(2)
  )
  return forward, backward


def _sums(setting: Setting, plan: Plan, shared, experts) -> np.ndarray:
  """Returns `[P]` s to sum gradients and to gather weights."""
  size = setting.states.gradient + setting.states.weight
  machine = setting.machine
  return collectives.all_gather(
    machine, size * shared, plan.dp, plan.tp
  ) + collectives.all_gather(
    machine, size * experts, plan.dp // plan.ep, plan.tp * plan.ep
  )


def _update(setting: Setting, plan: Plan, shared, experts) -> float:
  """Returns s to read and write all states of a rank's share once."""
  states = setting.states
  state_bytes = 2 * states.optimizer + states.gradient + states.weight
  local_parameters = shared / plan.dp + experts * plan.ep / plan.dp
  return state_bytes * float(local_parameters.max()) / setting.machine['hbm']


def cost(costs: unit_costs.Costs, plan: Plan, exact: bool = True) -> Cost:
  """Returns the cost of a plan.

  Args:
    costs: of units, in a setting whose `refusal` lets the plan pass.
    plan: the plan.
    exact: whether the pipeline is simulated; else its bound stands for it.
  """
  setting, unit_memory = costs.setting, costs.memory(plan)
  forward, backward = passes(setting, plan, costs.times(plan))
  micros, wait = setting.micros(plan), hop(setting, plan)
  way = plan.pp, micros, wait
  run = (
    pipeline.simulate(forward.tolist(), backward.tolist(), *way).seconds
    if exact
    else pipeline.bound(forward, backward, *way)
  )
  own = memory_lib.parameters(setting, plan, unit_memory)
  sums = _sums(setting, plan, *own)
  if 'gradients' in setting.overlap:
    # Those of a stage behind its last backward passes.
    last = backward.reshape(plan.vpp, plan.pp).sum(0)
    sums = np.maximum(0.0, sums - last)
  update = _update(setting, plan, *own)
  whole = run + float(sums.max()) + update
  whole /= setting.machine['run_share'] or 1.0
  tokens = setting.global_batch * setting.sequence / setting.devices
  peak = setting.machine['aic'] * setting.machine['cube_bf16']
  busy = micros * float((forward + backward).sum()) / plan.pp
  return Cost(
    plan,
    whole,
    run,
    float(sums.max()),
    update,
    max(0.0, 1 - busy / run),
    memory_lib.fullest(setting, plan, unit_memory),
    tokens / whole,
    tokens / whole * setting.model.flops(setting.sequence) / peak,
  )


PARTS = ('compute', 'tensor', 'exchange', 'offload')


def parts(costs: unit_costs.Costs, cost: Cost) -> dict[str, float]:
  """Returns the seconds of a step by activity of an average stage.

  'compute', 'tensor', 'exchange' and 'offload' as far as they are not hidden;
  'waits' for other stages; 'gradients', 'optimizer'; 'run', what a run loses to
  `run_share`.
  """
  plan, setting = cost.plan, costs.setting
  unit_times = costs.times(plan)
  micros_per_stage = setting.micros(plan) / plan.pp
  seconds = {}
  for name in PARTS:
    exposed_seconds = unit_costs.sum_chunks(
      setting,
      plan,
      unit_times,
      lambda u, name=name: sum(getattr(p, name) for p in u.exposed_passes),
    )
    seconds[name] = micros_per_stage * float(exposed_seconds.sum())
  seconds['waits'] = cost.pipeline - sum(seconds.values())
  seconds |= dict(gradients=cost.gradients, optimizer=cost.optimizer)
  return seconds | dict(run=cost.seconds - sum(seconds.values()))
