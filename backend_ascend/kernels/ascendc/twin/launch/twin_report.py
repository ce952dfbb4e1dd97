"""What a launch on the twin says beside its tensors."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend.kernels.ascendc.twin.launch import _ascend_twin
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import task_names
from hpmoe.backend_ascend.taskflow import happens_before
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout

# The in-order queues of a core.
PIPES = tuple(_ascend_twin.pipes())
_CORE = ('rank', 'unit', 'core')
_COUNTED = ('cube_steps', 'vector_steps', 'waits', 'barriers', 'polls')

# One row for each core and task; task -1 is what it did outside of tasks.
# Times are from the start to the end of its last instruction, and of each pipe
# what it was busy; zero without rates.
COUNTS = np.dtype(
  [
    (name, np.int64)
    for name in (
      *_CORE,
      'task',
      *(f'instructions_{pipe.lower()}' for pipe in PIPES),
      *(f'bytes_{pipe.lower()}' for pipe in PIPES),
      *_COUNTED,
      *(f'ns_{pipe.lower()}' for pipe in PIPES),
      'ns_ended',
    )
  ]
)
_END = np.dtype(
  [
    (name, np.int64)
    for name in (
      *_CORE,
      'reason',
      'task',
      'event',
      'expected',
      'actual',
      'tasks_run',
    )
  ]
)
# EndReason of launch_args.h.
_ENDED, _EVENT_DEADLINE, _READY_DEADLINE = 1, 2, 3
_SUSPECTS = 8


@dataclasses.dataclass(frozen=True)
class Finding:
  """One thing that the device source does wrong.

  Attributes:
    kind: such as 'race' or 'undefined', as the engine calls it.
    text: core, pipe, call, bytes and what is missing, in one line.
    tasks: the task that did it, then those that it should have been ordered
      with; None for what a core does outside of tasks.
    file, line: of the call.
  """

  kind: str
  text: str
  tasks: tuple[task_names.TaskName | None, ...]
  file: str
  line: int

  def __str__(self) -> str:
    named = [str(task) for task in self.tasks if task is not None]
    return f'{self.text}; in {", ".join(named)}' if named else self.text


class TwinError(RuntimeError):
  """The device source did what an NPU does not do, or not surely.

  Attributes:
    findings: what, the first one first.
  """

  def __init__(self, findings: Sequence[Finding]):
    more = f' (and {len(findings) - 1} more)' if len(findings) > 1 else ''
    super().__init__(f'{findings[0]}{more}')
    self.findings = tuple(findings)


def counts(report: _ascend_twin.Report) -> np.ndarray:
  """Returns `[n]` COUNTS."""
  return _rows(report.counts(), COUNTS)


def _rows(table: np.ndarray, dtype: np.dtype) -> np.ndarray:
  return np.ascontiguousarray(table).view(dtype).reshape(-1)


def findings(
  image: image_lib.Image, report: _ascend_twin.Report
) -> tuple[Finding, ...]:
  """Returns the errors of a launch with the names of their tasks."""
  known = len(image.tables['tasks'])

  def name(task: int) -> task_names.TaskName | None:
    inside = 0 <= task < known
    return task_names.task_name(image, task) if inside else None

  return tuple(
    Finding(
      error.kind,
      error.text,
      tuple(name(task) for task in error.tasks),
      error.file,
      error.line,
    )
    for error in report.errors
  )


def diagnosis(
  image: image_lib.Image, report: _ascend_twin.Report
) -> runtime.Diagnosis | None:
  """Returns why cores gave up waiting, or None if none did.

  Of several blocked tasks it is one for which all ran that should have
  signalled: the others wait for such.
  """
  ends = _rows(report.ends(), _END)
  late = ends[ends['reason'] == _READY_DEADLINE]
  if len(late):
    rank = int(late[0]['rank'])
    return _without_task(f'deadline: rank {rank} waited for all ranks to start')
  blocked = ends[ends['reason'] == _EVENT_DEADLINE]
  if not len(blocked):
    return None
  ran = _ran(image, ends)
  pairs = happens_before.signals(image)
  found = []
  for end in blocked:
    mine = np.unique(pairs[pairs[:, 1] == end['event'], 0])
    to_run = int((~ran[mine]).sum())
    found.append((to_run > 0, int(end['task']), end, mine))
  _, _, end, mine = min(found, key=lambda one: one[:2])
  suspects = np.concatenate([mine[ran[mine]], mine[~ran[mine]]])[:_SUSPECTS]
  return _diagnosis(image, end, suspects)


def _ran(image: image_lib.Image, ends: np.ndarray) -> np.ndarray:
  """Returns `[tasks]` bool: what the cores' own lines say that they ran."""
  ran = np.zeros(len(image.tables['tasks']), bool)
  queues, queued = image.tables['queues'], image.tables['queue_tasks']
  by_core = {tuple(int(end[n]) for n in _CORE): end for end in ends}
  for queue in queues:
    end = by_core[int(queue['rank']), int(queue['unit']), int(queue['core'])]
    begin = int(queue['begin'])
    ran[queued[begin : begin + int(end['tasks_run'])]] = True
  return ran


def _diagnosis(image, end, suspects) -> runtime.Diagnosis:
  task = task_names.task_name(image, int(end['task']))
  named = tuple(task_names.task_name(image, int(t)) for t in suspects)
  event = image.tables['events'][int(end['event'])]
  buffer = layout.Buffer(int(event['buffer'])).name.lower()
  text = (
    f'deadline: {task} waits for event {end["event"]}, {buffer}'
    f'(rank {event["rank"]}, group {event["group"]}, part {event["part"]}): '
    f'expected {end["expected"]}, got {end["actual"]}; not signalled by: '
    f'{"; ".join(map(str, named)) or "no task of the image"}'
  )
  return runtime.Diagnosis(
    reason='deadline',
    task=task,
    event=int(end['event']),
    expected=int(end['expected']),
    actual=int(end['actual']),
    missing=0,
    suspects=named,
    adders=(),
    losers=(),
    text=text,
  )


def _without_task(text: str) -> runtime.Diagnosis:
  return runtime.Diagnosis('deadline', None, -1, 0, 0, 0, (), (), (), text=text)
