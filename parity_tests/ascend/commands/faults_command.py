"""`hpmoe faults`."""

from hpmoe.parity_tests.commands import backend_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _list_options() -> list[option_fields.Option]:
  from hpmoe.parity_tests.ascend import backend
  from hpmoe.parity_tests.ascend import host
  from hpmoe.parity_tests.ascend import twin_candidate

  # Small tiles, so that each fault has neighbours that are right.
  layer = option_fields.replace_defaults(
    layer_flags.CASE, preset='tiny', row_block=16
  )
  return [
    *layer,
    backend.IN_PROCESS,
    *twin_candidate.FLAGS,
    *option_fields.select(host.FLAGS, 'threads'),
    *host.PLACEMENT,
    *option_fields.list_options(cli.JsonOptions),
  ]


def _faults(f: parser.Values) -> int:
  from hpmoe.parity_tests.ascend.faults import faults_table
  from hpmoe.parity_tests.judge import request as request_lib

  layer_flags.refuse_without_effect(f, f.direction)
  case = layer_flags.case(f)
  request = request_lib.Request(case, backend_flags.candidate(f, case))
  count = faults_table.count_rows(f.direction)
  with cli.failure_reported(f.json), cli.progress(count) as step:
    rows = faults_table.run(request, step)
  cli.write_json(f.json, faults_table.to_json(rows))
  print(faults_table.format_table(rows))
  for line in faults_table.left_out(request, rows):
    print(line)
  return cli.PARITY if all(row.is_caught for row in rows) else cli.NO_PARITY


COMMAND = cli.Command(
  'faults',
  _list_options,
  _faults,
  compiles=True,
)
