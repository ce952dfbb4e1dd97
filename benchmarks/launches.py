r"""What a launch takes: time by threads, ranks and routing, and memory.

Launches of one layer take turns, every other round backwards:

  one, two      balanced routing, one and two threads
  ranks         the same rows on several ranks of one process, two threads
  zipf          as many rows, of a zipf routing, two threads

Each quotient is one of medians of wall time, which on a machine that is not
idle says nothing of threads: run it alone.

Memory is the most that a process had resident during launches (Linux's VmHWM),
less what it had when inputs and outputs were there and nothing had been
launched, as a share of inputs and outputs; aim: 25 %.  Each figure has a
process of its own, whose freed memory goes back to the system: else launches
would take it unseen.

The forward pass makes y, backward all gradients from what a forward pass keeps.
The shapes are those of docs/measured.md; L backward takes 3 GB.

Example:
  python -m benchmarks.launches --shapes=M --dtypes=f32 --keep
"""

import concurrent.futures
import ctypes
import dataclasses
import gc
import itertools
import multiprocessing
import os
import pathlib
import statistics
import time

from absl import app
from absl import flags
import numpy as np

from benchmarks.peers import cases
from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.kernels.host.launch import arrays as arrays_lib
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.taskflow import flow
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors
from hpmoe.tools.docs import figures

_SHAPES = flags.DEFINE_list(
  'shapes', list(cases.SHAPES), 'Shapes of the layer.'
)
_DTYPES = flags.DEFINE_list('dtypes', list(cases.DTYPES), 'Storage dtypes.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Launches of each kind.')

PASSES = ('forward', 'backward')
# By name: routing, threads, ranks.
KINDS = {
  'one': ('balanced', 1, 1),
  'two': ('balanced', 2, 1),
  'ranks': ('balanced', 2, 4),
  'zipf': ('zipf', 2, 1),
}
# What is claimed, as (over, under): wall time of one by that of the other.
QUOTIENTS = {
  'one thread / two': ('one', 'two'),
  'ranks / one rank': ('ranks', 'two'),
  'zipf / balanced': ('zipf', 'two'),
}


class Layer:
  """A pass, compiled and loaded, with what it reads and where it writes."""

  def __init__(self, shape: str, dtype: str, which: str, kind: str):
    routing, threads, ranks = KINDS[kind]
    made = cases.make(cases.Case(shape, dtype, routing))
    # Tokens, and the experts of a weight, are dealt to ranks in order.
    made = {n: a.reshape(ranks, -1, *a.shape[1:]) for n, a in made.items()}
    config = dataclasses.replace(
      cases.SHAPES[shape], num_ranks=ranks, num_tokens=made['x'].shape[1]
    )
    policy = precision.PrecisionPolicy(storage=made['x'].dtype.name)
    lower, read, asked = {
      'forward': (compiler.compile_forward, tensors.INPUTS, ['y']),
      'backward': (
        compiler.compile_backward,
        ('dy', *layer_call.gradient_inputs(policy)),
        sorted(runtime.FINAL_GRADS),
      ),
    }[which]
    image = lower(config, policy, flow.host_options(config)).image
    rng = np.random.default_rng(0)

    def kept(name: str) -> np.ndarray:  # by a forward pass: any values will do
      shape = arrays_lib.shape(image, name)
      drawn = rng.standard_normal(shape, np.float32)
      return drawn.astype(arrays_lib.dtype(image, name))

    self.launch = runtime.Launch(image, threads=threads)
    self.given = {n: made[n] if n in made else kept(n) for n in read}
    # Memory of outputs is the caller's, as in a loop: none is new in a round.
    self.out = {
      n: np.ones(arrays_lib.shape(image, n), arrays_lib.dtype(image, n))
      for n in asked
    }

  def run(self) -> None:
    self.launch.run(self.given, tuple(self.out), out=self.out)


def milliseconds(shape: str, dtype: str, which: str) -> dict[str, float]:
  """Returns the median wall time of a launch of each kind."""
  made = {kind: Layer(shape, dtype, which, kind) for kind in KINDS}
  for layer in made.values():
    layer.run()
  taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
  for turn in range(_ROUNDS.value):
    for kind in list(KINDS)[:: -1 if turn % 2 else 1]:
      start = time.perf_counter()
      made[kind].run()
      taken[kind].append(1e3 * (time.perf_counter() - start))
  return {kind: statistics.median(ms) for kind, ms in taken.items()}


def held(field: str) -> int:
  """Returns bytes of this process: now (VmRSS), or at most (VmHWM)."""
  lines = pathlib.Path('/proc/self/status').read_text().splitlines()
  (line,) = (line for line in lines if line.startswith(field))
  return int(line.split()[1]) * 1024


def memory(shape: str, dtype: str, which: str) -> dict[str, int]:
  """Returns bytes: tensors given and asked for, what is beside, the arena."""
  layer = Layer(shape, dtype, which, 'two')
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  before = held('VmRSS')
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # VmHWM starts anew
  for _ in range(2):
    layer.run()
  return dict(
    tensors=sum(a.nbytes for a in (*layer.given.values(), *layer.out.values())),
    beside=held('VmHWM') - before,
    arena=layer.launch.arena_bytes,
  )


def in_a_process(work, *arguments):
  os.environ['MALLOC_MMAP_THRESHOLD_'] = '65536'  # it inherits this
  spawn = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
    return pool.submit(work, *arguments).result()


def times(rows):
  """Returns the columns and rows of wall times."""
  columns = ['ms', *KINDS, *QUOTIENTS]
  table = []
  for row in rows:
    ms = row['milliseconds']
    ratios = (ms[over] / ms[under] for over, under in QUOTIENTS.values())
    shown = (
      *(f'{ms[kind]:.0f}' for kind in KINDS),
      *(f'{r:.2f}' for r in ratios),
    )
    table.append([' '.join(row['case']), *shown])
  return columns, table


def shares(rows):
  """Returns the columns and rows of memory beside inputs and outputs."""
  share = {
    row['case']: f'{row["bytes"]["beside"] / row["bytes"]["tensors"]:.1%}'
    for row in rows
  }
  columns = list(dict.fromkeys(case[1:] for case in share))
  shapes = list(dict.fromkeys(case[0] for case in share))
  table = [
    [shape, *(share[shape, *column] for column in columns)] for shape in shapes
  ]
  head = 'tensors beside inputs and outputs'
  return [head, *map(' '.join, columns)], table


def main(argv):
  del argv
  rows = []
  for case in itertools.product(_SHAPES.value, _DTYPES.value, PASSES):
    ms, of = milliseconds(*case), in_a_process(memory, *case)
    rows.append(dict(case=case, milliseconds=ms, bytes=of))
    told = ', '.join(f'{kind} {each:.1f}' for kind, each in ms.items())
    ratios = ', '.join(
      f'{name} {ms[over] / ms[under]:.3f}'
      for name, (over, under) in QUOTIENTS.items()
    )
    print(
      f'{" ".join(case)}: ms: {told}; {ratios}; beside '
      f'{of["tensors"] / 1e6:.1f} MB of tensors {of["beside"] / 1e6:.1f} MB, '
      f'{of["beside"] / of["tensors"]:.1%}, of which the arena has '
      f'{of["arena"] / 1e6:.1f}',
      flush=True,
    )
  figures.keep('launches', 'launches', *times(rows), every=rows)
  figures.keep('launches', 'launch_memory', *shares(rows))


if __name__ == '__main__':
  app.run(main)
