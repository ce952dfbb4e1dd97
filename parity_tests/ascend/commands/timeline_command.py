"""`hpmoe timeline`."""

import dataclasses

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _name_machines() -> str:
  from hpmoe.backend_ascend.simulator.machines import machine

  return ', '.join(machine.names())


def _describe_arrows() -> str:
  from hpmoe.backend_ascend.simulator.trace import chrome

  return chrome.ARROW_RULE


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  machine: str | None = option_fields.option(
    None,
    lambda: (
      f'Machine whose time is modelled: {_name_machines()}, or a TOML file. '
      'Default: none; the launch runs on this host and is measured.'
    ),
  )
  launches: int = option_fields.option(
    5,
    'Number of measured launches, after one that is not counted; the '
    'launch with the median time is shown.',
    minimum=1,
  )
  trace: str | None = option_fields.option(
    None,
    'Write a trace for Perfetto or chrome://tracing here; about 260 bytes '
    'a task.',
    writes='file',
  )
  arrows: int | None = option_fields.option(
    None,
    lambda: f'Maximum number of arrows in the trace: {_describe_arrows()}.',
    minimum=0,
  )
  png: str | None = option_fields.option(
    None,
    'Write a plot of workers and units here.',
    writes='picture',
  )


def _list_options() -> list[option_fields.Option]:
  from hpmoe.backend_ascend.simulator.trace import chrome
  from hpmoe.parity_tests.ascend import host

  return [
    *layer_flags.ONE_PASS,
    # As tune.
    *option_fields.replace_defaults(case_flags.DATA, routing='balanced'),
    *option_fields.select(host.FLAGS, 'threads'),
    *option_fields.replace_defaults(
      option_fields.list_options(_Options), arrows=chrome.MOST_ARROWS
    ),
  ]


def _fit_expert_capacity(options, config, topk_ids):
  """Returns options whose expert capacity fits the routing exactly.

  No task is empty then.  The capacity of a schedule stays as it is.
  """
  from hpmoe.parity_tests.case import routings

  if options.expert_capacity is not None:  # a schedule's
    return options
  max_rows = int(routings.count_rows(config, topk_ids).max())
  return dataclasses.replace(options, expert_capacity=max_rows)


def _layer(f: parser.Values):
  """Returns the layer's config, policy and inputs.

  The inputs of a shape that is only compiled are the routing alone.
  """
  from hpmoe.parity_tests.case import routings
  from hpmoe.parity_tests.case import text_router
  from hpmoe.reference.contract import presets

  preset = presets.get(layer_flags.preset(f))
  if f.machine is None and f.input is None:
    presets.to_run(layer_flags.preset(f))
  if f.machine is None or f.input is not None or preset.runs_here:
    case = layer_flags.case(f).make()
    return case.config, case.policy, case.arrays
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


