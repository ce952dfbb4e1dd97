"""`hpmoe plan`."""

import dataclasses
import pathlib
import time
from typing import Any

from absl import flags

from hpmoe.parity_tests.commands import cli

# Sizes that replace those of the model: flag, field of `sizes.Model`, least.
_SIZES = (
  ('layers', 'layers', 1, 'Decoder layers.'),
  ('d_model', 'hidden', 1, 'Model width, D.'),
  ('heads', 'heads', 1, 'Heads of attention.'),
  ('vocabulary', 'vocabulary', 1, 'Tokens of the vocabulary.'),
  ('experts', 'experts', 1, 'Experts of a layer, E.'),
  ('top_k', 'top_k', 1, 'Experts of a token, K.'),
  ('d_ff', 'expert_width', 1, 'Expert width, F.'),
  ('d_shared', 'shared_width', 0, 'Width of what every token goes to.'),
  ('mtp', 'mtp', 0, 'Heads that predict one token further.'),
)
# What a plan may be, if not anything: flag and field of `plan.Plan`.
_ONLY = (
  ('tp', 'Ranks that share heads and blocks of a layer.'),
  ('pp', 'Stages of the pipeline.'),
  ('vpp', 'Chunks of layers that a stage has, in turns.'),
  (
    'ep',
    'Data-parallel ranks that share experts; TP ranks of each join them.',
  ),
  ('dp', 'Ranks that have other sequences.'),
  ('micro_batch', 'Sequences of a micro-batch.'),
  ('pad', 'Layers that head and MTP heads count as, besides.'),
)


def _define_plan(f: flags.FlagValues) -> None:
  from hpmoe.backend_ascend.plan import moe_layer
  from hpmoe.backend_ascend.plan import plan
  from hpmoe.backend_ascend.simulator import simulate
  from hpmoe.models import config as config_lib

  cli.option(
    f,
    'model',
    'Model: a config.json, a folder with one, or one of '
    f'{", ".join(config_lib.names())}.',
    'qwen3_30b_a3b',
  )
  for name, _, least, text in _SIZES:
    cli.option(f, name, f"{text} Default: the model's.", kind=int, least=least)
  cli.option(
    f,
    'dense_layers',
    "First layers without experts. Default: the model's.",
    kind=int,
    least=0,
  )
  cli.option(
    f, 'machine', 'Machine: one that ships, or a TOML file.', 'ascend_a3'
  )
  for name, default, text in (
    ('devices', 64, 'Ranks: dies, NPUs or GPUs.'),
    ('sequence', 4096, 'Tokens of a sequence.'),
    ('top', 10, 'Plans that are ranked.'),
  ):
    cli.option(f, name, text, default, int, least=1)
  cli.option(
    f,
    'global_batch',
    'Sequences of a step. Default: two a device.',
    kind=int,
    least=1,
  )
  for name, text in _ONLY:
    least = int(name != 'pad')
    text = f'{text} A list. Default: any.'
    cli.option(f, name, text, kind=int, many=True, least=least)
  cli.option(
    f,
    'recompute',
    'What the backward pass computes anew: nothing; norms, up-projections and '
    'activations; layers. A list. Default: any.',
    many=True,
    choices=plan.RECOMPUTE,
  )
  cli.option(
    f,
    'offload',
    'Whether what is kept for the backward pass lies in the host. Default: any '
    'where the machine says its host_link.',
    kind=bool,
  )
  cli.option(
    f,
    'moe',
    'MoE layers as one launch, or operator by operator. Default: fused on '
    'Ascend machines.',
    choices=('fused', 'operators'),
  )
  cli.option(
    f,
    'exchange',
    'How rows reach experts: each by itself, or each token once to a node.',
    'flat',
    choices=moe_layer.EXCHANGES,
  )
  cli.option(
    f,
    'nodes',
    'Nodes that a token may go to, with --exchange=nodes; 0: any number.',
    0,
    int,
    least=0,
  )
  cli.option(
    f,
    'products',
    'Elements that linear layers multiply; float8 where it is as fast as int8.',
    'bfloat16',
    choices=tuple(simulate.ELEMENTS),
  )
  cli.option(
    f,
    'overlap',
    'What hides behind computation. A list.',
    ['pipeline', 'gradients'],
    many=True,
    choices=plan.OVERLAPS,
  )
  cli.option(
    f,
    'states',
    'Bytes of a parameter: weight, gradient, optimizer (which DP ranks share).',
    '2,4,12',
  )
  cli.option(
    f,
    'memory_share',
    "Part of a device's memory that a plan may fill.",
    0.9,
    float,
  )
  cli.define_json(f)
  cli.option(
    f, 'plot', 'Write a PNG here: pipeline, memory and operators of the first.'
  )


