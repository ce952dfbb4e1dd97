r"""Tasks per second of the simulator's engine on one core, to ten million.

The layer is the largest of HyperParallel-MoE's table (arXiv 2605.23764), EP16
forward on A3 dies: R=16, E=128, K=8, D=7168, F=2048, 24 AIC + 48 AIV per rank,
tiles of 128 x 256, events of row blocks.  More tokens give more tasks.  Routing
is random, every token another.  Ten million take 8 GB, mostly to lower them.

Target: at least 1,000,000 tasks per second of processor time, and a cost linear
in the number of tasks.  Predicted before the first run: two shared resources a
task, each entered and left at 50 ns, a timer and a signal, 0.4 us with the cost
of the task: 2,500,000 tasks/s; 10 to 20 % less at ten million, where tasks and
events no longer fit in the processor's caches.

Example:
  python -m benchmarks.simulator_rate --json=/tmp/rate.json --png=/tmp/rate.png
"""

import json
import pathlib
import statistics
import time

from absl import app
from absl import flags
import numpy as np

from benchmarks import peak_memory
from hpmoe.backend_ascend.schedule import orders
from hpmoe.backend_ascend.schedule import placement
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import lower_forward
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_TASKS = flags.DEFINE_list(
  'tasks', ['10000', '100000', '1000000', '10000000'], 'About how many tasks.'
)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Simulations of each.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')
_PNG = flags.DEFINE_string('png', None, 'Write a plot to this file.')

RANKS, EXPERTS, TOP_K = 16, 128, 8


def make_image(tasks: int) -> image_lib.Image:
  """Returns an image of about so many tasks; nothing is proved."""
  # A block of 128 tokens of a rank makes 8 row blocks of some 50 tasks.
  blocks = max(1, round(tasks / (RANKS * TOP_K * 50)))
  tokens = 128 * blocks
  rows = -(-tokens * TOP_K * 9 // 8 // 128) * 128
  config = config_lib.MoEConfig(
    num_ranks=RANKS,
    num_tokens=tokens,
    num_experts=EXPERTS,
    top_k=TOP_K,
    d_model=7168,
    d_ff=2048,
    capacity=rows,
  )
  options = flow_lib.Options(
    row_block=128,
    col_block=256,
    put_rows=128,
    expert_capacity=-(-rows // (EXPERTS // RANKS) // 128) * 128,
  )
  flow = lower_forward.lower_forward(
    config, precision.PrecisionPolicy('bfloat16'), options
  )
  flow = placement.place(flow, orders.in_order(flow))
  return image_lib.load(image_lib.serialize(flow))


def make_routing(config: config_lib.MoEConfig) -> np.ndarray:
  """Returns `[R, T, K]`: K experts in a row of a shuffled circle, T of them."""
  rng = np.random.default_rng(0)
  circle = rng.permutation(EXPERTS)
  first = np.stack([rng.permutation(config.num_tokens) for _ in range(RANKS)])
  return circle[(first[..., None] * TOP_K + np.arange(TOP_K)) % EXPERTS].astype(
    np.int32
  )


def measure(tasks: int) -> dict[str, float]:
  """Simulates an image of about so many tasks, a few times."""
  image = make_image(tasks)
  machine = machine_lib.load('ascend_a3')
  ids = make_routing(image.config)
  seconds = []
  with peak_memory.Peak() as peak:
    for _ in range(_REPEATS.value):
      begin = time.process_time()
      result = simulate.simulate(image, machine, ids)
      seconds.append(time.process_time() - begin)
  count = len(result.start)
  return dict(
    tasks=count,
    tokens=image.config.num_tokens,
    modelled_ms=1e3 * result.total,
    seconds=statistics.median(seconds),
    tasks_per_second=count / statistics.median(seconds),
    image_bytes_per_task=len(image) / count,
    bytes_per_task=peak.bytes / count,
  )


def plot(rows, path: str) -> None:
  """Draws rate and memory over the number of tasks."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  tasks = [row['tasks'] for row in rows]
  figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
  left.loglog(tasks, [row['seconds'] for row in rows], 'o-', label='measured')
  left.loglog(tasks, [t / 1e6 for t in tasks], '--', label='1M tasks/s')
  left.set(xlabel='tasks', ylabel='processor seconds')
  left.legend()
  right.semilogx(tasks, [row['tasks_per_second'] / 1e6 for row in rows], 'o-')
  right.set(xlabel='tasks', ylabel='M tasks/s, one core', ylim=(0, None))
  figure.suptitle('Simulator: EP16 forward on A3 dies')
  figure.tight_layout()
  figure.savefig(path, dpi=120)


def main(argv):
  del argv
  rows = []
  for tasks in map(int, _TASKS.value):
    rows.append(measure(tasks))
    print(
      '{tasks:>9} tasks {seconds:8.3f} s {tasks_per_second:10.0f} tasks/s '
      '{bytes_per_task:5.0f} B/task beside {image_bytes_per_task:.0f} of the '
      'image; modelled {modelled_ms:.1f} ms'.format(**rows[-1]),
      flush=True,
    )
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(rows, indent=2))
  if _PNG.value:
    plot(rows, _PNG.value)


if __name__ == '__main__':
  app.run(main)
