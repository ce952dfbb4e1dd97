"""`hpmoe check`."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import shutil
import sys

from hpmoe.parity_tests.candidates import tiling_fields
from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import backend_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import definition_flags
from hpmoe.parity_tests.commands import dump_flags
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  shapes: bool = option_fields.option(
    False,
    'Check a family of awkward sizes around the preset: 1, 15 to 17 and '
    '127 to 129 tokens, experts of 0, 1, 128 and 129 rows, K = 1 and K = '
    'E, odd D and F, every number of ranks up to 8 that divides E. Only '
    'the forward pass, unless --direction says otherwise.',
  )
  verbose: bool = option_fields.option(
    False,
    'Print every comparison. Without it: the largest figure of each stage '
    'and lane.',
  )
  shard: str | None = option_fields.option(
    None,
    'r/R: judge part r of R parts of the ranks of --outputs, and write the '
    'results to --parts. Default: all ranks; under mpiexec, the part of '
    'this process.',
  )
  parts: str | None = option_fields.option(
    None,
    'The folder to which shards write their results.',
  )
  merge: str | None = option_fields.option(
    None,
    'The folder to which shards wrote: merge them into one report.',
  )
  html: str | None = option_fields.option(
    None,
    'Write an HTML page here: one file, without scripts. Not written if '
    'the candidate returned nothing.',
    writes='file',
  )
  junit: str | None = option_fields.option(
    None,
    'Write JUnit XML here, with a test for each stage and lane.',
    writes='file',
  )
  annotate: bool = option_fields.option(
    False,
    'Also print annotations for GitHub workflows, at the line where the '
    'candidate is defined.',
  )


def _list_options() -> list[option_fields.Option]:
  from hpmoe.parity_tests.candidates import candidate_table
  from hpmoe.parity_tests.judge import judgement

  direction = case_flags.DIRECTION.replace(
    default=None,
    help=f'{case_flags.DIRECTION.help} Default: both, but forward with '
    '--candidate and --command.',
  )
  return [
    *(
      direction if row.name == 'direction' else row for row in case_flags.FLAGS
    ),
    case_flags.FOLDER,
    *tiling_fields.FLAGS,
    *candidate_table.FLAGS,
    *definition_flags.FLAGS,
    *dump_flags.FLAGS,
    *judgement.FLAGS,
    *option_fields.list_options(_Options),
  ]


# Flags of reports, which change no verdict.
_REPORT = ('verbose', 'json', 'html', 'junit', 'annotate')
_FAMILY = ('shapes',)
# Flags that --shapes decides, or that need a single shape.
_OF_ONE_SHAPE = (
  *('tokens', 'routing', 'input', 'text', 'capacity', 'case', 'outputs'),
  *('tiles', 'lane', 'standard', 'repeat', 'html', 'verbose'),
  *('junit', 'annotate'),
  *('shard', 'parts', 'merge'),
)
_SHARDS = ('shard', 'parts', 'merge')


def _heads() -> list[tuple[str, Sequence[str]]]:
  """Returns the parts of a request, with the flags of each."""
  from hpmoe.parity_tests.candidates import candidate_table
  from hpmoe.parity_tests.judge import judgement

  rows = [
    candidate_table.DEFAULT,
    *(
      row for row in candidate_table.ROWS if row is not candidate_table.DEFAULT
    ),
  ]
  return [
    ('case', [*(flag.name for flag in case_flags.FLAGS), 'case']),
    *((f'candidate, {row.head}', row.flags) for row in rows),
    ('benchmark definition', definition_flags.NAMES),
    ('dumped run', dump_flags.NAMES),
    ('judgement', [*(flag.name for flag in judgement.FLAGS), *_FAMILY]),
    ('report', _REPORT),
    ('several processes', _SHARDS),
  ]


def _lanes(f: parser.Values) -> tuple[str, ...]:
  from hpmoe.parity_tests.judge import judgement
  from hpmoe.parity_tests.judge import verdicts

  if 'all' not in f.lane:
    return tuple(f.lane)
  return verdicts.LANES if f.tiles is None else judgement.OF_SAMPLE


def _direction(f: parser.Values) -> str:
  if f.case is not None:
    from hpmoe.parity_tests.case import folder

    return f.direction or folder.read(f.case).direction
  if f.outputs is not None and f.input is not None:
    return f.direction or _direction_of(f.input)
  partly = f.candidate or f.command or f.tiles is not None or f.shapes
  partly = partly or f.rows  # the megakernel has them in the forward pass alone
  return f.direction or ('forward' if partly else 'both')


def _direction_of(path: str) -> str:
  """Returns the direction of a run from a file of its inputs."""
  from hpmoe.parity_tests.case import tensor_files

  return (
    'both' if 'dy' in tensor_files.read(pathlib.Path(path))[0] else 'forward'
  )


def request(f: parser.Values):
  """Returns the request of parsed flags.

  Raises:
    ValueError: the request is wrong.
  """
  from hpmoe.parity_tests.judge import judgement
  from hpmoe.parity_tests.judge import request as request_lib
  from hpmoe.parity_tests.judge.limits import standards

  if definition_flags.is_asked(f):
    return definition_flags.make_request(f)
  if f.input is None and f.case is None:
    layer_flags.policy(f)  # refuses a wrong policy before the case is made
  direction = _direction(f)
  case = layer_flags.asked_case(f, direction)
  layer_flags.refuse_without_effect(f, direction)
  for name in ('start_at', 'stop_after'):
    if f[name].value is not None and direction == 'both':
      raise cli.UsageError(
        f'{name}: expected --direction=forward or backward with it, got '
        'both: each has tasks of its own'
      )
  for name in f.standard:
    standards.get(name, case.dtype)
  apart = ('timeout',) if f.outputs is not None else ()  # of a shard
  flag_words = cli.arguments(
    f, exclude=('lane', *_REPORT, *_FAMILY, *_SHARDS, *apart)
  )
  judgement_fields = cli.fields(f, judgement.FLAGS) | dict(lanes=_lanes(f))
  judgement_fields['standards'] = (
    judgement_fields['standards'] or standards.DEFAULT
  )
  return request_lib.Request(
    case,
    backend_flags.candidate(f, case),
    judgement.Judgement(**judgement_fields),
    ('check', *flag_words),
  )


def _check(f: parser.Values) -> int:
  from hpmoe.parity_tests.judge import check

  if f.shapes:
    return _check_shapes(f)
  if f.dump is not None:
    return dump_flags.judge_dump(f)
  dump_flags.refuse_alone(f)
  if f.shard is not None or f.parts is not None:
    return _sharded(f)
  job = None
  if f.outputs is not None and f.merge is None:
    from hpmoe.parity_tests.judge.distributed import mpi_shard

    job = mpi_shard.find_job()
  if job is not None:
    return _by_ranks(f, job)
  if f.outputs is not None and f['timeout'].present:
    raise cli.UsageError(
      'timeout: expected --shard or mpiexec with --outputs, as it limits the '
      f'time of a shard, got {f.timeout:g}'
    )
  if f.merge is not None:
    return _report_merged(f, f.merge)
  return _report(f, definition_flags.find_run(f) or check.run)


def _check_shapes(f: parser.Values) -> int:
  """Checks a family of shapes, and prints a line for each."""
  from hpmoe.parity_tests.judge import shapes
  from hpmoe.parity_tests.report import shapes_report

  names = [name for name in _OF_ONE_SHAPE if name in f]
  cli.refuse(f, names, 'with --shapes, which has many shapes')
  with cli.progress() as step:
    rows = shapes.run(request(f), step)
  print(shapes_report.format_table(rows), flush=True)
  print(f'\n{shapes.format_summary(rows)}', flush=True)
  if f.json is not None:
    cli.write_json(f.json, shapes_report.to_json(rows))
  return cli.EXIT_CODES[shapes.find_outcome(rows)]


def _report_merged(f: parser.Values, folder) -> int:
  from hpmoe.parity_tests.judge.distributed import shards

  return _report(f, lambda request, step: shards.merge(request, folder))


def _sharded(f: parser.Values) -> int:
  """Judges one shard.

  Raises:
    ValueError: the request was wrong.
    shards.ShardError: the shard failed or timed out.
  """
  from hpmoe.parity_tests.judge.distributed import mpi_shard
  from hpmoe.parity_tests.judge.distributed import shards

  if f.shard is None or f.parts is None or f.merge is not None:
    raise cli.UsageError(
      'shard: expected --shard=r/R and --parts=FOLDER, or --merge=FOLDER '
      f'alone, got shard={f.shard} parts={f.parts} merge={f.merge}'
    )
  cli.refuse(f, _REPORT, 'with --shard: --merge writes the report')
  shard = shards.Shard.parse(f.shard)
  shards.place(f.parts, shard)
  job = mpi_shard.Job(shard, pathlib.Path(f.parts))
  _judge(f, job)
  try:
    shards.read(shard, f.parts)
  except shards.ShardError as error:
    raise shards.ShardError(f'{shard.name}: {error}') from error
  print(f'{shard.name}: judged; --merge={f.parts} has the report of all')
  return cli.PARITY


def _judge(f: parser.Values, job) -> None:
  """Judges a shard in a process of its own, which writes its report."""
  from hpmoe.parity_tests.judge.distributed import mpi_shard
  from hpmoe.parity_tests.judge.distributed import shards

  def judge() -> None:
    with cli.progress() as step:
      report = shards.judge(request(f), job.shard, step)
    shards.write(job.file, report)

  mpi_shard.run_in_fork(job, judge, f.timeout)


def _by_ranks(f: parser.Values, job) -> int:
  """Judges a shard in each process of mpiexec; the first one reports.

  Raises:
    ValueError: the request was wrong.
    shards.ShardError: a process failed or timed out; names it.
  """
  from hpmoe.parity_tests.judge.distributed import mpi_shard

  job.folder.mkdir(mode=0o700, exist_ok=True)  # unless another rank has
  if job.shard.index:
    _judge(f, job)
    return cli.PARITY
  try:
    _judge(f, job)
    mpi_shard.wait(job, f.timeout)
    return _report_merged(f, job.folder)
  finally:
    shutil.rmtree(job.folder, ignore_errors=True)


def _report(f: parser.Values, run: Callable) -> int:
  """Runs a check; prints and writes its report."""
  from hpmoe.parity_tests.candidates import candidates
  from hpmoe.parity_tests.judge import check
  from hpmoe.parity_tests.judge import price as price_lib
  from hpmoe.parity_tests.report import report_json

  check_request = request(f)
  price = price_lib.estimate(check_request.case, check_request.judgement)
  if price is not None:
    price.refuse()
  if price is not None and price.describe():
    print(
      f'hpmoe check: {price.describe()} on two idle cores',
      file=sys.stderr,
      flush=True,
    )
  try:
    with cli.progress(check.count_steps(check_request)) as step:
      report = run(check_request, step)
  except candidates.CandidateError as error:
    cli.write_json(f.json, report_json.error_json(check_request, error))
    _show_error(f, check_request.candidate.name, error)
    raise
  _show(f, report)
  if f.json is not None:
    cli.write_json(f.json, report_json.to_json(report))
  return cli.PARITY if report.verdict == 'pass' else cli.NO_PARITY


def _show(f: parser.Values, report) -> None:
  """Prints a report, and writes the files that flags ask for."""
  from hpmoe.parity_tests.report import failure_text
  from hpmoe.parity_tests.report import lane_table
  from hpmoe.parity_tests.report import report_text

  print(report_text.format_heading(report))
  table = report_text.format_table if f.verbose else lane_table.format_table
  print(table(report, cli.colour()))
  for part in (
    report_text.format_notes,
    failure_text.format_failure,
    report_text.format_modes,
    report_text.format_blind_spot,
    report_text.format_summary,
  ):
    text = part(report)
    if text:
      print(f'\n{text}', flush=True)
  if f.html is not None:
    from hpmoe.parity_tests.report import report_html

    cli.write('html', f.html, report_html.to_html(report))
  if f.junit is not None:
    from hpmoe.parity_tests.report import junit

    cli.write('junit', f.junit, junit.to_junit(report))
  if f.annotate:
    from hpmoe.parity_tests.report import annotations

    print(f'\n{annotations.format_annotations(report)}', flush=True)


def _show_error(f: parser.Values, name: str, error) -> None:
  """Reports to CI that a candidate failed to run."""
  if f.junit is not None:
    from hpmoe.parity_tests.report import junit

    cli.write('junit', f.junit, junit.error_junit(name, error))
  if f.annotate:
    from hpmoe.parity_tests.report import annotations

    print(annotations.format_error(name, error), flush=True)


COMMAND = cli.Command(
  'check',
  _list_options,
  _check,
  compiles=True,
  heads=_heads,
)
