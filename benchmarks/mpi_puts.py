r"""What a put between processes of one machine costs: calls of MPI, or stores.

Two ranks launch a layer of narrow rows, so that puts are what takes time, by
turns with windows that are mapped into each other and with a call of MPI for
each put, flush and signal.  A figure is puts of a launch, with their row
headers, by the median of its wall time on the slower rank.

Example:
  python -m benchmarks.mpi_puts --json=/tmp/puts.json
"""

import json
import os
import statistics
import subprocess
import sys
import time

from absl import app
from absl import flags

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.kernels.host.ranks import mpi_transport
from hpmoe.backend_ascend.kernels.host.ranks import rank_runtime
from hpmoe.backend_ascend.kernels.host.ranks import rank_testing
from hpmoe.backend_ascend.taskflow import flow
from hpmoe.parity_tests.candidates import mpi_launcher
from hpmoe.parity_tests.candidates import mpi_worker
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_ROUNDS = flags.DEFINE_integer('rounds', 7, 'Launches of each way.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=2048, num_experts=8, top_k=2, d_model=16, d_ff=8
)
# By name: whether windows are mapped.
WAYS = {'stores': True, 'calls of MPI': False}


class Counting:
  """A transport that counts puts."""

  def __init__(self, transport):
    self._transport = transport
    self.puts = 0

  def __getattr__(self, name: str):
    return getattr(self._transport, name)

  def put(self, rank: int, offset: int, data: memoryview) -> None:
    self.puts += 1
    self._transport.put(rank, offset, data)


def _launch(image, inputs, transport) -> float:
  """Returns the seconds of the launch proper, between its barriers."""
  offer = rank_runtime.make_offer(image, transport.rank, 2, inputs)
  counts = rank_runtime.agree(transport.allgather(offer))
  launch = rank_runtime.RankLaunch(image, inputs, counts, transport)
  transport.barrier()
  start = time.perf_counter()
  launch.run(60.0)
  seconds = time.perf_counter() - start
  transport.barrier()
  del launch
  transport.close()
  return max(transport.allgather(seconds))


def measure() -> dict[str, float]:
  """Returns puts of a launch and seconds by way; every rank calls it."""
  options = flow.Options(row_block=64, put_rows=64, num_aic=2, num_aiv=2)
  policy = precision.PrecisionPolicy()
  image = compiler.compile_forward(CONFIG, policy, options).image
  whole = testing.make_inputs(CONFIG, policy)
  taken: dict[str, list[float]] = {name: [] for name in WAYS}
  puts = 0
  for _ in range(_ROUNDS.value):
    for name, mapped in WAYS.items():
      transport = mpi_transport.MpiTransport(mapped=mapped)
      inputs = rank_testing.split(whole, transport.rank)
      taken[name].append(_launch(image, inputs, transport))
  counting = Counting(mpi_transport.MpiTransport(mapped=False))
  _launch(image, inputs, counting)
  puts = sum(counting.allgather(counting.puts))
  seconds = {name: statistics.median(s) for name, s in taken.items()}
  return dict(puts=puts) | {
    f'{name}: {what}': value
    for name, s in seconds.items()
    for what, value in (('seconds', s), ('puts a second', puts / s))
  }


def main(argv):
  try:
    rank = mpi_worker.rank_of_process()
  except RuntimeError:
    command = [mpi_launcher.find_mpiexec(), '-n', '2', sys.executable]
    command += ['-m', 'benchmarks.mpi_puts', *argv[1:]]
    command += [f'--rounds={_ROUNDS.value}']
    command += [f'--json={_JSON.value}'] if _JSON.value else []
    subprocess.run(command, check=True, env=os.environ)
    return
  figures = measure()
  if rank == 0:
    for name, value in figures.items():
      print(f'{name:28} {value:,.4g}')
    if _JSON.value:
      with open(_JSON.value, 'w') as file:
        json.dump(figures, file, indent=1)


if __name__ == '__main__':
  app.run(main)
