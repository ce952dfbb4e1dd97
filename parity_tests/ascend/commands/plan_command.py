"""`hpmoe plan`."""

import dataclasses
import pathlib
import time
from typing import Any

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields

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


def _list_recompute() -> tuple[str, ...]:
  from hpmoe.backend_ascend.simulator.plan import plan

  return tuple(plan.RECOMPUTE)


def _list_exchange() -> tuple[str, ...]:
  from hpmoe.backend_ascend.simulator.plan import moe_layer

  return tuple(moe_layer.EXCHANGES)


def _list_products() -> tuple[str, ...]:
  from hpmoe.backend_ascend.simulator import simulate

  return tuple(simulate.ELEMENTS)


def _list_overlap() -> tuple[str, ...]:
  from hpmoe.backend_ascend.simulator.plan import plan

  return tuple(plan.OVERLAPS)


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  model: str = option_fields.option(
    'qwen3_30b_a3b',
    lambda: (
      f'Model: a config.json, a folder with one, or one of {cli.name_models()}.'
    ),
  )
  layers: int | None = option_fields.option(
    None,
    "Decoder layers. Default: the model's.",
    minimum=1,
  )
  d_model: int | None = option_fields.option(
    None,
    "Model width, D. Default: the model's.",
    minimum=1,
  )
  heads: int | None = option_fields.option(
    None,
    "Heads of attention. Default: the model's.",
    minimum=1,
  )
  vocabulary: int | None = option_fields.option(
    None,
    "Tokens of the vocabulary. Default: the model's.",
    minimum=1,
  )
  experts: int | None = option_fields.option(
    None,
    "Experts of a layer, E. Default: the model's.",
    minimum=1,
  )
  top_k: int | None = option_fields.option(
    None,
    "Experts of a token, K. Default: the model's.",
    minimum=1,
  )
  d_ff: int | None = option_fields.option(
    None,
    "Expert width, F. Default: the model's.",
    minimum=1,
  )
  d_shared: int | None = option_fields.option(
    None,
    "Width of the shared experts. Default: the model's.",
    minimum=0,
  )
  mtp: int | None = option_fields.option(
    None,
    "Number of multi-token prediction heads. Default: the model's.",
    minimum=0,
  )
  dense_layers: int | None = option_fields.option(
    None,
    "Number of first layers without experts. Default: the model's.",
    minimum=0,
  )
  machine: str = option_fields.option(
    'ascend_a3',
    'Machine: an included one, or a TOML file.',
  )
  devices: int = option_fields.option(
    64,
    'Number of ranks: dies, NPUs or GPUs.',
    minimum=1,
  )
  sequence: int = option_fields.option(
    4096,
    'Tokens of a sequence.',
    minimum=1,
  )
  top: int = option_fields.option(
    10,
    'Number of plans to print.',
    minimum=1,
  )
  global_batch: int | None = option_fields.option(
    None,
    'Sequences of a training step. Default: two for each device.',
    minimum=1,
  )
  tp: tuple[int, ...] | None = option_fields.option(
    None,
    'Degrees of tensor parallelism. A list. Default: any.',
    minimum=1,
  )
  pp: tuple[int, ...] | None = option_fields.option(
    None,
    'Numbers of pipeline stages. A list. Default: any.',
    minimum=1,
  )
  vpp: tuple[int, ...] | None = option_fields.option(
    None,
    'Numbers of layer chunks of a stage (interleaved pipeline). A list. '
    'Default: any.',
    minimum=1,
  )
  ep: tuple[int, ...] | None = option_fields.option(
    None,
    'Degrees of expert parallelism, in data-parallel ranks; the TP ranks '
    'of each take part. A list. Default: any.',
    minimum=1,
  )
  dp: tuple[int, ...] | None = option_fields.option(
    None,
    'Degrees of data parallelism. A list. Default: any.',
    minimum=1,
  )
  micro_batch: tuple[int, ...] | None = option_fields.option(
    None,
    'Sequences of a micro-batch. A list. Default: any.',
    minimum=1,
  )
  pad: tuple[int, ...] | None = option_fields.option(
    None,
    'Number of layers that the output head and MTP heads count as, when '
    'layers are divided into stages. A list. Default: any.',
    minimum=0,
  )
  recompute: tuple[str, ...] | None = option_fields.option(
    None,
    'What the backward pass recomputes: nothing; norms, up-projections and '
    'activations; whole layers. A list. Default: any.',
    choices=_list_recompute,
  )
  offload: bool | None = option_fields.option(
    None,
    'Whether saved activations are stored on the host. Default: any, if '
    'the machine has a host_link.',
  )
  moe: str | None = option_fields.option(
    None,
    'Each MoE layer is one launch, or a sequence of operators. Default: '
    'fused on Ascend machines.',
    choices=('fused', 'operators'),
  )
  exchange: str = option_fields.option(
    'flat',
    'How rows reach experts: flat: each row by itself; nodes: each token '
    'once to a node.',
    choices=_list_exchange,
  )
  nodes: int = option_fields.option(
    0,
    'With --exchange=nodes: maximum number of nodes of a token; 0: no limit.',
    minimum=0,
  )
  products: str = option_fields.option(
    'bfloat16',
    'Dtype that linear layers multiply; float8, if the machine runs it as '
    'fast as int8.',
    choices=_list_products,
  )
  overlap: tuple[str, ...] = option_fields.option(
    ('pipeline', 'gradients'),
    'What overlaps with computation. A list.',
    choices=_list_overlap,
  )
  states: str = option_fields.option(
    '2,4,12',
    'Bytes for each parameter: weight, gradient, optimizer state (sharded '
    'over DP ranks).',
  )
  memory_share: float = option_fields.option(
    0.9,
    "Share of a device's memory that a plan may use.",
  )
  plot: str | None = option_fields.option(
    None,
    'Write a PNG here: pipeline, memory and operators of the best plan.',
    writes='picture',
  )


def _list_options() -> list[option_fields.Option]:
  return [*option_fields.list_options(_Options)]


def _model(f: parser.Values):
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


def _states(f: parser.Values):
  from hpmoe.backend_ascend.simulator.plan import plan

  try:
    weight, gradient, optimizer = map(float, f.states.split(','))
    return plan.States(weight, gradient, optimizer)
  except ValueError:
    raise cli.UsageError(
      f'states: expected three numbers, such as 2,4,12, got {f.states!r}'
    ) from None


def _setting(f: parser.Values):
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


def _restrict_plans(f: parser.Values, setting) -> dict:
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


def _plan(f: parser.Values) -> int:
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


COMMAND = cli.Command(
  'plan',
  _list_options,
  _plan,
)
