"""`hpmoe plan`."""

import dataclasses
import pathlib
import time
from typing import Any

from absl import flags

from hpmoe.parity_tests.commands import cli

# Sizes that replace those of the model, and the field of `sizes.Model` of each.
_SIZES = dict(
  layers='layers',
  d_model='hidden',
  heads='heads',
  vocabulary='vocabulary',
  experts='experts',
  top_k='top_k',
  d_ff='expert_width',
  d_shared='shared_width',
  mtp='mtp',
)
# Flags that restrict the plans of the search: fields of `plan.Plan`.
_RESTRICTED_FIELDS = ('tp', 'pp', 'vpp', 'ep', 'dp', 'micro_batch', 'pad')


def _define_plan(f: flags.FlagValues) -> None:
  from hpmoe.backend_ascend.simulator import simulate
  from hpmoe.backend_ascend.simulator.plan import moe_layer
  from hpmoe.backend_ascend.simulator.plan import plan
  from hpmoe.models import config as config_lib

  cli.own(
    f,
    'plan',
    dict(models=', '.join(config_lib.names())),
    recompute=dict(choices=plan.RECOMPUTE),
    exchange=dict(choices=moe_layer.EXCHANGES),
    products=dict(choices=tuple(simulate.ELEMENTS)),
    overlap=dict(choices=plan.OVERLAPS),
  )


def _model(f: flags.FlagValues):
  """Returns the model of --model, with the sizes of other flags."""
  from hpmoe.models import config as config_lib
  from hpmoe.models import plan_sizes
  from hpmoe.models.checkpoint import config_file

  name, folder = f.model, pathlib.Path(f.model)
  if folder.is_dir():
    _, config = config_file.read(folder)
    name = folder.resolve().name
  else:
    config = config_lib.load(name)
  model = plan_sizes.from_config(config, name)
  sizes: dict[str, Any] = {
    field: f[name].value
    for name, field in _SIZES.items()
    if f[name].value is not None
  }
  if 'heads' in sizes and model.kv_heads in (model.heads, 0):
    sizes['kv_heads'] = sizes['heads']
  layers = sizes.get('layers', model.layers)
  dense = tuple(i for i in model.dense if i < layers)
  if f.dense_layers is not None:
    if f.dense_layers >= layers:
      raise cli.UsageError(
        f'dense_layers: expected fewer than layers={layers}, '
        f'got {f.dense_layers}'
      )
    dense = tuple(range(f.dense_layers))
  if len(dense) == layers:
    raise cli.UsageError(
      f'layers: expected more than the {len(dense)} without experts, see '
      f'--dense_layers, got {layers}'
    )
  return dataclasses.replace(model, dense=dense, **sizes)


def _states(f: flags.FlagValues):
  from hpmoe.backend_ascend.simulator.plan import plan

  try:
    weight, gradient, optimizer = map(float, f.states.split(','))
    return plan.States(weight, gradient, optimizer)
  except ValueError:
    raise cli.UsageError(
      f'states: expected three numbers, such as 2,4,12, got {f.states!r}'
    ) from None


def _setting(f: flags.FlagValues):
  from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
  from hpmoe.backend_ascend.simulator.plan import plan

  machine = machine_lib.load(f.machine)
  on_ascend = machine.shipped.startswith('ascend')
  if f.moe == 'fused' and not on_ascend:
    raise cli.UsageError(
      f'moe: expected operators on {machine.name}, whose cores do both '
      "units' work, got fused"
    )
  if f.nodes and f.exchange != 'nodes':
    raise cli.UsageError(
      f'nodes: expected --exchange=nodes with it, got {f.exchange}'
    )
  return plan.Setting(
    model=_model(f),
    machine=machine,
    devices=f.devices,
    sequence=f.sequence,
    global_batch=f.global_batch or 2 * f.devices,
    fused=(f.moe or ('fused' if on_ascend else 'operators')) == 'fused',
    exchange=f.exchange,
    nodes=f.nodes,
    element=f.products,
    overlap=frozenset(f.overlap),
    states=_states(f),
    memory_share=f.memory_share,
  )


def _restrict_plans(f: flags.FlagValues, setting) -> dict:
  """Returns the values that a field of a plan may have, by field.

  Raises:
    cli.UsageError: no plan of this number of devices can have a value.
  """
  choices = {
    name: tuple(f[name].value) for name in _RESTRICTED_FIELDS if f[name].value
  }
  for name in ('tp', 'pp', 'dp', 'ep'):
    for value in choices.get(name, ()):
      if setting.devices % value:
        raise cli.UsageError(
          f'{name}: expected a divisor of devices={setting.devices}, '
          f'got {value}'
        )
  if f.recompute:
    choices['recompute'] = tuple(f.recompute)
  if f.offload is not None:
    choices['offload'] = (f.offload,)
  return choices


def _plan(f: flags.FlagValues) -> int:
  from hpmoe.backend_ascend.simulator.plan import moe_layer
  from hpmoe.backend_ascend.simulator.plan import plots
  from hpmoe.backend_ascend.simulator.plan import search
  from hpmoe.parity_tests.ascend.commands import plan_report

  setting = _setting(f)
  choices = _restrict_plans(f, setting)
  start = time.perf_counter()
  with cli.progress() as step:
    layers = moe_layer.Timer(setting.machine, step)
    ranking = search.search(setting, layers, f.top, choices, step)
  seconds = time.perf_counter() - start
  if not ranking.ranked:
    raise cli.UsageError(plan_report.explain_empty_ranking(setting, ranking))
  report = plan_report.RankingReport(setting, ranking, layers, seconds)
  cli.write_json(f.json, report.content())
  if f.plot is not None:
    plots.write(f.plot, setting, layers, ranking.ranked[0])
  print(report.text())
  return cli.PARITY


COMMAND = cli.Command('plan', _define_plan, _plan)
