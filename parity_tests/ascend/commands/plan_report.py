"""A ranking of training plans as text and as data."""

import dataclasses

from hpmoe.backend_ascend.simulator.plan import accuracy
from hpmoe.backend_ascend.simulator.plan import device_memory as memory_lib
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import search as search_lib
from hpmoe.backend_ascend.simulator.plan import step as step_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs
from hpmoe.parity_tests.report import text_table

_GB = 1e9
_RANKS = ('tp', 'pp', 'vpp', 'ep', 'dp')
# Parts of a step below this share are rounding, and are not printed.
_NOTHING = 1e-9


def _format_count(number: float) -> str:
  return f'{number / 1e9:.1f} B' if number >= 1e9 else f'{number / 1e6:.1f} M'


def _format_range(value: float, rates, form: str, power: int = -1) -> str:
  """Returns a figure, and in brackets its range if it errs as `rates` do."""
  ends = dict.fromkeys(
    format(end, form) for end in accuracy.corrected(value, rates, power)
  )
  return f'{value:{form}} ({" to ".join(ends)})'


def explain_empty_ranking(
  setting: plan_lib.Setting, ranking: search_lib.SearchResult
) -> str:
  """Returns why no plan was ranked, and what to change."""
  if not ranking.too_large:
    return (
      ranking.reason or 'devices: expected a plan that divides them, got none'
    )
  room = setting.memory_share * setting.machine['memory']
  return (
    f'devices: expected enough for {setting.model.name}, whose smallest plan '
    f'takes {ranking.smallest_excess / _GB:.1f} of {room / _GB:.1f} GB a '
    f'device, got {setting.devices}'
  )


@dataclasses.dataclass(frozen=True)
class RankingReport:
  """The report of one search.

  Attributes:
    setting: the training job that was planned.
    ranking: the plans, best first.
    layers: times of MoE layers on the simulator.
    seconds: duration of the search.
  """

  setting: plan_lib.Setting
  ranking: search_lib.SearchResult
  layers: moe_layer.Timer
  seconds: float

  def text(self) -> str:
    """Returns the ranking, and the parts of the best plan's time."""
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
        's/step': _format_range(cost.seconds, rates, '.3g', 1),
        'tokens/s/device': _format_range(cost.tokens_per_second, rates, ',.0f'),
        'MFU, %': _format_range(100 * cost.mfu, rates, '.1f'),
        'waits': f'{100 * cost.bubble:.0f}%',
        'GB': f'{cost.memory.total / _GB:.1f}',
      }
      for (first, last), cost in zip(groups, self.ranking.ranked)
    ]
    parts = (
      self._about(),
      text_table.format_rows(rows),
      self._accuracy(),
      self._first(),
      self._count_plans(),
    )
    return '\n\n'.join(parts)

  def _published(self) -> tuple[accuracy.PublishedRate, ...]:
    """Returns the published plans of this kind."""
    setting = self.setting
    family = (setting.machine.shipped or setting.machine.name).split('_')[0]
    return accuracy.similar_rates(setting.model.count(), family)

  def _groups(self) -> list[tuple[int, int]]:
    return accuracy.rank_groups([cost.seconds for cost in self.ranking.ranked])

  def _accuracy(self) -> str:
    """Returns the errors on published plans, and which plans are not ranked."""
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
      'In brackets: the figure with the errors of comparable published plans '
      f'({rates}).\n'
      f'{ranking}; modelled ratios of two published plans are {ratios} times '
      'the published ones, so plans within a factor of '
      f'{accuracy.RESOLUTION:.2f} are not distinguished, and are listed in '
      'the order of the model. For waits and GB there are no published values.'
    )

  def _about(self) -> str:
    setting, model = self.setting, self.setting.model
    hidden = ', '.join(sorted(setting.overlap)) or 'nothing'
    return (
      f'{model.name}: {_format_count(model.count())} parameters, '
      f'{_format_count(model.active())} active; {setting.devices} x '
      f'{setting.machine.name}, {setting.global_batch} sequences of '
      f'{setting.sequence} a step\nMoE layers '
      f'{"fused" if setting.fused else "operator by operator"}, exchange '
      f'{setting.exchange}, products {setting.element}; hidden: {hidden}'
    )

  def _first(self) -> str:
    parts = self._parts()
    whole = self.ranking.ranked[0].seconds
    rows = [
      (name, f'{took:.3g}', f'{100 * took / whole:.1f}%')
      for name, took in parts.items()
      if took > _NOTHING * whole
    ]
    memory = self.ranking.ranked[0].memory
    sizes = ', '.join(
      f'{name} {getattr(memory, name) / _GB:.1f}'
      for name in ('weights', 'gradients', 'optimizer', 'activations')
    )
    heading = ('plan 1, average stage', 's', 'share')
    return (
      f'{text_table.format_table(heading, rows)}\n'
      f'GB of a device of stage {memory.stage}, the fullest: {sizes}'
      + (f'; in the host {memory.host / _GB:.1f}' if memory.host else '')
    )

  def _count_plans(self) -> str:
    ranking = self.ranking
    num_plans = ranking.plans - ranking.num_refused
    return (
      f'{num_plans:,} plans in {self.seconds:.1f} s: {ranking.too_large:,} do '
      f'not fit in {self.setting.memory_share:g} of '
      f'{self.setting.machine["memory"] / _GB:g} GB; {ranking.layers} MoE '
      'layers simulated, where one could be of the best'
    )

  def _costs(self) -> unit_costs.Costs:
    return unit_costs.Costs(self.setting, self.layers)

  def _parts(self) -> dict[str, float]:
    return step_lib.parts(self._costs(), self.ranking.ranked[0])

  def content(self) -> dict:
    """Returns the report as plain data."""
    setting, ranking = self.setting, self.ranking
    costs, first = self._costs(), self.ranking.ranked[0]
    unit_memory = costs.memory(first.plan)
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
      plans=ranking.plans - ranking.num_refused,
      too_large=ranking.too_large,
      layers_simulated=ranking.layers,
      seconds=round(self.seconds, 2),
      ranked=[
        dataclasses.asdict(cost)
        | dict(memory_total=cost.memory.total, ranks=ranks)
        for ranks, cost in zip(self._groups(), ranking.ranked)
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
          dataclasses.asdict(stage_memory)
          for stage_memory in memory_lib.memories(
            setting, first.plan, unit_memory
          )
        ],
        operators=[
          operator.to_json()
          | dict(seconds=operator.seconds(setting.machine, setting.element))
          for operator in setting.share(first.plan).unit('moe').operators
        ],
      ),
    )
