r"""Judges layers of other projects: `hpmoe check`, `hpmoe invariance` of each.

Entries are in gallery.toml, adapters in examples/gallery.  An entry whose
Python is not named stays as it was measured.  With --gpu they are those of
gallery_gpu.toml, whose kernels run on the GPU that torch has here.

Exit code 0: each fails where its entry has a reason, and nowhere else; 1: not
so.

Example:
  python -m benchmarks.gallery --torch_python=.venv-gallery/bin/python --keep
  python -m benchmarks.gallery --entries='JAX ragged_dot'
  python -m benchmarks.gallery --gpu --at_once=8 --keep
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
from typing import Any

from absl import app
from absl import flags

from hpmoe.parity_tests.determinism import invariance
from hpmoe.tools.docs import figures

_TORCH_PYTHON = flags.DEFINE_string(
  'torch_python', None, 'A Python that has torch, as make test-torch makes it.'
)
_PYTHON = flags.DEFINE_string(
  'python', sys.executable, 'The Python that has JAX and MindSpore.'
)
_ENTRIES = flags.DEFINE_multi_string('entries', [], 'Names; none: all.')

_GPU = flags.DEFINE_bool('gpu', False, 'Kernels on a GPU: gallery_gpu.toml.')
_AT_ONCE = flags.DEFINE_integer('at_once', 1, 'Entries judged at once.')

ADAPTERS = figures.ROOT / 'examples/gallery'
DTYPES = ('f32', 'bf16')
POLICY, WIDE_POLICY, INVARIANCE = 'policy', 'wide_policy', 'invariance'
NOT_TRIED = 'not tried'
PASSES, CANNOT_RUN = 'PASS', 'cannot run'
_NAME, _GPU_NAME = 'gallery', 'gallery_gpu'
_COLUMNS = (
  'layer',
  'float32',
  'bfloat16',
  'why',
  'right in 16 bits under',
  'float32: y or dx changes bits by',
)
_GPU_COLUMNS = ('layer', 'float32', 'bfloat16', 'why', 'right under')
# What a model's tokens see; sums over tokens follow their order anyway.
_OF_TOKENS = ('y', 'dx')
_CANNOT_RUN = 3
_TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Entry:
  """A layer of another project, see gallery.toml.

  Attributes:
    dtypes: those of `DTYPES` that it is judged in.
    wide_policy: the policy under which its float32 passes; '': the default.
    case: flags of the layer that is judged.
    bits: flags of the layer on which it is seen what changes bits.
  """

  name: str
  adapter: str
  packages: Sequence[str]
  reason: str = ''
  has_backward: bool = False
  policy: str = ''
  narrow: str = 'bf16'
  python: str = 'torch'
  dtypes: Sequence[str] = DTYPES
  wide_policy: str = ''
  case: Sequence[str] = ('--preset=small', '--ranks=1', '--tokens=64')
  bits: Sequence[str] = ('--preset=tiny', '--ranks=1')

  def find_python(self) -> str | None:
    """Returns its interpreter, or None if none was named."""
    if self.python == 'ours':
      return _PYTHON.value
    if self.python == 'torch':
      return _TORCH_PYTHON.value
    return os.environ.get(self.python)

  def list_words(self, dtype: str, python: str) -> list[str]:
    """Returns flags of both commands; dtype may be a policy's name."""
    policies = {
      POLICY: (self.narrow, self.policy),
      WIDE_POLICY: (DTYPES[0], self.wide_policy),
    }
    dtype, policy = policies.get(dtype, (dtype, ''))
    words = [f'--dtype={dtype}']
    words += [f'--policy={policy}'] if policy else []
    words += ['--direction=both'] if self.has_backward else []
    # A machine with a GPU may have all packages in the Python that judges.
    words += [] if python == sys.executable else [f'--python={python}']
    return [*words, f'--candidate={ADAPTERS / self.adapter}']


def read_entries(name: str) -> tuple[Entry, ...]:
  """Returns the entries of a file beside this one."""
  path = pathlib.Path(__file__).with_name(f'{name}.toml')
  rows = tomllib.loads(path.read_text('utf-8'))['entries']
  return tuple(Entry(**row) for row in rows)


ENTRIES = read_entries(_NAME)
GPU_ENTRIES = read_entries(_GPU_NAME)


def check(entry: Entry, dtype: str, python: str) -> str:
  """Returns PASS, FAIL with the first failure, or that it cannot run.

  Raises:
    RuntimeError: the check itself failed.
  """
  words = [*entry.case, *entry.list_words(dtype, python)]
  code, report, message = _run('check', words)
  if code == _CANNOT_RUN:
    return CANNOT_RUN
  if report is None:
    raise RuntimeError(f'{entry.name}: {message[-2000:]}')
  failure = report['first_failure']
  if failure is None:
    return PASSES
  return f'FAIL: {failure["stage"]} ({failure["lane"]})'


def list_changes(entry: Entry, python: str) -> str:
  """Returns what changes the bits of a token of a float32 layer.

  Raises:
    RuntimeError: the command failed.
  """
  words = [*entry.list_words(DTYPES[0], python), *entry.bits]
  _, report, message = _run('invariance', words)
  if report is None:
    raise RuntimeError(f'{entry.name}: {message[-2000:]}')
  return describe_changes(report['rows'])


