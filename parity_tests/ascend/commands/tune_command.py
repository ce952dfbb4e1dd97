"""`hpmoe tune`."""

import dataclasses
import math
import time

from absl import flags

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.report import text_table

_MS = 1e3
# Times over the published point.
_GOAL = 1.15
# The layer at which a schedule is judged whose own is too large to run.
_SCALED = 'tiny'


def _define_tune(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.case import text_router

  cli.define(f, case_flags.LAYER, preset='ep16', dtype='bf16')
  cli.define(f, [case_flags.RANKS_OF_PRESET])
  named = dict(routings=', '.join(text_router.LARGE))
  cli.own(f, 'tune', named, routing=dict(choices=text_router.LARGE))


def _layer(f: flags.FlagValues, step):
  """Returns what is tuned."""
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
  made, loads = {}, {}
  for name in f.routing:
    step(f'routing {name}')
    made[name] = text_router.topk_ids(name, preset, config, f.seed)
    batches = text_router.count_other_batches(name, preset, config, f.seed)
    if len(batches):
      loads[name] = batches.sum(axis=0)
  owners = [ids // config.experts_per_rank for ids in made.values()]
  most = max(int(np.bincount(one.ravel()).max()) for one in owners)
  if f.capacity is None:
    config = dataclasses.replace(config, capacity=most)
  elif f.capacity < most:
    raise cli.UsageError(
      f'capacity: expected at least {most} rows, which is what a rank gets, '
      f'got {f.capacity}'
    )
  on_ascend = machine.shipped.startswith('ascend')
  return tuner.Layer(
    config,
    layer_flags.policy(f),
    machine,
    made,
    f.target or ('ascend' if on_ascend else 'host'),
    loads=loads,
  )


def _count_steps(f: flags.FlagValues) -> int:
  """Returns how many steps a search tells, at most."""
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


def _search(f: flags.FlagValues, layer, step):
  """Returns all that was found, as plain objects by name."""
  from hpmoe.backend_ascend.simulator.tune import levers
  from hpmoe.backend_ascend.simulator.tune import space
  from hpmoe.backend_ascend.simulator.tune import tuner

  search = tuner.Tuner(layer)
  published = search.time(search.published)
  step('grid')
  start = time.perf_counter()
  choices = space.choose_cores(space.GRID, search.base.num_aiv)
  grid = space.grid(layer.config, search.base, choices, search.runs)
  built = time.perf_counter()
  found = tuner.candidates(search, grid, f.confirm)
  pruned = time.perf_counter()
  pareto = tuner.Pareto(search)
  pareto.add(search.published)
  for point in found:
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
    grid_seconds=built - start,
    model_seconds=pruned - built,
    confirmed=confirmed,
    best=best,
    tried=len(pareto.schedules),
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


def _tune(f: flags.FlagValues) -> int:
  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.backend_ascend.compiler.orders import schedule_file
  from hpmoe.backend_ascend.host.load import expert_placement

  if f.check and f.out is None:
    raise cli.UsageError('check: expected --out beside it, got none')
  with cli.progress(_count_steps(f), estimate=True) as step:
    layer = _layer(f, step)
    if f.out_placement is not None and not layer.loads:
      raise cli.UsageError(
        'out_placement: expected a routing with other batches, such as '
        f'skewed or zipf, got {cli.text(f.routing)}'
      )
    found = _search(f, layer, step)
    best = found['best'].options
    for compile_pass in compiler.COMPILE.values():
      step('proofs')
      compile_pass(layer.config, layer.policy, best, target=layer.target)
  cli.write_json(f.json, _json(layer, found))
  if f.png is not None:
    from hpmoe.backend_ascend.simulator.tune import plot

    shown = found['subspace'][1] if found['subspace'] else found['all']
    plot.write(
      f.png, found['best'], found['published'], shown, found['ablation']
    )
  if f.out is not None:
    seconds = next(iter(found['best'].simulated.values()))
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
    expert_placement.save(f.out_placement, found['expert_placement'])
  judge_layer = _judge_request(f, layer)
  for table in (
    *(_cases, _choices, _ablation, _placement, _levers, _accuracy),
  ):
    print(table(layer, found), end='\n\n')
  print(_summary(layer, found))
  print(f'schedule: {f.out or "not written, see --out"}')
  if f.out is None:
    return cli.PARITY
  request = [*judge_layer, f'--schedule={f.out}']
  print(f'judge it: hpmoe {" ".join(request)}')
  if not f.check:
    return cli.PARITY
  from hpmoe.parity_tests.commands import main

  return main.main(request)


def _judge_request(f: flags.FlagValues, layer) -> list[str]:
  """Returns the request that launches a schedule and judges it.

  A layer that only compiles is judged scaled: another size, the same order.
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


def _cases(layer, found) -> str:
  rows = []
  for name in layer.cases:
    published, best = found['published'], found['best']
    bound = found['bound'][name]
    mine = best.simulated[name]
    theirs = published.simulated[name]
    rows.append(
      (
        name,
        *(f'{theirs[p] * _MS:.3f}' for p in theirs),
        *(f'{mine[p] * _MS:.3f}' for p in mine),
        f'{published.total(name) / best.total(name):.3f}',
        f'{bound.seconds * _MS:.3f}',
        f'{found["peak"][name].seconds * _MS:.3f}',
        f'{100 * (best.total(name) / bound.seconds - 1):.1f} %',
        f'{100 * found["regret"][name]:.1f} %',
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


def _choices(layer, found) -> str:
  from hpmoe.backend_ascend.simulator.tune import space

  del layer
  search, best = found['search'], found['best'].options
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


def _ablation(layer, found) -> str:
  del layer
  return text_table.format_table(
    ('without', 'tuned', 'published', 'slower by'),
    [
      (
        row.choice,
        row.mine,
        row.without,
        'does not go' if row.gain is None else f'{100 * row.gain:.2f} %',
      )
      for row in found['ablation']
    ],
  )


def _placement(layer, results) -> str:
  """Tells what a placement by loads of other batches is worth, by case."""
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


def _levers(layer, found) -> str:
  """Tells what no schedule holds: each lever's share, and the goal."""
  from hpmoe.backend_ascend.simulator.tune import levers

  rows = [
    (row.choice, row.mine, row.without, f'{100 * row.gain:.2f} %')
    for row in found['levers']
  ]
  heading = ('without lever', 'pulled', 'published', 'slower by')
  published, levered = found['published'], found['levered']
  goals = [
    f'{name}: {gain:.3f}x over the published point with levers, goal '
    f'{_GOAL:g}x: {"yes" if gain >= _GOAL else "NO"}; '
    f'{published.total(name) / found["best"].total(name):.3f}x without; '
    f'{published.total(name) / found["peak"][name].seconds:.3f}x at most '
    'with this flow and no lever, fitted shares at 1'
    for name in layer.cases
    for gain in [published.total(name) / levered.total(name)]
  ]
  if not rows:
    return '\n'.join(['no lever helps', *goals])
  for row in found['levers']:
    hint = levers.LEVERS[row.choice].hint
    gains = ', '.join(
      f'{published.total(name) / row.seconds[name]:.3f}x without it'
      for name in layer.cases
    )
    goals.append(f'{row.choice}: {hint}; {gains}')
  return '\n'.join([text_table.format_table(heading, rows), '', *goals])


def _accuracy(layer, found) -> str:
  del layer
  if found['subspace'] is None:
    return 'model against simulation: not asked for, see --exhaustive'
  one, _ = found['subspace']
  return (
    f'model against simulation of all {one.points} points of a subspace: '
    f'mean error {100 * one.mean_error:.2f} %, worst '
    f'{100 * one.worst_error:.2f} %, rank correlation '
    f'{one.rank_correlation:.4f}, its best is {100 * one.regret:.2f} % slower '
    'than the best'
  )


def _summary(layer, found) -> str:
  seconds = found['model_seconds']
  return (
    f'{found["points"]} points x {len(layer.cases)} cases by the model in '
    f'{seconds:.2f} s ({found["points"] * len(layer.cases) / seconds:.3g} a '
    f'second), {found["tried"]} simulated, on {layer.machine.name} for '
    f'target {layer.target}'
  )


# What was found, as the report calls it too.
_REPORTED = (
  *('points', 'grid_seconds', 'model_seconds', 'regret', 'bound', 'peak'),
  *('ablation', 'levers', 'published', 'confirmed', 'best', 'levered'),
  *('expert_placement', 'placed'),
  'by_case',
)


def _json(layer, found) -> dict:
  content = {name: found[name] for name in _REPORTED} | dict(
    layer=layer.config,
    policy=layer.policy,
    machine=layer.machine.name,
    target=layer.target,
    cases=list(layer.cases),
    simulated=found['tried'],
    goal=_GOAL,
  )
  if found['subspace'] is not None:
    accuracy, timed = found['subspace']
    content['subspace'] = dataclasses.asdict(accuracy) | dict(timed=timed)
  return content


COMMAND = cli.Command('tune', _define_tune, _tune)
