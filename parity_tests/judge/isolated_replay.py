"""Isolated replay: which tasks are wrong, each on the oracle's inputs.

A fault does not spread in such a launch, so the elements that are wrong are
those that the guilty task wrote.  A task that ran out of order read what no
task had written yet: its races say which task is guilty.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, Protocol

from hpmoe.reference.contract import kinds

RACES = 'races'


class Task(Protocol):
  """A task as a report names it; see `task_names.TaskName` of the backend."""

  @property
  def index(self) -> int: ...
  @property
  def kind(self) -> str: ...
  @property
  def rank(self) -> int: ...
  @property
  def expert(self) -> int: ...
  @property
  def row_block(self) -> int: ...
  @property
  def col_block(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class WrongTask:
  """A task that is wrong although its inputs are right.

  Attributes:
    direction: its pass.
    task: its name.
    lanes: the lanes in which it is wrong, or 'races'.
    tensor: the tensor that it writes.
    bad: number of wrong elements, the largest count of any lane.
    elements: number of elements that it writes.
    remark: the missing order, or another remark; or ''.
  """

  direction: str
  task: Any
  lanes: tuple[str, ...]
  tensor: str
  bad: int = 0
  elements: int = 0
  remark: str = ''

  def __str__(self) -> str:
    words = [f'{self.direction} {self.task}: {", ".join(self.lanes)}']
    if self.bad:
      words.append(f'{self.bad} of {self.elements} elements of {self.tensor}')
    return ': '.join([*words, self.remark] if self.remark else words)


def find_guilty_tasks(
  wrong: Sequence[WrongTask], races: Sequence[Any], direction: str
) -> list[WrongTask]:
  """Returns each guilty task once, in the image's order.

  If a task signals before it has written, the task that reads too early is not
  guilty: the one that signalled is.  The links of a chain count as one task,
  as a race of any link shows in the output of the last.
  """
  candidates = list(wrong)
  for race in races:
    if race.blame == race.first:
      reader = _place(race.second)
      candidates = [w for w in candidates if _place(w.task) != reader]
    candidates.append(
      WrongTask(direction, race.blame, (RACES,), race.tensor, remark=str(race))
    )
  task_by_place: dict[tuple, WrongTask] = {}
  for task in candidates:
    before = task_by_place.get(_place(task.task))
    task_by_place[_place(task.task)] = (
      _merge_tasks(before, task) if before else task
    )
  return sorted(task_by_place.values(), key=lambda w: w.task.index)


_CHAINED_NAMES = tuple(
  kind.name.lower() for kind in kinds.select_kinds(kinds.Form.WEIGHT_TILE)
)


def _place(task: Task) -> tuple:
  """Returns the identity of a task; all links of a chain share one."""
  if task.kind not in _CHAINED_NAMES:
    return (task.index,)
  return (task.kind, task.rank, task.expert, task.row_block, task.col_block)


def _merge_tasks(a: WrongTask, b: WrongTask) -> WrongTask:
  """Merges two entries of a task; a race names the link of a chain."""
  worse = a if a.bad >= b.bad else b
  raced = next((task for task in (a, b) if RACES in task.lanes), worse)
  return dataclasses.replace(
    worse,
    task=raced.task,
    lanes=tuple(dict.fromkeys((*a.lanes, *b.lanes))),
    remark=raced.remark,
  )
