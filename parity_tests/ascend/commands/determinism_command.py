"""`hpmoe determinism`."""

import dataclasses

from hpmoe.parity_tests.candidates import tiling_fields
from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _workers(word: str) -> str:
  aic, x, aiv = word.partition('x')
  if not (x and aic.isdecimal() and aiv.isdecimal()):
    raise ValueError('cube x vector workers, such as 3x5')
  return word


def _list_orders() -> tuple[str, ...]:
  from hpmoe.parity_tests.ascend.determinism import arrival_orders

  return tuple(arrival_orders.ORDERS)


def _count_launches() -> int:
  from hpmoe.parity_tests.ascend.determinism import arrival_orders

  return arrival_orders.LAUNCHES


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  interleavings: int | None = option_fields.option(
    None,
    'Number of seeded orders for each image and number of threads; every '
    'second one has late puts.',
  )
  layout: tuple[str, ...] | None = option_fields.option(
    None,
    'Numbers of cube x vector workers of one rank. A list.',
    kind=_workers,
  )
  order: str | None = option_fields.option(
    None,
    lambda: (
      'Simulate an order that some machines do not fix: rows are stored in '
      'order of arrival, or a switch adds rows in order of arrival. Reports '
      f'which bits change; {_count_launches()} launches without '
      '--interleavings.'
    ),
    choices=_list_orders,
  )
  machine: str | None = option_fields.option(
    None,
    'With --order: simulate the order of arrival on this machine and its '
    'fabric, instead of drawing it: an included machine, or a TOML file.',
  )


def _list_options() -> list[option_fields.Option]:
  from hpmoe.parity_tests.ascend import backend
  from hpmoe.parity_tests.ascend import host
  from hpmoe.parity_tests.ascend.determinism import interleavings

  plan = interleavings.Plan()
  layer = option_fields.select(
    (*layer_flags.CASE, *host.FLAGS),
    *('preset', 'routing', 'ranks', 'seed', 'placement'),
    *('tokens', 'relay', 'fault', 'isa'),
  )
  return [
    *option_fields.replace_defaults(
      layer,
      preset=plan.preset,
      routing=plan.routing,
      ranks=plan.ranks,
      seed=plan.seed,
      placement=plan.placement,
    ),
    *_list_lists(plan, (*layer_flags.CASE, *host.FLAGS)),
    *case_flags.SIZES,
    *tiling_fields.SCHEDULE,
    backend.IN_PROCESS,
    *host.PLACEMENT,
    *option_fields.select(case_flags.QUANTISED, 'weights', 'rows'),
    *option_fields.replace_defaults(
      option_fields.list_options(_Options),
      interleavings=plan.interleavings,
      layout=[f'{aic}x{aiv}' for aic, aiv in plan.layouts],
    ),
  ]


def _list_lists(plan, rows) -> list[option_fields.Option]:
  """Returns the options that are lists here, and single values elsewhere."""
  from hpmoe.parity_tests.ascend.determinism import interleavings

  direction, *list_rows = option_fields.select(
    rows, 'direction', 'dtype', 'threads', 'accumulation_order'
  )
  direction = direction.replace(
    choices=interleavings.DIRECTIONS, help='Passes.'
  )
  defaults = (
    plan.directions,
    case_flags.SHORT,
    plan.threads,
    plan.accumulation_orders,
  )
  return [
    row.as_list(default)
    for row, default in zip((direction, *list_rows), defaults, strict=True)
  ]


def _plan(f: parser.Values):
  from hpmoe.parity_tests.ascend.determinism import interleavings
  from hpmoe.reference.contract import presets

  presets.to_run(f.preset)
  dtypes = tuple(case_flags.DTYPES[dtype] for dtype in f.dtype)
  orders = tuple(f.accumulation_order)
  if 'ascending' not in orders and not f['dtype'].present:
    dtypes = ('bfloat16',)
  layouts = (word.split('x') for word in f.layout)
  return interleavings.Plan(
    scheduled=_load_schedule(f, dtypes),
    schedule_arguments=cli.arguments(
      f, exclude=[n for n in f if n not in ('schedule', 'schedule_scaled')]
    ),
    preset=layer_flags.preset(f),
    ranks=f.ranks,
    tokens=f.tokens,
    routing=_routing(f),
    seed=f.seed,
    placement=f.placement,
    directions=_directions(f),
    quantised=f.weights,
    rows=f.rows,
    dtypes=dtypes,
    accumulation_orders=orders,
    isa=tuple(f.isa),
    interleavings=f.interleavings,
    threads=tuple(f.threads),
    layouts=tuple((int(aic), int(aiv)) for aic, aiv in layouts),
    fault=f.fault,
    relay=f.relay,
    expert_placement=f.expert_placement,
  )


