"""The checking modes of our runtime, as a check asks for them."""

import dataclasses
import re

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.case import flag as flag_lib

Action = modes_lib.Action
_FIELDS = ('rank', 'expert', 'row_block', 'col_block')
_FORM = "its number, or such as 'gate_up rank=1 expert=3 row_block=0'"


@dataclasses.dataclass(frozen=True)
class Checking:
  """How a launch that is checked differs from a plain one.

  A kind of candidate has some of these modes: `Candidate.can`.

  Attributes:
    poison: buffers start as a NaN that no kernel writes; otherwise as zeros.
    permute: seed of an order among ready tasks, or None.
    late_puts: puts are delivered when nothing else can run.
    races: look for accesses that nothing orders, and beyond tiles; None: where
      tasks are ours, beyond tiles on real data.
    isolate: every task reads the oracle's tensors.
    start_at: a task; the oracle stands in for what is done before it starts.
    stop_after: a task; what it does not need is not run.
  """

  poison: bool = True
  permute: int | None = None
  late_puts: bool = False
  races: bool | None = None
  isolate: bool = False
  start_at: str | None = None
  stop_after: str | None = None

  def __post_init__(self):
    if self.isolate and self.is_part:
      raise ValueError(
        'isolate: expected no start_at and no stop_after beside it: with '
        "both at one task, that task alone runs, on the oracle's tensors"
      )

  def asked(self) -> dict[str, object]:
    """Returns the modes that are not as in a plain check, by name."""
    plain = dataclasses.asdict(Checking())
    mine = dataclasses.asdict(self)
    return {name: mine[name] for name in mine if mine[name] != plain[name]}

  @property
  def replays(self) -> bool:
    """Whether some task reads what the oracle wrote."""
    return self.isolate or self.is_part

  @property
  def is_part(self) -> bool:
    """Whether some tasks are left out."""
    return self.start_at is not None or self.stop_after is not None

  def modes(self, image: image_lib.Image, given=None) -> modes_lib.Modes:
    """Returns the modes of a launch; `given` are the oracle's tensors.

    Raises:
      ValueError: start_at or stop_after names no task of the image, or several.
    """
    names = runtime.written(image) if self.replays else ()
    # Where a kernel writes does not depend on data: real ones tell as well.
    guards = image.policy.activation != 'absolute'
    return modes_lib.Modes(
      poison=self.poison,
      permute=self.permute,
      late_puts=self.late_puts,
      # An order that is wrong would be taken for a value that is.
      races=self.races is not False or self.isolate,
      guards=guards if self.races is None else self.races,
      actions=self._actions(image) if self.replays else None,
      given={n: given[n] for n in names} if self.replays else None,
    )

  def _actions(self, image: image_lib.Image) -> np.ndarray:
    num_tasks = len(image.tables['tasks'])
    runs = np.ones(num_tasks, bool)
    if self.is_part:
      clocks = happens_before.clocks(image)
      everyone = np.arange(num_tasks)
    if self.start_at is not None:
      first = find_task(image, 'start_at', self.start_at)
      runs &= ~clocks.before(everyone, first)
    if self.stop_after is not None:
      last = find_task(image, 'stop_after', self.stop_after)
      runs &= clocks.before(everyone, last) | (everyone == last)
      if not runs[last]:
        raise ValueError(
          f'stop_after: expected a task that is not done before start_at '
          f'starts, got {runtime.task_name(image, last)}'
        )
    mine = modes_lib.ISOLATED if self.isolate else Action.RUN
    return np.where(runs, mine, Action.HEAL).astype(np.uint8)


NAMES = tuple(field.name for field in dataclasses.fields(Checking))
# Each mode is one question that a launch, or a candidate, is asked.
FLAGS = flag_lib.table('checking')


def find_task(image: image_lib.Image, argument: str, text: str) -> int:
  """Returns the index of the one task that a text names.

  Raises:
    ValueError: no task, or more than one; names `argument`.
  """
  tasks = image.tables['tasks']
  if text.isdecimal():
    found = np.arange(len(tasks)) == int(text)
  else:
    found = _matching(tasks, argument, text)
  indices = np.flatnonzero(found)
  if len(indices) == 1:
    return int(indices[0])
  some = '; '.join(str(runtime.task_name(image, int(i))) for i in indices[:3])
  raise ValueError(
    f'{argument}: expected one task of {len(tasks)}, got {len(indices)} for '
    f'{text!r}{": " if some else ""}{some}'
  )


def _matching(tasks: np.ndarray, argument: str, text: str) -> np.ndarray:
  kind, *fields = re.split(r'[\s,]+', text.strip())
  if kind.upper() not in layout.Kind.__members__:
    kinds = [layout.Kind(k).name.lower() for k in np.unique(tasks['kind'])]
    raise ValueError(
      f'{argument}: expected a task, {_FORM}, got {text!r}; kinds are '
      f'{", ".join(kinds)}'
    )
  found = tasks['kind'] == layout.Kind[kind.upper()]
  for field in fields:
    name, _, value = field.partition('=')
    if name not in _FIELDS or not value.lstrip('-').isdecimal():
      raise ValueError(
        f'{argument}: expected {", ".join(_FIELDS)} and their numbers after '
        f'a kind, got {field!r}'
      )
    found &= tasks[name] == int(value)
  return found
