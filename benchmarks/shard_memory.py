"""What a process holds that judges a share of a layer's ranks, measured.

    python -m benchmarks.shard_memory

Writes a case of eight ranks and right outputs, one file a rank, then judges a
sample of its tiles by R = 1, 2, 4, 8 processes, one after another; of each the
peak resident memory is what the kernel says of a child (`ru_maxrss`).
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from hpmoe.tools.docs import figures

_CASE = flags.DEFINE_string('case', None, 'Where to keep case and outputs.')
_SHARDS = flags.DEFINE_list('shards', ['1', '2', '4', '8'], 'Processes.')
_SIZES = flags.DEFINE_list(
  'sizes',
  ['--preset=tiny', '--ranks=8', '--experts=64', '--top_k=4']
  + ['--d_model=1024', '--d_ff=512', '--tokens=512'],
  'Flags of `hpmoe export` that give the layer.',
)
_MAIN = [sys.executable, '-m', 'hpmoe.parity_tests.commands.main']
_KERNEL = """
import sys
from hpmoe.parity_tests.case import folder, read_case
from hpmoe.parity_tests.judge import trial
case, out = sys.argv[1:]
made, loaded = folder.read(case).inputs(), read_case.load(case)
held = trial.Kernel().forward(made.config, made.policy, made.arrays)
for rank in range(made.config.num_ranks):
  mine = {name: array[rank] for name, array in held.items()}
  read_case.write(out, loaded, 'real', mine, rank)
"""


def _peak(command: list[str]) -> dict[str, float]:
  """Returns seconds, and MiB that the process held at most."""
  start = time.perf_counter()
  child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
  _, status, used = os.wait4(child.pid, 0)
  if os.waitstatus_to_exitcode(status):
    raise RuntimeError(f'{command}: exit code {status}')
  seconds = round(time.perf_counter() - start, 1)
  return dict(seconds=seconds, mib=round(used.ru_maxrss / 1024))


def _measured(top: pathlib.Path, count: int) -> dict[str, object]:
  check = [*_MAIN, 'check', f'--case={top}/case', f'--outputs={top}/out']
  check += ['--direction=forward', '--tiles=4', '--lane=bitwise,bounded']
  parts = f'--parts={top}/parts{count}'
  shards = [
    _peak([*check, f'--shard={index}/{count}', parts]) for index in range(count)
  ]
  merged = _peak([*check, f'--merge={top}/parts{count}'])
  return dict(processes=count, shards=shards, merge=merged)


def main(argv: list[str]) -> None:
  """Measures, and writes what was found."""
  with tempfile.TemporaryDirectory() as scratch:
    top = pathlib.Path(_CASE.value or scratch)
    if not (top / 'out').exists():
      top.mkdir(exist_ok=True)
      export = [*_MAIN, 'export', *_SIZES.value, '--dtype=bf16', '--per_rank']
      subprocess.run([*export, f'--out={top}/case'], check=True)
      kernel = [sys.executable, '-c', _KERNEL, f'{top}/case', f'{top}/out']
      subprocess.run(kernel, check=True)
    sizes = {
      folder: sum(one.stat().st_size for one in (top / folder).iterdir())
      for folder in ('case', 'out')
    }
    real = sum(
      one.stat().st_size for one in (top / 'case').glob('real.forward.*')
    )
    values = [_measured(top, int(count)) for count in _SHARDS.value]
  figures.write(
    'shard_memory',
    ['processes', 'MiB of each', 'seconds of each', 'seconds to merge'],
    [_row(value) for value in values],
    [figures.run(' '.join(['python -m benchmarks.shard_memory', *argv[1:]]))],
    layer=_SIZES.value,
    bytes=dict(sizes, real_inputs=real),
    values=values,
  )


def _row(value) -> list[object]:
  spread = lambda name: '{} to {}'.format(
    min(one[name] for one in value['shards']),
    max(one[name] for one in value['shards']),
  )
  merged = value['merge']['seconds']
  return [value['processes'], spread('mib'), spread('seconds'), merged]


if __name__ == '__main__':
  app.run(main)
