"""Native part of backend_ascend.kernels.ascendc.twin.launch."""

from collections.abc import Mapping
from typing import Annotated

import numpy
from numpy.typing import NDArray

class Options:
  """How a launch is to go."""

  def __init__(
    self,
    *,
    mode: str = 'in_order',
    seed: int = 0,
    hazards: bool = True,
    mmad_order: str = 'ascending',
    exp: str = 'nearest',
    flush_subnormals: bool = False,
    saturate: bool = False,
    deadline_s: float = 1.0,
    fault: str | None = None,
    fault_task: int = -1,
  ) -> None:
    """As twin_runtime.Modes; deadline_s modelled."""

class Error:
  """What the kernel did wrong."""

  @property
  def kind(self) -> str: ...
  @property
  def tasks(self) -> list[int]:
    """Of the place, then of the others; -1: none."""

  @property
  def line(self) -> int: ...
  @property
  def file(self) -> str: ...
  @property
  def text(self) -> str: ...

class Report:
  """How a launch went."""

  @property
  def errors(self) -> list[Error]: ...
  @property
  def cycles(self) -> int: ...
  @property
  def fault_changed(self) -> bool: ...
  def counts(self) -> NDArray[numpy.int64]:
    """
    `[n, 23]`: rank, unit, core, task; of each pipe of twin_runtime.PIPES
    instructions, then bytes; cube steps, vector steps, waits, barriers, polls.
    """

  def ends(self) -> NDArray[numpy.int64]:
    """
    `[cores, 9]`: rank, unit, core; reason, task, event, expected,
    actual, tasks run.
    """

def launch(
  image: Annotated[NDArray, dict(order='C', device='cpu', writable=False)],
  inputs: Mapping[
    str, Annotated[NDArray, dict(order='C', device='cpu', writable=False)]
  ],
  outputs: Mapping[str, Annotated[NDArray, dict(order='C', device='cpu')]],
  options: Options,
) -> Report:
  """Runs an image; outputs must be zeros."""

def launch_serial(
  image: Annotated[NDArray, dict(order='C', device='cpu', writable=False)],
  inputs: Mapping[
    str, Annotated[NDArray, dict(order='C', device='cpu', writable=False)]
  ],
  outputs: Mapping[str, Annotated[NDArray, dict(order='C', device='cpu')]],
  options: Options,
) -> Report:
  """The same tasks, kind by kind."""

def refusal(
  image: Annotated[NDArray, dict(order='C', device='cpu', writable=False)],
) -> str | None:
  """Why the device source cannot run an image, or None."""

def pipes() -> list[str]:
  """Names of the pipes, in order."""
