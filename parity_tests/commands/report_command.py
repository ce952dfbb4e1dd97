"""`hpmoe report`."""

from absl import flags

from hpmoe.parity_tests.commands import cli


def _define(f: flags.FlagValues) -> None:
  cli.own(f, 'report')


def _report(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.report import comparison as comparison_lib
  from hpmoe.parity_tests.report import comparison_html

  for name in ('before', 'after'):
    if f[name].value is None:
      raise cli.UsageError(
        f'{name}: expected two reports, as in `hpmoe report A.json B.json`, '
        'got none'
      )
  comparison = comparison_lib.compare_sides(
    comparison_lib.read_side(f.before), comparison_lib.read_side(f.after)
  )
  print(comparison_lib.format_text(comparison))
  cli.write_json(f.json, comparison_lib.to_json(comparison))
  if f.html is not None:
    cli.write('html', f.html, comparison_html.to_html(comparison))
  return cli.PARITY if comparison.is_no_worse else cli.NO_PARITY


COMMAND = cli.Command('report', _define, _report, operands=('before', 'after'))
