r"""How long a check takes, and how much of that is oracle and golden.

Two figures.  The second `hpmoe check --preset=small` as a user types it, from
the start of the process to its end, compiled oracles kept: under 2 s.  And a
check at the size of a real layer, at most twice what its oracle and golden
take alone: the oracle's answers for all data, in both passes, and every golden
value with its bound, of stages and of the layer.

Checks take turns; medians count.  Every run is printed when it ends, medians
last.  Seconds of the processor stand beside seconds: other jobs on the same
cores spoil the latter.  By default it takes some minutes on two cores, without
`--shapes` one.

Bytecode is kept as an installed package keeps it, and that exact data are
exact.  At a real size nothing that an oracle answered of tokens is kept, so
that its time is in both figures.

Example:
  python -m benchmarks.time_to_verdict --repeats=3 --keep
  python -m benchmarks.time_to_verdict --shapes=deepseek_v3
  python -m benchmarks.time_to_verdict --shapes= --commands=7
"""

from collections.abc import Callable
import functools
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TypeVar

from absl import app
from absl import flags
import numpy as np

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.commands import check_command
from hpmoe.parity_tests.judge import ahead
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import lanes
from hpmoe.parity_tests.kept import compiled
from hpmoe.parity_tests.kept import programs
from hpmoe.tools.docs import figures

_COMMANDS = flags.DEFINE_integer('commands', 5, 'Second checks of `small`.')
_REPEATS = flags.DEFINE_integer(
  'repeats', 1, 'Interleaved repetitions at a real size.'
)
_SHAPES = flags.DEFINE_list(
  'shapes', ['M', 'qwen3_30b_a3b'], 'Some of SHAPES, or none.'
)

# Flags of `hpmoe check`: the middle shape of the table, and widths of
# real layers with as many experts and tokens as two cores judge in minutes.
SHAPES = {
  'M': dict(tokens=2048, d_model=1024, d_ff=512, experts=32, top_k=4),
  'qwen3_30b_a3b': dict(tokens=256, d_model=2048, d_ff=768, experts=4, top_k=2),
  'deepseek_v3': dict(tokens=64, d_model=7168, d_ff=2048, experts=4, top_k=2),
}
# More than ids of these shapes have, and less than their tokens.
_BYTES_OF_ROUTING = 1 << 16
Made = TypeVar('Made')
Seconds = tuple[float, float]  # on the wall, of the processor


def timed(work: Callable[[], Made]) -> tuple[Seconds, Made]:
  wall, cpu = time.perf_counter(), time.process_time()
  made = work()
  return (time.perf_counter() - wall, time.process_time() - cpu), made


def command(folder: str) -> Seconds:
  """Runs `hpmoe check --preset=small` in a process of its own."""
  line = [sys.executable, '-m', 'hpmoe.parity_tests.commands.main', 'check']
  environment = os.environ | {compiled.VARIABLE: folder}
  environment.pop('PYTHONDONTWRITEBYTECODE', None)
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  start = time.perf_counter()
  subprocess.run(
    [*line, '--preset=small'],
    env=environment,
    check=True,
    stdout=subprocess.DEVNULL,
  )
  wall = time.perf_counter() - start
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  spent = after.ru_utime + after.ru_stime
  return wall, spent - before.ru_utime - before.ru_stime


def request_of(shape: dict[str, int]) -> check.Request:
  f = check_command.COMMAND.flags()
  f(['check', '--ranks=1', *(f'--{name}={n}' for name, n in shape.items())])
  return check_command.request(f)


def alone(request: check.Request) -> Seconds:
  """Returns what oracle and golden take, the inputs being there."""
  bench = bench_lib.Bench(request.case)
  total = np.zeros(2)
  for data in inputs.DATA:
    made = bench.inputs(data)
    answer: dict[str, np.ndarray] = {}
    for which in request.case.passes:
      case = bench.case(request.candidate, which, made, answer)
      took, found = timed(case.answer)
      answer.update(found)
      total += took
      if data == 'real':
        total += timed(functools.partial(_golden, case, answer))[0]
  return float(total[0]), float(total[1])


