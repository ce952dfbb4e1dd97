"""The forward launch on int8 codes beside that of bfloat16, by turns.

Both are launches that only compute, of one layer, in this process.  Where
others use the machine as well, `--cores=1 --clock=processor` is fair: one
thread, and the time that it ran.  `python -m benchmarks.int8_launch`;
`--json=FILE` keeps it.

Exit code 1: y of codes is not parallel to y of bfloat16 within 0.1 %.
"""

from collections.abc import Sequence
import json
import pathlib
import random
import statistics
import sys
import time

from absl import app
from absl import flags
import ml_dtypes
import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.tools.docs import figures

# T, E, K, D, F.
SHAPES = {
  'S': (1024, 8, 2, 256, 512),
  'M': (2048, 32, 4, 1024, 512),
  'L': (2048, 64, 8, 2048, 768),
}
_SHAPES = flags.DEFINE_list('shapes', ['S', 'M', 'L'], f'Some of {[*SHAPES]}.')
_ROUNDS = flags.DEFINE_integer('rounds', 7, 'Of every shape.', lower_bound=1)
_CORES = flags.DEFINE_integer('cores', None, 'Threads; one per core if none.')
_CLOCK = flags.DEFINE_enum(
  'clock', 'wall', ('wall', 'processor'), 'Which seconds are told.'
)
_ISA = flags.DEFINE_string('isa', None, 'Instruction set; the best if none.')
_JSON = flags.DEFINE_string('json', None, 'A file for what is printed.')
# As of benchmarks/peers.py.
_MOST_DIFFERENT = 1e-3
_CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}

Arrays = dict[str, np.ndarray]


def make_config(shape: str) -> config_lib.MoEConfig:
  """Returns a layer of one rank."""
  tokens, experts, top_k, d_model, d_ff = SHAPES[shape]
  return config_lib.MoEConfig(
    num_ranks=1,
    num_tokens=tokens,
    num_experts=experts,
    top_k=top_k,
    d_model=d_model,
    d_ff=d_ff,
  )


def make_inputs(config: config_lib.MoEConfig) -> tuple[Arrays, Arrays]:
  """Returns inputs of the launch on bfloat16, and of that on codes."""
  rng = np.random.default_rng(0)
  dims = config.dims()
  bf16 = ml_dtypes.bfloat16
  routing = routings.make('balanced', config, 0)
  common = dict(
    x=rng.standard_normal((1, dims['T'], dims['D']), 'f4').astype(bf16),
    topk_ids=routing.topk_ids,
    topk_weights=routing.topk_weights,
  )
  values, codes = dict(common), dict(common)
  for name, depth, width in (
    ('w_gate_up', dims['D'], 2 * dims['F']),
    ('w_down', dims['F'], dims['D']),
  ):
    weight = rng.standard_normal((1, dims['E'], depth, width), 'f4')
    weight *= np.float32(depth**-0.5)
    values[name] = weight.astype(bf16)
    scales = np.abs(weight).max(axis=2, keepdims=True) / np.float32(127)
    codes[f'{name}_codes'] = np.rint(weight / scales).astype(np.int8)
    codes[f'{name}_scales'] = scales
  return values, codes


def measure(shape: str) -> dict[str, object]:
  """Returns median seconds of both launches, and how far their results are."""
  config = make_config(shape)
  forms = dict(zip(('quantised', 'rows'), layout.QUANTISED[1], strict=True))
  options = granularity.host_options(config)
  launches = {
    name: runtime.Launch(
      compiler.compile_forward(config, policy, options).image,
      threads=_CORES.value,
      isa=_ISA.value,
    )
    for name, policy in (
      ('bfloat16', precision.PrecisionPolicy('bfloat16')),
      ('int8', precision.PrecisionPolicy('bfloat16', **forms)),
    )
  }
  inputs = dict(zip(launches, make_inputs(config), strict=True))
  results = {n: launches[n].run(inputs[n]).outputs for n in launches}
  clock, order = _CLOCKS[_CLOCK.value], random.Random(0)
  seconds: dict[str, list[float]] = {name: [] for name in launches}
  names = [*launches]
  for _ in range(_ROUNDS.value):
    order.shuffle(names)
    for name in names:
      begin = clock()
      launches[name].run(inputs[name], out=results[name])
      seconds[name].append(clock() - begin)
  medians = {n: statistics.median(times) for n, times in seconds.items()}
  a, b = (results[n]['y'].astype('f8').ravel() for n in launches)
  return dict(
    shape=shape,
    milliseconds={n: round(1e3 * t, 2) for n, t in medians.items()},
    ratio=round(medians['bfloat16'] / medians['int8'], 2),
    difference=float(1 - 2 * (a @ b) / (a @ a + b @ b)),
  )


def _keep(rows: Sequence[dict]) -> None:
  """Writes the table that docs/schedule.md shows."""
  columns = ['size', 'bf16, ms', 'int8, ms', 'bf16 over int8']
  cells = [
    [
      row['shape'],
      f'{row["milliseconds"]["bfloat16"]:.4g}',
      f'{row["milliseconds"]["int8"]:.4g}',
      f'{row["ratio"]:.2f}x',
    ]
    for row in rows
  ]
  words = [word for word in sys.argv[1:] if word != '--keep']
  command = ' '.join(['python -m benchmarks.int8_launch', *words])
  figures.write('codes', columns, cells, [figures.run(command)])


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  rows = []
  for shape in _SHAPES.value:
    rows.append(row := measure(shape))
    print(
      f'{shape}: bfloat16 {row["milliseconds"]["bfloat16"]} ms, int8 '
      f'{row["milliseconds"]["int8"]} ms: {row["ratio"]}x, results '
      f'{row["difference"]:.1e} apart',
      flush=True,
    )
  if _JSON.value:
    facts = dict(
      clock=_CLOCK.value, cores=_CORES.value, isas=_native.isas(), rows=rows
    )
    pathlib.Path(_JSON.value).write_text(json.dumps(facts, indent=1) + '\n')
  if figures.KEEP.value:
    _keep(rows)
  sys.exit(0 if all(r['difference'] < _MOST_DIFFERENT for r in rows) else 1)


if __name__ == '__main__':
  app.run(main)
