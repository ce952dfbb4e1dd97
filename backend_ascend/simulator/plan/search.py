"""All plans of a setting, and the fastest that fit."""

import collections
from collections.abc import Callable, Collection, Iterator, Mapping
import dataclasses
import heapq
import itertools

from hpmoe.backend_ascend.simulator.plan import device_memory as memory_lib
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import step as step_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs

_MICRO_BATCHES = (1, 2, 4, 8)
PADS = (0, 1, 2, 3, 4)
_MOST_TP, _MOST_VPP = 16, 8
_PROGRESS_STEP = 500  # plans from one line of progress to the next
Choices = Mapping[str, Collection]


@dataclasses.dataclass(frozen=True)
class SearchResult:
  """The result of a search.

  Attributes:
    ranked: the fastest plans, fastest first; their pipelines are simulated.
    plans: number of plans that were considered.
    num_refused: number of plans that do not divide the model or the devices.
    too_large: number of plans that need more memory than a device has.
    smallest_excess: B that the smallest of those needs; 0 if there is none.
    reason: why most refused plans were refused; '' if there is none.
    layers: number of distinct MoE layers that the engine ran.
  """

  ranked: tuple[step_lib.Cost, ...]
  plans: int
  num_refused: int
  too_large: int
  smallest_excess: float
  reason: str = ''
  layers: int = 0


def _divisors(number: int) -> list[int]:
  return [d for d in range(1, number + 1) if number % d == 0]


def plans(
  setting: plan_lib.Setting, choices_of: Choices | None = None
) -> Iterator[plan_lib.Plan]:
  """Yields every plan whose TP, PP and DP multiply to the number of devices.

  Args:
    setting: model, machine and devices.
    choices_of: allowed values by field of `Plan`.
  """
  model, choices_of = setting.model, choices_of or {}
  units = len(model.units())

  def select(name: str, choices: Collection) -> Collection:
    return choices_of.get(name, choices)

  alike = [d for d in _divisors(setting.devices) if d <= units]
  split = [d for d in alike if d <= _MOST_TP and model.heads % d == 0]
  for tp in select('tp', split):
    for pp in select('pp', alike):
      dp = setting.devices // (tp * pp)
      if tp * pp * dp != setting.devices or dp not in select('dp', (dp,)):
        continue
      deep = min(units // pp, _MOST_VPP) if pp > 1 else 1
      whole = [d for d in _divisors(dp) if model.experts % (tp * d) == 0]
      for rest in itertools.product(
        select('vpp', range(1, deep + 1)),
        select('ep', whole),
        select('micro_batch', _MICRO_BATCHES),
        select('pad', PADS if pp > 1 else (0,)),
        select('recompute', plan_lib.RECOMPUTE),
        select(
          'offload', (False, True) if setting.machine['host_link'] else (False,)
        ),
      ):
        vpp, ep, micro_batch, pad, recompute, offload = rest
        yield plan_lib.Plan(
          tp, pp, vpp, ep, dp, micro_batch, pad, recompute, offload
        )


def search(
  setting: plan_lib.Setting,
  layers: moe_layer.Timer,
  top: int = 10,
  choices_of: Choices | None = None,
  tell: Callable[[str], None] = lambda text: None,
) -> SearchResult:
  """Returns the plans with most tokens a second, in order.

  A plan is timed in three ways, each no faster than the one before: by bounds
  of its layers and its pipeline; with layers that the engine runs; and with its
  pipeline simulated, too.  The plan with the fastest time so far is timed next,
  until `top` plans are fully timed.  So most layers never run, and no better
  plan is missed.

  Args:
    setting: model, machine and devices.
    layers: the engine's times.
    top: number of plans to rank.
    choices_of: allowed values by field of `Plan`.
    tell: called with a line of progress.
  """
  bounds = unit_costs.Costs(setting, moe_layer.Roofline(setting.machine))
  costs = unit_costs.Costs(setting, layers)
  times = (
    lambda plan: step_lib.cost(bounds, plan, exact=False),
    lambda plan: step_lib.cost(costs, plan, exact=False),
    lambda plan: step_lib.cost(costs, plan),
  )
  fits, counts = _select_fitting(setting, bounds, choices_of, tell)
  waiting: list[tuple[float, plan_lib.Plan, int]] = []
  for plan in fits:
    if len(waiting) % _PROGRESS_STEP == 0:
      tell(f'{len(waiting):,} of {len(fits):,} plans that fit')
    waiting.append((times[0](plan).seconds, plan, 0))
  heapq.heapify(waiting)
  ranked: list[step_lib.Cost] = []
  before = len(layers.times)
  while waiting and len(ranked) < top:
    _, plan, stage = heapq.heappop(waiting)
    if stage == len(times) - 1:
      ranked.append(times[stage](plan))
      continue
    tell(f'rank {len(ranked) + 1}')
    seconds = times[stage + 1](plan).seconds
    heapq.heappush(waiting, (seconds, plan, stage + 1))
  return dataclasses.replace(
    counts, ranked=tuple(ranked), layers=len(layers.times) - before
  )


def _select_fitting(
  setting, costs, choices_of, tell
) -> tuple[list[plan_lib.Plan], SearchResult]:
  """Returns the plans that divide and fit, and counts of the others."""
  room = setting.memory_share * setting.machine['memory']
  fits, looked, needs = [], 0, []
  whys: collections.Counter[str] = collections.Counter()
  for plan in plans(setting, choices_of):
    if looked % _PROGRESS_STEP == 0:
      tell(f'memory of {looked:,} plans')
    looked += 1
    if reason := setting.refusal(plan):
      whys[reason] += 1
      continue
    size = memory_lib.fullest(setting, plan, costs.memory(plan)).total
    if size <= room:
      fits.append(plan)
    else:
      needs.append(size)
  reason = whys.most_common(1)[0][0] if whys else ''
  smallest_excess = min(needs, default=0.0)
  return fits, SearchResult(
    (), looked, whys.total(), len(needs), smallest_excess, reason
  )
