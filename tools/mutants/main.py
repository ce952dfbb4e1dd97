"""Plants bugs one by one and says which check finds each: `make mutants`.

Outcomes are kept, one JSON object a line, in OUT/outcomes.jsonl: what ended
before is not run again while neither the tree nor the mutant has changed.
Exit code 0: every bug is found where it is, or the catalogue says why not.
1: one is not.
2: the request, the data or the tree itself is wrong.
"""

import collections
from collections.abc import Sequence
from concurrent import futures
import fnmatch
import pathlib
import queue
import sys
import time

from absl import app
from absl import flags

from hpmoe.tools.mutants import catalogue
from hpmoe.tools.mutants import outcomes as log_lib
from hpmoe.tools.mutants import planting
from hpmoe.tools.mutants import score

_OUT = flags.DEFINE_string(
  'mutants_out', 'out/mutants', 'where trees and outcomes are'
)
_ONLY = flags.DEFINE_list('only', [], 'names, or patterns such as gemm_*')
_JOBS = flags.DEFINE_integer('jobs', 1, 'trees side by side', lower_bound=1)
_STALE = flags.DEFINE_bool(
  'stale',
  False,
  'keep outcomes of other states of the tree, those in the catalogue too',
)
_WRITE = flags.DEFINE_bool(
  'write', False, 'write the outcomes of the catalogue, and their counts'
)

_CLEAN = 'no bug'


def chosen(
  mutants: Sequence[catalogue.Mutant], patterns: Sequence[str]
) -> list[catalogue.Mutant]:
  """Returns the mutants that some pattern names; all if there is none.

  Raises:
    ValueError: a pattern names no mutant.
  """
  for pattern in patterns:
    if not fnmatch.filter([m.name for m in mutants], pattern):
      raise ValueError(f'only: expected names of mutants, got {pattern!r}')
  return [
    m
    for m in mutants
    if not patterns or any(fnmatch.fnmatch(m.name, p) for p in patterns)
  ]


def in_turn(
  mutants: Sequence[catalogue.Mutant],
) -> list[catalogue.Mutant]:
  """Returns the mutants, one of each file first, then the second of each.

  A run that is stopped has then tried something everywhere.
  """
  seen: collections.Counter[str] = collections.Counter()
  turns = []
  for mutant in mutants:
    turns.append(seen[mutant.file])
    seen[mutant.file] += 1
  return [m for _, m in sorted(zip(turns, mutants), key=lambda one: one[0])]


def kept(
  path: pathlib.Path,
  mutants: Sequence[catalogue.Mutant],
  tree: str,
  stale: bool,
) -> dict[str, planting.Outcome]:
  """Returns the outcomes in a file that still hold, by mutant."""
  keys = {m.name: planting.key(m, tree) for m in mutants} | {_CLEAN: tree}
  found = {}
  for fields in log_lib.read(path):
    fields['by'] = tuple(fields['by'])
    outcome = planting.Outcome(**fields)
    if stale or keys.get(outcome.mutant) == outcome.key:
      found[outcome.mutant] = outcome
  return found


def told(mutant: catalogue.Mutant, outcome: planting.Outcome) -> str:
  """Returns the line of progress."""
  if not outcome.by:
    return f'{mutant.name}: {score.verdict(mutant, outcome)}'
  here = planting.located(mutant, outcome)
  where = 'located' if here else f'expected {mutant.stage}, not'
  place = outcome.stage or outcome.text[:120]
  return (
    f'{mutant.name}: {", ".join(outcome.by)} at {outcome.rung}, {where} at '
    f'{place}'
  )


