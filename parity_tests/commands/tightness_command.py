"""`hpmoe tightness`."""

import dataclasses

from absl import flags

from hpmoe.parity_tests.case import flag
from hpmoe.parity_tests.case import flags as case_flags
from hpmoe.parity_tests.commands import cli


def _define(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.law import tightness

  depth = flag.Flag('depth', '', 'Terms of a sum.', kind=int)
  seeds = flag.Flag(
    'seeds',
    '',
    'Tiles of each depth, and layers, drawn by seeds from 0.',
    3,
    int,
    least=1,
  )
  (dtype,) = flag.some(case_flags.LAYER, 'dtype')
  cli.define(f, [depth.listed(tightness.DEPTHS), seeds])
  cli.define(f, [dtype.listed(case_flags.SHORT)])
  cli.define_json(f)


def _tightness(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.law import tightness

  cli.check_writable('json', f.json)
  dtypes = [case_flags.DTYPES[dtype] for dtype in f.dtype]
  layers = [layer for layer in tightness.LAYERS if layer[0] in dtypes]
  with cli.progress(len(f.depth) + len(layers)) as step:
    rows = tightness.measure(f.depth, f.seeds, step)
    stages = tightness.measure_stages(f.seeds, step, layers)
  cli.write_json(
    f.json,
    dict(
      depths=[dataclasses.asdict(row) for row in rows],
      stages=[dataclasses.asdict(row) for row in stages],
    ),
  )
  shares = ('bound: median', 'worst', 'spread: median', 'worst')
  _print(
    ('depth', *shares, 'TF32 operands', 'bf16 operands'),
    [
      ((str(row.depth),), (*row.bound, *row.spread, row.tf32, row.bf16))
      for row in rows
    ],
  )
  print()
  _print(
    ('storage', 'pass', 'stage', *shares),
    [
      ((row.storage, row.direction, row.stage), (*row.bound, *row.spread))
      for row in stages
    ],
  )
  holds = [row.holds for row in rows] + [row.holds for row in stages]
  return cli.PARITY if all(holds) else cli.NO_PARITY


def _print(
  heading: tuple[str, ...],
  rows: list[tuple[tuple[str, ...], tuple[float, ...]]],
) -> None:
  from hpmoe.parity_tests.report import text_table

  cells = [
    (*names, *(f'{figure:.3g}' for figure in figures))
    for names, figures in rows
  ]
  print(text_table.text(heading, cells))


COMMAND = cli.Command(
  'tightness',
  'how much of its limits a right kernel uses, by depth and by stage.',
  ('hpmoe tightness --depth=64,16384 --json=tightness.json',),
  _define,
  _tightness,
  '0 the limits are tight and wrong operands are caught, 1 they are not, '
  '2 the request was wrong',
  compiles=True,
)
