"""Stage by lane: the verdict and the worst figure of each, on one screen."""

from collections.abc import Iterator, Sequence
import dataclasses
import math

from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import text_table

MARKS = {verdicts.PASS: '✓', verdicts.FAIL: '✕', verdicts.NOT_JUDGED: '–'}
# The name under which a rule gives the share of its limit that was used.
SHARE = 'error_of_bound'
# A larger share of a limit says no more: that limit is nearly 0.
_LARGEST_SHARE = 1e9
_RED, _GREEN = '\x1b[31m', '\x1b[32m'


@dataclasses.dataclass(frozen=True)
class Cell:
  """What a lane says of a stage, by all of its rules.

  Attributes:
    verdict: the worst of its rules', or '' where it has none.
    figure: the worst figure.
    aside: how many tiles fail, or why nothing was judged; or ''.
    results: its comparisons.
  """

  verdict: str
  figure: str
  aside: str
  results: Sequence[verdicts.Result]

  def __str__(self) -> str:
    if not self.verdict:
      return ''
    aside = f', {self.aside}' if self.verdict == verdicts.FAIL else ''
    return f'{MARKS[self.verdict]} {self.figure}{aside}'


def group_by_stage(report: check.Report) -> dict[str, list[verdicts.Result]]:
  """Returns the comparisons of each stage, in dependency order."""
  stages = {r.stage for r in report.results}
  return {
    stage: [r for r in report.results if r.stage == stage]
    for stage in verdicts.ordered(stages)
  }


def list_lanes(report: check.Report) -> list[str]:
  """Returns the lanes that were asked for, or judged anyway, in order."""
  judged_lanes = (
    r.lane for r in report.results if r.verdict != verdicts.NOT_JUDGED
  )
  lanes = {*report.config['lanes'], *judged_lanes}
  return [lane for lane in verdicts.LANES if lane in lanes]


def iterate_rows(report: check.Report) -> Iterator[tuple[str, list[Cell]]]:
  """Yields a stage, and its cell in each of `asked`."""
  columns = list_lanes(report)
  for stage, results in group_by_stage(report).items():
    yield (
      stage,
      [make_cell([r for r in results if r.lane == n]) for n in columns],
    )


def format_table(report: check.Report, colour: bool = False) -> str:
  """Returns a line for each stage that anything was said of."""
  judged_rows = [
    (stage, cells)
    for stage, cells in iterate_rows(report)
    if {c.verdict for c in cells} - {'', verdicts.NOT_JUDGED}
  ]
  failing = [
    any(c.verdict == verdicts.FAIL for c in cells) for _, cells in judged_rows
  ]
  return text_table.format_table(
    ('stage', *list_lanes(report)),
    [(stage, *map(str, cells)) for stage, cells in judged_rows],
    [_RED if fails else _GREEN for fails in failing] if colour else None,
  )


def format_share(share: float) -> str:
  """Returns an error over its limit in words of at most nine letters."""
  if share > _LARGEST_SHARE:
    return f'over {_LARGEST_SHARE:.0e}'.replace('e+0', 'e')
  return f'{share:.3g}'


def find_worst_verdict(results: Sequence[verdicts.Result]) -> str:
  order = (verdicts.FAIL, verdicts.PASS, verdicts.NOT_JUDGED)
  return min((r.verdict for r in results), key=order.index)


def make_cell(results: Sequence[verdicts.Result]) -> Cell:
  """Returns what one lane says of one stage."""
  if not results:
    return Cell('', '', '', results)
  verdict = find_worst_verdict(results)
  if verdict == verdicts.NOT_JUDGED:
    return Cell(verdict, verdict, results[0].reason, results)
  results_of_verdict = [r for r in results if r.verdict == verdict]
  worst = max(results_of_verdict, key=lambda r: r.failed_tiles)
  aside = f'{worst.failed_tiles} of {worst.tiles} tiles'
  figure = _figure(results, verdict)
  return Cell(
    verdict, figure, '' if verdict == verdicts.PASS else aside, results
  )


def _figure(results: Sequence[verdicts.Result], verdict: str) -> str:
  """Returns the worst figure of the rules that gave a verdict."""
  results_of_verdict = [r for r in results if r.verdict == verdict]
  if results_of_verdict[0].lane == 'standard':
    rules = [r for r in results if r.verdict != verdicts.NOT_JUDGED]
    amount = f'{len(rules)} rule{"s" * (len(rules) > 1)}'
    if verdict == verdicts.FAIL:
      return f'fails {len(results_of_verdict)} of {amount}'
    silent = len(results) - len(rules)
    return amount + (f', {silent} not judged' if silent else '')
  if any(math.isnan(r.worst_abs) for r in results_of_verdict):
    return 'NaN'  # No distance leads to it.
  shares = [r.values[SHARE] for r in results_of_verdict if SHARE in r.values]
  if shares:
    return f'{format_share(max(shares))} of bound'
  worst = max(r.worst_ulp for r in results_of_verdict)
  return f'{worst if worst < 10**6 else f"{worst:.1e}"} ulp'
