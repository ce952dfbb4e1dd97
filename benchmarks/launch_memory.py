r"""What a launch holds beside its inputs and the outputs asked for.

The most that a process had resident during launches of one image (Linux's
VmHWM, reset before them), less what it had when inputs and outputs were there
and nothing had been launched; as a share of the inputs and outputs.  The
forward pass makes y; backward makes the gradients of x, routing weights and
weights from what a differentiated forward pass keeps.  Aim: 25 %.

Each figure has a process of its own, whose freed memory goes back to the
system: else launches would take it unseen.  The shapes are those of
docs/peers.md; L backward takes 3 GB.

Example:
  python -m benchmarks.launch_memory --shapes=S,M --threads=2 --json=/tmp/m.json
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

from absl import app
from absl import flags
import numpy as np

from benchmarks import peak_memory
from benchmarks.peers import cases
from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.kernels.host.launch import arrays as arrays_lib
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.taskflow import flow
from hpmoe.reference.contract import precision

_SHAPES = flags.DEFINE_list('shapes', list(cases.SHAPES), 'Of the layer.')
_DTYPES = flags.DEFINE_list('dtypes', list(cases.DTYPES), 'Of storage.')
_ROUTINGS = flags.DEFINE_list('routings', ['balanced'], "Some of the peers'.")
_THREADS = flags.DEFINE_integer('threads', 2, 'Of a launch.', lower_bound=1)
_ONE = flags.DEFINE_string('one', None, 'A case and a pass, for a process.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

PASSES = ('forward', 'backward')


def _launcher(case: cases.Case, backward: bool):
  """Returns the loaded image, what it reads and arrays for its results."""
  # Of one rank.
  arrays = {n: a[None] for n, a in cases.make(case).items()}
  policy = precision.PrecisionPolicy(storage=arrays['x'].dtype.name)
  lower = compiler.compile_backward if backward else compiler.compile_forward
  image = lower(case.config, policy, flow.host_options(case.config)).image
  names = arrays_lib.INPUTS[image.direction]
  if backward:
    names = ('dy', *layer_call.gradient_inputs(policy))
  rng = np.random.default_rng(0)
  for name in names:
    if name not in arrays:  # kept by a forward pass: any values will do
      shape = arrays_lib.shape(image, name)
      made = rng.standard_normal(shape, np.float32)
      arrays[name] = made.astype(arrays_lib.dtype(image, name))
  loaded = runtime.Launch(image, threads=_THREADS.value)
  return loaded, {n: arrays[n] for n in dict.fromkeys(names)}


def _outputs(loaded: runtime.Launch, backward: bool):
  names = sorted(runtime.FINAL_GRADS) if backward else ['y']
  image = loaded.image
  return {
    n: np.ones(arrays_lib.shape(image, n), arrays_lib.dtype(image, n))
    for n in names
  }


def measure(case: cases.Case, backward: bool) -> dict[str, float]:
  """Returns bytes: tensors given and asked for, arena, and the rest's peak."""
  loaded, given = _launcher(case, backward)
  out = _outputs(loaded, backward)
  tensors = sum(a.nbytes for a in (*given.values(), *out.values()))
  with peak_memory.Peak() as peak:
    for _ in range(2):
      loaded.run(given, tuple(out), out=out)
  return dict(tensors=tensors, beside=peak.bytes, arena=loaded.arena_bytes)


def _in_a_process(one: str) -> dict[str, float]:
  command = [sys.executable, '-m', 'benchmarks.launch_memory', f'--one={one}']
  command.append(f'--threads={_THREADS.value}')
  done = subprocess.run(
    command,
    check=True,
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | {'MALLOC_MMAP_THRESHOLD_': '65536'},
  )
  return json.loads(done.stdout)


def main(argv):
  del argv
  if _ONE.value:
    shape, dtype, routing, which = _ONE.value.split(',')
    case = cases.Case(shape, dtype, routing)
    print(json.dumps(measure(case, which == 'backward')))
    return
  rows = []
  print(
    'case                 pass      tensors MB  beside MB   share  arena MB'
  )
  for shape in _SHAPES.value:
    for dtype in _DTYPES.value:
      for routing in _ROUTINGS.value:
        for which in PASSES:
          figures = _in_a_process(f'{shape},{dtype},{routing},{which}')
          case = dataclasses.asdict(cases.Case(shape, dtype, routing))
          rows.append(case | dict(which=which) | figures)
          tensors, beside, arena = figures.values()
          print(
            f'{shape + " " + dtype + " " + routing:20} {which:9}'
            f'{tensors / 1e6:11.1f}{beside / 1e6:11.1f}{beside / tensors:8.1%}'
            f'{arena / 1e6:10.1f}',
            flush=True,
          )
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(rows, indent=1))


if __name__ == '__main__':
  app.run(main)