def _directions(f: parser.Values) -> tuple[str, ...]:
  """Returns --direction, by default both; forward alone with codes."""
  from hpmoe.parity_tests.ascend.determinism import interleavings

  is_whole = f['direction'].present or not f.rows
  return tuple(f.direction) if is_whole else interleavings.DIRECTIONS[:1]


def _routing(f: parser.Values) -> str:
  """Returns --routing; by default that of the preset, if it has only one."""
  from hpmoe.reference.contract import presets

  is_routed = presets.get(layer_flags.preset(f)).is_routed
  return f.routing if is_routed or f['routing'].present else 'text'


def _load_schedule(f: parser.Values, dtypes):
  """Returns the options of --schedule, which must be valid for each dtype."""
  from hpmoe.reference.contract import precision
  from hpmoe.reference.contract import presets

  config = presets.config(presets.get(layer_flags.preset(f)), f.ranks, f.tokens)
  options = None
  for dtype in dtypes:
    policy = precision.PrecisionPolicy(storage=dtype, placement=f.placement)
    options = layer_flags.scheduled(f, config, policy)
  return options


def _run(f: parser.Values) -> int:
  from hpmoe.parity_tests.ascend.determinism import interleavings
  from hpmoe.parity_tests.ascend.determinism import interleavings_table

  plan = _plan(f)
  if f.order is not None:
    return _run_orders(f, plan)
  if f.machine is not None:
    raise cli.UsageError(
      f'machine: expected --order with it, got {f.machine} alone'
    )
  if f.backend != 'host':
    return _run_on_twin(f, plan)
  with cli.failure_reported(f.json), cli.progress(plan.steps) as step:
    table = interleavings.run(plan, step)
  cli.write_json(f.json, interleavings_table.to_json(plan, table))
  print(interleavings_table.text(table))
  return cli.PARITY if table.holds else cli.NO_PARITY


def _run_orders(f: parser.Values, plan) -> int:
  from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
  from hpmoe.parity_tests.ascend.determinism import arrival_orders

  fixed = ('threads', 'isa', 'fault', 'schedule', 'relay', 'expert_placement')
  cli.refuse(f, (*fixed, 'weights', 'rows'), f'with --order={f.order}')
  if f.backend != 'host':
    raise cli.UsageError(
      f'backend: expected host with --order={f.order}, got {f.backend}'
    )
  machine = None
  if f.machine is not None:
    machine = machine_lib.load(f.machine)
    conflict = f'with --machine={f.machine}, which has one order'
    cli.refuse(f, ['interleavings'], conflict)
  if not f['interleavings'].present:
    plan = dataclasses.replace(plan, interleavings=arrival_orders.LAUNCHES)
  steps = len(plan.sums) * len(plan.directions)
  with cli.failure_reported(f.json), cli.progress(steps) as step:
    rows = arrival_orders.run(plan, f.order, step, machine)
  cli.write_json(f.json, arrival_orders.to_json(plan, f.order, rows))
  print(arrival_orders.text(f.order, rows))
  return cli.PARITY if arrival_orders.match_oracle(rows) else cli.NO_PARITY


def _run_on_twin(f: parser.Values, plan) -> int:
  from hpmoe.parity_tests.ascend.determinism import interleavings
  from hpmoe.parity_tests.ascend.determinism import interleavings_table
  from hpmoe.parity_tests.ascend.determinism import twin_interleavings

  cli.refuse(
    f,
    ('threads', 'isa', 'accumulation_order', 'weights', 'rows'),
    f'with --backend={f.backend}',
    ': the twin is one thread of one process, with an order of its own',
  )
  for name, field, value in (
    ('interleavings', 'interleavings', twin_interleavings.SEEDS),
    ('layout', 'layouts', twin_interleavings.LAYOUTS),
    ('dtype', 'dtypes', twin_interleavings.DTYPES),
  ):
    if not f[name].present:
      plan = dataclasses.replace(plan, **{field: value})
  with (
    cli.failure_reported(f.json),
    cli.progress(twin_interleavings.count_steps(plan)) as step,
  ):
    table = twin_interleavings.run(plan, step)
  cli.write_json(f.json, interleavings_table.to_json(plan, table))
  print(interleavings_table.text(table))
  left_out = sorted(
    set(interleavings.Plan().dtypes) - set(twin_interleavings.DTYPES)
  )
  if not f['dtype'].present:
    print(f'{", ".join(left_out)}: left out, the device source has no kernels')
  return cli.PARITY if table.holds else cli.NO_PARITY


COMMAND = cli.Command(
  'determinism',
  _list_options,
  _run,
)
