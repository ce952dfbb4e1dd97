"""What a reader sees: the table, the failure, the JSON."""

from collections.abc import Mapping
import dataclasses
import math
import shlex
from typing import Any

import numpy as np

from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import exact_lane
from hpmoe.parity_tests.judge import failure_details
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import power
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import kinds
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# The first fields of a row, and all of a failure.
_COLUMNS = tuple(f.name for f in dataclasses.fields(verdicts.Result))[:9]
_FAILURE = tuple(f.name for f in dataclasses.fields(verdicts.Failure))
HEADING = (*_COLUMNS[:7], 'of_bound', 'not_judged', 'sees', *_COLUMNS[7:])
# What `power` gives sizes of, as the last line calls it.
_WRONG = dict(
  element="one element off by {} of its row's root mean square",
  row='one row by {}',
  whole='all by {}',
)
_COLOURS = {verdicts.PASS: '\x1b[32m', verdicts.FAIL: '\x1b[31m'}


def jsonable(value):
  """Returns plain data; a float that JSON has no word for becomes a string."""
  if isinstance(value, Mapping):
    return {str(k): jsonable(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [jsonable(v) for v in value]
  if isinstance(value, np.generic):
    return jsonable(value.item())
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  if dataclasses.is_dataclass(value):
    names = [field.name for field in dataclasses.fields(value)]
    return {name: jsonable(getattr(value, name)) for name in names}
  return value


def to_json(report: check.Report) -> dict[str, Any]:
  """Returns the whole report as plain data."""
  first = report.first_failure
  judges = [standards.get(name) for name in report.config['standards']]
  return jsonable(
    dict(
      verdict=report.verdict,
      config=report.config,
      stages=[
        {name: getattr(r, name) for name in _COLUMNS}
        | dict(
          why=r.why,
          values=r.values,
          power=r.power,
          not_judged=r.not_judged,
        )
        for r in report.results
      ],
      first_failure=first and {name: getattr(first, name) for name in _FAILURE},
      wrong_tasks=[dataclasses.asdict(wrong) for wrong in report.wrong],
      races=[dataclasses.asdict(race) for race in report.races],
      num_races=report.num_races,
      changes=[dataclasses.asdict(change) for change in report.changes],
      runs=report.runs,
      standards={
        j.name: dict(
          version=j.version,
          source=j.source,
          scope=j.scope,
          reading=j.reading,
          tolerance=dataclasses.asdict(
            j.tolerance[report.config['policy']['storage']]
          ),
          rules=[
            [r.text(report.config['policy']['storage']) for r in clause]
            for clause in j.rules
          ],
        )
        for j in judges
      },
      versions=versions.list_versions(),
      seconds=round(report.seconds, 3),
    )
  )


def error_json(
  request: check.Request, error: candidates.CandidateError
) -> dict[str, Any]:
  """Returns the report of a candidate that gave no answer."""
  seconds = error.seconds
  return jsonable(
    dict(
      verdict=verdicts.FAIL,
      error=str(error),
      config=dataclasses.asdict(request.case)
      | request.candidate.facts()
      | dataclasses.asdict(request.judgement),
      stages=[],
      first_failure=_blocked(error),
      versions=versions.list_versions(),
      seconds=None if seconds is None else round(seconds, 3),
    )
  )


def _blocked(error: candidates.CandidateError) -> dict | None:
  """Returns the task that a launch ended at, as a failure."""
  diagnosis = error.diagnosis
  if diagnosis is None or diagnosis.task is None:
    return None
  task = diagnosis.task
  return dict.fromkeys(_FAILURE) | dict(
    stage=kinds.STAGE_OF_KIND.get(kinds.Kind[task.kind.upper()]),
    rank=task.rank,
    expert=task.expert if task.expert >= 0 else None,
    row_block=task.row_block,
    col_block=task.col_block,
    replay=error.replay,
  )


def _number(value: float) -> str:
  return f'{value:.3g}'


def _judged(report: check.Report) -> list[verdicts.Result]:
  return [r for r in report.results if r.verdict != verdicts.NOT_JUDGED]


def _missing(report: check.Report) -> list[str]:
  """Returns the tensors that would have had to be returned."""
  missing = {r.missing for r in report.results}
  return verdicts.ordered(missing - {''})


def cells(result: verdicts.Result) -> tuple[str, ...]:
  """Returns a comparison as words, one for each name of `HEADING`."""
  share = result.values.get('error_of_bound')
  element = '-'
  if result.worst_element is not None:
    element = ','.join(map(str, result.worst_element))
  return (
    result.stage,
    result.lane,
    result.rule,
    str(result.tiles),
    str(result.failed),
    # No distance leads to a NaN.
    '-' if math.isnan(result.worst_abs) else str(result.worst_ulp),
    _number(result.worst_abs),
    _number(share) if share is not None else '-',
    str(result.not_judged),
    ' '.join(f'{n} {_number(v)}' for n, v in result.power.items()) or '-',
    element,
    result.verdict,
  )


def table(report: check.Report, colour: bool = False) -> str:
  """Returns one line per comparison that was made, under a heading."""
  judged = _judged(report)
  return text_table.text(
    tuple(name.replace('_', ' ') for name in HEADING),
    [cells(r) for r in judged],
    [_COLOURS[r.verdict] for r in judged] if colour else None,
  )


def _points(policy: Mapping[str, Any]) -> str:
  told = [*(policy.get('points') or ())]
  for name in precision.SUM_ORDERS:
    if policy.get(name, 'slot') != 'slot':
      told.append(f'{name}={policy[name]}')
  for name, words in (('quantised', 'expert weights'), ('rows', 'rows')):
    if form := policy.get(name):
      told.append(f'{words} {form}')
  return f'{" ".join(told)}, ' if told else ''


def heading(report: check.Report) -> str:
  """Returns what is being checked, in one line or two."""
  c = report.config
  layer = c['layer']
  direction = c.get('direction', 'forward')
  passes = '' if direction == 'forward' else f', direction {direction}'
  return (
    f'{c["candidate"]} against the oracle: R={layer["num_ranks"]} '
    f'T={layer["num_tokens"]} E={layer["num_experts"]} K={layer["top_k"]} '
    f'D={layer["d_model"]} F={layer["d_ff"]} N={layer["capacity"]}, '
    f'{c["policy"]["storage"]}, sums {c["policy"]["accumulation_order"]}, '
    f'weights {c["policy"]["placement"]}, {_points(c["policy"])}'
    f'routing {c["routing"]}{passes}'
  )


def notes(report: check.Report) -> str:
  """Returns which records judged, and why something was not judged."""
  lines = []
  if any(r.lane == 'standard' for r in report.results):
    lines += [
      f'rules of {name}: {standards.get(name).version}'
      for name in report.config['standards']
    ]
  missing = _missing(report)
  if missing:
    lines.append(f'not judged, because not returned: {", ".join(missing)}')
  lines += dict.fromkeys(
    f'not judged: lane {r.lane}: {r.why}'
    for r in report.results
    if r.verdict == verdicts.NOT_JUDGED and not r.missing
  )
  if _only_exact_fails(report):
    lines.append(exact_lane.EXACT_HINT)
  if _may_recompute(report):
    lines.append(failure_details.RECOMPUTES_HINT)
  lines.append(_changes(report))
  return '\n'.join(filter(None, lines))


def _changes(report: check.Report) -> str:
  """Returns what later runs on the same inputs gave other bits, or ''."""
  if not report.changes:
    return ''
  meant = 'is what --allow_nondeterministic allows'
  if not report.is_steady:
    meant = 'fails; if it is meant, --allow_nondeterministic says so'
  lines = [f'the same inputs gave other bits, which {meant}:']
  return '\n'.join(lines + [f'  {change}' for change in report.changes])


def _only_exact_fails(report: check.Report) -> bool:
  failed = {r.lane for r in report.results if r.verdict == verdicts.FAIL}
  # Only a name of the user's has a colon.
  return ':' in report.config['candidate'] and failed == {'exact'}


def _may_recompute(report: check.Report) -> bool:
  """Says whether gradients alone are off, by rounding, and might not be."""
  failed = [r for r in report.results if r.verdict == verdicts.FAIL]
  lanes = {r.lane for r in failed} - {'bounded', 'standard'}
  forward = any(verdicts.pass_of(r.stage) is passes.FORWARD for r in failed)
  may = bool(failed) and not lanes and not forward
  return may and report.config['recomputes'] is False


def failure(report: check.Report) -> str:
  """Returns the first failure with its tile map, or ''."""
  result = first_failing(report)
  if result is None:
    return ''
  lines = [failure_words(report)]
  if result.grids and sum(g.size for g in result.grids) > 1:
    block = verdicts.block_name(result.stage)
    owner = '' if block == 'token block' else 'expert and '
    lines.append(f'  tiles, by {owner}{block} (# bad):')
    drawn = tiles.ascii_map(result.grids, result.experts)
    lines += [f'  {line}' for line in drawn.splitlines()]
  return '\n'.join(lines)


def first_failing(report: check.Report) -> verdicts.Result | None:
  """Returns the comparison that holds the first failure."""
  first = report.first_failure
  if first is None:
    return None
  return next(r for r in report.results if r.failure is first)


def failure_words(report: check.Report) -> str:
  """Returns the first failure without its tile map, or ''."""
  result = first_failing(report)
  if result is None or result.failure is None:
    return ''
  first = result.failure
  where = [f'rank {first.rank}']
  if first.expert is not None:
    where.append(f'expert {first.expert}')
  if first.row_block is None:
    where.append('past the last valid row')
  else:
    where += [
      f'{verdicts.block_name(first.stage)} {first.row_block}',
      f'column block {first.col_block}',
    ]
  lines = [
    f'first failure: {first.stage} ({first.lane}: {first.rule})',
    f'  where     {", ".join(where)}',
    f'  element   {first.stage}{list(first.index)}{_token(first)}',
    f'  got       {first.got!r}',
    f'  expected  {first.expected!r}',
    f'  ulp       {"-" if _is_nan(first) else first.ulp}',
  ]
  if first.there:
    lines.insert(3, f'  theirs    {first.there}')
  if first.bad_rows:
    lines.append(
      f'  bad in this tile: {first.bad_rows} of {first.rows} rows, '
      f'{first.bad_cols} of {first.cols} columns'
    )
  if result.why:
    lines.append(f'  rule      {result.why}')
    lines += _alone(report, result)
  if first.pattern:
    lines.append(f'  pattern   {first.pattern}')
  if first.hint:
    lines.append(f'  hint      {first.hint}')
  lines.append(f'  replay    {first.replay}')
  return '\n'.join(lines)


def _alone(report: check.Report, result: verdicts.Result) -> list[str]:
  """Returns a line of the stages that lose most beside the benchmark.

  A ratio of a layer says neither where it comes from nor that an order of sums
  is enough: 1024 terms one after the other lose 2.7 times what 8 sums side by
  side do.  The stages are those that were given the oracle's inputs.
  """
  name, is_ratio, _ = result.why.partition(' / max(benchmark, ')
  own = f'{name} benchmark'
  lost = {
    r.stage: r.values[name] / r.values[own]
    for r in report.results
    if r.rule == result.rule and r.values.get(own)
    if verdicts.tensor_of(r.stage) == r.stage
  }
  if not is_ratio or not lost:
    return []
  most = sorted(lost, key=lambda stage: -lost[stage])[:2]
  told = ', '.join(f'{stage} {lost[stage]:.2f}' for stage in most)
  return [
    f"  alone     {name} over the benchmark's own: {told}; where lane bounded "
    'passes, by the order of sums'
  ]


# Races and wrong tasks that are told; the JSON has them all.
_MOST_TOLD = 8


def modes(report: check.Report) -> str:
  """Returns what the checking modes found, or ''."""
  asked = report.config['modes']
  parts = [
    f'{one.which.name}: ran {one.tasks_run} of {one.num_tasks} tasks, the '
    "oracle's tensors stand in for the others"
    for one in report.launches
    if one.tasks_run < one.num_tasks
  ]
  parts = list(dict.fromkeys(parts))
  if asked['isolate'] and not report.launches:
    parts.append(_wrong_stages(report))
  elif asked['isolate']:
    count = len(report.wrong) or 'no'
    parts.append(
      f"isolated replay, each task on the oracle's inputs: {count} "
      f'wrong task{"s" * (len(report.wrong) != 1)}'
    )
    if not report.wrong and report.first_failure:
      parts.append(
        '  what fails is no tile of a task: lane standard judges '
        'tensors, the other lanes name tasks'
      )
    parts += _told([_wrong_task(report, wrong) for wrong in report.wrong])
  if asked['races'] or report.races:
    count = report.num_races or 'no'
    parts.append(f'{count} race{"s" * (report.num_races != 1)}')
    parts += _told([f'  {race}' for race in report.races])
  return '\n'.join(parts)


def _wrong_stages(report: check.Report) -> str:
  """Returns what isolation says of a candidate, which has no tasks."""
  failed = {r.stage for r in report.results if r.verdict == verdicts.FAIL}
  wrong = verdicts.ordered(failed)
  named = f' ({", ".join(wrong)})' if wrong else ''
  return (
    "isolated replay, each stage on the oracle's inputs: "
    f'{len(wrong) or "no"} wrong stage{"s" * (len(wrong) != 1)}{named}'
  )


def _told(lines: list[str]) -> list[str]:
  more = len(lines) - _MOST_TOLD
  return lines[:_MOST_TOLD] + [f'  and {more} more'] * (more > 0)


def _wrong_task(report: check.Report, wrong) -> str:
  # A task that only raced does so in the company of others.
  how = ('again    ', '--races')
  if wrong.bad:
    how = (
      'alone    ',
      f'--start_at={wrong.task.index} --stop_after={wrong.task.index}',
    )
  command = [
    word
    for word in shlex.split(report.config['command'])
    if not word.startswith(('--isolate', '--direction', '--races'))
  ]
  return (
    f'  {wrong}\n    {how[0]} {shlex.join(command)} '
    f'--direction={wrong.direction} {how[1]}'
  )


def _is_nan(first: verdicts.Failure) -> bool:
  return math.isnan(first.got) or math.isnan(first.expected)


def _token(first: verdicts.Failure) -> str:
  if first.token is None:
    return ''
  slot = '' if first.slot is None else f', slot {first.slot}'
  return f', token {first.token} of rank {first.source_rank}{slot}'


def _races(report: check.Report) -> str:
  count = report.num_races
  return f'{count} race{"s" * (count > 1)}, ' if count else ''


def _steadiness(report: check.Report) -> str:
  if report.changes:
    return 'not repeatable, '
  return f'the same bits in {report.runs} runs, ' if report.runs > 1 else ''


def _part(report: check.Report) -> str:
  """Returns what a verdict rests on if that is not all, or ''."""
  judged = _judged(report)
  parts = []
  if _missing(report):
    stages = {r.stage for r in judged}
    names = verdicts.ordered(stages)
    parts.append(f'judged: {", ".join(names)}')
  unlimited = {r.stage for r in report.results if r.why == verdicts.NO_LIMIT}
  if unlimited:
    parts.append(f'no limit for {", ".join(sorted(unlimited))}')
  silent = {*report.config['lanes']} - {r.lane for r in judged}
  if silent:
    parts.append(f'not in lane {", ".join(sorted(silent))}')
  ranks = report.config.get('ranks')
  if ranks is not None:
    of = report.config['layer']['num_ranks']
    parts.append(f'ranks {", ".join(map(str, ranks))} of {of}')
  if any(one.tasks_run < one.num_tasks for one in report.launches):
    parts.append('not all tasks ran')
  if report.config['modes']['isolate']:
    parts.append('each stage alone')
  if report.config.get('tiles') is not None:
    parts.append(f'a sample: {sum(r.tiles for r in judged)} tiles')
  return f' of a part ({"; ".join(parts)})' if parts else ''


def _blind(report: check.Report) -> str:
  """Returns how large an error could hide from what passed, or ''."""
  rows: dict[str, list] = {}
  for one in report.results:
    if one.power and one.verdict == verdicts.PASS:
      rows.setdefault(verdicts.tensor_of(one.stage), []).append(one.power)
  sizes = power.worst(power.best(mine) for mine in rows.values())
  if not sizes or report.verdict == verdicts.FAIL:
    return ''
  parts = [
    text.format(_percent(sizes[name]))
    for name, text in _WRONG.items()
    if name in sizes
  ]
  names = verdicts.ordered(rows)
  missing = [name for name in _missing(report) if name not in tensors.PLAN]
  alone = f'from {", ".join(names)} alone, ' if missing else ''
  more = f'; {", ".join(missing)} would show smaller ones' if missing else ''
  unseen = sum(one.not_judged for one in report.results)
  more += f'; {unseen} elements have no limit' if unseen else ''
  return f'; {alone}this could hide: {", ".join(parts)}{more}'


def _percent(share: float) -> str:
  return f'{100 * share:.2g} %'


def summary(report: check.Report) -> str:
  """Returns the last line."""
  judged = _judged(report)
  failed = sum(r.verdict == verdicts.FAIL for r in judged)
  tiles_seen = sum(r.tiles for r in judged)
  return (
    f'{report.verdict.upper()}{_part(report)}: {len(judged) - failed} of '
    f'{len(judged)} comparisons pass, {tiles_seen} tiles, {_races(report)}'
    f'{_steadiness(report)}{report.seconds:.1f} s{_blind(report)}'
  )


def text(report: check.Report, shown: str) -> str:
  """Returns all that a reader is told, `shown` as the table."""
  begin = f'{heading(report)}\n{shown}'
  return '\n\n'.join(filter(None, (begin, notes(report), why_not(report))))


def why_not(report: check.Report) -> str:
  """Returns the first failure, what modes found, and the last line."""
  parts = failure(report), _changes(report), modes(report), summary(report)
  return '\n\n'.join(filter(None, parts))
