"""Fuzzes what reads tensors from files: any bytes, tensors or a ValueError.

`make fuzz` runs it.  No fuzzing library: the parser of .safetensors is compiled
Rust, in which none of Python's would see an edge either; what it refuses and
why is seen in its messages, and what Python runs by a trace.
"""

from collections.abc import Iterator
import contextlib
import hashlib
import os
import pathlib
import random
import re
import resource
import signal
import sys
import tempfile
import time
import types
import warnings
import zipfile

from absl import app
from absl import flags
import numpy as np

from hpmoe.parity_tests.case import inputs
from hpmoe.reference import layer
from hpmoe.reference import token_order
from hpmoe.reference.contract import tensor_file
from hpmoe.tools import tensor_file_mutations

CORPUS = pathlib.Path(__file__).parent / 'testdata' / 'tensor_file_corpus'

_SECONDS = flags.DEFINE_integer('seconds', 60, 'how long to run')
_SEED = flags.DEFINE_integer('seed', 0, 'of all mutations')
_OUT = flags.DEFINE_string('out', 'out/fuzz', 'where findings are left')
_RENEW = flags.DEFINE_bool(
  'renew',
  False,
  'make the corpus the fewest files that show every edge seen; those named '
  'found-* stay',
)

_MAX_SIZE = 1 << 14
_SECONDS_A_FILE = 20
_MEMORY = 1 << 30  # beyond what the process has when it begins

_DETAILS = r"""'[^']*'|`[^`]*`|"[^"]*"|[\[({].*|-?\d[\w.]*"""

Edge = tuple[str, int, int]
Kept = tuple[str, bytes, set[Edge]]


class LawError(AssertionError):
  """A file gave neither tensors nor a ValueError that names it."""


def outcome(path: pathlib.Path) -> str:
  """Returns 'tensors', or the refusal without path, numbers and names.

  Raises:
    LawError: any other end.
  """
  ends = []
  for read in (
    lambda: tensor_file.read(path, ['topk_ids'], ['topk_weights']),
    lambda: inputs.load_safetensors(path),
  ):
    try:
      read()
      ends.append('tensors')
    except ValueError as error:
      text = str(error)
      if not text.startswith(f'{path}: ') or len(text.splitlines()) != 1:
        raise LawError(f'expected one line with the path, got {text!r}') from (
          error
        )
      ends.append(re.sub(_DETAILS, '#', text[len(str(path)) :])[:99])
    except BaseException as error:  # a panic in Rust is no Exception
      if isinstance(error, KeyboardInterrupt):
        raise
      raise LawError(f'{type(error).__name__}: {error}') from error
  return ' | '.join(ends)


# --- What is new ------------------------------------------------------------

_TRACED = frozenset(
  module.__file__
  for module in (
    inputs,
    layer,
    tensor_file,
    token_order,
    zipfile,
    np.lib.format,
  )
)


@contextlib.contextmanager
def traced() -> Iterator[set[Edge]]:
  """Yields the set that collects pairs of lines, run one after the other."""
  edges: set[Edge] = set()

  def trace(frame: types.FrameType, event: str, argument: object):
    del event, argument
    if (file := frame.f_code.co_filename) not in _TRACED:
      return None
    last = 0

    def line(frame: types.FrameType, event: str, argument: object):
      nonlocal last
      del event, argument
      edges.add((file, last, frame.f_lineno))
      last = frame.f_lineno
      return line

    return line

  before = sys.gettrace()
  sys.settrace(trace)
  try:
    yield edges
  finally:
    sys.settrace(before)


