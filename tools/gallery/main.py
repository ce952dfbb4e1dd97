"""Layers of others, judged: runs `hpmoe check` on each, and keeps what it says.

    python -m hpmoe.tools.gallery.main --gallery_python=PYTHON [--entry=NAME]

Adapters are in examples/gallery, what was found in
benchmarks/figures/gallery.json.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

from absl import app
from absl import flags

from hpmoe.parity_tests.law import invariance
from hpmoe.tools import import_graph
from hpmoe.tools.docs import figures as figures_lib

_PYTHON = flags.DEFINE_string(
  'gallery_python', None, 'The Python that has torch; made by `make gallery`.'
)
_OURS = flags.DEFINE_string(
  'python', sys.executable, 'The Python that has JAX and MindSpore.'
)
_ONLY = flags.DEFINE_multi_string('entry', [], 'One of them; none: all.')

ADAPTERS = import_graph.ROOT / 'examples/gallery'
NAME = 'gallery'
COLUMNS = (
  *('layer', 'float32', 'bfloat16', 'why'),
  'right in 16 bits under',
  'float32: y or dx changes bits by',
)

CASE = ('--preset=small', '--ranks=1', '--tokens=64')
# Triton's interpreter is slow.
TINY = ('--preset=tiny', '--ranks=1')
# Whole blocks of its depth and columns.
BLOCKS = ('--preset=tiny:d_model=64:d_ff=32', '--ranks=1')
DTYPES = ('f32', 'bf16')
# Asked beside: 16 bits under the entry's policy.
POLICY = 'policy'
INVARIANCE = 'invariance'
# What a model's tokens see; sums over tokens follow their order anyway.
_OF_TOKENS = ('y', 'dx')
_SECONDS = re.compile(r', \d+\.\d s\b')
_TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Entry:
  """A layer of others.

  Attributes:
    name: what the page calls it.
    adapter: `FILE.py:function` in `ADAPTERS`.
    packages: whose versions the page names.
    found: why what does not pass does not, by experiment; '' if all passes.
    has_backward: whether its gradients are judged too.
    policy: under which it is right in `narrow`; '': under none.
    case: flags that say what is judged.
    bits: flags of the layer on which it is seen what changes bits.
    python: 'ours', which has JAX and MindSpore; 'gallery'; or a variable of the
      environment that names one, without which the entry stays as it was.
    narrow: dtype of 16 bits in which `policy` is judged.
  """

  name: str
  adapter: str
  packages: tuple[str, ...]
  found: str = ''
  has_backward: bool = False
  policy: str = ''
  case: tuple[str, ...] = CASE
  bits: tuple[str, ...] = TINY
  python: str = 'gallery'
  narrow: str = 'bf16'


_GATHER = 'bf16: autograd sums the K gradients of a token in bf16'
_SILU = 'bf16: silu(gate) is rounded before it meets up'
_GATHERED = 'd_running_sum=storage,d_sum_order=expert'

ENTRIES = (
  Entry(
    'torch grouped_mm',
    'torch_grouped_mm.py:moe',
    ('torch',),
    _GATHER,
    has_backward=True,
    policy=_GATHERED,
  ),
  Entry(
    'Hugging Face, eager',
    'hugging_face.py:eager',
    ('transformers', 'torch'),
    f'{_SILU}; y and dx are summed over K in bf16, dx from the last expert '
    'back',
    has_backward=True,
    policy='hf_mixtral',
  ),
  Entry(
    'Hugging Face, grouped_mm',
    'hugging_face.py:grouped',
    ('transformers', 'torch'),
    _SILU,
    has_backward=True,
    policy=f'grouped_mm_f32_weights,{_GATHERED}',
  ),
  Entry(
    'JAX ragged_dot',
    'jax_products.py:ragged_dot',
    ('jax',),
    _GATHER,
    has_backward=True,
    policy=_GATHERED,
    python='ours',
  ),
  Entry(
    "JAX's megablox gmm, Pallas interpreted",
    'jax_products.py:gmm',
    ('jax',),
    _GATHER,
    has_backward=True,
    policy=_GATHERED,
    python='ours',
  ),
  Entry(
    'ONNX Runtime, com.microsoft.MoE',
    'onnx_moe.py:moe',
    ('onnxruntime',),
    'bf16: no kernel on CPUs',
    policy='gate_up=accumulate,activation=accumulate',
    narrow='f16',
  ),
  Entry(
    'MindSpore operators',
    'mindspore_operators.py:moe',
    ('mindspore',),
    'bf16: neither gather nor matmul on CPUs',
    python='ours',
  ),
  Entry(
    'Triton kernel, interpreted',
    'triton_kernel.py:moe',
    ('triton', 'torch'),
    "bf16: the interpreter's tl.dot multiplies bits as integers",
    bits=BLOCKS,
  ),
  Entry(
    'the same, float32 alone within it',
    'triton_kernel.py:wide',
    ('triton', 'torch'),
    bits=BLOCKS,
  ),
  Entry(
    "vLLM's fused_moe_kernel, interpreted",
    'vllm_fused_moe.py:moe',
    ('vllm', 'triton', 'torch'),
    'bf16: as above',
    python='HPMOE_VLLM_PYTHON',
    case=TINY,
  ),
  Entry(
    "SGLang's fused_moe_kernel, interpreted",
    'sglang_fused_moe.py:moe',
    ('sglang', 'triton', 'torch'),
    'bf16: as above',
    python='HPMOE_SGLANG_PYTHON',
    case=TINY,
  ),
)


@dataclasses.dataclass(frozen=True)
class Figure:
  """What a check said of an entry.

  Attributes:
    outcome: PASS, FAIL with the first failure, or that it could not run.
    text: what was printed, without seconds.
  """

  outcome: str
  text: str


def command(entry: Entry, asked: str, python: str, adapters='') -> list[str]:
  """Returns the words after `hpmoe`."""
  direction = ('--direction=both',) if entry.has_backward else ()
  file = os.path.join(adapters or ADAPTERS, entry.adapter)
  dtype = entry.narrow if asked == POLICY else asked
  words = ['check', *entry.case, f'--dtype={dtype}', *direction]
  words += [f'--policy={entry.policy}'] if asked == POLICY else []
  return [*words, f'--python={python}', f'--candidate={file}']


def judged(entry: Entry, asked: str, python: str, adapters='') -> Figure:
  """Runs a check.

  Raises:
    RuntimeError: the check itself failed.
  """
  words = command(entry, asked, python, adapters)
  done = _run(words)
  if done.returncode == 3:
    return Figure('cannot run', _why(done.stderr))
  if done.returncode not in (0, 1):
    raise RuntimeError(f'{entry.name}: {done.stderr[-2000:]}')
  return figure(done.stdout)


def kept_bits(entry: Entry, python: str, adapters='') -> Figure:
  """Says when a layer in float32 gives a token other bits.

  Raises:
    RuntimeError: `hpmoe invariance` failed.
  """
  with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, 'rows.json')
    words = command(entry, DTYPES[0], python, adapters)[1:]
    done = _run(['invariance', *words, *entry.bits, f'--json={file}'])
    if done.returncode not in (0, 1):
      raise RuntimeError(f'{entry.name}: {done.stderr[-2000:]}')
    with open(file) as held:
      rows = json.load(held)['rows']
  worst: dict[str, str] = {}
  for row in rows:
    seen = [row['apart'].get(name) for name in _OF_TOKENS]
    grades = [one['grade'] for one in seen if one]
    if grades:
      worst[row['name']] = max(grades, key=invariance.GRADES.index)
  told = [
    f'{name} (WRONG)' if grade == invariance.WRONG else name
    for name, grade in worst.items()
  ]
  return Figure(', '.join(told) or 'nothing', _plain(done.stdout))


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
  main = [sys.executable, '-m', 'hpmoe.parity_tests.commands.main']
  return subprocess.run(
    [*main, *words], capture_output=True, text=True, timeout=_TIMEOUT_S
  )


def figure(told: str) -> Figure:
  """Returns what a check that was made has printed."""
  text = _plain(told)
  first = re.search(r'^first failure: (\S+) \((\w+)', text, re.M)
  outcome = f'FAIL: {first[1]} ({first[2]})' if first else 'PASS'
  return Figure(outcome, text)


def _why(told: str) -> str:
  """Returns the last line that a framework's own error has."""
  lines = [
    line for line in told.splitlines() if re.match(r'\S+Error: |\S+\.No', line)
  ]
  return lines[-1][:200] if lines else told.strip().splitlines()[-1]


