"""Leaves out and swaps the device source's synchronisation calls, one by one.

Prints what the twin says of each: `make sync`; --only and --stale are those of
`make mutants`.  Outcomes are kept, one JSON object a line, in
OUT/outcomes.jsonl: a run that was stopped goes on there as long as the tree is
the same.  With HPMOE_ASC_DEVKIT set, the source is compiled against the headers
there instead of our own.

Exit code 0: the twin reports every change.
1: it passes one.
2: the request is wrong, or the tree itself does not pass.
"""

from collections.abc import Mapping, Sequence
import contextlib
import os
import pathlib
import sys
import time
import tomllib
from typing import Any

from absl import app
from absl import flags

from hpmoe.tools.docs import figures
from hpmoe.tools.mutants import main as mutants
from hpmoe.tools.mutants import planting
from hpmoe.tools.sync import calls

_OUT = flags.DEFINE_string(
  'sync_out', 'out/sync', 'where tree and outcomes are'
)
SOURCE = 'backend_ascend/device/megakernel'
_SAME_PROGRAMS_FILE = pathlib.Path(__file__).parent / 'same.toml'
_PROBE = 'tools/sync/probe.py'
_REAL = bool(os.environ.get('HPMOE_ASC_DEVKIT'))
_SAME_PROGRAM = 'the same program'
_COLUMNS = ('calls', 'tried', 'reported', 'same program', 'passed')


# A change, what became of it, and the verdict.
Row = tuple[calls.Change, planting.Outcome, str]


def device_source(root: pathlib.Path = planting.ROOT) -> dict[str, str]:
  """Returns the device source that holds calls, by path."""
  folder = root / SOURCE
  paths = [*folder.glob('*.h'), *folder.glob('*.cc')]
  return {
    path.relative_to(root).as_posix(): path.read_text()
    for path in sorted(paths)
    if not path.name.endswith('_test.cc')
  }


def same_programs(
  path: pathlib.Path = _SAME_PROGRAMS_FILE,
) -> dict[tuple[str, str], str]:
  """Returns the reason why a change has no effect, by call and change."""
  read = tomllib.loads(path.read_text())
  return {(row['call'], row['change']): row['why'] for row in read['same']}


def try_out(
  nursery: planting.Nursery, change: calls.Change | None, tree: str
) -> planting.Outcome:
  """Plants a change and runs the twin; without one the tree as it is.

  Raises:
    planting.BuildError: the change does not compile.
  """
  start = time.monotonic()
  with nursery.plant(change) if change else contextlib.nullcontext():
    # Over real headers the source is compiled as it is run.
    if change and not _REAL:
      nursery.build()
    lines, end_text = nursery.probe('hpmoe.tools.sync.probe')
  end = lines[-1] if lines else dict(how='crash', case='', text=end_text)
  if end['text'] and not end['how']:
    raise planting.BuildError(end['text'])
  finding: dict[str, Any] | None = None
  if end['how']:
    finding = dict(by=[end['how']], stage='', tile={}, text=end['text'])
  name = change.name if change else planting.CLEAN
  return planting.outcome(name, tree, end['case'], finding, start)


def verdict(
  change: calls.Change, outcome: planting.Outcome, reasons: Mapping
) -> str:
  """Returns how a change was found, or the reason why it has no effect."""
  if outcome.finders:
    return outcome.finders[0]
  reason = reasons.get((change.call, change.change))
  return f'{_SAME_PROGRAM}: {reason}' if reason else 'PASSED'


def tally(verdicts: Sequence[str]) -> tuple[int, int, int, int]:
  """Returns the numbers of tried, reported, equal and passed changes."""
  num_passed = sum(f == 'PASSED' for f in verdicts)
  num_same = sum(f.startswith(_SAME_PROGRAM) for f in verdicts)
  return (
    len(verdicts),
    len(verdicts) - num_passed - num_same,
    num_same,
    num_passed,
  )


def counts(rows: Sequence[Row]) -> list[list[str | int]]:
  """Returns the tally of left-out calls and the tally of swapped calls."""
  verdicts_by_kind: dict[str, list[str]] = {'left out': [], 'swapped': []}
  for change, _, verdict_text in rows:
    verdicts_by_kind[
      'swapped' if ' with ' in change.change else 'left out'
    ].append(verdict_text)
  return [
    [kind, *tally(verdicts)] for kind, verdicts in verdicts_by_kind.items()
  ]


def plain(rows: Sequence[Row]) -> dict[str, str]:
  """Returns how each change was found, and by which launch."""
  return {
    c.name.removeprefix(f'{SOURCE}/'): f'{v}, {o.check}' if o.finders else v
    for c, o, v in rows
  }


def summary(verdicts: Sequence[str]) -> str:
  num_tried, reported, num_same, num_passed = tally(verdicts)
  return (
    f'{num_tried} changes: {reported} reported, {num_same} the same program, '
    f'{num_passed} passed'
  )


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  reasons = same_programs()

  def format_line(change: calls.Change, outcome: planting.Outcome) -> str:
    verdict_text = verdict(change, outcome, reasons)
    return f'{change.name}: {change.call} {change.change}: {verdict_text}'

  try:
    changes = mutants.select(calls.changes(device_source()), flags.FLAGS.only)
    runner = mutants.Runner(out, 1, try_out, _PROBE)
    runner.tree += ' over real headers' if _REAL else ''
    keys = {change.name: runner.tree for change in changes}
    log = out / 'outcomes.jsonl'
    outcomes, _ = mutants.resumed(changes, runner, log, keys, format_line)
  except (planting.BuildError, ValueError) as error:
    sys.exit(mutants.report_refusal('sync', error))
  rows = [
    (
      change,
      outcomes[change.name],
      verdict(change, outcomes[change.name], reasons),
    )
    for change in changes
    if change.name in outcomes
  ]
  if figures.KEEP.value:
    run = figures.run('make sync')
    figures.write('sync', _COLUMNS, counts(rows), [run], every=plain(rows))
  verdicts = [v for _, _, v in rows]
  print(summary(verdicts))
  sys.exit(1 if 'PASSED' in verdicts else 0)


if __name__ == '__main__':
  app.run(main)
