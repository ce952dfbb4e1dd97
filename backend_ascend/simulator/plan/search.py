"""All plans of a setting, and the fastest that fit."""

import collections
from collections.abc import Callable, Collection, Iterator, Mapping
import dataclasses
import heapq
import itertools

from hpmoe.backend_ascend.simulator.plan import memory as memory_lib
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import step as step_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs

_MICRO_BATCHES = (1, 2, 4, 8)
PADS = (0, 1, 2, 3, 4)
_MOST_TP, _MOST_VPP = 16, 8
_PROGRESS_STEP = 500  # plans from one line of progress to the next
Only = Mapping[str, Collection]


@dataclasses.dataclass(frozen=True)
class Found:
  """What a search found.

  Attributes:
    ranked: the fastest, first the fastest; their pipelines are simulated.
    plans: that were looked at.
    refused: of them, that do not divide.
    too_large: of them, whose memory is not enough.
    least: B of the smallest of those, 0 if there is none.
    why: what most of those lack that do not divide, '' if there is none.
    layers: distinct MoE layers that the engine ran.
  """

  ranked: tuple[step_lib.Cost, ...]
  plans: int
  refused: int
  too_large: int
  least: float
  why: str = ''
  layers: int = 0


def _divisors(number: int) -> list[int]:
  return [d for d in range(1, number + 1) if number % d == 0]


def plans(
  setting: plan_lib.Setting, only: Only | None = None
) -> Iterator[plan_lib.Plan]:
  """Yields every plan whose TP, PP and DP make the devices.

  Args:
    setting: what is planned.
    only: by field of `Plan`, what it may be.
  """
  model, only = setting.model, only or {}
  units = len(model.units())

  def some(name: str, choices: Collection) -> Collection:
    return only.get(name, choices)

  alike = [d for d in _divisors(setting.devices) if d <= units]
  split = [d for d in alike if d <= _MOST_TP and model.heads % d == 0]
  for tp in some('tp', split):
    for pp in some('pp', alike):
      dp = setting.devices // (tp * pp)
      if tp * pp * dp != setting.devices or dp not in some('dp', (dp,)):
        continue
      deep = min(units // pp, _MOST_VPP) if pp > 1 else 1
      whole = [d for d in _divisors(dp) if model.experts % (tp * d) == 0]
      for rest in itertools.product(
        some('vpp', range(1, deep + 1)),
        some('ep', whole),
        some('micro_batch', _MICRO_BATCHES),
        some('pad', PADS if pp > 1 else (0,)),
        some('recompute', plan_lib.RECOMPUTE),
        some(
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
  only: Only | None = None,
  tell: Callable[[str], None] = lambda text: None,
) -> Found:
  """Returns the plans of most tokens a second, in order.

  A plan is timed three times, each no faster than the time before: by bounds
  of its layers and its pipeline; with layers that the engine runs; with its
  pipeline simulated, too.  The one that may be the fastest is timed next, until
  `top` are timed for good: so most layers never run, and no better plan is
  missed.

  Args:
    setting: what is planned.
    layers: the engine's times.
    top: how many are ranked.
    only: by field of `Plan`, what it may be.
    tell: is told what is done.
  """
  bounds = unit_costs.Costs(setting, moe_layer.Roofline(setting.machine))
  costs = unit_costs.Costs(setting, layers)
  times = (
    lambda plan: step_lib.cost(bounds, plan, exact=False),
    lambda plan: step_lib.cost(costs, plan, exact=False),
    lambda plan: step_lib.cost(costs, plan),
  )
  fits, counts = _select_fitting(setting, bounds, only, tell)
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
  setting, costs, only, tell
) -> tuple[list[plan_lib.Plan], Found]:
  """Returns the plans that divide and fit, and how many do not."""
  room = setting.memory_share * setting.machine['memory']
  fits, looked, needs = [], 0, []
  whys: collections.Counter[str] = collections.Counter()
  for plan in plans(setting, only):
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
  least = min(needs, default=0.0)
  return fits, Found((), looked, whys.total(), len(needs), least, reason)
