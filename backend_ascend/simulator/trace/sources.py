"""Where timelines come from: launches here, or on a described machine."""

import collections.abc

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.trace import timeline


def signals(image: image_lib.Image, plan: _native.Routing) -> np.ndarray:
  """Returns `[s, 2]` i32, the (task, event) of every signal of a launch."""
  _, signalled = runtime.inspect(image, plan)
  return signalled


def of_simulation(
  simulation: simulate.Simulation, topk_ids: np.ndarray
) -> timeline.Timeline:
  """Returns the times of an image in modelled time, on its routing."""
  image, machine = simulation.image, simulation.machine
  changes = ', '.join(f'{n}={machine[n]:g}' for n in machine.changed_figures)
  return timeline.Timeline(
    image=image,
    signals=signals(image, runtime.route(image, topk_ids)),
    start=simulation.start,
    end=simulation.end,
    wait_times=simulation.wait_times,
    thread=simulation.thread,
    origin=f'modelled, {machine.name}' + (f' with {changes}' * bool(changes)),
  )


def measure(
  image: image_lib.Image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  plan: _native.Routing,
  threads: int | None = None,
  launches: int = 1,
  progress: collections.abc.Callable[[str], None] = lambda step: None,
) -> timeline.Timeline:
  """Launches the image here and returns the launch of median total.

  Args:
    image: of either direction.
    inputs: as of `runtime.launch`.
    plan: of the inputs' routing.
    threads: as of `runtime.launch`.
    launches: how many; one more comes first and is not counted.
    progress: called with the name of each launch as it begins.
  """
  times_of_launches = []
  for number in range(launches + 1):
    progress(f'launch {number} of {launches}')
    result = runtime.run(
      image,
      inputs,
      threads=threads,
      plan=plan,
      modes=modes_lib.Modes(times=True),
    )
    assert result.times is not None
    times_of_launches.append(result.times)
  ordered = sorted(times_of_launches[1:], key=lambda times: times.total)
  median = ordered[(len(ordered) - 1) // 2]
  ran = int(median.thread.max()) + 1
  return timeline.Timeline(
    image=image,
    signals=signals(image, plan),
    start=median.start,
    end=median.end,
    wait_times=median.wait_times,
    thread=median.thread,
    origin=f'measured here, threads: {ran}, median of {launches} launches',
  )
