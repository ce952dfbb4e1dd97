"""Levers: changes that make a layer faster and are not part of a schedule.

The search finds a schedule first.  Levers are applied to the best one, and each
is kept only if it helps.  No lever changes a rate of the machine: every rate
that it uses was published or measured.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.load import expert_placement
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.tune import int8
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.backend_ascend.simulator.tune import tuner

# Whose figures say how our device source uses a die.
_STRIPS = 'ascend_a3_strips'
_BFLOAT16_BYTES = 2


def _beside(layer: tuner.Layer) -> tuner.Layer:
  """Returns the layer with accumulators written out as they are done.

  A strip of a tile's columns moves out beside products of the next strip, of
  as many terms as a stage of L1 holds.
  """
  width, _, _ = simulate.ELEMENTS[layer.policy.storage]
  terms = machine_lib.load(_STRIPS)['write_beside'] * _BFLOAT16_BYTES / width
  return dataclasses.replace(
    layer, machine=layer.machine.with_figures(write_beside=terms)
  )


def place_experts(
  layer: tuner.Layer,
) -> expert_placement.ExpertPlacement | None:
  """Returns where experts go, once for all routings of a layer.

  The loads are of batches that are not timed; None: none are known.
  """
  if not layer.loads:
    return None
  shares = [loads / loads.sum() for loads in layer.loads.values()]
  total = np.sum(shares, axis=0)
  return expert_placement.place_by_loads(total, layer.config.num_ranks)


def _place(layer: tuner.Layer) -> tuner.Layer:
  """Returns the layer with its experts placed."""
  placement = place_experts(layer)
  if placement is None:
    return layer
  cases = {name: placement.map_ids(ids) for name, ids in layer.cases.items()}
  local = layer.config.experts_per_rank
  capacity = max(
    int(np.bincount(ids.ravel() // local).max()) for ids in cases.values()
  )
  config = dataclasses.replace(layer.config, capacity=capacity)
  return dataclasses.replace(layer, cases=cases, config=config)


def _quantised(layer: tuner.Layer) -> tuner.Layer:
  """Returns the layer with products of int8, if their rate is known."""
  if layer.machine.figures['cube_int8'].tag == 'assumed':
    return layer
  weights, rows = layout.QUANTISED[1]
  forward = dataclasses.replace(layer.policy, quantised=weights, rows=rows)
  return dataclasses.replace(layer, seconds=int8.seconds, forward=forward)


@dataclasses.dataclass(frozen=True)
class Lever:
  """One lever.

  Attributes:
    option: the choice that it makes, in a word.
    published_option: the choice of the published system.
    pull: the layer with it.
    hint: what its share is worth.
  """

  option: str
  published_option: str
  pull: Callable[[tuner.Layer], tuner.Layer]
  hint: str


LEVERS: Mapping[str, Lever] = {
  'placement': Lever(
    'by loads',
    'by number',
    _place,
    'by loads of other batches; runs, see --out_placement',
  ),
  'write_out': Lever(
    'beside',
    'behind',
    _beside,
    'modelled only: that it overlaps is assumed of our device source',
  ),
  'forward': Lever(
    'int8',
    'storage',
    _quantised,
    'other numbers; weights are quantised in each pass',
  ),
}


def apply_levers(layer: tuner.Layer, names: Sequence[str]) -> tuner.Layer:
  """Returns the layer with the named levers."""
  for name in names:
    layer = LEVERS[name].pull(layer)
  return layer


def find_tiles(layer: tuner.Layer, best: tuner.TimedSchedule, tiles, progress):
  """Returns the best schedule, with the best tiles for a layer with levers."""
  pareto = tuner.Pareto(tuner.Tuner(layer))
  pareto.add(best.options)
  tuner.refine(pareto, ({'tile': tiles},), 1, progress)
  return pareto.best()


def pull(
  layer: tuner.Layer,
  best: tuner.TimedSchedule,
  tiles: Mapping[str, space.Fields],
  progress: tuner.Progress = lambda step: None,
) -> tuple[tuner.TimedSchedule, list[tuner.Ablation]]:
  """Returns the best schedule with the levers that help, and their shares.

  Args:
    layer: without levers.
    best: its schedule.
    tiles: that the target runs, as options of the choice 'tile'.
    progress: is told each step.
  """
  names: list[str] = []
  best = find_tiles(layer, best, tiles, progress)
  for name in LEVERS:
    progress(f'lever {name}')
    trial = find_tiles(
      apply_levers(layer, [*names, name]), best, tiles, progress
    )
    if best.slower(trial) > 0:
      names, best = [*names, name], trial
  shares = []
  for name in names:
    other_names = [other for other in names if other != name]
    schedule = find_tiles(
      apply_levers(layer, other_names), best, tiles, progress
    )
    seconds = {
      case: schedule.total(case) for case in schedule.simulated_seconds
    }
    lever = LEVERS[name]
    shares.append(
      tuner.Ablation(
        name,
        lever.option,
        lever.published_option,
        seconds,
        schedule.slower(best),
      )
    )
  return best, shares
