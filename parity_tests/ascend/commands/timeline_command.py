"""`hpmoe timeline`."""

import dataclasses

from absl import flags

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags


def _define_timeline(f: flags.FlagValues) -> None:
  from hpmoe.backend_ascend.simulator.machines import machine
  from hpmoe.backend_ascend.simulator.trace import chrome
  from hpmoe.parity_tests.ascend import host

  cli.define(f, layer_flags.ONE_PASS)
  # As tune.
  cli.define(f, case_flags.DATA, routing='balanced')
  cli.define(f, flag_tables.select(host.FLAGS, 'threads'))
  cli.own(
    f,
    'timeline',
    dict(machines=', '.join(machine.names()), rule=chrome.ARROW_RULE),
    arrows=dict(default=chrome.MOST_ARROWS),
  )


def _sized(options, config, topk_ids):
  """Returns options with room for the rows that experts have.

  No more, so that no task is empty, unless a schedule says so.
  """
  from hpmoe.parity_tests.case import routings

  if options.expert_capacity is not None:  # a schedule's
    return options
  most = int(routings.count_rows(config, topk_ids).max())
  return dataclasses.replace(options, expert_capacity=most)


def _layer(f: flags.FlagValues):
  """Returns the layer's config, policy and inputs.

  Of a shape that is only compiled, inputs are the routing.
  """
  from hpmoe.parity_tests.case import routings
  from hpmoe.parity_tests.case import text_router
  from hpmoe.reference.contract import presets

  preset = presets.get(layer_flags.preset(f))
  if f.machine is None and f.input is None:
    presets.to_run(layer_flags.preset(f))
  if f.machine is None or f.input is not None or preset.runs_here:
    made = layer_flags.case(f).make()
    return made.config, made.policy, made.arrays
  config = presets.config(preset, f.ranks, f.tokens, f.capacity)
  if f.routing in text_router.LARGE:
    ids = text_router.topk_ids(f.routing, preset, config, f.seed)
  else:
    ids = routings.load(f.routing, config, f.seed).topk_ids
  if f.capacity is None:
    rows = int(routings.measure_skew(config, ids)['max_rows_of_rank'])
    config = dataclasses.replace(config, capacity=rows)
  policy = layer_flags.policy(f)
  return config, policy, dict(topk_ids=ids)


def _require_cores(f: flags.FlagValues, options, machine) -> None:
  """Refuses more cores than a machine has, by the option that asks for them.

  Raises:
    cli.UsageError: there are more.
  """
  if machine['threads']:  # drive any number of workers
    return
  for name in ('aic', 'aiv'):
    cores = getattr(options, f'num_{name}')
    if cores <= machine[name]:
      continue
    option = name if f.schedule is None else 'schedule'
    origin = '' if f[option].present else f", the {f.preset} preset's"
    advice = f': pass --{name}={machine[name]:.0f}' if option == name else ''
    raise cli.UsageError(
      f'{option}: expected at most {machine[name]:.0f} {name.upper()} on '
      f'{machine.name}, got {cores}{origin}{advice}'
    )


def _model(f: flags.FlagValues, step):
  """Returns the timeline on a described machine, and how far the bound is."""
  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.backend_ascend.simulator import simulate
  from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
  from hpmoe.backend_ascend.simulator.trace import sources
  from hpmoe.backend_ascend.simulator.trace import summary
  from hpmoe.parity_tests.case import passes

  machine = machine_lib.load(f.machine)
  step('routing')
  config, policy, inputs = _layer(f)
  ids = inputs['topk_ids']
  step('compile')
  (which,) = passes.from_direction(f.direction)
  options = _sized(layer_flags.options(f), config, ids)
  _require_cores(f, options, machine)
  image = compiler.COMPILE[which.direction](config, policy, options).image
  step('simulate')
  simulated = simulate.simulate(image, machine, ids)
  bound = simulate.bound(image, machine, ids)
  times = sources.of_simulation(simulated, ids)
  return times, summary.roofline(simulated, bound)


