"""`hpmoe tightness`."""

import dataclasses

from absl import flags

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags


def _define(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.commands import tightness

  flags.DEFINE_list(
    'depth',
    [str(depth) for depth in tightness.DEPTHS],
    'Terms of a sum. A list.',
    flag_values=f,
  )
  flags.DEFINE_integer(
    'seeds', 3, 'Tiles of each depth.', lower_bound=1, flag_values=f
  )
  cli.define_json(f)


def _tightness(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.commands import tightness
  from hpmoe.parity_tests.report import text_table

  cli.check_writable('json', f.json)
  depths = layer_flags.integers('depth', f.depth)
  with cli.progress(len(depths)) as step:
    rows = tightness.measure(depths, f.seeds, step)
  cli.write_json(f.json, [dataclasses.asdict(row) for row in rows])
  heading = (
    'depth',
    'bound: median',
    'worst',
    'spread: median',
    'worst',
    'TF32 operands',
    'bf16 operands',
  )
  figures = [(*row.bound, *row.spread, row.tf32, row.bf16) for row in rows]
  cells = [
    (str(row.depth), *(f'{figure:.3g}' for figure in line))
    for row, line in zip(rows, figures)
  ]
  print(text_table.text(heading, cells))
  return cli.PARITY if all(row.holds for row in rows) else cli.NO_PARITY


COMMAND = cli.Command(
  'tightness',
  'how much of its limits a right float32 tile uses, and a wrong one.',
  ('hpmoe tightness --depth=64,16384 --json=tightness.json',),
  _define,
  _tightness,
  '0 the limits are tight and wrong operands are caught, 1 they are not',
)