class Fuzzer:
  """Mutates files that have shown something new; keeps what does."""

  def __init__(self, seed: int, folder: pathlib.Path):
    self._rng = random.Random(seed)
    self._folder = folder
    self.edges: set[Edge] = set()
    self.outcomes: set[str] = set()
    self.executions = 0
    self.kept: list[Kept] = []  # suffix, bytes, edges

  def run(self, suffix: str, data: bytes) -> bool:
    """Returns whether the file showed a new edge or outcome.

    Raises:
      LawError: it broke the law; it is still in the folder.
    """
    path = self._folder / f'case{suffix}'
    path.write_bytes(data)
    self.executions += 1
    signal.alarm(_SECONDS_A_FILE)
    try:
      with traced() as edges:
        found = outcome(path)
    finally:
      signal.alarm(0)
    new = not edges <= self.edges or found not in self.outcomes
    self.edges |= edges
    self.outcomes.add(found)
    if new:
      self.kept.append((suffix, data, edges))
    return new

  def step(self) -> bool:
    """Runs one mutant of a kept file, the latest more often than others."""
    late = max(0, len(self.kept) - 30)
    begin = self._rng.choice((0, late))
    suffix, data, _ = self.kept[self._rng.randrange(begin, len(self.kept))]
    mutant = tensor_file_mutations.mutate(suffix, data, self._rng)
    return self.run(suffix, mutant[:_MAX_SIZE])


def cover(kept: list[Kept]) -> Iterator[tuple[str, bytes]]:
  """Yields few files, as suffix and bytes, that show the edges of all."""
  seen: set[Edge] = set()
  while fresh := [k for k in kept if not k[2] <= seen]:
    suffix, data, edges = max(
      fresh, key=lambda k: (len(k[2] - seen), -len(k[1]), k[1])
    )
    seen |= edges
    yield suffix, data


def corpus() -> list[pathlib.Path]:
  """Returns the files kept from earlier runs."""
  return sorted(p for p in CORPUS.glob('*') if p.suffix in tensor_file.READERS)


def _limit_memory() -> None:
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  limit = pages * resource.getpagesize() + _MEMORY
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _hang(number: int, frame: object) -> None:
  del number, frame
  raise TimeoutError(f'expected an end within {_SECONDS_A_FILE} s')


def _keep(suffix: str, data: bytes, folder: pathlib.Path) -> pathlib.Path:
  path = folder / (hashlib.sha256(data).hexdigest()[:16] + suffix)
  path.write_bytes(data)
  return path


def _fuzz(fuzzer: Fuzzer) -> None:
  for suffix, data in tensor_file_mutations.seeds():
    fuzzer.run(suffix, data)
  # The seeds have loaded and compiled what there is to load.
  _limit_memory()
  for path in corpus():
    fuzzer.run(path.suffix, path.read_bytes())
  end = time.monotonic() + _SECONDS.value
  while time.monotonic() < end:
    fuzzer.step()


def _renew(fuzzer: Fuzzer) -> None:
  for path in corpus():
    if not path.name.startswith('found-'):
      path.unlink()
  for suffix, data in cover(fuzzer.kept):
    _keep(suffix, data, CORPUS)


def main(argv: list[str]) -> int:
  """Returns 0 if every file kept the law."""
  del argv
  warnings.simplefilter('ignore')
  signal.signal(signal.SIGALRM, _hang)
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  started = time.monotonic()
  with tempfile.TemporaryDirectory() as folder:
    fuzzer = Fuzzer(_SEED.value, pathlib.Path(folder))
    broken: LawError | None = None
    try:
      _fuzz(fuzzer)
    except LawError as error:
      broken = error
      case = max(pathlib.Path(folder).iterdir(), key=os.path.getmtime)
      kept = _keep(case.suffix, case.read_bytes(), out)
      print(f'tensor_file_fuzz: {kept}: {error}', file=sys.stderr)
  if _RENEW.value and not broken:
    _renew(fuzzer)
  seconds = time.monotonic() - started
  print(
    f'tensor_file_fuzz: {fuzzer.executions} executions in {seconds:.0f} s, '
    f'{len(fuzzer.edges)} edges, {len(fuzzer.outcomes)} outcomes, '
    f'{len(fuzzer.kept)} files kept, '
    f'{"a finding" if broken else "no finding"}'
  )
  return int(broken is not None)


if __name__ == '__main__':
  app.run(main)
