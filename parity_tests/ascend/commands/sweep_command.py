"""`hpmoe sweep`."""

import json

from absl import flags

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags


def _chain(word: str) -> str:
  if word != 'all' and not word.isdecimal():
    raise ValueError('all or integers')
  return word


def _define_sweep(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.case import routings
  from hpmoe.reference.contract import presets

  lists = dict(
    preset=presets.ROUTED,
    ranks=(1, 2, 4, 8),
    routing=('text', *routings.GENERATORS),
    dtype=case_flags.SHORT,
    event_grain=('expert', 'row_block'),
    row_block=(16, 64, 128),
    chain_rows=('all',),
    weight_grad_order=('interleaved',),
    accumulation_order=('ascending',),
    relay=('false',),
  )
  kinds = dict(
    chain_rows=dict(kind=_chain),
    relay=dict(kind=str, choices=('false', 'true')),
  )
  for row in flag_tables.select(layer_flags.CASE, *lists):
    row = row.replace(**kinds.get(row.name, {}))
    cli.define(f, [row.as_list(lists[row.name])])
  cli.define(f, [*case_flags.SIZES, case_flags.DIRECTION])
  cli.define(
    f, flag_tables.select(layer_flags.CASE, 'tokens', 'seed', 'placement')
  )
  cli.own(f, 'sweep')


def _sweep(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.ascend import sweep

  layer_flags.refuse_without_effect(f, f.direction)
  plan = sweep.Plan(
    direction=f.direction,
    presets=tuple(layer_flags.preset(f, name) for name in f.preset),
    ranks=tuple(f.ranks),
    routings=tuple(f.routing),
    dtypes=tuple(case_flags.DTYPES[dtype] for dtype in f.dtype),
    event_grains=tuple(f.event_grain),
    row_blocks=tuple(f.row_block),
    chain_rows=tuple(
      None if word == 'all' else int(word) for word in f.chain_rows
    ),
    weight_grad_orders=tuple(f.weight_grad_order),
    accumulation_orders=tuple(f.accumulation_order),
    relay=tuple(word == 'true' for word in f.relay),
    tokens=f.tokens,
    seed=f.seed,
    placement=f.placement,
  )
  with cli.progress(plan.cases) as step, open(f.out, 'w') as out:
    cases = sweep.run(
      plan, lambda line: print(json.dumps(line), file=out, flush=True), step
    )
  cli.write_json(f.json, sweep.to_json(plan, cases))
  print(sweep.format_summary(cases))
  return cli.PARITY if sweep.all_pass(cases) else cli.NO_PARITY


COMMAND = cli.Command('sweep', _define_sweep, _sweep, compiles=True)
