"""`hpmoe tune`."""

import dataclasses
import math
import time

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import option_fields

_MS = 1e3
# Speedup over the published point.
_GOAL = 1.15
# Preset on which a schedule is judged if its own layer is too large to run.
_SCALED = 'tiny'


def _list_routings() -> tuple[str, ...]:
  from hpmoe.parity_tests.case import text_router

  return tuple(text_router.LARGE)


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  routing: tuple[str, ...] = option_fields.option(
    ('balanced',),
    lambda: (
      'Routings that the schedule is optimised for, equally weighted: some '
      f'of {", ".join(_list_routings())}. A list.'
    ),
    choices=_list_routings,
  )
  machine: str = option_fields.option(
    'ascend_a3',
    'Machine to tune for: an included one, or a TOML file.',
  )
  target: str | None = option_fields.option(
    None,
    'Where the tiles must fit. Default: ascend if the machine is an Ascend '
    'machine or is based on one.',
    choices=('host', 'ascend'),
  )
  seed: int = option_fields.option(
    0,
    'Seed of the routings.',
    minimum=0,
  )
  confirm: int = option_fields.option(
    8,
    'Number of points to simulate: the best ones by the analytical model.',
    minimum=1,
  )
  rounds: int = option_fields.option(
    1,
    'Number of rounds that try each option of each choice around the best '
    'point.',
    minimum=0,
  )
  exhaustive: bool = option_fields.option(
    False,
    'Also simulate all points of a subspace, to measure the accuracy of '
    'the model.',
  )
  out: str | None = option_fields.option(
    None,
    'Write the best schedule here.',
    writes='file',
  )
  out_placement: str | None = option_fields.option(
    None,
    'Write a placement of experts here, from the loads of other batches of '
    'the routings; for --expert_placement of hpmoe check.',
    writes='file',
  )
  check: bool = option_fields.option(
    False,
    'Launch the schedule of --out on this host and judge it; a layer that '
    'is too large is scaled down.',
  )
  png: str | None = option_fields.option(
    None,
    'Write a plot of the search here.',
    writes='picture',
  )


def _list_options() -> list[option_fields.Option]:
  layer = option_fields.replace_defaults(
    case_flags.LAYER, preset='ep16', dtype='bf16'
  )
  return [
    *layer,
    case_flags.RANKS_OF_PRESET,
    *option_fields.list_options(_Options),
  ]


