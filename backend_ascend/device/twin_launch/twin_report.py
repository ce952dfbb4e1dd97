"""What a launch on the twin says beside its tensors."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.device.twin_launch import _ascend_twin
from hpmoe.backend_ascend.host.load import task_names

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
  return np.ascontiguousarray(report.counts()).view(COUNTS).reshape(-1)


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
