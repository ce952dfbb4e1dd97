"""Isolated replay: which tasks are wrong, each on the oracle's inputs.

A fault does not spread in such a launch, so the elements that are wrong are
those that the guilty task wrote.  One that ran out of order read what nobody
had written yet: its races say whose fault that is.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import task_names
from hpmoe.reference.contract import tensors

RACES = 'races'

Masks = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class WrongTask:
  """A task that is wrong although its inputs are right.

  Attributes:
    direction: its pass.
    task: which.
    lanes: that say so, 'races' among them.
    tensor: what it writes.
    bad: wrong elements of what it writes, the most that a lane counts.
    elements: all that it writes.
    why: what nothing orders or what else is known, or ''.
  """

  direction: str
  task: task_names.TaskName
  lanes: tuple[str, ...]
  tensor: str
  bad: int = 0
  elements: int = 0
  why: str = ''

  def __str__(self) -> str:
    told = [f'{self.direction} {self.task}: {", ".join(self.lanes)}']
    if self.bad:
      told.append(f'{self.bad} of {self.elements} elements of {self.tensor}')
    return ': '.join([*told, self.why] if self.why else told)


def wrong_tasks(
  image: image_lib.Image,
  plan: _native.Routing,
  lane: str,
  bad: Masks,
) -> list[WrongTask]:
  """Returns the tasks that wrote bad elements, in the image's order.

  Args:
    image: what was launched.
    plan: of its routing.
    lane: that judged.
    bad: by tensor name, bool in the tensor's shape.
  """
  accesses, _ = runtime.inspect(image, plan)
  found = []
  for buffer in layout.Buffer:
    name = buffer.name.lower()
    if name not in bad or not bad[name].any():
      continue
    mine = accesses[(accesses['write'] == 1) & (accesses['buffer'] == buffer)]
    counts = _counts(mine, _by_slab(name, bad[name]))
    for task, (wrong, elements) in counts.items():
      found.append(
        WrongTask(
          direction=image.direction.name.lower(),
          task=runtime.task_name(image, task),
          lanes=(lane,),
          tensor=name,
          bad=wrong,
          elements=elements,
          why=_chain(image, task),
        )
      )
  return sorted(found, key=lambda wrong: wrong.task.index)


def _by_slab(name: str, bad: np.ndarray) -> np.ndarray:
  """Returns `[slabs, rows, columns]`; an expert's weight is a slab."""
  is_weight = 'L' in tensors.SPECS[name].shape.split()
  slabs = bad.shape[0] * (bad.shape[1] if is_weight else 1)
  return bad.reshape(slabs, -1, bad.shape[-1])


def _counts(
  accesses: np.ndarray, bad: np.ndarray
) -> dict[int, tuple[int, int]]:
  """Returns wrong and all elements of the tasks that have a wrong one.

  What links of a chain hand on lies past the tensor's columns: of a chain only
  the last one has elements here.
  """
  counts: dict[int, tuple[int, int]] = {}
  for a in accesses:
    task = int(a['task'])
    box = _box(bad, a)
    wrong, elements = counts.get(task, (0, 0))
    counts[task] = wrong + int(box.sum()), elements + box.size
  return {task: count for task, count in counts.items() if count[0]}


_CHAINED = layout.kinds(layout.Form.WEIGHT_TILE)


def _links(image: image_lib.Image, task: int) -> int:
  """Returns how many tasks sum one tile together, in a chain."""
  if image.tables['tasks'][task]['kind'] not in _CHAINED:
    return 1
  header = image.header
  return -(-int(header['expert_capacity']) // int(header['chain_rows']))


def _chain(image: image_lib.Image, task: int) -> str:
  links = _links(image, task)
  if links == 1:
    return ''
  return f'the last of {links} links that sum this tile, of which any is wrong'


def written_by(
  image: image_lib.Image,
  plan: _native.Routing,
  tasks: np.ndarray,
  like: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns which elements some tasks write last.

  Args:
    image: what was launched.
    plan: of its routing.
    tasks: `[tasks]` bool.
    like: tensors by name.

  Returns:
    By the names of `like`, bool in the tensor's shape.
  """
  accesses, _ = runtime.inspect(image, plan)
  written = {name: np.zeros(a.shape, bool) for name, a in like.items()}
  for a in accesses[(accesses['write'] == 1) & tasks[accesses['task']]]:
    name = layout.Buffer(a['buffer']).name.lower()
    if name in written:
      _box(_by_slab(name, written[name]), a)[...] = True
  return written


def _box(slabs: np.ndarray, access: np.void) -> np.ndarray:
  a = access
  rows = slice(a['row_begin'], a['row_end'])
  return slabs[a['slab'], rows, a['col_begin'] : a['col_end']]


def judged(
  wrong: Sequence[WrongTask], races: Sequence[modes_lib.Race], direction: str
) -> list[WrongTask]:
  """Returns each guilty task once, in the image's order.

  A task that read what another had not written yet, though that one had said
  so, is not guilty: the other one is.  The links of a chain are one task here:
  a race of any of them shows in what the last one writes.
  """
  found = list(wrong)
  for race in races:
    if race.blame == race.first:
      reader = _place(race.second)
      found = [w for w in found if _place(w.task) != reader]
    found.append(
      WrongTask(direction, race.blame, (RACES,), race.tensor, why=str(race))
    )
  merged: dict[tuple, WrongTask] = {}
  for one in found:
    before = merged.get(_place(one.task))
    merged[_place(one.task)] = _merged(before, one) if before else one
  return sorted(merged.values(), key=lambda w: w.task.index)


_CHAINED_NAMES = tuple(kind.name.lower() for kind in _CHAINED)


def _place(task: task_names.TaskName) -> tuple:
  """Returns what tells a task from others, a chain from other chains."""
  if task.kind not in _CHAINED_NAMES:
    return (task.index,)
  return dataclasses.astuple(dataclasses.replace(task, index=-1))


def _merged(a: WrongTask, b: WrongTask) -> WrongTask:
  """Returns one task of two; a race says which link of a chain it is."""
  more = a if a.bad >= b.bad else b
  raced = next((one for one in (a, b) if RACES in one.lanes), more)
  return dataclasses.replace(
    more,
    task=raced.task,
    lanes=tuple(dict.fromkeys((*a.lanes, *b.lanes))),
    why=raced.why,
  )
