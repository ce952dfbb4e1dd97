"""`hpmoe report`."""

from absl import flags

from hpmoe.parity_tests.commands import cli


def _define(f: flags.FlagValues) -> None:
  cli.own(f, 'report')


def _report(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.report import comparison as comparison_lib
  from hpmoe.parity_tests.report import comparison_html

  if f.before is None:
    raise cli.UsageError(
      'before: expected one report or two, as in `hpmoe report A.json B.json`, '
      'got none'
    )
  if f.after is None:
    return _show_one(f)
  comparison = comparison_lib.compare_sides(
    comparison_lib.read_side(f.before), comparison_lib.read_side(f.after)
  )
  print(comparison_lib.format_text(comparison))
  cli.write_json(f.json, comparison_lib.to_json(comparison))
  if f.html is not None:
    cli.write('html', f.html, comparison_html.to_html(comparison))
  return cli.PARITY if comparison.is_no_worse else cli.NO_PARITY


def _show_one(f: flags.FlagValues) -> int:
  """Prints one report, of a check or of a family of shapes."""
  from hpmoe.parity_tests.report import shapes_report

  cli.refuse(f, ('json', 'html'), 'with one report')
  text, outcome = shapes_report.read_text(f.before)
  print(text)
  return cli.EXIT_CODES[outcome]


COMMAND = cli.Command('report', _define, _report, operands=('before', 'after'))
