"""Builds flows on equal ranks from pools, waits and tasks without work."""

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib


class Builder:
  """A flow on a machine, to which phases are added."""

  def __init__(self, ranks: int, machine: machine_lib.Machine):
    self.machine = machine
    self.flow = flow_lib.Flow(ranks)

  def pools(self, servers: int, start=0.0) -> np.ndarray:
    """Returns one pool per rank."""
    return self.flow.add_pools(np.full(self.flow.ranks, servers), start)

  def idle(self, pool, event=None, holds: bool = False) -> np.ndarray:
    """Adds a task without work to each of `pool`, which may wait for events."""
    tasks = self.flow.add_tasks(pool, np.zeros(len(pool)), holds)
    if event is not None:
      self.flow.add_waits(tasks, event)
    return tasks

  def after(self, event, seconds) -> np.ndarray:
    """Returns one event per rank, `seconds` after `event`."""
    tasks = self.flow.add_tasks(self.pools(1), seconds)
    self.flow.add_waits(tasks, event)
    elapsed = self.flow.add_events(np.ones(self.flow.ranks))
    self.flow.add_signals(tasks, elapsed)
    return elapsed

  def launch_after(self, event) -> np.ndarray:
    """Returns one event per rank, one kernel launch after `event`."""
    return self.after(event, self.machine['launch'])

  def run(self) -> flow_lib.Timing:
    return flow_lib.simulate(self.flow, self.machine)
