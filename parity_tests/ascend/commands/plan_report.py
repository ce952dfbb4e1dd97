"""A ranking of training plans as text and as data."""

import dataclasses

from hpmoe.backend_ascend.simulator.plan import accuracy
from hpmoe.backend_ascend.simulator.plan import memory as memory_lib
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import search as search_lib
from hpmoe.backend_ascend.simulator.plan import step as step_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs
from hpmoe.parity_tests.report import text_table

_GB = 1e9
_RANKS = ('tp', 'pp', 'vpp', 'ep', 'dp')
# Of a step: what is no more than rounding is not told.
_NOTHING = 1e-9


def _many(number: float) -> str:
  return f'{number / 1e9:.1f} B' if number >= 1e9 else f'{number / 1e6:.1f} M'


def _span(value: float, rates, form: str, power: int = -1) -> str:
  """Returns a figure, and in brackets what it would be if off as `rates`."""
  ends = dict.fromkeys(
    format(end, form) for end in accuracy.corrected(value, rates, power)
  )
  return f'{value:{form}} ({" to ".join(ends)})'


def nothing(setting: plan_lib.Setting, found: search_lib.SearchResult) -> str:
  """Returns why nothing was ranked, and what to change."""
  if not found.too_large:
    return (
      found.reason or 'devices: expected a plan that divides them, got none'
    )
  room = setting.memory_share * setting.machine['memory']
  return (
    f'devices: expected enough for {setting.model.name}, whose smallest plan '
    f'takes {found.smallest_excess / _GB:.1f} of {room / _GB:.1f} GB a device, '
    f'got {setting.devices}'
  )


