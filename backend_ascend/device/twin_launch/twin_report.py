"""Findings and counts of a launch on the twin."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.device.twin_launch import _ascend_twin
from hpmoe.backend_ascend.host.load import task_names

# The in-order queues of a core.
PIPES = tuple(_ascend_twin.pipes())
_CORE = ('rank', 'unit', 'core')
_COUNTERS = ('cube_steps', 'vector_steps', 'waits', 'barriers', 'polls')

# One row for each core and task; task -1 is work outside of tasks.  Times run
# from the start to the end of the last instruction, and for each pipe while it
# was busy; they are zero without rates.
COUNTS = np.dtype(
  [
    (name, np.int64)
    for name in (
      *_CORE,
      'task',
      *(f'instructions_{pipe.lower()}' for pipe in PIPES),
      *(f'bytes_{pipe.lower()}' for pipe in PIPES),
      *_COUNTERS,
      *(f'ns_{pipe.lower()}' for pipe in PIPES),
      'ns_ended',
    )
  ]
)


@dataclasses.dataclass(frozen=True)
class Finding:
  """One error of the device source.

  Attributes:
    kind: such as 'race' or 'undefined', as the engine calls it.
    text: core, pipe, call, bytes and what is missing, in one line.
    tasks: the task at fault, then those that it should have been ordered with;
      None for work outside of tasks.
    file, line: place of the call.
  """

  kind: str
  text: str
  tasks: tuple[task_names.TaskName | None, ...]
  file: str
  line: int

  def __str__(self) -> str:
    names = [str(task) for task in self.tasks if task is not None]
    return f'{self.text}; in {", ".join(names)}' if names else self.text


class TwinError(RuntimeError):
  """The device source did something whose effect on an NPU is undefined.

  Attributes:
    findings: the errors, in the order of execution.
  """

  def __init__(self, findings: Sequence[Finding]):
    suffix = f' (and {len(findings) - 1} more)' if len(findings) > 1 else ''
    super().__init__(f'{findings[0]}{suffix}')
    self.findings = tuple(findings)


def counts(report: _ascend_twin.Report) -> np.ndarray:
  """Returns `[n]` COUNTS."""
  return np.ascontiguousarray(report.counts()).view(COUNTS).reshape(-1)


def findings(
  image: image_lib.Image, report: _ascend_twin.Report
) -> tuple[Finding, ...]:
  """Returns the errors of a launch with the names of their tasks."""
  num_tasks = len(image.tables['tasks'])

  def name(task: int) -> task_names.TaskName | None:
    inside = 0 <= task < num_tasks
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
