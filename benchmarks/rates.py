r"""Tasks that the simulators take in a second of one core, tables included.

The image is of HyperParallel-MoE's EP16 layer (arXiv 2605.23764), the flows of
three published systems whose fabric computes.  A figure is a median.

Example:
  python -m benchmarks.rates --runs=6 --keep
"""

from collections.abc import Callable
import contextlib
import statistics
import time
from unittest import mock

from absl import app
from absl import flags

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import cais
from hpmoe.backend_ascend.simulator.reproduce import cais_systems
from hpmoe.backend_ascend.simulator.reproduce import dysharp
from hpmoe.backend_ascend.simulator.reproduce import hyperparallel
from hpmoe.backend_ascend.simulator.reproduce import moe_hub
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.tools.docs import figures

_RUNS = flags.DEFINE_integer('runs', 6, 'Runs, of which the median counts.')


def _image() -> Callable[[], object]:
  layer = hyperparallel.config(16)
  case = hyperparallel.cases(layer, 'system')['forward']
  machine = machine_lib.load('ascend_a3')
  case.simulate(machine)  # its image is compiled once
  return lambda: case.simulate(machine)


def _flow(name, make, layer) -> Callable[[], object]:
  """Returns a function that simulates the flow of `make`, built once."""
  machine = witness_lib.get(name).load()[name.replace('-', '_')]
  patch = mock.patch.object(flow_lib, 'simulate')
  # Some read times of a flow that did not run.
  with patch as simulate_mock, contextlib.suppress(AttributeError, TypeError):
    make(layer, machine)
  flow = simulate_mock.call_args.args[0]
  return lambda: flow_lib.simulate(flow, machine)


WORK = {
  'image,EP16': _image,
  'CAIS,L2': lambda: _flow(
    'cais',
    cais_systems.cais,
    cais.MODELS['LLaMA-7B'].sub_layers()['L2'],
  ),
  'MoE-Hub,Mixtral': lambda: _flow(
    'moe-hub', moe_hub.moe_hub, moe_hub.LAYERS['Mixtral-8x7B at 4096']
  ),
  'DySHARP,M-8': lambda: _flow(
    'dysharp', dysharp.dysharp, dysharp.LAYERS['M-8']
  ),
}


def main(argv):
  del argv
  rows = []
  for name, make in WORK.items():
    run = make()
    seconds = []
    for _ in range(_RUNS.value):
      begin = time.process_time()
      times = run()
      seconds.append(time.process_time() - begin)
    tasks = len(times.start)
    rate = tasks / statistics.median(seconds) / 1e6
    rows.append([name, f'{tasks:,}', f'{rate:.2f}'])
    print(*rows[-1], repr(times.total), flush=True)
  if figures.KEEP.value:
    command = f'python -m benchmarks.rates --runs={_RUNS.value}'
    columns = ['simulated', 'tasks', 'million/s']
    figures.write('rates', columns, rows, [figures.run(command)])


if __name__ == '__main__':
  app.run(main)
