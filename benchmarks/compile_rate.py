r"""Tasks compiled, proved and serialised per second, on the EP16 shape.

The shape is the largest of HyperParallel-MoE's table (arXiv 2605.23764): R=16,
E=128, T=4096, K=8, D=7168, F=2048, 24 AIC + 48 AIV per rank.

Target: at least 100,000 tasks per second on one core, and a cost linear in
the number of tasks (the rate at twice the tasks stays the same).
Predicted before the first run: lowering 2 us/task in numpy, proofs 2 us/task
in C++, checksum and copy 0.5 us/task: about 220,000 tasks/s.

Example:
  python -m benchmarks.compile_rate --repeats=5 --json=/tmp/compile.json
"""

import json
import os
import statistics
import time

from absl import app
from absl import flags

from hpmoe.backend_ascend.schedule import orders
from hpmoe.backend_ascend.schedule import placement
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import lower_forward
from hpmoe.backend_ascend.taskflow.proofs import proofs
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_REPEATS = flags.DEFINE_integer('repeats', 5, 'Interleaved repetitions.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

EP16 = dict(
  num_ranks=16,
  num_tokens=4096,
  num_experts=128,
  top_k=8,
  d_model=7168,
  d_ff=2048,
  capacity=2 * 4096 * 8,
)
MEAN_ROWS_PER_EXPERT = 16 * 4096 * 8 // 128


def stages(grain: str, capacity_factor: int) -> dict[str, float]:
  """Compiles once; returns seconds per stage and the number of tasks."""
  options = flow_lib.Options(
    grain,
    row_block=128,
    col_block=256,
    expert_capacity=capacity_factor * MEAN_ROWS_PER_EXPERT,
  )
  policy = precision.PrecisionPolicy('bfloat16')
  times = [time.perf_counter()]
  flow = lower_forward.lower_forward(
    config_lib.MoEConfig(**EP16), policy, options
  )
  times.append(time.perf_counter())
  flow = placement.place(flow, orders.in_order(flow))
  times.append(time.perf_counter())
  image = image_lib.serialize(flow)
  times.append(time.perf_counter())
  proofs.require(image)
  times.append(time.perf_counter())
  seconds = [b - a for a, b in zip(times, times[1:])]
  return dict(
    zip(('lower', 'place', 'serialise', 'prove'), seconds),
    total=sum(seconds),
    tasks=len(flow.tasks),
    image_bytes=len(image),
  )


def main(argv):
  del argv
  if hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core
  cases = [(g, f) for g in flow_lib.EVENT_GRAINS for f in (1, 2, 4)]
  runs = {case: [] for case in cases}
  for _ in range(_REPEATS.value):
    for case in cases:
      runs[case].append(stages(*case))
  rows = []
  print(
    f'{"grain":10} {"cap":>3} {"tasks":>9} {"lower":>7} {"place":>7} '
    f'{"serial":>7} {"prove":>7} {"total s":>8} {"tasks/s":>9}'
  )
  for (grain, factor), results in runs.items():
    median = {k: statistics.median(r[k] for r in results) for k in results[0]}
    rate = median['tasks'] / median['total']
    rows.append(dict(median, grain=grain, capacity_factor=factor, rate=rate))
    print(
      f'{grain:10} {factor:3d} {median["tasks"]:9.0f} '
      f'{median["lower"]:7.3f} {median["place"]:7.3f} '
      f'{median["serialise"]:7.3f} {median["prove"]:7.3f} '
      f'{median["total"]:8.3f} {rate:9.0f}'
    )
  if _JSON.value:
    with open(_JSON.value, 'w') as f:
      json.dump(rows, f, indent=2)


if __name__ == '__main__':
  app.run(main)