def _require_cores(f: parser.Values, options, machine) -> None:
  """Checks that the machine has the cores that the options name.

  Raises:
    cli.UsageError: it has fewer; names the flag to change.
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


def _model(f: parser.Values, step):
  """Returns the timeline on a described machine, and its roofline."""
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
  (layer_pass,) = passes.from_direction(f.direction)
  options = _fit_expert_capacity(layer_flags.options(f), config, ids)
  _require_cores(f, options, machine)
  image = compiler.COMPILE[layer_pass.direction](config, policy, options).image
  step('simulate')
  simulation = simulate.simulate(image, machine, ids)
  bound = simulate.bound(image, machine, ids)
  times = sources.of_simulation(simulation, ids)
  return times, summary.roofline(simulation, bound)


def _measure(f: parser.Values, step):
  """Returns the timeline of a launch on this host, and no bound."""
  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.backend_ascend.host.launch import runtime
  from hpmoe.backend_ascend.simulator.trace import sources
  from hpmoe.parity_tests.ascend import host
  from hpmoe.parity_tests.case import passes

  step('inputs')
  config, policy, layer_inputs = _layer(f)
  ids = layer_inputs['topk_ids']
  options = _fit_expert_capacity(layer_flags.options(f), config, ids)

  def compile_pass(layer_pass, tensors):
    step(f'compile {layer_pass.name}')
    compile_ = compiler.COMPILE[layer_pass.direction]
    image = compile_(config, policy, options).image
    return image, host.select_runtime_inputs(layer_pass, policy, tensors)

  image, inputs = compile_pass(passes.FORWARD, layer_inputs)
  if f.direction == 'backward':
    outputs = runtime.launch(image, inputs, threads=f.threads)
    image, inputs = compile_pass(passes.BACKWARD, {**layer_inputs, **outputs})
  plan = runtime.route(image, ids)
  times = sources.measure(image, inputs, plan, f.threads, f.launches, step)
  return times, None


def _timeline(f: parser.Values) -> int:
  from hpmoe.backend_ascend.simulator.trace import chrome
  from hpmoe.backend_ascend.simulator.trace import plot
  from hpmoe.backend_ascend.simulator.trace import summary

  if f.machine is not None:
    beside = f'with --machine={f.machine}'
    cli.refuse(f, ('threads', 'launches'), beside, ': nothing is launched')
  if f['arrows'].present and f.trace is None:
    raise cli.UsageError('arrows: expected --trace with it, got none')
  layer_flags.refuse_without_effect(f, f.direction)
  layer_flags.fill_cores(f)
  with cli.progress() as step:
    times, bound = (_measure if f.machine is None else _model)(f, step)
    step('summary')
    timeline = summary.summarise(times, bound)
    content = summary.to_json(timeline)
    if f.trace is not None:
      step('trace')
      arrows = chrome.write(f.trace, times, f.arrows)
      content['arrows'] = dict(
        shown=len(arrows.event),
        left_out=arrows.left_out,
        rule=chrome.ARROW_RULE,
      )
    if f.png is not None:
      step('picture')
      plot.write_png(f.png, times)
  cli.write_json(f.json, content)
  print(_text(timeline))
  return cli.PARITY


def _format_us(seconds: float) -> str:
  return f'{seconds * 1e6:.1f}'


def _percent(share: float) -> str:
  return f'{100 * share:.1f}%'


def _text(timeline) -> str:
  """Returns the summary that is printed."""
  from hpmoe.parity_tests.report import text_table

  total = timeline.total or 1.0
  exposed_puts = timeline.exposed_puts
  # Ranks that share threads have no times of their own.
  shared = any(unit.name == 'threads' for unit in timeline.units)
  of_worst = (
    f' (most: rank {exposed_puts.worst_rank}, '
    f'{_format_us(exposed_puts.worst)} us)'
  )
  worst_rank = '' if shared else of_worst
  stages = [
    {
      'stage': s.name,
      'unit': s.unit,
      'tasks': s.tasks,
      'busy us': _format_us(s.busy),
      'waited us': _format_us(s.wait_seconds),
      'first us': _format_us(s.first),
      'last us': _format_us(s.last),
      'on critical path us': _format_us(s.on_path),
      'of it': _percent(s.on_path / total),
    }
    for s in timeline.stages
  ]
  stages.append(
    dict.fromkeys(stages[0], '-')
    | {
      'stage': 'between tasks',
      'on critical path us': _format_us(timeline.between),
      'of it': _percent(timeline.between / total),
    }
  )
  units = [
    {
      'unit': u.name,
      'cores': u.cores,
      'busy us': _format_us(u.seconds),
      'utilisation': _percent(u.utilisation),
      'least': _percent(u.lowest),
      'most': _percent(u.highest),
    }
    for u in timeline.units
  ]
  text = (
    f'{timeline.direction}, {timeline.origin}: {_format_us(timeline.total)} '
    f'us, {timeline.tasks} tasks\n\n{text_table.format_rows(units)}\n\n'
    f'{text_table.format_rows(stages)}\n\nputs run '
    f'{_format_us(exposed_puts.puts)} us; '
    f'{_format_us(exposed_puts.without_gemm)} us of it not '
    f'overlapped by a GEMM{worst_rank}, '
    f'{_format_us(exposed_puts.without_compute)} us not overlapped by any '
    'computation'
  )
  return (
    text
    if timeline.roofline is None
    else f'{text}\n{_bound(timeline.roofline)}'
  )


def _bound(roofline) -> str:
  from hpmoe.parity_tests.report import text_table

  parts = text_table.format_rows(
    [
      {
        'roofline': p.name,
        'needs us': _format_us(p.needs),
        'busy': _percent(p.busy),
        'of its rate': _percent(p.rate),
      }
      for p in roofline.parts
    ]
  )
  return (
    f'bound: {roofline.name}, {_format_us(roofline.seconds)} us, '
    f'{_percent(roofline.share)} of the time\n\n{parts}'
  )


COMMAND = cli.Command(
  'timeline',
  _list_options,
  _timeline,
)
