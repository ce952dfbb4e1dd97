"""A plan as a picture: its pipeline, its memory, its operators."""

import os

import numpy as np

from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.backend_ascend.simulator.plan import device_memory as memory_lib
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import pipeline
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import step as step_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs
from hpmoe.reference.contract import plot_style

_GB = 1e9
# Turns of micro-batches that are drawn: the steady state repeats.
_TURNS = 3


def write(
  path: str | os.PathLike,
  setting: plan_lib.Setting,
  layers: moe_layer.Timer,
  cost: step_lib.Cost,
) -> None:
  """Writes a PNG.

  Args:
    path: of the file.
    setting: model, machine and devices.
    layers: the engine's times.
    cost: of the plan.

  Raises:
    OSError: the file cannot be written.
  """
  costs = unit_costs.Costs(setting, layers)
  figure = plot_style.figure(12)
  top, middle, bottom = figure.subplots(3, height_ratios=[4, 3, 4])
  _pipeline(top, setting, costs, cost)
  _memory(middle, setting, costs, cost)
  _operators(bottom, setting, layers, cost)
  plot_style.save(figure, path)


def _pipeline(axes, setting, costs, cost) -> None:
  plan = cost.plan
  forward, backward = step_lib.passes(setting, plan, costs.times(plan))
  micros = setting.micros(plan)
  num_shown = min(micros, _TURNS * plan.pp)
  schedule = pipeline.simulate(
    forward.tolist(),
    backward.tolist(),
    plan.pp,
    num_shown,
    step_lib.hop(setting, plan),
  )
  for stage, steps in enumerate(schedule.steps):
    for back in (False, True):
      bars = [
        (s, end - s, step) for step, s, end in steps if step.backward == back
      ]
      axes.broken_barh(
        [(start, took) for start, took, _ in bars],
        (stage - 0.4, 0.8),
        facecolors=[
          (
            plot_style.COLOURS[int(back)],
            0.45 + 0.55 * (step.chunk // plan.pp + 1) / plan.vpp,
          )
          for _, _, step in bars
        ],
        edgecolor='white',
        linewidth=0.4,
        label=('forward', 'backward')[back] if stage == 0 else None,
      )
  axes.set_ylim(plan.pp - 0.5, -0.5)
  axes.set_yticks(range(0, plan.pp, max(1, plan.pp // 8)))
  axes.set_ylabel('stage')
  axes.set_xlabel('s')
  axes.legend(
    loc='upper right', ncols=2, bbox_to_anchor=(1, -0.1), frameon=False
  )
  axes.set_title(
    f'{setting.model.name}: TP{plan.tp} PP{plan.pp} VPP{plan.vpp} EP{plan.ep} '
    f'DP{plan.dp}, {num_shown} of {micros} micro-batches; darker: later chunks'
  )


def _memory(axes, setting, costs, cost) -> None:
  stage_memory = memory_lib.memories(
    setting, cost.plan, costs.memory(cost.plan)
  )
  stages = np.arange(len(stage_memory))
  below = np.zeros(len(stage_memory))
  names = ('weights', 'gradients', 'optimizer', 'activations')
  for name, colour in zip(names, plot_style.COLOURS):
    gigabytes = np.array([getattr(m, name) for m in stage_memory]) / _GB
    axes.bar(stages, gigabytes, bottom=below, color=colour, label=name)
    below += gigabytes
  room = setting.memory_share * setting.machine['memory'] / _GB
  axes.axhline(room, color='0.3', lw=0.8, ls='--', label='may be filled')
  axes.set_xlabel('stage')
  axes.set_xticks(stages[:: max(1, len(stages) // 16)])
  axes.set_ylabel('GB of a device')
  axes.legend(
    ncols=5, loc='lower center', bbox_to_anchor=(0.5, 1), frameon=False
  )


def _operators(axes, setting, layers, cost) -> None:
  """Draws products of a layer with experts, forward, under the roofline."""
  machine, share = setting.machine, setting.share(cost.plan)
  unit = share.unit(decoder_sizes.MOE)
  points = [
    (o.name, o.flops, o.bytes_moved, o.seconds(machine, setting.element))
    for o in unit.operators
    if o.flops
  ]
  layer = unit.routed
  forward, _ = layers(layer)
  weights = 3 * layer.hidden * layer.width * layer.experts / layer.ranks
  points.append(
    (
      'experts with their exchange',
      6.0 * layer.rows * layer.hidden * layer.width,
      2.0 * (weights + 2 * layer.rows * layer.hidden),
      forward.compute + forward.exchange,
    )
  )
  cube = simulate.ELEMENTS[setting.element][1]
  peak = machine['aic'] * machine[cube]
  x = np.geomspace(10, 1e4, 100)
  axes.loglog(x, np.minimum(peak, x * machine['hbm']) / 1e12, color='0.3')
  for i, (name, flops, bytes_moved, seconds) in enumerate(points):
    axes.scatter(
      [flops / bytes_moved],
      [flops / seconds / 1e12],
      color=plot_style.COLOURS[i % len(plot_style.COLOURS)],
      marker='os^D'[i // len(plot_style.COLOURS)],
      label=f'{name}: {1e3 * seconds:.2f} ms',
      zorder=3,
    )
  axes.set_xlabel('operations for a byte of HBM')
  axes.set_ylabel('TFLOPS')
  axes.set_title(
    f'products of a layer, forward, {share.own} tokens a rank',
    fontsize='medium',
  )
  axes.legend(loc='lower right', fontsize='small', ncols=2)
