"""`hpmoe sweep`."""

import dataclasses
import json

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _chain(word: str) -> str:
  if word != 'all' and not word.isdecimal():
    raise ValueError('all or integers')
  return word


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  out: str = option_fields.option(
    'sweep.jsonl',
    'Write one JSON line for each case here.',
    writes='file',
  )


def _list_options() -> list[option_fields.Option]:
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
  return [
    *(
      row.replace(**kinds.get(row.name, {})).as_list(lists[row.name])
      for row in option_fields.select(layer_flags.CASE, *lists)
    ),
    *case_flags.SIZES,
    case_flags.DIRECTION,
    *option_fields.select(layer_flags.CASE, 'tokens', 'seed', 'placement'),
    *option_fields.list_options(_Options),
  ]


def _sweep(f: parser.Values) -> int:
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


COMMAND = cli.Command(
  'sweep',
  _list_options,
  _sweep,
  compiles=True,
)
