"""What a reader sees: the table, the failure, the JSON."""

from collections.abc import Iterable, Iterator, Mapping
import math
import shlex
from typing import Any

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import failure_details
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import exact_lane
from hpmoe.parity_tests.judge.limits import power
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import lane_table
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import tensors

HEADING = (
  *report_json.RESULT_KEYS[:7],
  'of_bound',
  'not_judged',
  'sees',
  *report_json.RESULT_KEYS[7:],
)
# What `power` gives sizes of, as the last line calls it.
_ERROR_SIZES = dict(
  element="one element off by {} of its row's root mean square",
  row='one row by {}',
  whole='all by {}',
)
# Beyond which values of these a kernel may do anything.
_SHOWN_RANGES = ('x', 'gate', 'up', 'topk_weights')
_COLOURS = {verdicts.PASS: '\x1b[32m', verdicts.FAIL: '\x1b[31m'}


def _format_number(value: float) -> str:
  return f'{value:.3g}'


def _judged_results(report: check.Report) -> list[verdicts.Result]:
  return [r for r in report.results if r.verdict != verdicts.NOT_JUDGED]


def _missing_tensors(report: check.Report) -> list[str]:
  """Returns the tensors that would have had to be returned."""
  missing = {r.missing for r in report.results}
  return verdicts.ordered(missing - {''})


def _askable_tensors(report: check.Report) -> list[str]:
  """Returns those of them that this kind of candidate can return."""
  has_stages = not report.config.get('results_alone')
  return _missing_tensors(report) if has_stages else []


def format_cells(result: verdicts.Result) -> tuple[str, ...]:
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
    str(result.failed_tiles),
    # No distance leads to a NaN.
    '-' if math.isnan(result.worst_abs) else str(result.worst_ulp),
    _format_number(result.worst_abs),
    lane_table.format_share(share) if share is not None else '-',
    str(result.not_judged),
    ' '.join(f'{n} {_format_number(v)}' for n, v in result.power.items())
    or '-',
    element,
    result.verdict,
  )


def format_table(report: check.Report, colour: bool = False) -> str:
  """Returns one line per comparison that was made, under a heading."""
  results = _judged_results(report)
  return text_table.format_table(
    tuple(name.replace('_', ' ') for name in HEADING),
    [format_cells(r) for r in results],
    [_COLOURS[r.verdict] for r in results] if colour else None,
  )


# Fields of a policy that are forms, and how a heading calls them.
_FORMS = (
  ('quantised', 'expert weights'),
  ('x_form', 'x'),
  ('rows', 'rows'),
  ('operand_forms', 'operands'),
)


def _describe_policy(policy: Mapping[str, Any]) -> str:
  parts = [*(policy.get('points') or ())]
  for name in precision.SUM_ORDERS:
    if policy.get(name, 'slot') != 'slot':
      parts.append(f'{name}={policy[name]}')
  parts += _list_forms(policy)
  return f'{", ".join(parts)}, ' if parts else ''


def _list_forms(policy: Mapping[str, Any]) -> Iterator[str]:
  rows, operands = (policy.get(name, '') for name in ('rows', 'operand_forms'))
  if recipe := operands and recipes.find_name(rows, operands):
    policy = {**policy, 'rows': '', 'operand_forms': ''}
    yield f'recipe {recipe}'
  for name, words in _FORMS:
    if form := policy.get(name):
      yield f'{words} {form}'


def format_heading(report: check.Report) -> str:
  """Returns what is being checked, in one line or two."""
  c = report.config
  layer = c['layer']
  direction = c.get('direction', 'forward')
  return (
    f'{c["candidate"]} against the oracle: R={layer["num_ranks"]} '
    f'T={layer["num_tokens"]} E={layer["num_experts"]} K={layer["top_k"]} '
    f'D={layer["d_model"]} F={layer["d_ff"]} N={layer["capacity"]}, '
    f'{c["policy"]["storage"]}, sums {c["policy"]["accumulation_order"]}, '
    f'weights {c["policy"]["placement"]}, {_describe_policy(c["policy"])}'
    f'routing {c["routing"]}, direction {direction}{_describe_layout(c)}'
  )


