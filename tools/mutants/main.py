"""Plants bugs one by one and says which check finds each: `make mutants`.

Outcomes are kept, one JSON object a line, in OUT/outcomes.jsonl: what ended
before is not run again while neither the tree nor the mutant has changed.
Exit code 0: every bug is found where it is, or the catalogue says why not.
1: one is not.
2: the request, the data or the tree itself is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import fcntl
import fnmatch
import pathlib
import queue
import sys
from typing import Any

from absl import app
from absl import flags

from hpmoe.tools.mutants import catalogue
from hpmoe.tools.mutants import planting
from hpmoe.tools.mutants import score

_OUT = flags.DEFINE_string(
  'mutants_out', 'out/mutants', 'where trees and outcomes are'
)
_PATTERNS = flags.DEFINE_list('only', [], 'names, or patterns such as gemm_*')
_JOBS = flags.DEFINE_integer('jobs', 1, 'trees side by side', lower_bound=1)
_STALE = flags.DEFINE_bool(
  'stale',
  False,
  'keep outcomes of other states of the tree, those in the catalogue too',
)
_WRITE = flags.DEFINE_bool(
  'write', False, 'write the outcomes of the catalogue, and their counts'
)


TryOut = Callable[[planting.Nursery, Any, str], planting.Outcome]


def select(changes: Sequence[Any], patterns: Sequence[str]) -> list[Any]:
  """Returns the changes that match a pattern; all if there are no patterns.

  Raises:
    ValueError: a pattern names no change.
  """
  for pattern in patterns:
    if not fnmatch.filter([c.name for c in changes], pattern):
      raise ValueError(f'only: expected names, got {pattern!r}')
  return [
    c
    for c in changes
    if not patterns or any(fnmatch.fnmatch(c.name, p) for p in patterns)
  ]


def load_outcomes(
  path: pathlib.Path, keys: Mapping[str, str], stale: bool
) -> dict[str, planting.Outcome]:
  """Returns the valid outcomes in a file, by the name of the mutant.

  Args:
    path: of the file, which may not exist.
    keys: the current key of each mutant.
    stale: whether outcomes with another key are returned as well.
  """
  return {
    outcome.mutant: outcome
    for outcome in planting.read(path)
    if stale or keys.get(outcome.mutant) == outcome.key
  }


def format_progress(mutant: catalogue.Mutant, outcome: planting.Outcome) -> str:
  """Returns the line that reports an outcome."""
  if not outcome.finders:
    return f'{mutant.name}: {score.verdict(mutant, outcome)}'
  is_located = planting.located(mutant, outcome)
  relation = 'located' if is_located else f'expected {mutant.stage}, not'
  place = outcome.stage or outcome.text[:120]
  return (
    f'{mutant.name}: {", ".join(outcome.finders)} at {outcome.check}, '
    f'{relation} at {place}'
  )


class Runner:
  """Tries out changes in as many trees as there are jobs."""

  def __init__(
    self, out: pathlib.Path, jobs: int, try_out: TryOut, *judges: str
  ):
    """`try_out` returns the outcome of a change, or of none, in a tree.

    Raises:
      ValueError: another run plants in the trees of `out`.
    """
    self._alone = (out / 'alone').open('w')  # until this process ends
    try:
      fcntl.flock(self._alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ValueError(f'{out}: another run plants in its trees') from error
    self._files = planting.sources()
    self.tree = planting.digest(self._files, *judges)
    self._try_out, self.jobs = try_out, jobs
    self._free: queue.Queue[planting.Nursery] = queue.Queue()
    self._nurseries = [
      planting.Nursery((out / str(i)).resolve()) for i in range(jobs)
    ]

  def prepare(self, clean: planting.Outcome | None = None) -> planting.Outcome:
    """Copies and builds; returns the outcome of the tree as it is.

    Args:
      clean: that outcome, where it is known.

    Raises:
      ValueError: a check fails without any change.
    """
    for nursery in self._nurseries:
      nursery.copy(self._files)
      nursery.build()
      self._free.put(nursery)
    clean = clean or self._try_out(self._nurseries[0], None, self.tree)
    if clean.finders:
      raise ValueError(
        f'the tree as it is: expected to pass, got {clean.finders} at '
        f'{clean.check}: {clean.text}'
      )
    for nursery in self._nurseries:
      nursery.set_limit(clean.seconds)
    return clean

  def try_out(self, change: Any) -> planting.Outcome:
    nursery = self._free.get()
    try:
      return self._try_out(nursery, change, self.tree)
    finally:
      self._free.put(nursery)


def run(
  changes: Sequence[Any],
  outcomes: dict[str, planting.Outcome],
  runner: Runner,
  log: pathlib.Path,
  format_line: Callable[[Any, planting.Outcome], str],
) -> list[str]:
  """Tries the changes without outcome; returns a line for each broken one."""
  todo = [c for c in changes if c.name not in outcomes]
  broken_changes: list[str] = []
  pool = futures.ThreadPoolExecutor(runner.jobs)
  change_of_job = {pool.submit(runner.try_out, c): c for c in todo}
  try:
    for job in futures.as_completed(change_of_job):
      change = change_of_job[job]
      count = f'[{len(outcomes) + len(broken_changes) + 1}/{len(changes)}]'
      try:
        outcome = job.result()
      except (planting.BuildError, ValueError) as error:
        broken_changes.append(f'{change.name}: {error}')
        print(f'{count} {broken_changes[-1]}', flush=True)
        continue
      outcomes[change.name] = outcome
      planting.append(log, outcome)
      line = format_line(change, outcome)
      print(f'{count} {line} ({outcome.seconds:.0f} s)', flush=True)
  finally:  # an interrupt ends it after those that are being tried
    pool.shutdown(cancel_futures=True)
  return broken_changes


def resumed(
  changes: Sequence[Any],
  runner: Runner,
  log: pathlib.Path,
  keys: Mapping[str, str],
  format_line: Callable[[Any, planting.Outcome], str],
  known_outcomes: Mapping[str, planting.Outcome] = {},
) -> tuple[dict[str, planting.Outcome], list[str]]:
  """Tries the changes whose outcomes are neither known nor in the log.

  Returns:
    Outcomes by name, and a line for each change that cannot be applied.

  Raises:
    ValueError, planting.BuildError: the tree as it is does not pass or build.
  """
  keys = {**keys, planting.CLEAN: runner.tree}
  outcomes = {**known_outcomes, **load_outcomes(log, keys, _STALE.value)}
  clean = outcomes.pop(planting.CLEAN, None)
  names = {c.name for c in changes}
  outcomes = {n: o for n, o in outcomes.items() if n in names}
  if len(outcomes) < len(changes):
    if clean is None:
      planting.append(log, runner.prepare())
    else:
      runner.prepare(clean)
  return outcomes, run(changes, outcomes, runner, log, format_line)


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  log = out / 'outcomes.jsonl'
  try:
    everyone = catalogue.load()
    mutants = select(everyone, _PATTERNS.value)
    runner = Runner(out, _JOBS.value, planting.try_out)
    outcomes, broken_changes = resumed(
      mutants,
      runner,
      log,
      {m.name: planting.key(m, runner.tree) for m in mutants},
      format_progress,
      score.outcomes(everyone) if _STALE.value else {},
    )
  except (planting.BuildError, ValueError) as error:
    sys.exit(report_refusal('mutants', error))
  if _WRITE.value:
    score.write(everyone, score.outcomes(everyone) | outcomes)
  wrong = [
    line
    for line in score.wrong(mutants, outcomes)
    if not any(b.startswith(line.split(':')[0] + ':') for b in broken_changes)
  ]
  misplaced = score.misplaced(mutants, outcomes)
  for title, lines in (
    ('not where it is:', misplaced),
    ('not a mutant:', broken_changes),
    ('not found:', wrong),
  ):
    print(
      '\n'.join(f'{title} {line}' for line in lines), end='\n' * bool(lines)
    )
  print(score.table(mutants, outcomes))
  sys.exit(2 if broken_changes else 1 if wrong or misplaced else 0)


def report_refusal(tool: str, error: Exception) -> int:
  """Prints why a request is refused; returns the exit code."""
  print(f'{tool}: {error}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  app.run(main)