def describe_changes(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns the names of rows in which a token has other bits."""
  changes = []
  for row in rows:
    apart = [row['apart'].get(name) for name in _OF_TOKENS]
    grades = [item['grade'] for item in apart if item]
    if grades:
      worst = max(grades, key=invariance.GRADES.index)
      is_wrong = worst == invariance.WRONG
      changes.append(row['name'] + (' (WRONG)' if is_wrong else ''))
  return ', '.join(changes) or 'nothing'


def _run(
  command: str, words: Sequence[str]
) -> tuple[int, dict[str, Any] | None, str]:
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'report.json'
    process = subprocess.run(
      [
        *(sys.executable, '-m', 'hpmoe.parity_tests.commands.main', command),
        *words,
        f'--json={path}',
      ],
      capture_output=True,
      text=True,
      timeout=_TIMEOUT_S,
    )
    is_judged = process.returncode in (0, 1) and path.exists()
    report = json.loads(path.read_text()) if is_judged else None
  return process.returncode, report, process.stderr


def read_versions(entry: Entry, python: str) -> str:
  """Returns 'torch 2.13.0' and so on, as that Python has them."""
  script = (
    'import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))'
  )
  process = subprocess.run(
    [python, '-c', script, *entry.packages],
    capture_output=True,
    text=True,
    check=True,
  )
  pairs = zip(entry.packages, process.stdout.split())
  return ', '.join(f'{name} {version}' for name, version in pairs)


def measure(entry: Entry, python: str) -> dict[str, Any]:
  """Returns the judgement of an entry."""
  outcomes = dict.fromkeys(DTYPES, NOT_TRIED)
  for dtype in (*entry.dtypes, *_list_policies(entry)):
    outcomes[dtype] = check(entry, dtype, python)
  command = f'python -m benchmarks.{_NAME}'
  if _GPU.value:
    command += ' --gpu'
  else:
    outcomes[INVARIANCE] = list_changes(entry, python)
  run = figures.run(command)
  return dict(run=run, versions=read_versions(entry, python), **outcomes)


def _list_policies(entry: Entry) -> list[str]:
  return [name for name in (POLICY, WIDE_POLICY) if getattr(entry, name)]


def list_contradictions(
  layers: Mapping[str, Mapping[str, Any]], entries: Sequence[Entry] = ENTRIES
) -> list[str]:
  """Returns a line for each entry whose words are not what was measured."""
  lines = []
  for entry in entries:
    layer = layers.get(entry.name)
    if layer is None:
      lines.append(f'{entry.name}: expected figures, got none')
      continue
    for dtype in entry.dtypes:
      if layer[dtype] != NOT_TRIED and (
        (layer[dtype] == PASSES) == (dtype in entry.reason)
      ):
        lines.append(
          f'{entry.name}: reason: expected {dtype} in it if it does not pass, '
          f'got {entry.reason!r} of {layer[dtype]}'
        )
    lines += [
      f'{entry.name}: {name}: expected one under which it passes, got '
      f'{getattr(entry, name)}: {layer[name]}'
      for name in _list_policies(entry)
      if layer.get(name, NOT_TRIED) not in (PASSES, NOT_TRIED)
    ]
  return lines


def _list_first_cells(entry: Entry, layer: Mapping[str, Any]) -> list[str]:
  """Returns the cells that both tables begin with."""
  file, _, _ = entry.adapter.partition(':')
  link = f'[{entry.name}](../examples/gallery/{file})'
  return [link, *(layer[dtype] for dtype in DTYPES), entry.reason]


def tabulate(layers: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
  """Returns a row for each entry."""
  rows = []
  for entry in ENTRIES:
    layer = layers[entry.name]
    dtype = '' if entry.narrow == 'bf16' else f'--dtype={entry.narrow} '
    rows.append(
      [
        *_list_first_cells(entry, layer),
        f'`{dtype}--policy={entry.policy}`' if entry.policy else '',
        layer.get(INVARIANCE, NOT_TRIED),
      ]
    )
  return rows


def tabulate_gpu(layers: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
  """Returns a row for each entry on a GPU."""
  rows = []
  for entry in GPU_ENTRIES:
    layer = layers[entry.name]
    words = {POLICY: entry.narrow, WIDE_POLICY: DTYPES[0]}
    policies = [
      f'{dtype}: `{getattr(entry, name)}`'
      + ('' if layer.get(name) == PASSES else ', not tried')
      for name, dtype in words.items()
      if getattr(entry, name)
    ]
    rows.append(
      [
        *_list_first_cells(entry, layer),
        '; '.join(policies),
      ]
    )
  return rows


def _measure_all(
  entries: Sequence[Entry], layers: dict[str, dict[str, Any]]
) -> None:
  """Measures entries whose Python is known, and adds them to the layers."""
  with futures.ThreadPoolExecutor(_AT_ONCE.value) as pool:
    jobs = {
      pool.submit(measure, entry, python): entry.name
      for entry in entries
      if (python := entry.find_python()) is not None
      and (not _ENTRIES.value or entry.name in _ENTRIES.value)
    }
    for job in futures.as_completed(jobs):
      layers[jobs[job]] = job.result()
      print(jobs[job], job.result(), flush=True)


def main(argv):
  del argv
  name, entries = _NAME, ENTRIES
  columns, make_rows = _COLUMNS, tabulate
  if _GPU.value:
    name, entries = _GPU_NAME, GPU_ENTRIES
    columns, make_rows = _GPU_COLUMNS, tabulate_gpu
  path = figures.FIGURES / f'{name}.json'
  layers = figures.load(name)['layers'] if path.exists() else {}
  _measure_all(entries, layers)
  lines = list_contradictions(layers, entries)
  if figures.KEEP.value and not lines:
    # As many lines as there are commits.
    runs = {
      re.sub(r'load .*', '', str(layer['run'])): layer['run']
      for layer in layers.values()
    }
    figures.write(
      name, columns, make_rows(layers), [*runs.values()], layers=layers
    )
  print(*lines, sep='\n')
  return int(bool(lines))


if __name__ == '__main__':
  app.run(main)
