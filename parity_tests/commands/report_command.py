"""`hpmoe report`."""

import dataclasses

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  before: str | None = option_fields.option(
    None,
    'The first report; the option name may be left out.',
  )
  after: str | None = option_fields.option(
    None,
    'The second report; the option name may be left out. Default: the '
    'first is shown.',
  )
  html: str | None = option_fields.option(
    None,
    'Write an HTML page here: one file, without scripts.',
    writes='file',
  )


def _list_options() -> list[option_fields.Option]:
  return [*option_fields.list_options(_Options)]


def _report(f: parser.Values) -> int:
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


def _show_one(f: parser.Values) -> int:
  """Prints one report, of a check or of a family of shapes."""
  from hpmoe.parity_tests.report import shapes_report

  cli.refuse(f, ('json', 'html'), 'with one report')
  text, outcome = shapes_report.read_text(f.before)
  print(text)
  return cli.EXIT_CODES[outcome]


COMMAND = cli.Command(
  'report',
  _list_options,
  _report,
  operands=('before', 'after'),
)
