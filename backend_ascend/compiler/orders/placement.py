"""Placement: which core runs a task, and in which order.

A scheduler is a function from an unplaced flow to a `Placement`.  Everything
after it (queues, image, proofs) is the same for all schedulers.
"""

import collections.abc
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout


@dataclasses.dataclass(frozen=True)
class Placement:
  """Where and when every task runs.

  Attributes:
    core: `[tasks]` integer, core of the task's unit on the task's rank.
    order: `[tasks]` integer, a permutation of the tasks; a core runs its own
      tasks in the order in which they stand here.
  """

  core: np.ndarray
  order: np.ndarray


Scheduler = collections.abc.Callable[[flow_lib.Flow], Placement]


def place(flow: flow_lib.Flow, placement: Placement) -> flow_lib.Flow:
  """Returns the flow with `core` set and its queues filled.

  Raises:
    ValueError: a core is out of range or `order` is not a permutation.
  """
  tasks = flow.tasks.copy()
  num_cores = np.array([flow.options.num_aic, flow.options.num_aiv])
  _check(placement, tasks, num_cores)
  tasks['core'] = placement.core
  per_rank = int(num_cores.sum())
  queue = (
    tasks['rank'].astype(np.int64) * per_rank
    + np.where(tasks['unit'] == layout.Unit.AIV, num_cores[0], 0)
    + placement.core
  )
  order = placement.order[np.argsort(queue[placement.order], kind='stable')]
  counts = np.bincount(queue, minlength=flow.config.num_ranks * per_rank)
  return dataclasses.replace(
    flow,
    tasks=tasks,
    queues=_queues(counts, flow.config.num_ranks, num_cores),
    queue_tasks=order.astype(layout.QUEUE_TASK),
  )


def _queues(counts, num_ranks: int, num_cores) -> np.ndarray:
  queues = np.zeros(len(counts), layout.QUEUE)
  unit = np.repeat([layout.Unit.AIC, layout.Unit.AIV], num_cores)
  core = np.concatenate([np.arange(n) for n in num_cores])
  queues['rank'] = np.repeat(np.arange(num_ranks), len(unit))
  queues['unit'] = np.tile(unit, num_ranks)
  queues['core'] = np.tile(core, num_ranks)
  queues['begin'] = np.cumsum(counts) - counts
  queues['count'] = counts
  return queues


def _check(placement: Placement, tasks, num_cores) -> None:
  for name in ('core', 'order'):
    shape = getattr(placement, name).shape
    if shape != (len(tasks),):
      raise ValueError(f'{name}: expected shape {(len(tasks),)}, got {shape}')
  limit = num_cores[tasks['unit']]
  bad = np.flatnonzero((placement.core < 0) | (placement.core >= limit))
  if bad.size:
    task = bad[0]
    raise ValueError(
      f'core: expected [0, {limit[task]}) for task {task}, '
      f'got {placement.core[task]}'
    )
  occurrences = np.bincount(placement.order, minlength=len(tasks))
  if len(occurrences) != len(tasks) or (occurrences != 1).any():
    raise ValueError('order: expected a permutation of the tasks')
