"""`hpmoe invariance`."""

import dataclasses

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import backend_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def _list_properties() -> tuple[str, ...]:
  from hpmoe.parity_tests.determinism import variants

  return tuple(variants.PROPERTIES)


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  property: tuple[str, ...] = option_fields.option(
    (),
    'Properties to test. A list. Default: all.',
    choices=_list_properties,
  )
  promise: str | None = option_fields.option(
    None,
    'A TOML file of required properties: [promise], then a line for each, '
    "such as batch = 'bits'. 'rounding' is required of all others. "
    "Default: run_to_run = 'bits'.",
  )


def _list_options() -> list[option_fields.Option]:
  from hpmoe.parity_tests.candidates import candidate_table
  from hpmoe.parity_tests.candidates import tiling_fields

  case = (*case_flags.FLAGS, case_flags.FOLDER)
  return [
    *option_fields.replace_defaults(case, direction='forward'),
    *tiling_fields.FLAGS,
    *candidate_table.FLAGS,
    *option_fields.list_options(_Options),
  ]


def _invariance(f: parser.Values) -> int:
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


COMMAND = cli.Command(
  'invariance',
  _list_options,
  _invariance,
  compiles=True,
)
