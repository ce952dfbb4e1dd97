"""`hpmoe invariance`."""

from absl import flags

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import backend_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags


def _define(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.candidates import table
  from hpmoe.parity_tests.candidates import tasks
  from hpmoe.parity_tests.determinism import variants

  cli.define(f, (*case_flags.FLAGS, case_flags.FOLDER), direction='forward')
  cli.define(f, (*tasks.FLAGS, *table.FLAGS))
  properties = tuple(variants.PROPERTIES)
  cli.own(f, 'invariance', property=dict(choices=properties))


def _invariance(f: flags.FlagValues) -> int:
  from hpmoe.parity_tests.determinism import invariance
  from hpmoe.parity_tests.determinism import invariance_table

  layer_flags.refuse_without_effect(f, f.direction)
  promise = invariance.read_promise(f.promise)
  case = layer_flags.asked_case(f, f.direction)
  candidate = backend_flags.candidate(f, case)
  with (
    cli.failure_reported(f.json),
    cli.progress(invariance.count_steps(case)) as step,
  ):
    rows = invariance.run(candidate, case, promise, f.property, step)
  cli.write_json(f.json, invariance_table.to_json(rows))
  print(invariance_table.text(rows))
  is_kept = invariance.is_kept(rows)
  return cli.PARITY if is_kept else cli.NO_PARITY


COMMAND = cli.Command('invariance', _define, _invariance, compiles=True)