def _model(f: flags.FlagValues):
  """Returns the sizes that are asked for."""
  from hpmoe.models import config as config_lib
  from hpmoe.models import plan_sizes
  from hpmoe.models.checkpoint import config_file

  name, folder = f.model, pathlib.Path(f.model)
  if folder.is_dir():
    _, config = config_file.read(folder)
    name = folder.resolve().name
  else:
    config = config_lib.load(name)
  model = plan_sizes.of(config, name)
  given: dict[str, Any] = {
    field: f[name].value
    for name, field, _, _ in _SIZES
    if f[name].value is not None
  }
  if 'heads' in given and model.kv_heads in (model.heads, 0):
    given['kv_heads'] = given['heads']
  layers = given.get('layers', model.layers)
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
  return dataclasses.replace(model, dense=dense, **given)


def _states(f: flags.FlagValues):
  from hpmoe.backend_ascend.plan import plan

  try:
    weight, gradient, optimizer = map(float, f.states.split(','))
    return plan.States(weight, gradient, optimizer)
  except ValueError:
    raise cli.UsageError(
      f'states: expected three numbers, such as 2,4,12, got {f.states!r}'
    ) from None


def _setting(f: flags.FlagValues):
  from hpmoe.backend_ascend.plan import plan
  from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

  machine = machine_lib.load(f.machine)
  on_ascend = machine.shipped.startswith('ascend')
  if f.moe == 'fused' and not on_ascend:
    raise cli.UsageError(
      f'moe: expected operators on {machine.name}, whose cores do both '
      "units' work, got fused"
    )
  if f.nodes and f.exchange != 'nodes':
    raise cli.UsageError(
      f'nodes: expected --exchange=nodes beside it, got {f.exchange}'
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


def _only(f: flags.FlagValues, setting) -> dict:
  """Returns what a plan may be, by field.

  Raises:
    cli.UsageError: one that no plan of so many devices can have.
  """
  only = {name: tuple(f[name].value) for name, _ in _ONLY if f[name].value}
  for name in ('tp', 'pp', 'dp', 'ep'):
    for value in only.get(name, ()):
      if setting.devices % value:
        raise cli.UsageError(
          f'{name}: expected a divisor of devices={setting.devices}, '
          f'got {value}'
        )
  if f.recompute:
    only['recompute'] = tuple(f.recompute)
  if f.offload is not None:
    only['offload'] = (f.offload,)
  return only


def _plan(f: flags.FlagValues) -> int:
  from hpmoe.backend_ascend.plan import moe_layer
  from hpmoe.backend_ascend.plan import plots
  from hpmoe.backend_ascend.plan import search
  from hpmoe.parity_tests.report import planning

  cli.check_writable('json', f.json)
  cli.check_writable('plot', f.plot)
  if f.plot is not None:
    import matplotlib  # noqa: F401  # type: ignore[import-untyped]
  setting = _setting(f)
  only = _only(f, setting)
  start = time.perf_counter()
  with cli.progress() as step:
    layers = moe_layer.Timer(setting.machine, step)
    found = search.search(setting, layers, f.top, only, step)
  seconds = time.perf_counter() - start
  if not found.ranked:
    raise cli.UsageError(planning.nothing(setting, found))
  report = planning.Planned(setting, found, layers, seconds)
  cli.write_json(f.json, report.content())
  if f.plot is not None:
    plots.write(f.plot, setting, layers, found.ranked[0])
  print(report.text())
  return cli.PARITY


COMMAND = cli.Command('plan', _define_plan, _plan)
