"""The layer as others run it on this CPU, beside ours: `make bench-peers`.

Every peer runs in a process of its own.  Each must first give the golden
result; then, round by round, every peer runs each pass once, in an order that
is drawn anew.  No environment variable and no number of threads is set: every
peer does what its users see on as many cores.

On a machine that others use as well, peers whose threads wait for each other by
spinning lose more than the rest.  There `--cores=1 --clock=processor` is fair:
one thread each, and the time that it ran.

Example:
  python -m benchmarks.peers.main --shapes=S --dtypes=f32 --rounds=9

Exit code 0: all were timed; 1: a peer's result is not the golden one.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from benchmarks.peers import cases as cases_lib
from benchmarks.peers import tables
from benchmarks.peers import worker
from hpmoe.tools.docs import figures as figures_lib

_SHAPES = flags.DEFINE_list('shapes', list(cases_lib.SHAPES), 'some of them')
_DTYPES = flags.DEFINE_list('dtypes', list(cases_lib.DTYPES), 'some of them')
_ROUTINGS = flags.DEFINE_list(
  'routings', list(cases_lib.ROUTINGS), 'some of them'
)
_PEERS = flags.DEFINE_list('peers', [], 'words of their names; all if none')
_CORES = flags.DEFINE_integer('cores', None, 'that peers see; all if none')
_CLOCK = flags.DEFINE_enum('clock', 'wall', tables.CLOCKS, 'of the table')
_ROUNDS = flags.DEFINE_integer('rounds', 15, 'of every case')
_OUT = flags.DEFINE_string('out', 'out/peers', 'folder of figures.json')
_SEED = flags.DEFINE_integer('seed', 0, 'of data and of the order in a round')


# For so long after a call some libraries' threads spin, waiting for the next
# one: nothing else is timed meanwhile.
SPIN_S = 0.25


class Process:
  """A worker; see `worker`."""

  def __init__(self, name: str, folder: pathlib.Path):
    self.name = name
    self._process = subprocess.Popen(
      [sys.executable, '-m', 'benchmarks.peers.worker', name, str(folder)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE if not os.environ.get('VERBOSE') else None,
      text=True,
    )
    self.hello = self._read()

  def ask(self, request: str) -> dict:
    assert self._process.stdin is not None
    self._process.stdin.write(f'{request}\n')
    self._process.stdin.flush()
    return self._read()

  def _read(self) -> dict:
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if line:
      return json.loads(line)
    _, error = self._process.communicate()
    raise RuntimeError(f'{self.name}: {(error or "")[-2000:]}')

  def close(self) -> None:
    self._process.kill()
    self._process.wait()


@dataclasses.dataclass
class Entry:
  """One peer on one case and pass.

  Attributes:
    case, which, peer: which.
    operations: multiplications and additions of its matrix products.
    wall, processor: seconds of each round; of all threads, the latter.
    apart: how far its results are from the golden ones, by name.
    cannot: why there is nothing else, or ''.
  """

  case: str
  which: str
  peer: str
  operations: int
  wall: list[float] = dataclasses.field(default_factory=list)
  processor: list[float] = dataclasses.field(default_factory=list)
  apart: dict[str, float] = dataclasses.field(default_factory=dict)
  cannot: str = ''

  @property
  def is_right(self) -> bool:
    return all(v < cases_lib.MOST_DIFFERENT for v in self.apart.values())


def machine() -> dict[str, str | int]:
  """Returns what the figures depend on beside the peers."""
  model = platform.processor() or platform.machine()
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith('model name'):
        model = line.partition(':')[2].strip()
        break
  return dict(
    cpu=model,
    cores=len(os.sched_getaffinity(0)),
    system=platform.platform(),
    python=platform.python_version(),
    load=round(os.getloadavg()[0], 1),
  )


@contextlib.contextmanager
def workers(
  folder: pathlib.Path, names: Sequence[str]
) -> Iterator[list[Process]]:
  with contextlib.ExitStack() as stack:
    made = []
    for name in names:
      process = Process(name, folder)
      stack.callback(process.close)
      made.append(process)
    yield made


def run_case(
  case: cases_lib.Case,
  names: Sequence[str],
  rounds: int,
  seed: int,
  versions: dict[str, str],
) -> list[Entry]:
  """Returns what every peer did with a case."""
  entries = []
  with tempfile.TemporaryDirectory() as out:
    folder = pathlib.Path(out) / 'case'
    arrays = cases_lib.make(case, seed)
    cases_lib.save(folder, arrays)
    cases_lib.save(folder / 'golden', cases_lib.golden(arrays))
    del arrays
    with workers(folder, names) as processes:
      todo = []
      passes = (*cases_lib.PASSES, cases_lib.MULTIPLY)
      for process, which in itertools.product(processes, passes):
        entry = Entry(case.name, which, process.name, case.operations(which))
        entries.append(entry)
        versions.update(process.hello.get('versions', {}))
        told = process.hello
        if 'cannot' not in told:
          told = process.ask(f'check {which}')
        entry.cannot = told.get('cannot', '')
        entry.apart = told.get('apart', {})
        if entry.cannot and which == cases_lib.MULTIPLY:
          entries.pop()  # most have none
        elif entry.cannot:
          print(f'{entry.peer}: {entry.case} {which}: {entry.cannot}')
        elif not entry.is_right:
          print(f'{entry.peer}: {entry.case} {which}: WRONG: {entry.apart}')
        else:
          todo.append((process, entry))
      order = random.Random(seed)
      for _ in range(rounds):
        order.shuffle(todo)
        for process, entry in todo:
          seconds = process.ask(f'time {entry.which}')
          entry.wall.append(seconds['wall'])
          entry.processor.append(seconds['processor'])
          time.sleep(SPIN_S)
  return entries


def keep(figures: dict) -> None:
  """Writes what this machine took beside what others did."""
  machines = figures_lib.load('peers')['machines']
  given = ' '.join(word for word in sys.argv[1:] if word != '--keep')
  run = figures_lib.run(f"make bench-peers PEERS_FLAGS='{given}'")
  name = figures['machine']['cpu']
  machines[name] = dict(
    run=dict(name=name) | run,
    versions=figures['versions'],
    milliseconds=tables.medians(figures),
  )
  runs = [held['run'] for held in machines.values()]
  figures_lib.write('peers', *tables.table(machines), runs, machines=machines)


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  words = _PEERS.value or ['']
  names = [n for n in worker.PEERS if any(word in n for word in words)]
  if _CORES.value:  # workers inherit it
    cores = sorted(os.sched_getaffinity(0))[: _CORES.value]
    os.sched_setaffinity(0, cores)
  entries: list[Entry] = []
  versions: dict[str, str] = {}
  about = machine()
  for key in itertools.product(_SHAPES.value, _DTYPES.value, _ROUTINGS.value):
    case = cases_lib.Case(*key)
    made = run_case(case, names, _ROUNDS.value, _SEED.value, versions)
    for entry in made:
      seconds = getattr(entry, _CLOCK.value)
      if seconds:
        median = statistics.median(seconds)
        print(
          f'{entry.case:18} {entry.which:8} {entry.peer:18} '
          f'{1e3 * median:9.1f} ms',
          flush=True,
        )
    entries += made
    figures = dict(
      machine=about,
      versions=versions,
      rounds=_ROUNDS.value,
      clock=_CLOCK.value,
      entries=[dataclasses.asdict(entry) for entry in entries],
    )
    (out / 'figures.json').write_text(json.dumps(figures, indent=1) + '\n')
    if figures_lib.KEEP.value:
      keep(figures)
  sys.exit(0 if all(entry.is_right for entry in entries) else 1)


if __name__ == '__main__':
  app.run(main)
