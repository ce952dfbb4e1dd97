r"""How fast schedules are timed: by the analytical model, and by the simulator.

The shape is the EP8 row of HyperParallel-MoE (arXiv 2605.23764): R=8, E=64,
T=4096, K=8, D=7168, F=2048, bfloat16, balanced routing, on an Ascend A3.

Target: the model prunes at least 200,000 points, both passes of each, in under
a second; the table of the grid is made in less time than that.

Example:
  python -m benchmarks.tuner_rate --repeats=5 --json=/tmp/tuner.json
"""

import dataclasses
import json
import statistics
import time

from absl import app
from absl import flags
import numpy as np

from hpmoe.backend_ascend.schedule import list_order
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.tune import space
from hpmoe.backend_ascend.tune import tuner
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_REPEATS = flags.DEFINE_integer('repeats', 5, 'Repetitions.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

EP8 = config_lib.MoEConfig(
  num_ranks=8,
  num_tokens=4096,
  num_experts=64,
  top_k=8,
  d_model=7168,
  d_ff=2048,
  capacity=32768,
)


def _seconds(run) -> tuple[float, object]:
  start = time.perf_counter()
  made = run()
  return time.perf_counter() - start, made


def measure() -> dict[str, float]:
  """Returns the figures of one repetition, by name."""
  ids = list_order.balanced(EP8)
  search = tuner.Tuner(
    tuner.Layer(
      EP8,
      precision.PrecisionPolicy(storage='bfloat16'),
      machine_lib.load('ascend_a3'),
      dict(balanced=ids),
      'ascend',
    )
  )
  tiles = [
    (fields['row_block'], fields['col_block'])
    for fields in space.GRID['tile'].values()
  ]
  tiles_s, _ = _seconds(lambda: [search.runs(*tile) for tile in tiles])
  grid_s, grid = _seconds(
    lambda: space.grid(EP8, search.base, space.GRID, search.runs)
  )
  model_s, _ = _seconds(lambda: search.predict(grid.table))
  part_s, _ = _seconds(lambda: search.predict(grid.table[:200_000]))
  options = dataclasses.replace(
    search.base, row_block=256, col_block=128, put_rows=32
  )
  confirm_s, _ = _seconds(lambda: search.time(options))
  listed = dataclasses.replace(options, order=flow_lib.Order(policy='list'))
  list_s, _ = _seconds(lambda: search.time(listed))
  return dict(
    tiles_s=tiles_s,
    grid_s=grid_s,
    model_s=model_s,
    seconds_of_200000=part_s,
    points=len(grid.table),
    points_per_s=len(grid.table) / model_s,
    confirm_s=confirm_s,
    confirm_list_s=list_s,
  )


def main(argv):
  del argv
  runs = [measure() for _ in range(_REPEATS.value)]
  figures = {name: [run[name] for run in runs] for name in runs[0]}
  for name, values in figures.items():
    print(
      f'{name:18} median {statistics.median(values):.4g}, from '
      f'{np.min(values):.4g} to {np.max(values):.4g}'
    )
  if _JSON.value is not None:
    with open(_JSON.value, 'w', encoding='utf-8') as file:
      json.dump(figures, file, indent=2)


if __name__ == '__main__':
  app.run(main)