def _golden(case, answer) -> None:
  own = {name: answer[name] for name in case.which.stages}
  for golden, names in (
    (case.golden(own), case.which.stages),
    (case.golden({}), case.which.results),
  ):
    for name in names:
      for rank in range(case.made.config.num_ranks):
        rows = functools.partial(lanes.golden_rows, golden, name, rank)
        ranges = lanes.ranges_of(case.tiling, name, rank)
        for _ in ahead.map_ahead(rows, ranges):
          pass


def medians(runs: dict[str, list[Seconds]]) -> dict[str, Seconds]:
  return {
    name: tuple(map(statistics.median, zip(*of))) for name, of in runs.items()
  }


class Runs:
  """What was timed of one layer; each run is told when it ends."""

  def __init__(self, name: str):
    self._name = name
    self._seconds: dict[str, list[Seconds]] = {}

  def add(self, what: str, work: Callable[[], Seconds]) -> None:
    seconds = work()
    self._seconds.setdefault(what, []).append(seconds)
    _tell(self._name, what, seconds)

  def medians(self) -> dict[str, Seconds]:
    """Returns and tells the medians of all runs."""
    rows = medians(self._seconds)
    for what, seconds in rows.items():
      _tell(self._name, f'{what}, median', seconds)
    if 'check' in rows:
      pairs = zip(rows['check'], rows['oracle and golden'])
      wall, cpu = (one / other for one, other in pairs)
      print(
        f'{self._name:14} {"times":26} {wall:7.2f}   {cpu:7.2f}', flush=True
      )
    return rows


def _tell(name: str, what: str, seconds: Seconds) -> None:
  wall, cpu = seconds
  print(
    f'{name:14} {what:26} {wall:7.2f} s {cpu:7.2f} s of processor', flush=True
  )


def second_check(repeats: int) -> dict[str, Seconds]:
  runs = Runs('small')
  with tempfile.TemporaryDirectory() as folder:
    runs.add('first', lambda: command(folder))
    for _ in range(repeats):
      runs.add('second', lambda: command(folder))
    runs.add('nothing kept', lambda: command(compiled.OFF))
  return runs.medians()


def real_size(name: str, repeats: int) -> dict[str, Seconds]:
  request = request_of(SHAPES[name])
  programs.MOST_BYTES_OF_ANSWER = _BYTES_OF_ROUTING
  runs = Runs(name)
  with (
    tempfile.TemporaryDirectory() as folder,
    compiled.kept(pathlib.Path(folder)),
  ):
    alone(request)  # compiles
    for _ in range(repeats):
      runs.add('check', lambda: timed(lambda: check.run(request))[0])
      runs.add('oracle and golden', lambda: alone(request))
  return runs.medians()


def table(found) -> tuple[list[str], list[list[str]]]:
  """Returns the columns and rows of docs/measured.md."""
  rows = [['preset `small`, second run', f'{found["small"]["second"][0]:.2f}']]
  rows[0] += [''] * 3
  for name, shape in SHAPES.items():
    if name in found:
      seconds = (*found[name]['check'], *found[name]['oracle and golden'])
      sizes = ' '.join(f'{field}={size}' for field, size in shape.items())
      rows.append([f'{name}: {sizes}', *(f'{s:.2f}' for s in seconds)])
  return [
    'layer',
    'wall, s',
    'processor, s',
    'oracle and golden alone: wall, s',
    'processor, s',
  ], rows


def main(argv):
  del argv
  found = {'small': second_check(_COMMANDS.value)}
  for name in _SHAPES.value:
    found[name] = real_size(name, _REPEATS.value)
  figures.keep('time_to_verdict', 'time_to_verdict', *table(found))


if __name__ == '__main__':
  app.run(main)