def _layer(f: parser.Values, step):
  """Returns the layer to tune, with its machine and routings."""
  import numpy as np

  from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
  from hpmoe.backend_ascend.simulator.tune import tuner
  from hpmoe.parity_tests.case import text_router
  from hpmoe.reference.contract import presets

  machine = machine_lib.load(f.machine)
  preset = presets.get(layer_flags.preset(f))
  config = presets.config(
    preset, f.ranks or preset.num_ranks, f.tokens, f.capacity
  )
  routings, loads = {}, {}
  for name in f.routing:
    step(f'routing {name}')
    routings[name] = text_router.topk_ids(name, preset, config, f.seed)
    batches = text_router.count_other_batches(name, preset, config, f.seed)
    if len(batches):
      loads[name] = batches.sum(axis=0)
  owners = [ids // config.experts_per_rank for ids in routings.values()]
  max_rows = max(int(np.bincount(ranks.ravel()).max()) for ranks in owners)
  if f.capacity is None:
    config = dataclasses.replace(config, capacity=max_rows)
  elif f.capacity < max_rows:
    raise cli.UsageError(
      f'capacity: expected at least {max_rows} rows, which is what a rank '
      f'gets, got {f.capacity}'
    )
  on_ascend = machine.shipped.startswith('ascend')
  return tuner.Layer(
    config,
    layer_flags.policy(f),
    machine,
    routings,
    f.target or ('ascend' if on_ascend else 'host'),
    loads=loads,
  )


def _count_steps(f: parser.Values) -> int:
  """Returns the largest number of progress steps of a search."""
  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.backend_ascend.simulator.tune import levers
  from hpmoe.backend_ascend.simulator.tune import space
  from hpmoe.backend_ascend.simulator.tune import tuner

  near = sum(
    len(options)
    for choices in (space.GRID, space.BESIDE)
    for options in choices.values()
  )
  subspace = math.prod(map(len, tuner.SUBSPACE.values()))
  return (
    len(f.routing)
    + 1
    + f.confirm
    + f.rounds * near
    + len(space.NAMES)
    + 2 * (2 + len(levers.LEVERS)) * (1 + len(space.GRID['tile']))
    + f.exhaustive * subspace
    + len(compiler.COMPILE)
  )


def _search(f: parser.Values, layer, step):
  """Searches schedules; returns the results by name."""
  from hpmoe.backend_ascend.simulator.tune import levers
  from hpmoe.backend_ascend.simulator.tune import space
  from hpmoe.backend_ascend.simulator.tune import tuner

  search = tuner.Tuner(layer)
  published = search.time(search.published)
  step('grid')
  start = time.perf_counter()
  choices = space.choose_cores(space.GRID, search.base.num_aiv)
  grid = space.grid(layer.config, search.base, choices, search.runs)
  grid_end = time.perf_counter()
  points = tuner.candidates(search, grid, f.confirm)
  model_end = time.perf_counter()
  pareto = tuner.Pareto(search)
  pareto.add(search.published)
  for point in points:
    step('confirm')
    pareto.add(grid.options(point))
  confirmed = pareto.best()
  tuner.refine(
    pareto,
    (space.drop_tiles(choices, search.runs), space.BESIDE),
    f.rounds,
    step,
  )
  best = pareto.best()
  ablation = tuner.ablate(search, best, step)
  tiles = space.drop_tiles(choices, search.runs)['tile']
  step('placement')
  placed_schedule = levers.find_tiles(
    levers.apply_levers(layer, ['placement']), best, tiles, step
  )
  levered, shares = levers.pull(layer, best, tiles, step)
  subspace = (
    tuner.accuracy(search, tuner.SUBSPACE, step) if f.exhaustive else None
  )
  return dict(
    search=search,
    published=published,
    points=len(grid.table),
    grid_seconds=grid_end - start,
    model_seconds=model_end - grid_end,
    confirmed=confirmed,
    best=best,
    tried=len(pareto.schedules),
    excluded=int(pareto.excludes(grid.table).sum()),
    all=list(pareto.schedules.values()),
    by_case=pareto.best_by_case(),
    regret=pareto.regret(best),
    bound=search.bound(best.options),
    peak=search.bound(best.options, at_peak=True),
    ablation=ablation,
    expert_placement=levers.place_experts(layer),
    placed=placed_schedule,
    levered=levered,
    levers=shares,
    subspace=subspace,
  )


def _tune(f: parser.Values) -> int:
  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.backend_ascend.compiler.orders import schedule_file
  from hpmoe.backend_ascend.host.load import expert_placement

  if f.check and f.out is None:
    raise cli.UsageError('check: expected --out with it, got none')
  with cli.progress(_count_steps(f), estimate=True) as step:
    layer = _layer(f, step)
    if f.out_placement is not None and not layer.loads:
      raise cli.UsageError(
        'out_placement: expected a routing with other batches, such as '
        f'skewed or zipf, got {cli.text(f.routing)}'
      )
    results = _search(f, layer, step)
    best = results['best'].options
    for compile_pass in compiler.COMPILE.values():
      step('proofs')
      compile_pass(layer.config, layer.policy, best, target=layer.target)
  cli.write_json(f.json, _json(layer, results))
  if f.png is not None:
    from hpmoe.backend_ascend.simulator.tune import plot

    points = results['subspace'][1] if results['subspace'] else results['all']
    plot.write(
      f.png, results['best'], results['published'], points, results['ablation']
    )
  if f.out is not None:
    seconds = next(iter(results['best'].simulated_seconds.values()))
    schedule_file.save(
      f.out,
      schedule_file.Schedule(
        layer.config,
        layer.policy.storage,
        layer.policy.placement,
        best,
        layer.machine.name,
        tuple(layer.cases),
        seconds,
      ),
    )
  if f.out_placement is not None:
    expert_placement.save(f.out_placement, results['expert_placement'])
  judge_layer = _judge_request(f, layer)
  for table in (
    *(_cases, _choices, _ablation, _placement, _levers, _accuracy),
  ):
    print(table(layer, results), end='\n\n')
  print(_summary(layer, results))
  print(f'schedule: {f.out or "not written, see --out"}')
  if f.out is None:
    return cli.PARITY
  request = [*judge_layer, f'--schedule={f.out}']
  print(f'judge it: hpmoe {" ".join(request)}')
  if not f.check:
    return cli.PARITY
  from hpmoe.parity_tests.commands import main

  return main.main(request)


def _judge_request(f: parser.Values, layer) -> list[str]:
  """Returns the request that launches a schedule and judges it.

  A layer too large to run is judged at another size, in the same order.
  """
  from hpmoe.reference.contract import presets

  scaled = not presets.get(f.preset).runs_here
  sizes = {'tokens', 'capacity', *(row.name for row in case_flags.SIZES)}
  rows = [
    row
    for row in (*case_flags.LAYER, case_flags.RANKS_OF_PRESET)
    if f[row.name].present and not (scaled and row.name in sizes)
  ]
  values: dict[str, object] = {
    row.name: cli.text(f[row.name].value) for row in rows
  }
  values |= dict(dtype=f.dtype, routing=next(iter(layer.cases)))
  if scaled:
    ranks = layer.config.num_ranks
    experts = presets.get(_SCALED).num_experts
    values |= dict(preset=_SCALED, ranks=math.gcd(ranks, experts))
  else:
    values |= dict(preset=f.preset, capacity=layer.config.capacity)
  return [
    'check',
    *(f'--{name}={value}' for name, value in values.items()),
    *(['--schedule_scaled'] if scaled else []),
    *(
      [f'--expert_placement={f.out_placement}']
      if f.out_placement and not scaled
      else []
    ),
  ]


def _cases(layer, results) -> str:
  rows = []
  for name in layer.cases:
    published, best = results['published'], results['best']
    bound = results['bound'][name]
    best_seconds = best.simulated_seconds[name]
    published_seconds = published.simulated_seconds[name]
    rows.append(
      (
        name,
        *(f'{published_seconds[p] * _MS:.3f}' for p in published_seconds),
        *(f'{best_seconds[p] * _MS:.3f}' for p in best_seconds),
        f'{published.total(name) / best.total(name):.3f}',
        f'{bound.seconds * _MS:.3f}',
        f'{results["peak"][name].seconds * _MS:.3f}',
        f'{100 * (best.total(name) / bound.seconds - 1):.1f} %',
        f'{100 * results["regret"][name]:.1f} %',
      )
    )
  return text_table.format_table(
    (
      'routing',
      'published forward ms',
      'backward ms',
      'tuned forward ms',
      'backward ms',
      'speedup',
      'bound ms',
      'fitted shares at 1',
      'above it',
      'regret',
    ),
    rows,
  )


def _choices(layer, results) -> str:
  from hpmoe.backend_ascend.simulator.tune import space

  del layer
  search, best = results['search'], results['best'].options
  return text_table.format_rows(
    [
      {
        'choice': name,
        'tuned': space.label(best, name),
        'published': space.label(search.published, name),
      }
      for name in space.NAMES
    ]
  )


def _ablation(layer, results) -> str:
  del layer
  return text_table.format_table(
    ('without', 'tuned', 'published', 'slower by'),
    [
      (
        row.choice,
        row.option,
        row.published_option,
        'does not go' if row.gain is None else f'{100 * row.gain:.2f} %',
      )
      for row in results['ablation']
    ],
  )


def _placement(layer, results) -> str:
  """Returns the table of speedups by a placement from other batches' loads."""
  from hpmoe.parity_tests.case import routings

  placement = results['expert_placement']
  if placement is None:
    return 'placement: no other batches of these routings'
  published, best = results['published'], results['placed']
  rows = []
  for name, ids in layer.cases.items():
    skews = [
      routings.measure_skew(layer.config, experts)['max_over_mean_rank']
      for experts in (ids, placement.map_ids(ids))
    ]
    gain = published.total(name) / best.total(name)
    rows.append(
      (
        name,
        *(f'{skew:.2f}' for skew in skews),
        f'{best.total(name) * _MS:.3f}',
        f'{gain:.3f}x',
        f'{_GOAL:g}x: {"yes" if gain >= _GOAL else "NO"}',
      )
    )
  heading = (
    *('routing', 'hottest rank of mean', 'placed by other batches'),
    *('tuned, placed ms', 'over published', 'goal'),
  )
  return text_table.format_table(heading, rows)


def _levers(layer, results) -> str:
  """Returns each lever's gain, which no schedule has, and the goals."""
  from hpmoe.backend_ascend.simulator.tune import levers

  rows = [
    (row.choice, row.option, row.published_option, f'{100 * row.gain:.2f} %')
    for row in results['levers']
  ]
  heading = ('without lever', 'pulled', 'published', 'slower by')
  published, levered = results['published'], results['levered']
  goals = [
    f'{name}: {gain:.3f}x over the published point with levers, goal '
    f'{_GOAL:g}x: {"yes" if gain >= _GOAL else "NO"}; '
    f'{published.total(name) / results["best"].total(name):.3f}x without; '
    f'{published.total(name) / results["peak"][name].seconds:.3f}x at most '
    'with this flow and no lever, fitted shares at 1'
    for name in layer.cases
    for gain in [published.total(name) / levered.total(name)]
  ]
  if not rows:
    return '\n'.join(['no lever helps', *goals])
  for row in results['levers']:
    hint = levers.LEVERS[row.choice].hint
    gains = ', '.join(
      f'{published.total(name) / row.seconds[name]:.3f}x without it'
      for name in layer.cases
    )
    goals.append(f'{row.choice}: {hint}; {gains}')
  return '\n'.join([text_table.format_table(heading, rows), '', *goals])


def _accuracy(layer, results) -> str:
  del layer
  if results['subspace'] is None:
    return 'model against simulation: not asked for, see --exhaustive'
  accuracy, _ = results['subspace']
  return (
    f'model against simulation of all {accuracy.points} points of a subspace: '
    f'mean error {100 * accuracy.mean_error:.2f} %, worst '
    f'{100 * accuracy.worst_error:.2f} %, rank correlation '
    f'{accuracy.rank_correlation:.4f}, its best is {100 * accuracy.regret:.2f} '
    '% slower than the best'
  )


def _summary(layer, results) -> str:
  seconds = results['model_seconds']
  return (
    f'{results["points"]} points x {len(layer.cases)} cases by the model in '
    f'{seconds:.2f} s ({results["points"] * len(layer.cases) / seconds:.3g} a '
    f'second), {results["tried"]} simulated, on {layer.machine.name} for '
    f'target {layer.target}; a floor of the simulated time excludes '
    f'{results["excluded"]} points, the model ranks the others'
  )


# Results of the search that JSON reports under the same names.
_REPORTED = (
  *('points', 'excluded', 'grid_seconds', 'model_seconds'),
  *('regret', 'bound', 'peak'),
  *('ablation', 'levers', 'published', 'confirmed', 'best', 'levered'),
  *('expert_placement', 'placed'),
  'by_case',
)


def _rename_fields(value):
  """Returns schedules and ablations under the keys of the JSON report."""
  from hpmoe.backend_ascend.simulator.tune import tuner

  if isinstance(value, tuner.TimedSchedule):
    return json_fields.rename_fields(value, simulated_seconds='simulated')
  if isinstance(value, tuner.Ablation):
    return json_fields.rename_fields(
      value, option='mine', published_option='without'
    )
  if isinstance(value, dict):
    return {name: _rename_fields(item) for name, item in value.items()}
  return list(map(_rename_fields, value)) if isinstance(value, list) else value


def _json(layer, results) -> dict:
  content = {name: _rename_fields(results[name]) for name in _REPORTED} | dict(
    layer=layer.config,
    policy=layer.policy,
    machine=layer.machine.name,
    target=layer.target,
    cases=list(layer.cases),
    simulated=results['tried'],
    goal=_GOAL,
  )
  if results['subspace'] is not None:
    accuracy, timed_points = results['subspace']
    content['subspace'] = dataclasses.asdict(accuracy) | dict(
      timed=_rename_fields(timed_points)
    )
  return content


COMMAND = cli.Command(
  'tune',
  _list_options,
  _tune,
)