def _plain(told: str) -> str:
  """Returns the table, the first failure and the verdict, alike in any run."""
  kept = []
  for part in told.strip().split('\n\n'):
    lines = part.splitlines()
    if lines[0].startswith(('rules of', 'not judged')):
      continue
    if lines[0].startswith('first failure'):
      kept.append('\n'.join(lines[:6]))
    else:
      kept.append('\n'.join(lines))
  text = '\n\n'.join(kept)
  return _SECONDS.sub('', text.replace(f'{ADAPTERS}/', ''))


def versions(entry: Entry, python: str) -> str:
  """Returns 'torch 2.13.0' and so on, as that Python has them."""
  ask = (
    'import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))'
  )
  found = subprocess.run(
    [python, '-c', ask, *entry.packages],
    capture_output=True,
    text=True,
    check=True,
  )
  pairs = zip(entry.packages, found.stdout.split())
  return ', '.join(f'{name} {version}' for name, version in pairs)


def _python(entry: Entry) -> str | None:
  if entry.python == 'ours':
    return _OURS.value
  if entry.python == 'gallery':
    return _PYTHON.value
  return os.environ.get(entry.python)


def wrong(figures: Mapping[str, Any]) -> list[str]:
  """Returns a line for each entry whose words are not what was measured."""
  lines = []
  for entry in ENTRIES:
    held = figures.get(entry.name)
    if held is None:
      lines.append(f'{entry.name}: expected figures, got none')
      continue
    for dtype in DTYPES:
      passes = held[dtype]['outcome'] == 'PASS'
      named = dtype in entry.found
      if passes == named:
        lines.append(
          f'{entry.name}: found: expected {"nothing" if passes else "words"} '
          f'of {dtype}, which {held[dtype]["outcome"]}, got {entry.found!r}'
        )
    if entry.policy and held[POLICY]['outcome'] != 'PASS':
      lines.append(
        f'{entry.name}: policy: expected one under which it passes, got '
        f'{entry.policy}: {held[POLICY]["outcome"]}'
      )
  return lines


