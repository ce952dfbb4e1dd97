"""`hpmoe faults`."""

from absl import flags

from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.commands import backend_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags


def _define_faults(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.ascend import backend
  from hpmoe.parity_tests.ascend import host
  from hpmoe.parity_tests.ascend import twin_candidate

  # Small tiles, so that each fault has neighbours that are right.
  cli.define(f, layer_flags.CASE, preset='tiny', row_block=16)
  cli.define(f, [backend.IN_PROCESS, *twin_candidate.FLAGS])
  cli.define(f, flag_tables.select(host.FLAGS, 'threads'))
  cli.define(f, host.PLACEMENT)
  cli.own(f, 'faults')


def _faults(f: flags.FlagValues) -> int:
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


COMMAND = cli.Command('faults', _define_faults, _faults, compiles=True)
