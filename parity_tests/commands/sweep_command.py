"""`hpmoe sweep`."""

from collections.abc import Sequence
import json

from absl import flags

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags


def _define_sweep(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.case import inputs
  from hpmoe.reference.contract import presets

  for name, default, text in (
    ('preset', list(presets.RUNS_HERE), 'Shapes.'),
    ('ranks', ['1', '2', '4', '8'], 'Expert-parallel ranks.'),
    ('routing', list(inputs.ROUTINGS), 'Routings.'),
    ('dtype', list(layer_flags.SHORT), 'Storage dtypes.'),
    ('event_grain', ['expert', 'row_block'], 'Event grains.'),
    ('row_block', ['16', '64', '128'], 'Rows of a tile.'),
    (
      'chain_rows',
      ['all'],
      'Backward: `all`, or rows that one task of a weight gradient sums.',
    ),
    ('weight_grad_order', ['interleaved'], layer_flags.WEIGHT_GRAD_ORDER_HELP),
    ('accumulation_order', ['ascending'], layer_flags.ORDER_HELP),
    (
      'relay',
      ['false'],
      '`true`: a token for several experts of one rank crosses the link once.',
    ),
  ):
    flags.DEFINE_list(name, default, f'{text} A list.', flag_values=f)
  layer_flags.define_sizes(f)
  layer_flags.define_direction(f, 'both', 'Passes to check.')
  flags.DEFINE_integer(
    'tokens',
    None,
    "Tokens of ONE rank. Default: the preset's.",
    flag_values=f,
  )
  flags.DEFINE_integer('seed', 0, 'Seed of all values.', flag_values=f)
  flags.DEFINE_enum(
    'placement',
    'combine',
    ['combine', 'before_down'],
    layer_flags.PLACEMENT_HELP,
    flag_values=f,
  )
  flags.DEFINE_string(
    'out',
    'sweep.jsonl',
    'Write one JSON line for each case here.',
    flag_values=f,
  )
  cli.define_json(f)


def _chains(values: Sequence[str]) -> tuple[int | None, ...]:
  return tuple(
    None if value == 'all' else layer_flags.integers('chain_rows', [value])[0]
    for value in values
  )


def _booleans(values: Sequence[str]) -> tuple[bool, ...]:
  known = {'false': False, 'true': True}
  unknown = [value for value in values if value not in known]
  if unknown:
    raise cli.UsageError(f'relay: expected true or false, got {unknown[0]!r}')
  return tuple(known[value] for value in values)


def _sweep(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.law import sweep

  layer_flags.refuse_without_effect(f, f.direction)
  plan = sweep.Plan(
    direction=f.direction,
    presets=tuple(layer_flags.preset(f, name) for name in f.preset),
    ranks=layer_flags.integers('ranks', f.ranks),
    routings=tuple(f.routing),
    dtypes=layer_flags.dtype_list(f.dtype),
    grains=tuple(f.event_grain),
    row_blocks=layer_flags.integers('row_block', f.row_block),
    chain_rows=_chains(f.chain_rows),
    weight_grad_orders=tuple(f.weight_grad_order),
    accumulation_orders=layer_flags.orders(f.accumulation_order),
    relay=_booleans(f.relay),
    tokens=f.tokens,
    seed=f.seed,
    placement=f.placement,
  )
  for name in ('out', 'json'):
    cli.check_writable(name, f[name].value)
  with cli.progress(plan.cases) as step, open(f.out, 'w') as out:
    cases = sweep.run(
      plan, lambda line: print(json.dumps(line), file=out, flush=True), step
    )
  cli.write_json(f.json, sweep.to_json(plan, cases))
  print(sweep.summary(cases))
  return cli.PARITY if sweep.holds(cases) else cli.NO_PARITY


COMMAND = cli.Command(
  'sweep',
  'checks every preset, rank count, routing, dtype and granularity.',
  (
    'hpmoe sweep --out=sweep.jsonl',
    'hpmoe sweep --preset=tiny --ranks=1,2 --routing=zipf,hot',
    'hpmoe sweep --preset=tiny --relay=false,true',
    'hpmoe sweep --preset=tiny --accumulation_order=ascending,even_odd_32',
  ),
  _define_sweep,
  _sweep,
  '0 every case holds, 1 one does not, 2 the request was wrong',
  compiles=True,
)
