"""Clocks say what a search through the flow's edges says."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as testing

Kind = layout.Kind
PUTS = {Kind.DISPATCH, Kind.RETURN, Kind.DISPATCH_GRAD, Kind.RETURN_GRAD}


def parsed(**kwargs) -> image_lib.Image:
  return image_lib.load(image_lib.serialize(testing.lower(**kwargs)))


def ancestors(image: image_lib.Image) -> list[set[int]]:
  """Returns what must be done before each task, edge by edge.

  A put is done only for those that wait for what it signals, and after them.
  """
  tables = image.tables
  edges = [set() for _ in tables['tasks']]
  for queue in tables['queues']:
    begin, end = queue['begin'], queue['begin'] + queue['count']
    tasks = [int(t) for t in tables['queue_tasks'][begin:end]]
    for before, after in zip(tasks, tasks[1:]):
      edges[after].add(before)
  givers = {}
  for task, desc in enumerate(tables['tasks']):
    first = desc['signal_begin']
    for signal in tables['signals'][first : first + desc['signal_count']]:
      for event in range(signal['event'], signal['event'] + signal['span']):
        givers.setdefault(event, set()).add(task)
  awaited_tasks = [set() for _ in tables['tasks']]
  for task, desc in enumerate(tables['tasks']):
    first = desc['wait_begin']
    for wait in tables['waits'][first : first + desc['wait_count']]:
      awaited_tasks[task] |= givers[int(wait['event'])]
    edges[task] |= awaited_tasks[task]
  kinds = tables['tasks']['kind']
  puts = {t for t, kind in enumerate(kinds) if layout.Kind(kind) in PUTS}
  ancestor_sets = []
  for task in range(len(edges)):
    visited, todo = set(), [task]
    while todo:
      new = edges[todo.pop()] - visited
      visited |= new
      todo.extend(new)
    completed = set().union(
      *(awaited_tasks[other] for other in (task, *visited))
    )
    ancestor_sets.append(
      {t for t in visited if t not in puts or t in completed}
    )
  return ancestor_sets


@pytest.mark.parametrize('direction', testing.COMPILE)
@pytest.mark.parametrize('grain', testing.GRAINS)
@pytest.mark.parametrize('cores', [{}, dict(num_aic=1, num_aiv=1)], ids=str)
@pytest.mark.parametrize('shape', testing.SHAPES)
def test_before_is_what_edges_say(shape, grain, direction, cores):
  # On one core of each unit, puts stand in the queue of what follows them.
  image = parsed(shape=shape, grain=grain, direction=direction, **cores)
  clocks = happens_before.compute_clocks(image)
  tasks = np.arange(len(image.tables['tasks']))
  before = clocks.before(tasks[:, None], tasks[None, :])
  for task, want in enumerate(ancestors(image)):
    assert set(np.flatnonzero(before[:, task])) == want, task


def test_a_flow_that_cannot_end_is_refused():
  # Given the queues of a rank in reverse, then their tasks wait for each other.
  blob = bytearray(parsed(num_aic=1, num_aiv=1))
  tables = image_lib.tables(blob)
  for queue in tables['queues']:
    begin, end = queue['begin'], queue['begin'] + queue['count']
    tables['queue_tasks'][begin:end] = tables['queue_tasks'][begin:end][::-1]
  image = image_lib.Image(image_lib.seal(blob))
  with pytest.raises(ValueError, match='image: expected a flow that ends'):
    happens_before.compute_clocks(image)