def _measure(f: flags.FlagValues, step):
  """Returns the timeline of a launch on this host, and no bound."""
  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.backend_ascend.host.launch import runtime
  from hpmoe.backend_ascend.simulator.trace import sources
  from hpmoe.parity_tests.ascend import host
  from hpmoe.parity_tests.case import passes

  step('inputs')
  config, policy, given = _layer(f)
  ids = given['topk_ids']
  options = _sized(layer_flags.options(f), config, ids)

  def compiled(which, tensors):
    step(f'compile {which.name}')
    compile_ = compiler.COMPILE[which.direction]
    image = compile_(config, policy, options).image
    return image, host.select_runtime_inputs(which, policy, tensors)

  image, inputs = compiled(passes.FORWARD, given)
  if f.direction == 'backward':
    saved = runtime.launch(image, inputs, threads=f.threads)
    image, inputs = compiled(passes.BACKWARD, {**given, **saved})
  plan = runtime.route(image, ids)
  times = sources.measure(image, inputs, plan, f.threads, f.launches, step)
  return times, None


def _timeline(f: flags.FlagValues) -> int:
  from hpmoe.backend_ascend.simulator.trace import chrome
  from hpmoe.backend_ascend.simulator.trace import plot
  from hpmoe.backend_ascend.simulator.trace import summary

  if f.machine is not None:
    beside = f'beside --machine={f.machine}'
    cli.refuse(f, ('threads', 'launches'), beside, ': nothing is launched')
  if f['arrows'].present and f.trace is None:
    raise cli.UsageError('arrows: expected --trace beside it, got none')
  layer_flags.refuse_without_effect(f, f.direction)
  layer_flags.fill_cores(f)
  with cli.progress() as step:
    times, bound = (_measure if f.machine is None else _model)(f, step)
    step('summary')
    found = summary.summarise(times, bound)
    content = summary.to_json(found)
    if f.trace is not None:
      step('trace')
      shown = chrome.write(f.trace, times, f.arrows)
      content['arrows'] = dict(
        shown=len(shown.event),
        left_out=shown.left_out,
        rule=chrome.ARROW_RULE,
      )
    if f.png is not None:
      step('picture')
      plot.write_png(f.png, times)
  cli.write_json(f.json, content)
  print(_text(found))
  return cli.PARITY


def _us(seconds: float) -> str:
  return f'{seconds * 1e6:.1f}'


def _percent(share: float) -> str:
  return f'{100 * share:.1f}%'


def _text(found) -> str:
  """Returns a summary for people."""
  from hpmoe.parity_tests.report import text_table

  total = found.total or 1.0
  exposed = found.exposed_puts
  # Ranks that share threads are one.
  shared = any(unit.name == 'threads' for unit in found.units)
  of_worst = f' (most: rank {exposed.worst_rank}, {_us(exposed.worst)} us)'
  most = '' if shared else of_worst
  stages = [
    {
      'stage': s.name,
      'unit': s.unit,
      'tasks': s.tasks,
      'busy us': _us(s.busy),
      'waited us': _us(s.wait_seconds),
      'first us': _us(s.first),
      'last us': _us(s.last),
      'on critical path us': _us(s.on_path),
      'of it': _percent(s.on_path / total),
    }
    for s in found.stages
  ]
  stages.append(
    dict.fromkeys(stages[0], '-')
    | {
      'stage': 'between tasks',
      'on critical path us': _us(found.between),
      'of it': _percent(found.between / total),
    }
  )
  units = [
    {
      'unit': u.name,
      'cores': u.cores,
      'busy us': _us(u.seconds),
      'utilisation': _percent(u.utilisation),
      'least': _percent(u.lowest),
      'most': _percent(u.highest),
    }
    for u in found.units
  ]
  told = (
    f'{found.direction}, {found.origin}: {_us(found.total)} us, '
    f'{found.tasks} tasks\n\n{text_table.format_rows(units)}\n\n'
    f'{text_table.format_rows(stages)}\n\n'
    f'puts run {_us(exposed.puts)} us; {_us(exposed.without_gemm)} us of it '
    f'beside no GEMM{most}, {_us(exposed.without_compute)} us beside no '
    'computation'
  )
  return told if found.roofline is None else f'{told}\n{_bound(found.roofline)}'


def _bound(roofline) -> str:
  from hpmoe.parity_tests.report import text_table

  parts = text_table.format_rows(
    [
      {
        'roofline': p.name,
        'needs us': _us(p.needs),
        'busy': _percent(p.busy),
        'of its rate': _percent(p.rate),
      }
      for p in roofline.parts
    ]
  )
  return (
    f'bound: {roofline.name}, {_us(roofline.seconds)} us, '
    f'{_percent(roofline.share)} of the time\n\n{parts}'
  )


COMMAND = cli.Command('timeline', _define_timeline, _timeline)
