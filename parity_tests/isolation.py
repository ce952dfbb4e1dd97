"""Isolated replay: which tasks are wrong, each on the oracle's inputs.

A fault does not spread in such a launch, so the elements that are wrong are
those that the guilty task wrote.  One that ran out of order read what nobody
had written yet: its races say whose fault that is.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from backend_ascend.kernels.host import modes as modes_lib
from backend_ascend.kernels.host import runtime
from backend_ascend.kernels.host import task_names
from backend_ascend.taskflow import image as image_lib
from backend_ascend.taskflow import layout
from reference import tensors

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
    why: what nothing orders, or ''.
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
    image: bytes | bytearray,
    topk_ids: np.ndarray,
    lane: str,
    bad: Masks,
) -> list[WrongTask]:
  """Returns the tasks that wrote bad elements, in the image's order.

  Args:
    image: what was launched.
    topk_ids: `[R, T, K]` i32.
    lane: that judged.
    bad: by tensor name, bool in the tensor's shape.
  """
  parsed = image_lib.parse(image)
  accesses, _ = runtime.inspect(image, topk_ids)
  found = []
  for buffer in layout.Buffer:
    name = buffer.name.lower()
    if name not in bad or not bad[name].any():
      continue
    mine = accesses[(accesses['write'] == 1) & (accesses['buffer'] == buffer)]
    counts = _counts(parsed, mine, _by_slab(name, bad[name]))
    for task, (wrong, elements) in counts.items():
      found.append(
          WrongTask(
              direction=runtime.direction(parsed).name.lower(),
              task=runtime.task_name(parsed, task),
              lanes=(lane,),
              tensor=name,
              bad=wrong,
              elements=elements,
          )
      )
  return sorted(found, key=lambda wrong: wrong.task.index)


def _by_slab(name: str, bad: np.ndarray) -> np.ndarray:
  """Returns `[slabs, rows, columns]`; an expert's weight is a slab."""
  is_weight = 'L' in tensors.SPECS[name].shape.split()
  slabs = bad.shape[0] * (bad.shape[1] if is_weight else 1)
  return bad.reshape(slabs, -1, bad.shape[-1])


def _counts(
    image: image_lib.Image, accesses: np.ndarray, bad: np.ndarray
) -> dict[int, tuple[int, int]]:
  """Returns wrong and all elements of the tasks that have a wrong one."""
  counts: dict[int, tuple[int, int]] = {}
  for a in accesses:
    task = int(a['task'])
    if not _is_last_link(image, task):
      continue
    box = bad[
        a['slab'], a['row_begin'] : a['row_end'], a['col_begin'] : a['col_end']
    ]
    wrong, elements = counts.get(task, (0, 0))
    counts[task] = wrong + int(box.sum()), elements + box.size
  return {task: count for task, count in counts.items() if count[0]}


_CHAINED = (layout.Kind.DOWN_WEIGHT_GRAD, layout.Kind.GATE_UP_WEIGHT_GRAD)


def _is_last_link(image: image_lib.Image, task: int) -> bool:
  """Says whether a task's output is final: only the last link of a chain's."""
  row, header = image.tables['tasks'][task], image.header
  links = -(-int(header['expert_capacity']) // int(header['chain_rows']))
  return row['kind'] not in _CHAINED or int(row['peer']) == links - 1


def judged(
    wrong: Sequence[WrongTask], races: Sequence[modes_lib.Race], direction: str
) -> list[WrongTask]:
  """Returns each guilty task once, in the image's order.

  A task that read what another had not written yet, though that one had said
  so, is not guilty: the other one is.
  """
  found = list(wrong)
  for race in races:
    if race.blame == race.first:
      found = [w for w in found if w.task != race.second]
    found.append(
        WrongTask(direction, race.blame, (RACES,), race.tensor, why=str(race))
    )
  merged: dict[int, WrongTask] = {}
  for one in sorted(found, key=lambda w: w.task.index):
    before = merged.get(one.task.index)
    merged[one.task.index] = _merged(before, one) if before else one
  return list(merged.values())


def _merged(a: WrongTask, b: WrongTask) -> WrongTask:
  more = a if a.bad >= b.bad else b
  return dataclasses.replace(
      more,
      lanes=tuple(dict.fromkeys((*a.lanes, *b.lanes))),
      why=a.why or b.why,
  )
