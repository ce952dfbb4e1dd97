"""`hpmoe check --dump`: every MoE layer of a dumped run."""

from collections.abc import Sequence
import dataclasses

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class DumpOptions:
  """A dumped run, and which of its layers are judged."""

  dump: str | None = option_fields.option(
    None,
    'Folder with a dump of a whole model, written by msprobe with task '
    'tensor. Every call of every MoE layer is judged, forward and '
    'backward. --names describes modules that are not built in; see '
    'docs/elsewhere.md.',
  )
  dump_model: str | None = option_fields.option(
    None,
    'With --dump: folder of the model, in any format of hpmoe convert. It '
    'supplies the expert weights that the dump lacks.',
  )
  layers: str | None = option_fields.option(
    None,
    'With --dump: numbers of the layers to judge, such as 3,5:8; 5:8 is 5, '
    '6, 7.',
  )
  png: str | None = option_fields.option(
    None,
    'With --dump: write a plot of the largest error of each layer, divided '
    'by its limit.',
    writes='picture',
  )


FLAGS = option_fields.list_options(DumpOptions)
# These options, and those of a check that work with them.
NAMES = (*(flag.name for flag in FLAGS), 'names', 'policy', 'router')
_OF_REPORT = ('lane', 'json')
_HEADING = ('layer', 'passes', 'verdict', 'first failure', 'why')
_MOST_WORDS = 120


def refuse_alone(f: parser.Values) -> None:
  """Refuses flags that need --dump.

  Raises:
    UsageError: the user set such a flag.
  """
  for flag in FLAGS:
    if f[flag.name].value is not None:
      raise cli.UsageError(
        f'{flag.name}: expected --dump with it, got {f[flag.name].value!r} '
        'alone'
      )


def judge_dump(f: parser.Values) -> int:
  """Prints a row for each call of a layer, and the first failure in full.

  Raises:
    ValueError: the folder is no dump, or a flag would have no effect.
  """
  from hpmoe.parity_tests.dumps import dump_check
  from hpmoe.parity_tests.dumps import dump_layers
  from hpmoe.parity_tests.report import failure_text
  from hpmoe.parity_tests.report import text_table

  known_names = {*NAMES, *_OF_REPORT}
  cli.refuse_all_but(f, known_names, f'with --dump={f.dump}, which decides it')
  lanes = tuple(f.lane) if f['lane'].present else dump_check.LANES
  with cli.progress() as step:
    rows = dump_check.check_dump(
      f.dump,
      f.names,
      model=f.dump_model,
      policy=tuple(f.policy),
      router=f.router,
      layers=dump_layers.parse_numbers(f.layers),
      lanes=lanes,
      progress=step,
    )
  print(text_table.format_table(_HEADING, [_format_row(row) for row in rows]))
  failure = dump_check.find_first_failure(rows)
  if failure is not None and failure.report is not None:
    print(f'\n{failure.call.name}:')
    text = failure_text.format_failure(failure.report)
    # Of files that are gone.
    own = (n for n in text.splitlines() if not n.startswith(_OF_FILES))
    print('\n'.join(own))
  policies = dict.fromkeys(','.join(row.policy) for row in rows)
  if names := [name for name in policies if name]:
    print(f'\njudged under --policy={" and ".join(names)}')
  counts = {v: sum(row.verdict == v for row in rows) for v in _VERDICTS}
  summary = ', '.join(f'{count} {v}' for v, count in counts.items() if count)
  noun = 'call' if len(rows) == 1 else 'calls'
  print(f'\n{len(rows)} {noun} of MoE layers: {summary}')
  if f.png is not None:
    from hpmoe.parity_tests.dumps import dump_plot

    dump_plot.write(f.png, f.dump, rows)
  if f.json is not None:
    cli.write_json(f.json, dict(dump=f.dump, calls=[r.to_json() for r in rows]))
  return cli.PARITY if counts['pass'] == len(rows) else cli.NO_PARITY


_VERDICTS = ('pass', 'fail', 'not judged')
_OF_FILES = ('  theirs ', '  replay ')


def _format_row(row) -> Sequence[str]:
  report = row.to_json()
  is_fail = row.verdict == _VERDICTS[1]
  reason = report['pattern'] if is_fail else row.reason
  if len(reason) > _MOST_WORDS:
    reason = f'{reason[:_MOST_WORDS]} ...'
  return (
    row.call.name,
    row.direction or '-',
    row.verdict,
    report['first_failure'] or '-',
    reason or '-',
  )
