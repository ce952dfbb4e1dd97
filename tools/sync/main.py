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
_SAME = pathlib.Path(__file__).parent / 'same.toml'
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


def same_programs(path: pathlib.Path = _SAME) -> dict[tuple[str, str], str]:
  """Returns why a change is the same program, by call and change."""
  read = tomllib.loads(path.read_text())
  return {(one['call'], one['change']): one['why'] for one in read['same']}


def try_out(
  nursery: planting.Nursery, change: calls.Change | None, tree: str
) -> planting.Outcome:
  """Plants a change and runs the twin; without one the tree as it is.

  Raises:
    planting.BuildError: the change does not compile.
  """
  start = time.monotonic()
  with nursery.planted(change) if change else contextlib.nullcontext():
    # Over real headers the source is compiled as it is run.
    if change and not _REAL:
      nursery.build()
    lines, why = nursery.probe('hpmoe.tools.sync.probe')
  end = lines[-1] if lines else dict(how='crash', case='', text=why)
  if end['text'] and not end['how']:
    raise planting.BuildError(end['text'])
  found: dict[str, Any] | None = None
  if end['how']:
    found = dict(by=[end['how']], stage='', tile={}, text=end['text'])
  name = change.name if change else planting.CLEAN
  return planting.outcome(name, tree, end['case'], found, start)


def verdict(
  change: calls.Change, outcome: planting.Outcome, same: Mapping
) -> str:
  """Returns how a change was found, or why it needs not be."""
  if outcome.by:
    return outcome.by[0]
  why = same.get((change.call, change.change))
  return f'{_SAME_PROGRAM}: {why}' if why else 'PASSED'


def tally(found: Sequence[str]) -> tuple[int, int, int, int]:
  """Returns how many were tried, reported, are the same, and passed."""
  passed = sum(f == 'PASSED' for f in found)
  same = sum(f.startswith(_SAME_PROGRAM) for f in found)
  return len(found), len(found) - passed - same, same, passed


def counts(rows: Sequence[Row]) -> list[list[str | int]]:
  """Returns the tally of calls left out, and of those swapped."""
  found: dict[str, list[str]] = {'left out': [], 'swapped': []}
  for change, _, said in rows:
    found['swapped' if ' with ' in change.change else 'left out'].append(said)
  return [[kind, *tally(said)] for kind, said in found.items()]


def plain(rows: Sequence[Row]) -> dict[str, str]:
  """Returns how each change was found, and by which launch."""
  return {
    c.name.removeprefix(f'{SOURCE}/'): f'{v}, {o.rung}' if o.by else v
    for c, o, v in rows
  }


def summary(found: Sequence[str]) -> str:
  tried, reported, same, passed = tally(found)
  return (
    f'{tried} changes: {reported} reported, {same} the same program, '
    f'{passed} passed'
  )


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  same = same_programs()

  def told(change: calls.Change, outcome: planting.Outcome) -> str:
    said = verdict(change, outcome, same)
    return f'{change.name}: {change.call} {change.change}: {said}'

  try:
    changes = mutants.chosen(calls.changes(device_source()), flags.FLAGS.only)
    runner = mutants.Runner(out, 1, try_out, _PROBE)
    runner.tree += ' over real headers' if _REAL else ''
    keys = {change.name: runner.tree for change in changes}
    log = out / 'outcomes.jsonl'
    outcomes, _ = mutants.resumed(changes, runner, log, keys, told)
  except (planting.BuildError, ValueError) as error:
    sys.exit(mutants.refused('sync', error))
  rows = [
    (
      change,
      outcomes[change.name],
      verdict(change, outcomes[change.name], same),
    )
    for change in changes
    if change.name in outcomes
  ]
  if figures.KEEP.value:
    run = figures.run('make sync')
    figures.write('sync', _COLUMNS, counts(rows), [run], every=plain(rows))
  found = [v for _, _, v in rows]
  print(summary(found))
  sys.exit(1 if 'PASSED' in found else 0)


if __name__ == '__main__':
  app.run(main)
