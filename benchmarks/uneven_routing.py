r"""Times the paper's EP8 layer under uneven routing, experts placed or not.

In modelled time, forward and backward.  Experts are placed by the loads of two
batches that are not timed.  The published schedule, and the tuned one beside
it, leave experts where their numbers say.  Copies of experts are of the forward
pass alone, whose share over that of the published schedule is shown.

Example:
  python -m benchmarks.uneven_routing --keep
"""

from collections.abc import Sequence
import dataclasses

from absl import app
import numpy as np

from hpmoe.backend_ascend.host.load import expert_placement
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.tune import levers
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.backend_ascend.simulator.tune import tuner
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import text_router
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.tools.docs import figures

_PRESET, _RANKS = 'ep16:experts=64', 8
# Routings and seeds whose hottest rank has 1.18, 1.71 and 2.04 of the mean.
DISTRIBUTIONS = (('skewed', 28), ('zipf', 0), ('zipf', 171))
# What `hpmoe tune` finds of a layer with these ranks; the order of weight
# gradients, too, is tried.
SCHEDULE = dict(
  event_grain='row_block',
  tile='128x256',
  put_rows='8',
  vector_rows='32',
  token_block='32',
)
WEIGHT_GRADS = ('beside', 'gate_last')
COLUMNS = (
  *('routing', 'hottest rank of mean', 'placed', 'published, ms', 'tuned'),
  *('tuned, placed', 'over published', 'with copies', 'forward'),
)


def make_layer(
  name: str,
  seed: int,
  preset: presets.Preset,
  config: config_lib.MoEConfig,
) -> tuner.Layer:
  """Returns a layer under a routing, and the loads of two other batches."""
  ids = text_router.topk_ids(name, preset, config, seed)
  batches = text_router.count_other_batches(name, preset, config, seed)
  rows = int(np.bincount(ids.ravel() // config.experts_per_rank).max())
  return tuner.Layer(
    dataclasses.replace(config, capacity=rows),
    precision.PrecisionPolicy(storage='bfloat16'),
    machine_lib.load('ascend_a3'),
    {name: ids},
    'ascend',
    loads={name: batches.sum(axis=0)},
  )


def find_best(layer: tuner.Layer) -> tuner.TimedSchedule:
  """Returns the faster of the tuned schedules."""
  search = tuner.Tuner(layer)
  options, choices = search.base, {**space.GRID, **space.BESIDE}
  for name, option in SCHEDULE.items():
    options = space.replace_fields(options, choices[name][option])
  (case,) = layer.cases
  schedules = [
    search.time(space.replace_fields(options, choices['weight_grads'][option]))
    for option in WEIGHT_GRADS
  ]
  return min(schedules, key=lambda schedule: schedule.total(case))


def copy_experts(layer: tuner.Layer) -> tuner.Layer:
  """Returns the layer with copies of the hottest experts."""
  ((name, ids),) = layer.cases.items()
  placement = expert_placement.place_by_loads(
    layer.loads[name], layer.config.num_ranks, copies=True
  )
  view = expert_placement.PlacedLayer(placement, layer.config, ids)
  ids = placement.map_ids(ids)
  rows = int(np.bincount(ids.ravel() // view.config.experts_per_rank).max())
  return dataclasses.replace(
    layer,
    config=dataclasses.replace(view.config, capacity=rows),
    cases={name: ids},
  )


def time_distribution(
  name: str,
  seed: int,
  preset: presets.Preset,
  config: config_lib.MoEConfig,
) -> list[str]:
  """Returns the row of one routing."""
  layer = make_layer(name, seed, preset, config)
  placed_layer = levers.apply_levers(layer, ['placement'])
  copies_layer = copy_experts(layer)
  skews = [
    routings.measure_skew(view.config, view.cases[name])['max_over_mean_rank']
    for view in (layer, placed_layer, copies_layer)
  ]
  search = tuner.Tuner(layer)
  published = search.time(search.published)
  best, best_placed = find_best(layer), find_best(placed_layer)
  copies = find_best(copies_layer).simulated_seconds[name]['forward']
  forward = published.simulated_seconds[name]['forward']
  totals = [schedule.total(name) for schedule in (published, best, best_placed)]
  return [
    f'{name}, seed {seed}',
    *(f'{skew:.2f}' for skew in skews[:2]),
    *(f'{1e3 * seconds:.2f}' for seconds in totals),
    f'{totals[0] / totals[2]:.3f}x',
    f'{skews[2]:.2f}',
    f'{forward / copies:.3f}x',
  ]


def main(argv: Sequence[str]) -> None:
  del argv
  preset = presets.get(_PRESET)
  config = presets.config(preset, _RANKS)
  rows = []
  print(*(cell.ljust(20) for cell in COLUMNS), flush=True)
  for name, seed in DISTRIBUTIONS:
    rows.append(time_distribution(name, seed, preset, config))
    print(*(cell.ljust(20) for cell in rows[-1]), flush=True)
  if figures.KEEP.value:
    run = figures.run('python -m benchmarks.uneven_routing')
    run |= dict(processor=figures.ANY, load=figures.ANY)
    figures.write('uneven_routing', COLUMNS, rows, [run])


if __name__ == '__main__':
  app.run(main)
