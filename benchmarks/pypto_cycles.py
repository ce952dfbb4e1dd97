r"""Cycles of pypto's machine model for our tiles, beside our simulator's.

pypto 0.2.0 (CANN licence) compiles a tile for an A2/A3 core without CANN or an
NPU and simulates its pipes.  It is only compared with; nothing rests on it.  It
wants an environment of its own, with torch:

  python -m venv .venv-pypto && .venv-pypto/bin/pip install pypto==0.2.0 torch \
    numpy sympy

Its GEMM is one task on an AIC that reads from memory (no L2 there), its SwiGLU
the tasks of the same rows on AIVs, summed.  Ours: `own` is the core alone,
`alone` with L2 and the fixed time of a task.  "ideal" is the cube's 4096
products a cycle in bfloat16.  Without --pypto_python only ours are printed.

Predicted when one tile had been seen (128 x 512 x 256, twice ours): a GEMM of
depth 7168 within 30 %, SwiGLU within a factor of 2.  Both were wrong: 2.1 and
5.7 times ours.  pypto's core reads both sides at 40 B a cycle, as from HBM, and
its cube is busy for a sixth of the time; its SwiGLU is 34 tasks of 4 rows, each
with transfers and heads of its own.

Example:
  python -m benchmarks.pypto_cycles --pypto_python=.venv-pypto/bin/python
"""

import json
import pathlib
import subprocess
import tempfile

from absl import app
from absl import flags
import numpy as np

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_PYTHON = flags.DEFINE_string(
  'pypto_python', None, 'Interpreter that has pypto 0.2.0 and torch.'
)
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

CLOCK = 1.8e9
# rows, depth, columns.
GEMMS = ((128, 512, 256), (128, 2048, 256), (128, 7168, 256), (64, 7168, 128))
# rows, columns of its output.
SWIGLUS = ((64, 2048), (128, 2048))

_CHILD = """
import sys
import pypto
import torch

kind, *sizes = sys.argv[1:]
sizes = [int(size) for size in sizes]
SIM = dict(
    runtime_options={'run_mode': pypto.RunMode.SIM},
    debug_options={'runtime_debug_mode': 1},
)
BF16 = pypto.DT_BF16


@pypto.frontend.jit(**SIM)
def gemm(a: pypto.Tensor([], BF16), b: pypto.Tensor([], BF16),
         out: pypto.Tensor([], BF16)):
  pypto.set_cube_tile_shapes([sizes[0]] * 2, [64, 256], [sizes[2]] * 2)
  out[:] = pypto.matmul(a, b, BF16)


@pypto.frontend.jit(**SIM)
def swiglu(gate: pypto.Tensor([], BF16), up: pypto.Tensor([], BF16),
           out: pypto.Tensor([], BF16)):
  pypto.set_vec_tile_shapes(4, 1024)
  g = pypto.cast(gate, pypto.DT_FP32)
  u = pypto.cast(up, pypto.DT_FP32)
  s = g / (pypto.exp(g * -1.0) + 1.0)
  out[:] = pypto.cast(s * u, BF16)


def zeros(*shape):
  return torch.zeros(*shape, dtype=torch.bfloat16)


if kind == 'gemm':
  m, k, n = sizes
  gemm(zeros(m, k), zeros(k, n), zeros(m, n))
else:
  swiglu(zeros(*sizes), zeros(*sizes), zeros(*sizes))
"""


def pypto_cycles(kind: str, sizes) -> tuple[int, int]:
  """Returns cycles of all tasks, summed over cores, and how many tasks.

  Raises:
    RuntimeError: pypto ended with an error, or left no simulation.
  """
  with tempfile.TemporaryDirectory() as folder:
    script = pathlib.Path(folder, 'tile.py')
    script.write_text(_CHILD)
    done = subprocess.run(
      [_PYTHON.value, str(script), kind, *map(str, sizes)],
      cwd=folder,
      capture_output=True,
      text=True,
      check=False,
    )
    found = list(pathlib.Path(folder).rglob('*_simulate.swim.json'))
    if done.returncode or len(found) != 1:
      last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
      raise RuntimeError(f'pypto: expected one simulation, got {last}')
    tasks = [t for c in json.loads(found[0].read_text()) for t in c['tasks']]
  return sum(t['execEnd'] - t['execStart'] for t in tasks), len(tasks)


def our_cycles(kind: int, rows: int, depth: int, cols: int):
  """Returns cycles of the first task of a kind: (own, alone)."""
  d, f = (depth, cols // 2) if kind == layout.Kind.GATE_UP else (256, cols)
  config = config_lib.MoEConfig(
    num_ranks=1, num_tokens=rows, num_experts=1, top_k=1, d_model=d, d_ff=f
  )
  policy = precision.PrecisionPolicy(storage='bfloat16')
  options = flow_lib.Options(row_block=rows, col_block=cols)
  image = compiler.compile_forward(config, policy, options).image
  ids = np.zeros((1, rows, 1), np.int32)
  costs = simulate.costs(image, machine_lib.load('ascend_a3'), ids)
  task = np.flatnonzero(image.tables['tasks']['kind'] == kind)[0]
  return CLOCK * costs.own[task], CLOCK * costs.alone[task]


def _row(name: str, kind: int, rows: int, depth: int, cols: int, theirs):
  own, alone = our_cycles(kind, rows, depth, cols)
  row = dict(tile=name, own=round(own), alone=round(alone))
  if kind == layout.Kind.GATE_UP:
    row['ideal'] = round(2 * rows * depth * cols / 8192)
  if _PYTHON.value:
    row['pypto'], row['tasks'] = pypto_cycles(*theirs)
    row['pypto over alone'] = round(row['pypto'] / alone, 2)
  return row


def main(argv):
  del argv
  table = [
    _row(f'GEMM {m} x {k} x {n}', layout.Kind.GATE_UP, m, k, n, ('gemm', s))
    for s in GEMMS
    for m, k, n in (s,)
  ] + [
    _row(f'SwiGLU {r} x {c}', layout.Kind.SWIGLU, r, 0, c, ('swiglu', (r, c)))
    for r, c in SWIGLUS
  ]
  for row in table:
    print('  '.join(f'{name}: {value}' for name, value in row.items()))
  if not _PYTHON.value:
    print('pypto: not asked; --pypto_python names an interpreter that has it')
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(table, indent=1) + '\n')


if __name__ == '__main__':
  app.run(main)
