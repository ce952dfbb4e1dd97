r"""How small `hpmoe shrink` makes twenty planted bugs, and how long it takes.

Each bug is shrunk by a process of its own from preset `small` on 4 ranks, with
nothing kept: programs of the oracle are compiled anew, as at a first use.
Seconds are from its start to its end, with a check of the whole case first.

Example:
  python -m benchmarks.shrinking --keep
  python -m benchmarks.shrinking --bugs=halves,tail
"""

import json
import os
import resource
import subprocess
import sys
import time

from absl import app
from absl import flags

from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge.cause import bugs_testing
from hpmoe.parity_tests.law import shrink
from hpmoe.tools.docs import figures

_BUGS = flags.DEFINE_list('bugs', [*bugs_testing.TWENTY], 'Some of them.')
_ONE = flags.DEFINE_string('one', None, 'Shrinks this one, and prints JSON.')

_COLUMNS = ('bug', 'seconds', 'of-processor', *'RTEKDF', 'cases', 'named')


def _shrunk(bug: str) -> dict:
  """Returns what is left of a bug, and what it is called."""
  function, direction = bugs_testing.planted(bug)
  case = case_lib.Case(preset='small', ranks=4, direction=direction)
  request = check.Request(case, in_process.Function(function))
  first = check.run(request).first_failure
  assert first is not None
  [found] = shrink.shrink(request)
  return dict(
    sizes=found.layer.sizes,
    tried=found.tried,
    before=(first.stage, first.pattern),
    after=(found.failure.stage, found.failure.pattern),
  )


def _measured(bug: str) -> tuple[list[str], dict]:
  """Returns the row of a bug, and what it is called before and after."""
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  start = time.perf_counter()
  ran = subprocess.run(
    [sys.executable, '-m', 'benchmarks.shrinking', f'--one={bug}'],
    env=os.environ,
    check=True,
    stdout=subprocess.PIPE,
  )
  wall = time.perf_counter() - start
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  found = json.loads(ran.stdout)
  _, stage, said = bugs_testing.TWENTY[bug]
  names = {when: found[when] for when in ('before', 'after')}
  right = all(
    at == stage and said.split('; ')[0] in pattern
    for at, pattern in names.values()
  )
  sizes = (str(found['sizes'][axis]) for axis in 'RTEKDF')
  row = [bug, f'{wall:.0f}', f'{cpu:.0f}', *sizes, str(found['tried'])]
  return [*row, 'right' if right else 'wrong'], names


def main(argv):
  del argv
  if _ONE.value:
    print(json.dumps(_shrunk(_ONE.value)))
    return
  rows, names = [], {}
  for bug in _BUGS.value:
    row, names[bug] = _measured(bug)
    rows.append(row)
    print(' '.join(row), names[bug], flush=True)
  figures.keep('shrinking', 'shrinking', _COLUMNS, rows, names=names)


if __name__ == '__main__':
  app.run(main)