def rows(held: Mapping[str, Any]) -> list[list[str]]:
  """Returns a row for each layer, of what was found."""
  return [
    [
      f'[{entry.name}](../examples/gallery/{entry.adapter.partition(":")[0]})',
      *(held[entry.name][dtype]['outcome'] for dtype in DTYPES),
      entry.found,
      _flags(entry) if entry.policy else '',
      held[entry.name].get(INVARIANCE, {}).get('outcome', 'not tried'),
    ]
    for entry in ENTRIES
  ]


def _flags(entry: Entry) -> str:
  dtype = '' if entry.narrow == 'bf16' else f'--dtype={entry.narrow} '
  return f'`{dtype}--policy={entry.policy}`'


def keep(held: Mapping[str, Any]) -> None:
  """Writes what was found, and when each layer was judged."""
  runs = {}
  for one in held.values():
    runs[one['run']['commit'], one['run']['date']] = one['run']
  more = dict(layers=held)
  figures_lib.write(NAME, COLUMNS, rows(held), list(runs.values()), **more)


def main(argv: Sequence[str]) -> None:
  del argv
  figures = figures_lib.load(NAME)['layers']
  for entry in ENTRIES:
    python = _python(entry)
    if python is None or (_ONLY.value and entry.name not in _ONLY.value):
      continue
    asked = (*DTYPES, POLICY) if entry.policy else DTYPES
    found = {a: dataclasses.asdict(judged(entry, a, python)) for a in asked}
    found[INVARIANCE] = dataclasses.asdict(kept_bits(entry, python))
    for one in found:
      print(f'{entry.name}, {one}: {found[one]["outcome"]}', flush=True)
      print(found[one]['text'], end='\n\n', flush=True)
    run = figures_lib.run('make gallery')
    figures[entry.name] = dict(
      run=run, versions=versions(entry, python), **found
    )
  figures = {e.name: figures[e.name] for e in ENTRIES if e.name in figures}
  lines = wrong(figures)
  if not any('got none' in line for line in lines):
    keep(figures)
  if lines:
    sys.exit('\n'.join(lines))


if __name__ == '__main__':
  app.run(main)