def _describe_layout(config: Mapping[str, Any]) -> str:
  layout, placement = config.get('layout'), config.get('expert_placement')
  parts = (
    f', tensors laid out as {layout} has them' if layout else '',
    f', experts placed by {placement}' if placement else '',
  )
  return ''.join(parts)


def format_notes(report: check.Report) -> str:
  """Returns which records judged, and why something was not judged."""
  lines = [*report.config.get('notes', ())]
  if any(r.lane == 'standard' for r in report.results):
    lines += [
      f'rules of {name}: {standards.get(name).version}'
      for name in report.config['standards']
    ]
  missing = _askable_tensors(report)
  if missing:
    lines.append(f'not judged, because not returned: {", ".join(missing)}')
  lines += dict.fromkeys(
    f'not judged: lane {r.lane}: {r.reason}'
    for r in report.results
    if r.verdict == verdicts.NOT_JUDGED and not r.missing
  )
  if _fails_only_exact(report):
    lines.append(exact_lane.EXACT_HINT)
  if _may_recompute(report):
    lines.append(failure_details.RECOMPUTES_HINT)
  lines.append(_format_changes(report))
  return '\n'.join(filter(None, lines))


def _format_changes(report: check.Report) -> str:
  """Returns what later runs on the same inputs gave other bits, or ''."""
  if not report.changes:
    return ''
  stale = [f'wrong on other data: {c}' for c in report.changes if c.is_other]
  changes = [f'  {c}' for c in report.changes if not c.is_other]
  if not changes:
    return '\n'.join(stale)
  consequence = 'is what --allow_nondeterministic allows'
  if not report.config['allow_nondeterministic']:
    consequence = 'fails; if it is meant, --allow_nondeterministic says so'
  changes.insert(0, f'the same inputs gave other bits, which {consequence}:')
  return '\n'.join(stale + changes)


def _fails_only_exact(report: check.Report) -> bool:
  failing_lanes = {r.lane for r in report.results if r.verdict == verdicts.FAIL}
  # Only a name of the user's has a colon.
  return ':' in report.config['candidate'] and failing_lanes == {'exact'}


def _may_recompute(report: check.Report) -> bool:
  """Says whether gradients alone are off, by rounding, and might not be."""
  failures = [r for r in report.results if r.verdict == verdicts.FAIL]
  lanes = {r.lane for r in failures} - {'bounded', 'standard'}
  forward = any(verdicts.pass_of(r.stage) is passes.FORWARD for r in failures)
  is_possible = bool(failures) and not lanes and not forward
  return is_possible and report.config['recomputes'] is False


# Races and wrong tasks that are told; the JSON has them all.
_MAX_LINES = 8


def format_modes(report: check.Report) -> str:
  """Returns what the checking modes found, or ''."""
  modes = report.config['modes']
  parts = [
    f'{launch.layer_pass.name}: ran {launch.tasks_run} of {launch.num_tasks} '
    "tasks, the oracle's tensors stand in for the others"
    for launch in report.launches
    if launch.tasks_run < launch.num_tasks
  ]
  parts = list(dict.fromkeys(parts))
  if modes['isolate'] and not report.launches:
    parts.append(_format_wrong_stages(report))
  elif modes['isolate']:
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
    parts += _limit_lines(
      [_format_wrong_task(report, wrong) for wrong in report.wrong]
    )
  if modes['races'] or report.races:
    count = report.num_races or 'no'
    parts.append(f'{count} race{"s" * (report.num_races != 1)}')
    parts += _limit_lines([f'  {race}' for race in report.races])
  return '\n'.join(parts)


def _format_wrong_stages(report: check.Report) -> str:
  """Returns what isolation says of a candidate, which has no tasks."""
  failing_stages = {
    r.stage for r in report.results if r.verdict == verdicts.FAIL
  }
  wrong = verdicts.ordered(failing_stages)
  stage_list = f' ({", ".join(wrong)})' if wrong else ''
  return (
    "isolated replay, each stage on the oracle's inputs: "
    f'{len(wrong) or "no"} wrong stage{"s" * (len(wrong) != 1)}{stage_list}'
  )


def _limit_lines(lines: list[str]) -> list[str]:
  num_cut = len(lines) - _MAX_LINES
  return lines[:_MAX_LINES] + [f'  and {num_cut} more'] * (num_cut > 0)


