"""`hpmoe compare` of two engines' runs of one model."""

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser

# What stands before the folder of a dump, and of a model that runs here.
DUMP, _MODEL = 'dump:', 'model:'
SIDES = DUMP, _MODEL
_FLAGS = (
  *('left', 'right', 'model', 'names', 'router', 'layers', 'json', 'png'),
  'dtype',
)


def execute(f: parser.Values) -> int:
  """Prints a row for each MoE layer, how both predict, and the verdict.

  Raises:
    ValueError: a side is no dump, or a flag would have no effect.
  """
  from hpmoe.parity_tests.agreement import agreement
  from hpmoe.parity_tests.agreement import agreement_report
  from hpmoe.parity_tests.dumps import dump_layers
  from hpmoe.parity_tests.judge import verdicts

  cli.refuse_all_but(f, _FLAGS, f'with --left={f.left}')
  if not f.right.startswith(DUMP):
    raise cli.UsageError(
      f'right: expected dump:DIR with --left={f.left}, got {f.right}'
    )
  if f.dtype and f.left.startswith(DUMP):
    raise cli.UsageError(f'dtype: expected none with two dumps, got {f.dtype}')
  options = agreement.Options(
    names=f.names,
    model=f.model if f['model'].present else None,
    router=f.router,
    layers=dump_layers.parse_numbers(f.layers),
    dtype=f.dtype or 'float64',
  )
  left, right = f.left.removeprefix(DUMP), f.right.removeprefix(DUMP)
  with cli.progress() as step:
    result = agreement.compare(left, right, options, step)
  cli.write_json(f.json, agreement_report.to_json(result, f.left, f.right))
  if f.png is not None:
    from hpmoe.parity_tests.agreement import agreement_plot

    agreement_plot.write(f.png, f'{f.right} compared with {f.left}', result)
  print(
    f'{f.right} compared with {f.left}, router {result.rule or "not known"}'
  )
  print(agreement_report.format_tables(result))
  print(f'\n{agreement_report.conclude(result)}')
  return cli.PARITY if result.verdict == verdicts.PASS else cli.NO_PARITY
