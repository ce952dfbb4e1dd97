"""`hpmoe twin-counts`."""

import dataclasses
import pathlib

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields

# Columns of the printed table; files have all.
_COLUMNS = (
  *('kind', 'unit', 'rows', 'cols', 'depth', 'tasks', 'bytes_mte2'),
  *('bytes_mte1', 'bytes_mte3', 'bytes_fix', 'cube_steps', 'vector_steps'),
  'ns',
)


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  csv: str | None = option_fields.option(
    None,
    'Write all columns here, one line for each tile.',
    writes='file',
  )
  machine: str = option_fields.option(
    'ascend_a3',
    'Machine whose figures give the times.',
  )


def _list_options() -> list[option_fields.Option]:
  return [
    *option_fields.replace_defaults(layer_flags.CASE, preset='tiny', ranks=2),
    *option_fields.list_options(_Options),
  ]


def _counts(f: parser.Values) -> int:
  from hpmoe.backend_ascend.device.twin_launch import tile_counts
  from hpmoe.backend_ascend.device.twin_launch import twin_runtime
  from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
  from hpmoe.parity_tests.ascend import twin_candidate
  from hpmoe.parity_tests.judge import bench as bench_lib
  from hpmoe.parity_tests.report import text_table

  layer_flags.refuse_without_effect(f, f.direction)
  case = layer_flags.case(f)
  machine = machine_lib.load(f.machine)
  modes = twin_runtime.Modes(
    rates={name: machine[name] for name in twin_runtime.RATES}
  )
  candidate = twin_candidate.Twin(layer_flags.options(f), twin=modes)
  candidate = candidate.ready(case)
  bench = bench_lib.Bench(case)
  outputs: dict = {}
  for layer_pass in case.passes:
    outputs |= bench.case(
      candidate, layer_pass, bench.real_inputs, outputs
    ).run(candidate.run)
  table = [
    tile
    for launch, counts in zip(candidate.launches, candidate.counts)
    for tile in tile_counts.list_tiles(
      launch.image, launch.plan.counts, counts, launch.plan.relayed_counts
    )
  ]
  rows = [tile.row() for tile in table]
  cli.write_json(f.json, dict(tiles=rows))
  if f.csv is not None:
    with pathlib.Path(f.csv).open('w', encoding='utf-8') as file:
      tile_counts.write_csv(table, file)

  def format_value(value):
    return f'{value:g}' if isinstance(value, float) else value

  printed_rows = [
    {n.replace('_', ' '): format_value(row[n]) for n in _COLUMNS}
    for row in rows
  ]
  print(text_table.format_rows(printed_rows))
  return cli.PARITY


COMMAND = cli.Command(
  'twin-counts',
  _list_options,
  _counts,
)