def _format_wrong_task(report: check.Report, wrong) -> str:
  # A task that only raced does so in the company of others.
  option = ('again    ', '--races')
  if wrong.bad:
    option = (
      'alone    ',
      f'--start_at={wrong.task.index} --stop_after={wrong.task.index}',
    )
  command = [
    word
    for word in shlex.split(report.config['command'])
    if not word.startswith(('--isolate', '--direction', '--races'))
  ]
  return (
    f'  {wrong}\n    {option[0]} {shlex.join(command)} '
    f'--direction={wrong.direction} {option[1]}'
  )


def _count_races(report: check.Report) -> str:
  count = report.num_races
  return f'{count} race{"s" * (count > 1)}, ' if count else ''


def _describe_repeats(report: check.Report) -> str:
  if report.is_stale:
    return 'wrong on other data of the same shape, '
  if report.changes:
    return 'not repeatable, '
  return f'the same bits in {report.runs} runs, ' if report.runs > 1 else ''


def _describe_scope(report: check.Report) -> str:
  """Returns what a verdict rests on if that is not all, or ''."""
  judged_results = _judged_results(report)
  parts = []
  if _missing_tensors(report):
    stages = {r.stage for r in judged_results}
    names = verdicts.ordered(stages)
    parts.append(', '.join(names))
  unlimited = {r.stage for r in report.results if r.reason == verdicts.NO_LIMIT}
  if unlimited:
    parts.append(f'no limit for {", ".join(sorted(unlimited))}')
  silent = {*report.config['lanes']} - {r.lane for r in judged_results}
  if silent:
    parts.append(f'not in lane {", ".join(sorted(silent))}')
  ranks = report.config.get('ranks')
  if ranks is not None:
    num_ranks = report.config['layer']['num_ranks']
    parts.append(f'ranks {", ".join(map(str, ranks))} of {num_ranks}')
  if any(launch.tasks_run < launch.num_tasks for launch in report.launches):
    parts.append('not all tasks ran')
  if report.config['modes']['isolate']:
    parts.append('each stage alone')
  if report.config.get('tiles') is not None:
    parts.append(f'a sample: {sum(r.tiles for r in judged_results)} tiles')
  return f' (partial check: {"; ".join(parts)})' if parts else ''


def format_blind_spot(report: check.Report) -> str:
  """Returns what a passing check cannot have seen, in up to three lines."""
  if report.verdict == verdicts.FAIL:
    return ''
  sizes = _describe_hidden_sizes(report)
  return '\n'.join([sizes, *_list_untried(report)]) if sizes else ''


def _describe_hidden_sizes(report: check.Report) -> str:
  """Returns how large an error could hide from what passed, or ''."""
  rows: dict[str, list[verdicts.Result]] = {}
  for result in report.results:
    if result.not_judged or (result.power and result.verdict == verdicts.PASS):
      rows.setdefault(verdicts.tensor_of(result.stage), []).append(result)
  best = {name: power.best(results) for name, results in rows.items()}
  sizes = power.worst(best.values())
  if not sizes:
    return ''
  parts = [
    format_report.format(_format_percent(sizes[name]))
    for name, format_report in _ERROR_SIZES.items()
    if name in sizes
  ]
  names = verdicts.ordered(name for name in rows if best[name])
  missing, askable = (
    [name for name in of_report if name not in tensors.PLAN]
    for of_report in (_missing_tensors(report), _askable_tensors(report))
  )
  source = f' from {", ".join(names)} alone' if missing else ''
  remarks = f'; {", ".join(askable)} would show smaller ones' if askable else ''
  unseen = sum(_count_unseen(results) for results in rows.values())
  total = sum(
    max(r.histogram.total if r.histogram else r.not_judged for r in results)
    for results in rows.values()
  )
  remarks += f'; {unseen} of {total} elements have no limit' if unseen else ''
  return f'could hide{source}: {", ".join(parts)}{remarks}'


def _count_unseen(results: Iterable[verdicts.Result]) -> int:
  """Returns how many elements of a tensor no comparison has a limit for."""
  return min(result.not_judged for result in results)


