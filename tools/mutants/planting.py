"""A copy of the tree in which one bug at a time is planted, built, checked."""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import Any

from hpmoe.tools import import_graph
from hpmoe.tools.mutants import catalogue

ROOT = import_graph.ROOT
# What a check runs, and what builds it.
_PARTS = (
  'src',
  'reference',
  'backend_ascend',
  'models',
  'parity_tests',
  'tools',
  'conftest.py',
  'pyproject.toml',
  'CMakeLists.txt',
)
# What decides an outcome: bugs are planted in these, found by these.
_DECIDES = ('reference/', 'backend_ascend/', 'parity_tests/', 'CMakeLists')
_NOT_SOURCES = ('__pycache__', '*.so', '.*')
# Half the time to build, and the same bits: no arithmetic is contracted.
_CMAKE = (
  '-GNinja',
  '-DHPMOE_JAX=OFF',
  '-DHPMOE_STUBS=OFF',
  '-DHPMOE_TOGETHER=OFF',
  '-DCMAKE_BUILD_TYPE=Release',
  '-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG',
)


# The name of an outcome of the tree without any change.
CLEAN = 'no change'
# Who found what no check saw: a test of the suite.
UNIT_TEST = 'unit test'
_NO_TESTS = 5  # exit code of pytest
_TEST_LIMITS = 4  # a test may take so much longer than the checks
# Names of fields of an `Outcome` in logs, where they differ.
_JSON_NAMES = dict(finders='by', check='rung')
# Others may come to share the machine after the clean tree was timed.
_TIMES_CLEAN, _LEAST_LIMIT_S = 5, 60.0


