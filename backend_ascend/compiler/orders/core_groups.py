"""Schedules by core groups: which cores run a stage, and in which order.

A stage is all tasks of one kind.  It walks through steps: the local experts of
a rank or, where its tasks are tokens, as many equal parts of the tokens.  From
a given step on it may have other cores, so a group grows and shrinks at the
border of an expert.
"""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout

# Columns of GEMM tiles that are walked together: their weights are read once
# for all row blocks while both lie near.
_SWIZZLE = 9


@dataclasses.dataclass(frozen=True)
class Stage:
  """Where and in which order the tasks of one kind run.

  Attributes:
    kind: layout.Kind.
    groups: (first step, cores) ascending; the first one from step 0.
    steps: the order of the steps; None means ascending.
    after: a step of which one task stands first on each core, so that nothing
      of the stage runs before that step is ready; None means none.
  """

  kind: int
  groups: tuple[tuple[int, tuple[int, ...]], ...]
  steps: tuple[int, ...] | None = None
  after: int | None = None


def scheduler(stages: tuple[Stage, ...]) -> placement.Scheduler:
  """Returns the scheduler of these stages.

  A core runs its tasks stage by stage, in the order of `stages`, and in a stage
  step by step.  Inside a step tasks are dealt to the group in turn, beginning
  with the core behind the last one of the step before.

  Raises (when it is called):
    ValueError: a kind of the flow that no stage names, or steps that are not a
      permutation of the experts of a rank.
  """

  def schedule(flow: flow_lib.Flow) -> placement.Placement:
    missing = set(np.unique(flow.tasks['kind'])) - {s.kind for s in stages}
    if missing:
      names = sorted(layout.Kind(k).name.lower() for k in missing)
      raise ValueError(
        f'stages: expected one for each kind, got none of {names}'
      )
    core = np.zeros(len(flow.tasks), np.int64)
    order = []
    for stage in stages:
      tasks, cores = _stage(flow, stage)
      core[tasks] = cores
      order.append(tasks)
    return placement.Placement(core=core, order=np.concatenate(order))

  return schedule


def _stage(flow: flow_lib.Flow, stage: Stage):
  """Returns (tasks in order, their cores)."""
  num_steps = flow.config.num_experts // flow.config.num_ranks
  steps = np.asarray(stage.steps or range(num_steps))
  if sorted(steps) != list(range(num_steps)):
    raise ValueError(
      f'steps: expected a permutation of {num_steps} experts, got {steps}'
    )
  tasks = np.flatnonzero(flow.tasks['kind'] == stage.kind)
  table = flow.tasks[tasks]
  step = _step(table, flow, num_steps)
  place = np.argsort(steps)[step]
  order = np.lexsort((_inside(table), place, table['rank']))
  tasks, step = tasks[order], step[order]
  # Every rank has the same tasks.
  step = step[: len(tasks) // flow.config.num_ranks]
  cores = np.tile(_deal_cores(step, stage), flow.config.num_ranks)
  if stage.after is None:
    return tasks, cores
  last = _leads(cores, np.tile(step, flow.config.num_ranks), stage.after, flow)
  return tasks[last], cores[last]


def _step(table, flow: flow_lib.Flow, num_steps: int) -> np.ndarray:
  """Returns `[tasks]` local expert, or part of the tokens."""
  by_token = table['row_begin'] * num_steps // flow.config.num_tokens
  by_expert = table['expert'] % num_steps
  return np.where(table['expert'] == layout.NO_EXPERT, by_token, by_expert)


def _inside(table) -> np.ndarray:
  """Returns `[tasks]` place inside a step: GEMM tiles walk in a snake."""
  if not len(table) or table['unit'][0] == layout.Unit.AIV:
    return np.arange(len(table))
  row, col = table['row_block'].astype(np.int64), table['col_block']
  rows, cols = int(row.max()) + 1, int(col.max()) + 1
  panel = col // _SWIZZLE
  width = np.minimum(_SWIZZLE, cols - panel * _SWIZZLE)
  row = np.where(panel % 2, rows - 1 - row, row)
  return panel * _SWIZZLE * rows + row * width + col % _SWIZZLE


def _deal_cores(step: np.ndarray, stage: Stage) -> np.ndarray:
  """Returns the core of each task of a rank, which stand in order."""
  core = np.empty(len(step), np.int64)
  starts = np.r_[0, np.flatnonzero(np.diff(step)) + 1, len(step)]
  turn = 0
  for begin, end in zip(starts, starts[1:]):
    if begin == end:
      continue
    group = [cores for first, cores in stage.groups if first <= step[begin]][-1]
    index = (turn + np.arange(end - begin)) % len(group)
    core[begin:end] = np.asarray(group)[index]
    turn = (turn + end - begin) % len(group)
  return core


def _leads(cores, step, after: int, flow: flow_lib.Flow) -> np.ndarray:
  """Returns an order in which one task of `after` is each core's first."""
  rank = np.repeat(
    np.arange(flow.config.num_ranks), len(cores) // flow.config.num_ranks
  )
  late = np.flatnonzero(step == after)
  queue = rank * (int(cores.max()) + 1) + cores
  _, first = np.unique(queue[late], return_index=True)
  lead = np.zeros(len(cores), bool)
  lead[late[first]] = True
  return np.argsort(~lead, kind='stable')