class Runner:
  """Tries out mutants in as many trees as there are jobs."""

  def __init__(self, out: pathlib.Path, jobs: int):
    self._files = planting.sources()
    self.tree = planting.digest(self._files)
    self._free: queue.Queue[planting.Nursery] = queue.Queue()
    self._nurseries = [
      planting.Nursery((out / str(i)).resolve()) for i in range(jobs)
    ]

  def prepare(self) -> None:
    """Copies and builds."""
    for nursery in self._nurseries:
      nursery.copy(self._files)
      nursery.build()
      self._free.put(nursery)

  def try_clean(self) -> planting.Outcome:
    """Checks the tree as it is.

    Raises:
      ValueError: a check fails without any bug.
    """
    start = time.monotonic()
    rung, found = self._nurseries[0].examine()
    if found is not None:
      raise ValueError(
        f'the tree without any bug: expected to pass, got {found["by"]} at '
        f'{rung}: {found["text"]}'
      )
    seconds = round(time.monotonic() - start, 1)
    return planting.Outcome(_CLEAN, self.tree, (), '', '', {}, '', seconds)

  def set_limit(self, clean: planting.Outcome) -> None:
    for nursery in self._nurseries:
      nursery.set_limit(clean.seconds)

  def try_out(self, mutant: catalogue.Mutant) -> planting.Outcome:
    nursery = self._free.get()
    try:
      return planting.try_out(nursery, mutant, self.tree)
    finally:
      self._free.put(nursery)


def run(
  mutants: Sequence[catalogue.Mutant],
  outcomes: dict[str, planting.Outcome],
  runner: Runner,
  jobs: int,
  log: pathlib.Path,
) -> list[str]:
  """Tries out what has no outcome yet; returns the mutants that are none."""
  todo = [m for m in in_turn(mutants) if m.name not in outcomes]
  broken: list[str] = []
  pool = futures.ThreadPoolExecutor(jobs)
  tried = {pool.submit(runner.try_out, m): m for m in todo}
  try:
    for done in futures.as_completed(tried):
      mutant = tried[done]
      count = f'[{len(outcomes) + len(broken) + 1}/{len(mutants)}]'
      try:
        outcome = done.result()
      except (planting.BuildError, ValueError) as error:
        broken.append(f'{mutant.name}: {error}')
        print(f'{count} {broken[-1]}', flush=True)
        continue
      outcomes[mutant.name] = outcome
      log_lib.append(log, outcome)
      line = told(mutant, outcome)
      print(f'{count} {line} ({outcome.seconds:.0f} s)', flush=True)
  finally:  # an interrupt ends it after those that are being tried
    pool.shutdown(cancel_futures=True)
  return broken


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  log = out / 'outcomes.jsonl'
  try:
    everyone = catalogue.load()
    mutants = chosen(everyone, _ONLY.value)
    runner = Runner(out, _JOBS.value)
    outcomes = {} if not _STALE.value else score.outcomes(everyone)
    outcomes |= kept(log, mutants, runner.tree, _STALE.value)
    clean = outcomes.pop(_CLEAN, None)
    names = {m.name for m in mutants}
    outcomes = {n: o for n, o in outcomes.items() if n in names}
    if len(outcomes) < len(mutants):
      runner.prepare()
      if clean is None:
        clean = runner.try_clean()
        log_lib.append(log, clean)
      runner.set_limit(clean)
    broken = run(mutants, outcomes, runner, _JOBS.value, log)
  except (planting.BuildError, ValueError) as error:
    sys.exit(_refused(error))
  if _WRITE.value:
    score.write(everyone, score.outcomes(everyone) | outcomes)
  wrong = [
    line
    for line in score.wrong(mutants, outcomes)
    if not any(b.startswith(line.split(':')[0] + ':') for b in broken)
  ]
  misplaced = score.misplaced(mutants, outcomes)
  for title, lines in (
    ('not where it is:', misplaced),
    ('not a mutant:', broken),
    ('not found:', wrong),
  ):
    print(
      '\n'.join(f'{title} {line}' for line in lines), end='\n' * bool(lines)
    )
  print(score.summary(mutants, outcomes))
  sys.exit(2 if broken else 1 if wrong or misplaced else 0)


def _refused(error: Exception) -> int:
  print(f'mutants: {error}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  app.run(main)
