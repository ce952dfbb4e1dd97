"""Options of a benchmark's definition, and their request."""

import dataclasses

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class DefinitionOptions:
  """A benchmark's definition, and what is judged on it."""

  definition: str | None = option_fields.option(
    None,
    'A definition of FlashInfer-Bench, DEF.json. --solution is judged on '
    'the inputs of --workload, or on random inputs of --tokens tokens.',
  )
  workload: str | None = option_fields.option(
    None,
    'With --definition: FILE.jsonl, or FILE.jsonl:UUID for one of several '
    'workloads.',
  )
  solution: str | None = option_fields.option(
    None,
    'Kernel to judge: SOLUTION.json, FILE.py::function, or `reference`, '
    "the definition's own reference.",
  )
  solution_device: str = option_fields.option(
    'cpu',
    'Device of the tensors of --solution.',
    choices=('cpu', 'cuda'),
  )


FLAGS = option_fields.list_options(DefinitionOptions)
# These options, and those of a check that work with them.
NAMES = (
  *(flag.name for flag in FLAGS),
  *('tokens', 'policy', 'rows', 'seed', 'python', 'timeout'),
)
_OF_JUDGEMENT = (
  *('lane', 'standard', 'repeat'),
  *('allow_nondeterministic', 'search_roundings'),
)
_OF_REPORT = ('verbose', 'json', 'html', 'cache')


def is_asked(f: parser.Values) -> bool:
  """Says whether flags name a definition.

  Raises:
    cli.UsageError: a flag needs --definition, which is unset.
  """
  if f.definition is not None:
    return True
  for flag in FLAGS:
    if f[flag.name].present:
      raise cli.UsageError(
        f'{flag.name}: expected --definition=DEF.json with it, got '
        f'{f[flag.name].value}'
      )
  return False


def make_request(f: parser.Values):
  """Returns the request of a definition, a workload and a solution.

  Raises:
    ValueError: a file is wrong, or a flag would have no effect.
  """
  from hpmoe.parity_tests.definitions import definition_check
  from hpmoe.parity_tests.judge import judgement
  from hpmoe.parity_tests.judge import request as request_lib

  _refuse_without_effect(f)
  if f.solution is None:
    raise cli.UsageError(
      'solution: expected SOLUTION.json, FILE.py::function or reference with '
      '--definition, got none'
    )
  case, candidate = definition_check.make_request(
    f.definition,
    f.solution,
    workload=f.workload,
    tokens=f.tokens,
    policy=tuple(f.policy),
    rows=f.rows,
    seed=f.seed,
    python=f.python or '',
    device=f.solution_device,
    timeout_s=f.timeout,
  )
  judged_fields = cli.fields(f, judgement.FLAGS)
  if not f['lane'].present:
    judged_fields['lanes'] = definition_check.LANES
  if not f['standard'].present:
    judged_fields['standards'] = definition_check.RECORDS
  words = cli.arguments(f, exclude=('lane', *_OF_REPORT))
  return request_lib.Request(
    case,
    candidate,
    judgement.Judgement(**judged_fields),
    ('check', *words),
  )


def find_run(f: parser.Values):
  """Returns the function that runs a definition's request, or None."""
  if f.definition is None:
    return None
  from hpmoe.parity_tests.definitions import definition_check
  from hpmoe.parity_tests.judge import check

  return lambda request, progress: definition_check.separate_rules(
    check.run(request, progress)
  )


def _refuse_without_effect(f: parser.Values) -> None:
  known_names = {*NAMES, *_OF_JUDGEMENT, *_OF_REPORT}
  decides = f'with --definition={f.definition}, which decides it'
  cli.refuse_all_but(f, known_names, decides)
  if f.workload is not None and f.tokens is not None:
    raise cli.UsageError(
      f'tokens: expected none with --workload={f.workload}, whose axes define '
      f'them, got {f.tokens}'
    )