@dataclasses.dataclass(frozen=True)
class Planned:
  """What one search says.

  Attributes:
    setting: what was planned.
    found: the ranking.
    layers: the engine's times.
    seconds: that the search took.
  """

  setting: plan_lib.Setting
  found: search_lib.SearchResult
  layers: moe_layer.Timer
  seconds: float

  def text(self) -> str:
    """Returns the ranking, and where the time of the first plan goes."""
    rates = self._published()
    groups = self._groups()
    rows = [
      {
        'rank': f'{first}-{last}' if first < last else first,
        **{n.upper(): getattr(cost.plan, n) for n in _RANKS},
        'micro-batch': cost.plan.micro_batch,
        'pad': cost.plan.pad,
        'recompute': cost.plan.recompute,
        'offload': 'yes' if cost.plan.offload else 'no',
        's/step': _span(cost.seconds, rates, '.3g', 1),
        'tokens/s/device': _span(cost.tokens_per_second, rates, ',.0f'),
        'MFU, %': _span(100 * cost.mfu, rates, '.1f'),
        'waits': f'{100 * cost.bubble:.0f}%',
        'GB': f'{cost.memory.total / _GB:.1f}',
      }
      for (first, last), cost in zip(groups, self.found.ranked)
    ]
    parts = (
      self._about(),
      text_table.format_rows(rows),
      self._accuracy(),
      self._first(),
      self._counted(),
    )
    return '\n\n'.join(parts)

  def _published(self) -> tuple[accuracy.PublishedRate, ...]:
    """Returns the published plans of this kind."""
    setting = self.setting
    family = (setting.machine.shipped or setting.machine.name).split('_')[0]
    return accuracy.similar_rates(setting.model.count(), family)

  def _groups(self) -> list[tuple[int, int]]:
    return accuracy.rank_groups([cost.seconds for cost in self.found.ranked])

  def _accuracy(self) -> str:
    """Tells how far published plans came out, and what is not ranked."""
    rates = '; '.join(
      f'{rate.name}, {rate.ratio:.2f} times the published tokens/s'
      for rate in self._published()
    )
    first, last = self._groups()[0]
    ranking = (
      f'Not ranked: plans {first} to {last}'
      if last > first
      else 'Ranked: plan 1 alone is first'
    )
    ratios = ', '.join(f'{ratio:.2f}' for ratio in accuracy.RATIOS.values())
    return (
      'In brackets: the figure, if it is as far off as published plans of this '
      f'kind ({rates}).\n'
      f'{ranking}; published ratios of two plans came out {ratios} times as '
      f'large, so plans within a factor of {accuracy.RESOLUTION:.2f} are not '
      'told apart, and stand in the order of the model. '
      'Waits and GB: nothing is published of them.'
    )

  def _about(self) -> str:
    setting, model = self.setting, self.setting.model
    hidden = ', '.join(sorted(setting.overlap)) or 'nothing'
    return (
      f'{model.name}: {_many(model.count())} parameters, '
      f'{_many(model.active())} active; {setting.devices} x '
      f'{setting.machine.name}, {setting.global_batch} sequences of '
      f'{setting.sequence} a step\nMoE layers '
      f'{"fused" if setting.fused else "operator by operator"}, exchange '
      f'{setting.exchange}, products {setting.element}; hidden: {hidden}'
    )

  def _first(self) -> str:
    parts = self._parts()
    whole = self.found.ranked[0].seconds
    rows = [
      (name, f'{took:.3g}', f'{100 * took / whole:.1f}%')
      for name, took in parts.items()
      if took > _NOTHING * whole
    ]
    memory = self.found.ranked[0].memory
    held = ', '.join(
      f'{name} {getattr(memory, name) / _GB:.1f}'
      for name in ('weights', 'gradients', 'optimizer', 'activations')
    )
    heading = ('plan 1, average stage', 's', 'share')
    return (
      f'{text_table.format_table(heading, rows)}\n'
      f'GB of a device of stage {memory.stage}, the fullest: {held}'
      + (f'; in the host {memory.host / _GB:.1f}' if memory.host else '')
    )

  def _counted(self) -> str:
    found = self.found
    made = found.plans - found.num_refused
    return (
      f'{made:,} plans in {self.seconds:.1f} s: {found.too_large:,} do not fit '
      f'in {self.setting.memory_share:g} of '
      f'{self.setting.machine["memory"] / _GB:g} GB; {found.layers} MoE layers '
      'simulated, where one could be of the best'
    )

  def _costs(self) -> unit_costs.Costs:
    return unit_costs.Costs(self.setting, self.layers)

  def _parts(self) -> dict[str, float]:
    return step_lib.parts(self._costs(), self.found.ranked[0])

  def content(self) -> dict:
    """Returns all of it as plain data."""
    setting, found = self.setting, self.found
    costs, first = self._costs(), self.found.ranked[0]
    held = costs.memory(first.plan)
    return dict(
      model=dataclasses.asdict(setting.model)
      | dict(parameters=setting.model.count(), active=setting.model.active()),
      machine=setting.machine.name,
      devices=setting.devices,
      sequence=setting.sequence,
      global_batch=setting.global_batch,
      fused=setting.fused,
      exchange=setting.exchange,
      element=setting.element,
      overlap=sorted(setting.overlap),
      states=dataclasses.asdict(setting.states),
      memory_share=setting.memory_share,
      plans=found.plans - found.num_refused,
      too_large=found.too_large,
      layers_simulated=found.layers,
      seconds=round(self.seconds, 2),
      ranked=[
        dataclasses.asdict(cost)
        | dict(memory_total=cost.memory.total, ranks=ranks)
        for ranks, cost in zip(self._groups(), found.ranked)
      ],
      accuracy=dict(
        published=[dataclasses.asdict(rate) for rate in self._published()],
        ratios=accuracy.RATIOS,
        resolution=accuracy.RESOLUTION,
      ),
      first=dict(
        parts=self._parts(),
        chunks=plan_lib.chunks(
          setting.model, first.plan.pp, first.plan.vpp, first.plan.pad
        ),
        units={
          kind: unit_times.to_json()
          for kind, unit_times in costs.times(first.plan).items()
        },
        memory=[
          dataclasses.asdict(one)
          for one in memory_lib.memories(setting, first.plan, held)
        ],
        operators=[
          operator.to_json()
          | dict(seconds=operator.seconds(setting.machine, setting.element))
          for operator in setting.share(first.plan).unit('moe').operators
        ],
      ),
    )
