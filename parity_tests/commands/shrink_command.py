"""`hpmoe shrink`."""

import dataclasses

from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import backend_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  out: str | None = option_fields.option(
    None,
    'The folder to write; it must be empty or absent.',
  )


def _list_options() -> list[option_fields.Option]:
  from hpmoe.parity_tests.candidates import candidate_table
  from hpmoe.parity_tests.candidates import tiling_fields
  from hpmoe.parity_tests.judge import judgement

  case = (*case_flags.FLAGS, case_flags.FOLDER)
  return [
    *option_fields.replace_defaults(case, direction='forward'),
    *tiling_fields.FLAGS,
    *candidate_table.FLAGS,
    *option_fields.select(judgement.FLAGS, 'lane'),
    *option_fields.list_options(_Options),
  ]


def _shrink(f: parser.Values) -> int:
  from hpmoe.parity_tests.explain import shrink
  from hpmoe.parity_tests.judge import judgement as judgement_lib
  from hpmoe.parity_tests.judge import request as request_lib
  from hpmoe.parity_tests.judge import verdicts

  if f.out is None:
    raise cli.UsageError('out: expected a folder to write, got none')
  case = layer_flags.asked_case(f, f.direction)
  lanes = verdicts.LANES if 'all' in f.lane else tuple(f.lane)
  request = request_lib.Request(
    case,
    backend_flags.candidate(f, case),
    judgement_lib.Judgement(lanes=lanes),
  )
  try:
    with cli.failure_reported(f.json), cli.progress() as step:
      shrunk_case = shrink.shrink(request, step)
  except shrink.NothingFails as right:
    print(f'{right}: nothing is written')
    return cli.NO_PARITY
  arguments = ' '.join(cli.arguments(f, exclude=('out', 'json')))
  shrink.write(shrunk_case, f.out, arguments)
  cli.write_json(f.json, shrink.to_json(shrunk_case))
  print(shrink.text(shrunk_case, f.out))
  return cli.PARITY


COMMAND = cli.Command(
  'shrink',
  _list_options,
  _shrink,
  compiles=True,
)
