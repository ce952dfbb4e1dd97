"""The search misses no better plan, and says what it left out."""

import dataclasses

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import decoder_sizes_test
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import search as search_lib
from hpmoe.backend_ascend.simulator.plan import step as step_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs

A3 = machine_lib.load('ascend_a3')
MODEL = dataclasses.replace(
  decoder_sizes_test.TINY,
  layers=8,
  hidden=256,
  vocabulary=1024,
  heads=4,
  kv_heads=2,
  qk_dim=64,
  v_dim=64,
  dense_width=512,
  experts=8,
  expert_width=256,
  shared_width=0,
)
SETTING = plan_lib.Setting(MODEL, A3, 8, sequence=256, global_batch=32)
CHOICES = dict(pad=(0, 2), recompute=('none', 'cheap'), micro_batch=(1, 2))


def test_the_ranking_is_that_of_trying_all():
  # Given a setting in which bounds have another order than times, when the
  # fastest are searched, then they are those of all timed for good.
  setting = dataclasses.replace(SETTING, overlap=frozenset(), global_batch=8)
  layers = moe_layer.Timer(A3)
  result = search_lib.search(setting, layers, top=6, choices_of=CHOICES)
  costs = unit_costs.Costs(setting, layers)
  costs_of_all = [
    step_lib.cost(costs, plan)
    for plan in search_lib.plans(setting, CHOICES)
    if not setting.refusal(plan)
  ]
  assert result.plans - result.num_refused == len(costs_of_all) > 100
  best = sorted(costs_of_all, key=lambda cost: (cost.seconds, cost.plan))[:6]
  assert [c.seconds for c in result.ranked] == [c.seconds for c in best]
  assert result.layers < len(layers.times)
  bounds = unit_costs.Costs(setting, moe_layer.Roofline(A3))
  first = [
    step_lib.cost(bounds, cost.plan, exact=False) for cost in costs_of_all
  ]
  by_bound = sorted(first, key=lambda cost: (cost.seconds, cost.plan))[:6]
  assert [c.plan for c in by_bound] != [c.plan for c in best]


def test_plans_are_different_and_make_all_devices():
  plans = [*search_lib.plans(SETTING)]
  assert len(set(plans)) == len(plans)
  assert all(plan.devices == 8 for plan in plans)
  # Everything is offered that the machine has.
  assert {p.offload for p in plans} == {False, True}
  assert {p.recompute for p in plans} == set(plan_lib.RECOMPUTE)
  few_plans = [*search_lib.plans(SETTING, dict(tp=(2,), pp=(2,), ep=(1,)))]
  assert few_plans and {(p.tp, p.pp, p.ep, p.dp) for p in few_plans} == {
    (2, 2, 1, 2)
  }


def test_what_does_not_fit_is_counted():
  small = dataclasses.replace(
    SETTING, machine=A3.with_figures(memory=1e6), memory_share=1.0
  )
  layers = moe_layer.Timer(A3)
  result = search_lib.search(small, layers)
  assert not result.ranked and not layers.times
  assert result.too_large == result.plans - result.num_refused
  assert result.smallest_excess > 1e6
