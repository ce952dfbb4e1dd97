"""Leaves out and swaps the device source's synchronisation calls, one by one.

Prints what the twin says of each: `make sync`.  Outcomes are kept, one JSON
object a line, in OUT/outcomes.jsonl: a run that was stopped goes on there as
long as the tree is the same.  With HPMOE_ASC_DEVKIT set, the source is compiled
against the headers there instead of our own.

Exit code 0: the twin reports every change.
1: it passes one.
2: the request is wrong, or the tree itself does not pass.
"""

from collections.abc import Sequence
import dataclasses
import fnmatch
import os
import pathlib
import sys
import time
import tomllib

from absl import app
from absl import flags

from hpmoe.tools.docs import figures
from hpmoe.tools.mutants import outcomes as log_lib
from hpmoe.tools.mutants import planting
from hpmoe.tools.sync import calls

_OUT = flags.DEFINE_string(
  'sync_out', 'out/sync', 'where tree and outcomes are'
)
_ONLY = flags.DEFINE_list(
  'sync_only', [], 'changes, or patterns such as *events.h:*'
)
_STALE = flags.DEFINE_bool(
  'sync_stale', False, 'keep outcomes of other states of the tree'
)
_MARKDOWN = flags.DEFINE_string('sync_markdown', None, 'write the table there')

SOURCE = 'backend_ascend/kernels/ascendc'
_SAME = pathlib.Path(__file__).parent / 'same.toml'
_PROBE = 'tools/sync/probe.py'
_CLEAN = 'no change'
_SAME_PROGRAM = 'the same program'
_COLUMNS = ('calls', 'tried', 'reported', 'same program', 'passed')


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What the twin said of one change.

  Attributes:
    name: of the change.
    tree: that it was planted in.
    how: the kind of finding; '' if all launches passed.
    case: the launch that found it.
    text: what was said.
    seconds: wall time, building included.
  """

  name: str
  tree: str
  how: str
  case: str
  text: str
  seconds: float


# A change, what became of it, and the verdict.
Row = tuple[calls.Change, Outcome, str]


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


class Runner:
  """Builds and runs one change after the other in a copy of the tree."""

  def __init__(self, out: pathlib.Path):
    self._files = planting.sources()
    self.tree = planting.digest(self._files, _PROBE)
    # Over real headers the source is compiled as it is run.
    self._real = bool(os.environ.get('HPMOE_ASC_DEVKIT'))
    if self._real:
      self.tree += ' over real headers'
    self._nursery = planting.Nursery((out / '0').resolve())

  def prepare(self) -> Outcome:
    """Builds the tree as it is, and runs it."""
    self._nursery.copy(self._files)
    self._nursery.build()
    outcome = self._examine(_CLEAN, time.monotonic())
    self._nursery.set_limit(outcome.seconds)
    return outcome

  def try_out(self, change: calls.Change) -> Outcome:
    """Raises BuildError: the change does not compile."""
    start = time.monotonic()
    with self._nursery.planted(change):
      if not self._real:
        self._nursery.build()
      return self._examine(change.name, start)

  def _examine(self, name: str, start: float) -> Outcome:
    lines, why = self._nursery.probe('hpmoe.tools.sync.probe')
    end = lines[-1] if lines else dict(how='crash', case='', text=why)
    if end['text'] and not end['how']:
      raise planting.BuildError(end['text'])
    return Outcome(
      name,
      self.tree,
      end['how'],
      end['case'],
      end['text'],
      round(time.monotonic() - start, 1),
    )


def kept(path: pathlib.Path, tree: str, stale: bool) -> dict[str, Outcome]:
  """Returns the outcomes of a file that still hold, by change."""
  found = {}
  for fields in log_lib.read(path):
    outcome = Outcome(**fields)
    if stale or outcome.tree == tree:
      found[outcome.name] = outcome
  return found


def chosen(
  changes: Sequence[calls.Change], patterns: Sequence[str]
) -> list[calls.Change]:
  """Returns the changes that some pattern names; all if there is none."""
  return [
    c
    for c in changes
    if not patterns or any(fnmatch.fnmatch(c.name, p) for p in patterns)
  ]


def verdict(change: calls.Change, outcome: Outcome, same) -> str:
  """Returns how a change was found, or why it needs not be."""
  if outcome.how:
    return outcome.how
  why = same.get((change.call, change.change))
  return f'{_SAME_PROGRAM}: {why}' if why else 'PASSED'


def table(rows: Sequence[Row]) -> str:
  """Returns the outcomes as markdown."""
  lines = [
    '| file, line | call | change | found by | in |',
    '|---|---|---|---|---|',
  ]
  for change, outcome, found in rows:
    file = change.file.removeprefix(f'{SOURCE}/')
    cells = (f'{file}:{change.line}', f'`{change.call}`', change.change, found)
    lines.append(f'| {" | ".join(cells)} | {outcome.case} |')
  return '\n'.join(lines) + '\n'


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
    c.name.removeprefix(f'{SOURCE}/'): f'{v}, {o.case}' if o.how else v
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
  log = out / 'outcomes.jsonl'
  same = same_programs()
  changes = chosen(calls.changes(device_source()), _ONLY.value)
  runner = Runner(out)
  outcomes = kept(log, runner.tree, _STALE.value)
  todo = [c for c in changes if c.name not in outcomes]
  if todo:
    try:
      clean = runner.prepare()
    except planting.BuildError as error:
      sys.exit(_refused(f'the source as it is: {error}'))
    if clean.how:
      sys.exit(_refused(f'the source as it is: {clean.how}: {clean.text}'))
  rows = []
  for i, change in enumerate(changes, 1):
    if change.name not in outcomes:
      try:
        outcomes[change.name] = runner.try_out(change)
      except planting.BuildError as error:
        print(f'[{i}/{len(changes)}] {change.name}: no program: {error}')
        continue
      log_lib.append(log, outcomes[change.name])
    outcome = outcomes[change.name]
    rows.append((change, outcome, verdict(change, outcome, same)))
    print(
      f'[{i}/{len(changes)}] {change.name}: {change.call} {change.change}: '
      f'{rows[-1][2]} ({outcome.seconds:.0f} s)',
      flush=True,
    )
  if _MARKDOWN.value:
    pathlib.Path(_MARKDOWN.value).write_text(table(rows))
  if figures.KEEP.value:
    run = figures.run('make sync')
    figures.write('sync', _COLUMNS, counts(rows), [run], every=plain(rows))
  found = [v for _, _, v in rows]
  print(summary(found))
  sys.exit(1 if 'PASSED' in found else 0)


def _refused(text: str) -> int:
  print(f'sync: {text}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  app.run(main)