def _list_untried(report: check.Report) -> Iterator[str]:
  """Yields beyond which values and shapes an error could hide."""
  ranges = report.config.get('ranges', {})
  parts = [
    f'{name} {ranges[name][0]:.2g} to {ranges[name][1]:.2g}'
    for name in _SHOWN_RANGES
    if name in ranges
  ]
  if parts:
    yield f'not tried: values beyond {", ".join(parts)}'
  if report.runs == 1 and report.config.get('expensive'):
    yield (
      'not tried: a second run of a kernel this slow, which would show what it '
      'keeps from a call (--repeat=2)'
    )
  if shape := report.config.get('shape'):
    # Inputs of a file or a definition have no other shapes.
    is_drawn = 'preset' in report.config.get('inputs', {})
    advice = ' (--shapes tries some)' if is_drawn else ''
    yield f'not tried: shapes other than {shape}{advice}'


def _format_percent(share: float) -> str:
  return f'{100 * share:.2g} %'


def format_summary(report: check.Report) -> str:
  """Returns the last line."""
  results = _judged_results(report)
  num_failed = sum(r.verdict == verdicts.FAIL for r in results)
  tiles_seen = sum(r.tiles for r in results)
  num_passed = len(results) - num_failed
  return (
    f'{report.verdict.upper()}{_describe_scope(report)}: {num_passed} of '
    f'{len(results)} comparisons pass, {tiles_seen} tiles, '
    f'{_count_races(report)}{_describe_repeats(report)}'
    f'{report.seconds:.1f} s'
  )


def format_brief(report: check.Report) -> str:
  """Returns the verdict in three lines, as a prompt shows a report."""
  layer, policy = report.config['layer'], report.config['policy']
  sizes = ' '.join(f'{letter}={layer[name]}' for letter, name in _SIZES)
  results = _judged_results(report)
  num_failed = sum(r.verdict == verdicts.FAIL for r in results)
  lines = (
    f'{report.verdict.upper()} {report.config["candidate"]}: {sizes}, '
    f'{policy["storage"]}',
    _describe_worst(report),
    f'{num_failed} of {len(results)} comparisons fail, '
    f'{_count_races(report)}{_describe_repeats(report)}{report.seconds:.1f} s'
    '; print(report) shows all',
  )
  return '\n'.join(map(_shorten, lines))


_SIZES = (
  *(('R', 'num_ranks'), ('T', 'num_tokens'), ('E', 'num_experts')),
  *(('K', 'top_k'), ('D', 'd_model'), ('F', 'd_ff')),
)
_MOST_CHARS = 120


def _shorten(line: str) -> str:
  # A name or a pattern may be of any length, and hold any character.
  line = ' '.join(line.split())
  return line if len(line) <= _MOST_CHARS else f'{line[: _MOST_CHARS - 4]} ...'


def _describe_worst(report: check.Report) -> str:
  """Returns the first failure, or how near the limits errors came."""
  first = report.first_failure
  if first is not None:
    pattern = f': {first.pattern}' if first.pattern else ''
    return f'first failure: {first.stage} ({first.lane}){pattern}'
  if report.verdict == verdicts.FAIL:
    return f'first: {[*report.changes, *report.races][0]}'
  shares = [
    (r.values[lane_table.SHARE], r.stage)
    for r in report.results
    if lane_table.SHARE in r.values
  ]
  if not shares:
    return 'nothing was judged by a limit'
  share, stage = max(shares)
  return f'largest error over its limit: {share:.3g}, of {stage}'


def format_report(report: check.Report, table: str) -> str:
  """Returns all that a reader is told, `table` as the table."""
  begin = f'{format_heading(report)}\n{table}'
  return '\n\n'.join(
    filter(None, (begin, format_notes(report), format_outcome(report)))
  )


def format_saved(report: check.Report) -> str:
  """Returns a report that was read from its JSON, which has no tile maps."""
  table = lane_table.format_table(report)
  parts = (
    f'{format_heading(report)}\n{table}',
    format_notes(report),
    failure_text.format_location(report),
    format_summary(report),
  )
  return '\n\n'.join(filter(None, parts))


def format_outcome(report: check.Report) -> str:
  """Returns the first failure, what modes found, and the last line."""
  parts = (
    failure_text.format_failure(report),
    _format_changes(report),
    format_modes(report),
    format_blind_spot(report),
    format_summary(report),
  )
  return '\n\n'.join(filter(None, parts))
