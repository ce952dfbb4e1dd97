r"""Measures what a verdict costs at real layer sizes, beside a numpy loop.

The kernel is numpy's and returns y alone; its own time is taken off.  Beside it
stands what anybody pays who writes such a test by hand: normal weights drawn
once with numpy, and a float64 loop over the experts.  The runs take turns: the
loop, a first check in an empty cache, the same check again.

Example:
  python -m benchmarks.real_layers --layers=qwen3_30b_a3b --keep
  python -m benchmarks.real_layers --layers=small --rounds=1
"""

from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags
import numpy as np

from benchmarks import measured_tree
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import storage
from hpmoe.tools.docs import figures

_LAYERS = flags.DEFINE_list(
  'layers',
  ['qwen3_30b_a3b'],
  'Presets, with sizes after a colon: mixtral_8x7b, small:experts=8.',
)
_RANKS = flags.DEFINE_integer('ranks', 4, 'Ranks.')
_TOKENS = flags.DEFINE_integer('tokens', None, 'Tokens of a rank.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Turns of each; medians are told.')
_TREE = flags.DEFINE_string(
  'tree', None, 'A checkout whose hpmoe is measured instead, an older one say.'
)
_PROBE = flags.DEFINE_bool('probe', False, 'Runs the loop alone, once.')