class BuildError(RuntimeError):
  """A tree that does not build."""


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of trying one mutant.

  Attributes:
    mutant: its name.
    key: of the mutant and of the tree that it was planted in.
    finders: the lanes that found it; empty if it survived.
    check: the first check that found it.
    stage: the first wrong tensor.
    tile: its first wrong tile.
    text: the message of the check.
    seconds: wall time, building included.
    date: when, as 2026-11-22.
  """

  mutant: str
  key: str
  finders: tuple[str, ...]
  check: str
  stage: str
  tile: dict[str, int | None]
  text: str
  seconds: float
  date: str = ''


def read(path: pathlib.Path) -> Iterator[Outcome]:
  """Yields the outcomes of a log, which may not exist yet."""
  for line in path.read_text().splitlines() if path.exists() else ():
    with contextlib.suppress(json.JSONDecodeError):  # its writer was stopped
      yield from_json(json.loads(line))


def append(path: pathlib.Path, outcome: Outcome) -> None:
  """Adds an outcome to a log: one JSON object a line."""
  with path.open('a') as file:
    file.write(json.dumps(to_json(outcome)) + '\n')


def from_json(fields: Mapping[str, Any]) -> Outcome:
  """Returns the outcome that a JSON object of a log describes."""
  rest = {n: v for n, v in fields.items() if n not in _JSON_NAMES.values()}
  return Outcome(finders=tuple(fields['by']), check=fields['rung'], **rest)


def to_json(outcome: Outcome) -> dict[str, Any]:
  """Returns the JSON object of an outcome."""
  fields = dataclasses.asdict(outcome)
  return {_JSON_NAMES.get(n, n): value for n, value in fields.items()}


def sources(root: pathlib.Path = ROOT) -> dict[str, bytes | str]:
  """Returns the bytes of every file by its path; of a link, its target."""
  contents: dict[str, bytes | str] = {}
  ignore = shutil.ignore_patterns(*_NOT_SOURCES)
  for part in _PARTS:
    for path in _walk(root / part, ignore):
      name = path.relative_to(root).as_posix()
      is_link = path.is_symlink()
      contents[name] = os.readlink(path) if is_link else path.read_bytes()
  return contents


def _walk(path: pathlib.Path, ignore) -> Iterator[pathlib.Path]:
  if path.is_symlink() or path.is_file():
    yield path
  elif path.is_dir():
    names = sorted(os.listdir(path))
    skipped = ignore(path, names)
    for name in names:
      if name not in skipped:
        yield from _walk(path / name, ignore)


def digest(files: dict[str, bytes | str], *judges: str) -> str:
  """Returns the key of a tree: of tests and tools, only `judges` are in it."""
  total = hashlib.sha256()
  for name, content in sorted(files.items()):
    decides = name.startswith(_DECIDES) and not name.endswith('_test.py')
    if (decides or name in judges) and isinstance(content, bytes):
      total.update(f'{name} {len(content)}\n'.encode() + content)
  return total.hexdigest()[:16]


def key(mutant: catalogue.Mutant, tree: str) -> str:
  """Returns what an outcome holds for: this bug, in this tree.

  What the catalogue says of the bug is not part of it: an outcome holds however
  it is judged.
  """
  text = json.dumps([mutant.file, mutant.find, mutant.change, mutant.guard])
  return hashlib.sha256(f'{tree} {text}'.encode()).hexdigest()[:16]


class Nursery:
  """A copy of the tree, its build and its environment."""

  def __init__(self, folder: pathlib.Path, limit_s: float | None = None):
    """Without `limit_s` nothing ends a check; see `set_limit`."""
    self.tree = folder / 'tree'
    self._build = folder / 'build'
    self._limit_s = limit_s
    self._cache = folder.parent / 'jax'
    self._log = folder / 'build.log'

  def copy(self, files: dict[str, bytes | str]) -> None:
    """Makes the copy equal to `files`; equal files are not touched."""
    for path in _walk(self.tree, shutil.ignore_patterns(*_NOT_SOURCES)):
      if path.relative_to(self.tree).as_posix() not in files:
        path.unlink()
    for name, content in files.items():
      path = self.tree / name
      path.parent.mkdir(parents=True, exist_ok=True)
      if isinstance(content, str):
        if not path.is_symlink():
          path.symlink_to(content)
      elif not path.is_file() or path.read_bytes() != content:
        path.write_bytes(content)

  def set_limit(self, clean_s: float) -> None:
    """Gives a check some times what the tree without a bug took, here today."""
    self._limit_s = max(_LEAST_LIMIT_S, _TIMES_CLEAN * clean_s)

  def build(self) -> None:
    """Builds what has changed.

    Raises:
      BuildError: it cannot be built; holds the first error.
    """
    if not (self._build / 'build.ninja').exists():
      ccache = shutil.which('ccache')
      launch = [f'-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}'] if ccache else []
      self._call(
        'cmake',
        *('-S', self.tree, '-B', self._build),
        *_CMAKE,
        *launch,
        f'-DPython_EXECUTABLE={sys.executable}',
      )
    self._call('cmake', '--build', self._build, '--parallel', '1')
    self._call('cmake', '--install', self._build, '--prefix', self.tree / 'src')

  def _call(self, *command: str | os.PathLike[str]) -> None:
    process = subprocess.run(
      command, capture_output=True, text=True, env=_with_tools()
    )
    if process.returncode:
      lines = (process.stdout + process.stderr).splitlines()
      errors = [line for line in lines if 'error: ' in line.lower()]
      raise BuildError(' '.join((errors or lines or ['no output'])[0].split()))

  @contextlib.contextmanager
  def plant(self, change: Any) -> Iterator[None]:
    """Applies a change to its `file` while the block runs."""
    path = self.tree / change.file
    clean = path.read_text()
    path.write_text(change.plant(clean))
    try:
      yield
    finally:
      path.write_text(clean)

  def probe(self, module: str) -> tuple[list[dict[str, Any]], str]:
    """Runs a module of the tree.

    Returns the JSON objects that it printed, a line each, and how it ended.
    """
    process = subprocess.Popen(
      [_python(), '-m', module],
      cwd=self.tree,
      env=self._environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    try:
      out, err = process.communicate(timeout=self._limit_s)
      end = f'exit code {process.returncode}'
    except subprocess.TimeoutExpired:
      process.kill()
      out, err = process.communicate()
      end = f'no end within {self._limit_s:g} s'
    last = ' '.join((err.strip().splitlines() or [''])[-1].split())
    lines = [json.loads(line) for line in out.splitlines() if line[:1] == '{']
    return lines, f'{end}: {last}'

  def examine(self) -> tuple[str, dict[str, Any] | None]:
    """Runs the checks; returns the last check and its finding, or None."""
    lines, end_text = self.probe('hpmoe.tools.mutants.probe')
    if not lines:
      # A tree that cannot even be imported.
      return 'import', _crash(end_text)
    end = lines[-1]
    if end['rung'] is None:
      return '', None
    return end['rung'], end.get('found') or _crash(end_text)

  def guarded(
    self, test: str, slow: bool = True
  ) -> tuple[str, dict[str, Any] | None]:
    """As `examine`, by a test of the suite."""
    command = [_python(), '-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider']
    limit_s = self._limit_s and _TEST_LIMITS * self._limit_s
    try:
      process = subprocess.run(
        [*command, *([] if slow else ['-m', 'not slow']), test],
        cwd=self.tree,
        env=self._environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
      )
    except subprocess.TimeoutExpired:
      text = f'no end within {limit_s:g} s'
    else:
      if process.returncode in (0, _NO_TESTS):
        return '', None
      failures = [
        line for line in process.stdout.splitlines() if 'FAILED' in line
      ]
      text = (failures or [f'exit code {process.returncode}'])[-1]
    return test, dict(by=[UNIT_TEST], stage='', tile={}, text=text)

  def _environment(self) -> dict[str, str]:
    # The interpreter below the environment: an editable install of the tree
    # itself would be imported in place of the copy.
    paths = [str(self.tree / 'src'), sysconfig.get_path('purelib')]
    return _with_tools() | dict(
      PYTHONPATH=os.pathsep.join(paths),
      LD_LIBRARY_PATH=f'{sys.prefix}/lib',  # where the wheel of MPI puts it
      PYTHONDONTWRITEBYTECODE='1',
      PYTEST_DISABLE_PLUGIN_AUTOLOAD='1',  # a second of imports
      JAX_PLATFORMS='cpu',
      TF_CPP_MIN_LOG_LEVEL='3',
      JAX_COMPILATION_CACHE_DIR=str(self._cache),
      JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0',
      JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES='-1',
    )


def _crash(text: str) -> dict[str, Any]:
  return dict(by=['launch'], stage='', tile={}, text=text)


def _python() -> str:
  return getattr(sys, '_base_executable', sys.executable)


def _with_tools() -> dict[str, str]:
  """CMake and Ninja may come from the environment of the interpreter."""
  beside = str(pathlib.Path(sys.executable).parent)
  return dict(
    os.environ, PATH=os.pathsep.join([beside, os.environ.get('PATH', '')])
  )


def try_out(
  nursery: Nursery, mutant: catalogue.Mutant | None, tree: str
) -> Outcome:
  """Plants, builds and checks one mutant; without one the tree as it is.

  Raises:
    BuildError: the mutant does not build, so it is none.
  """
  start = time.monotonic()
  if mutant is None:
    check, finding = nursery.examine()
    return outcome(CLEAN, tree, check, finding, start)
  with nursery.plant(mutant):
    nursery.build()  # also what the mutant before this one has left
    check, finding = '', None
    if not mutant.guard:
      check, finding = nursery.examine()
    test = mutant.guard or test_beside(mutant.file)
    if finding is None and (nursery.tree / test).is_file():
      # A test that the catalogue names may take long; the one that stands
      # beside a file is run for every mutant without effect.
      check, finding = nursery.guarded(test, slow=bool(mutant.guard))
  return outcome(mutant.name, key(mutant, tree), check, finding, start)


def outcome(
  name: str, key: str, check: str, finding: dict[str, Any] | None, start: float
) -> Outcome:
  """Returns the outcome of a change; `start` is a time of `monotonic`."""
  finding = finding or dict(by=[], stage='', tile={}, text='')
  return Outcome(
    name,
    key,
    tuple(finding['by']),
    check,
    finding['stage'],
    finding['tile'],
    finding['text'],
    round(time.monotonic() - start, 1),
    datetime.date.today().isoformat(),
  )


def test_beside(file: str) -> str:
  """Returns the test of a source, whether there is one or not."""
  path = pathlib.PurePosixPath(file)
  return str(path.with_name(f'{path.stem}_test.py'))


def located(mutant: catalogue.Mutant, outcome: Outcome) -> bool:
  """Returns whether the finding names the place of the bug.

  A refused or stopped launch has no wrong tensor: its message must name the
  task, the buffer or the rule instead.  A test stands beside what it tests.
  """
  if UNIT_TEST in outcome.finders:
    return True
  if not outcome.finders or not mutant.stage:
    return False
  if not outcome.stage:
    return mutant.stage in outcome.text
  is_tile = all(outcome.tile.get(n) == v for n, v in mutant.tile.items())
  return is_tile and outcome.stage == mutant.stage