_DTYPE = 'bfloat16'
_BYTECODE = pathlib.Path(tempfile.gettempdir()) / 'hpmoe_real_layers'
_KERNEL = pathlib.Path(__file__).with_name('numpy_kernel.py')
_COLUMNS = (
  'layer',
  'drawing, and a float64 loop: s',
  'processor, s',
  'first check, s',
  'over that',
  'processor, s',
  'over that',
  'second check, s',
  'over that',
  'processor, s',
  'over that',
  'inputs, GB',
  'most memory: first, GB',
  'second, GB',
)


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a process took.

  Attributes:
    seconds: wall time, without that of the kernel.
    processor: seconds of all cores, without the kernel's.
    peak_bytes: of memory, its children's apart.
  """

  seconds: float
  processor: float
  peak_bytes: int


def read_config(layer: str) -> config_lib.MoEConfig:
  """Returns the sizes of a layer of `--layers`."""
  return presets.config(presets.to_check(layer), _RANKS.value, _TOKENS.value)


def draw_and_loop(config: config_lib.MoEConfig) -> tuple[float, float]:
  """Draws a layer with numpy, and computes it once.

  Returns:
    Seconds, of the wall and of the processor.
  """
  start = time.perf_counter(), time.process_time()
  rng = np.random.default_rng(0)
  width, hidden, experts = config.d_model, config.d_ff, config.num_experts
  dtype = storage.FORMATS[_DTYPE].numpy
  w_gate_up = np.empty((experts, width, 2 * hidden), dtype)
  w_down = np.empty((experts, hidden, width), dtype)
  for expert in range(experts):
    values = rng.standard_normal((width, 2 * hidden))
    w_gate_up[expert] = values / np.sqrt(width)
    w_down[expert] = rng.standard_normal((hidden, width)) / np.sqrt(hidden)
  tokens = config.num_ranks * config.num_tokens
  x = rng.standard_normal((tokens, width)).astype(dtype)
  scores = rng.standard_normal((tokens, experts))
  ids = np.argsort(scores, axis=-1)[:, : config.top_k]
  y = np.zeros((tokens, width))
  for expert in range(experts):
    token, _ = np.nonzero(ids == expert)
    rows = x[token].astype(np.float64)
    gate, up = np.split(rows @ w_gate_up[expert].astype(np.float64), 2, -1)
    activation = gate / (1 + np.exp(-gate)) * up
    y[token] += activation @ w_down[expert].astype(np.float64) / config.top_k
  wall, processor = time.perf_counter(), time.process_time()
  return wall - start[0], processor - start[1]


def run_loop(layer: str) -> Cost:
  """Returns what `draw_and_loop` takes in a process of its own."""
  command = [sys.executable, '-m', 'benchmarks.real_layers']
  options = [f'--layers={layer}', f'--ranks={_RANKS.value}', '--probe']
  if _TOKENS.value is not None:
    options.append(f'--tokens={_TOKENS.value}')
  process = subprocess.run(
    [*command, *options], capture_output=True, text=True, check=True
  )
  return Cost(*map(float, process.stdout.split()), 0)


def find_environment() -> dict[str, str]:
  """Returns the environment in which hpmoe is that of `--tree`, if given."""
  environment = dict(os.environ)
  if _TREE.value is not None:
    paths = f'{_TREE.value}/src', environment.get('PYTHONPATH', '')
    environment['PYTHONPATH'] = os.pathsep.join(paths)
  return environment


def run_check(layer: str, cache: pathlib.Path) -> Cost:
  """Returns what a check takes in a process of its own.

  Raises:
    RuntimeError: it did not pass.
  """
  name, *sizes = layer.split(':')
  with tempfile.TemporaryDirectory() as folder:
    times = pathlib.Path(folder) / 'seconds'
    command = [
      *(sys.executable, '-m', 'hpmoe.parity_tests.commands.main', 'check'),
      *(f'--candidate={_KERNEL}:layer', f'--preset={name}', '--dtype=bf16'),
      *(f'--{size}' for size in sizes),
      f'--ranks={_RANKS.value}',
      *([f'--tokens={_TOKENS.value}'] if _TOKENS.value is not None else []),
    ]
    environment = find_environment() | dict(
      HPMOE_CACHE=str(cache), TIMES=str(times)
    )
    # An installation has its bytecode, whatever wrote it: not a check's time.
    environment |= dict(PYTHONPYCACHEPREFIX=str(_BYTECODE))
    environment.pop('PYTHONDONTWRITEBYTECODE', None)
    start = time.perf_counter()
    process = subprocess.Popen(
      command,
      env=environment,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    messages = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if status:
      raise RuntimeError(f'{layer}: expected a pass, got {messages}')
    lines = times.read_text().splitlines()
    own = [
      sum(column) for column in zip(*(map(float, x.split()) for x in lines))
    ]
  unit = 1 if sys.platform == 'darwin' else 1024
  processor = usage.ru_utime + usage.ru_stime - own[1]
  return Cost(seconds - own[0], processor, usage.ru_maxrss * unit)


def measure(layer: str) -> list[str]:
  """Returns a row of the table."""
  if _TREE.value is not None:
    measured_tree.check_tree(_TREE.value, find_environment())
  loops, firsts, seconds = [], [], []
  # Writes the bytecode.
  with tempfile.TemporaryDirectory() as folder:
    run_check('tiny', pathlib.Path(folder))
  for _ in range(_ROUNDS.value):
    with tempfile.TemporaryDirectory() as folder:
      cache = pathlib.Path(folder)
      loops.append(run_loop(layer))
      firsts.append(run_check(layer, cache))
      seconds.append(run_check(layer, cache))
    print(loops[-1], firsts[-1], seconds[-1], file=sys.stderr, flush=True)
  config = read_config(layer)
  loop = statistics.median(cost.seconds for cost in loops)
  of_loop = statistics.median(cost.processor for cost in loops)
  inputs = 3 * config.num_experts * config.d_model * config.d_ff
  inputs *= storage.FORMATS[_DTYPE].numpy.itemsize
  sizes = config.dims()
  row = [f'`{layer}`, ' + ' '.join(f'{n}={sizes[n]}' for n in 'RTEKDF')]
  row.append(f'{loop:.3g}')
  row.append(f'{of_loop:.3g}')
  for costs in (firsts, seconds):
    median = statistics.median(cost.seconds for cost in costs)
    processor = statistics.median(cost.processor for cost in costs)
    row += [f'{median:.3g}', f'{median / loop:.2f}']
    row += [f'{processor:.3g}', f'{processor / of_loop:.2f}']
  row.append(f'{inputs / 1e9:.2f}')
  for costs in (firsts, seconds):
    row.append(f'{max(cost.peak_bytes for cost in costs) / 1e9:.2f}')
  return row


def main(argv: Sequence[str]) -> None:
  del argv
  if _PROBE.value:
    print(*draw_and_loop(read_config(_LAYERS.value[0])))
    return
  rows = [measure(layer) for layer in _LAYERS.value]
  for row in rows:
    print(json.dumps([*zip(_COLUMNS, row)], indent=1))
  if figures.KEEP.value:
    command = f'python -m benchmarks.real_layers {" ".join(sys.argv[1:])}'
    figures.write(
      'time_to_verdict_large',
      _COLUMNS,
      rows,
      [figures.run(command.replace(' --keep', ''))],
    )


if __name__ == '__main__':
  app.run(main)
