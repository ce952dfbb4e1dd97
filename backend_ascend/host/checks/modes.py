"""How a launch that checks differs from one that only computes."""

import collections.abc
import dataclasses
import enum

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.host.load import task_names
from hpmoe.reference.contract import poison as poison_lib
from hpmoe.reference.contract import tensors

_SEEDS = 2**64


class Action(enum.IntFlag):
  """What becomes of one task at its turn; it always waits and signals.

  In this order:

  * RUN: it does its work.
  * CAPTURE: what stands in its region now is copied out.
  * HEAL: its region is overwritten with the given tensors, so that its
    consumers read those.

  A region is what the task would write in a right launch of this routing.  What
  tasks hand on beside tensors follows: a row header that is not sent, or is
  healed, is written as the plan says; the gradient of a weight that travels
  with its row is healed from d_topk_weights.  The float32 sums between the
  links of a weight gradient's chain are no tensor: a link but the last one
  runs where it is asked to run or to heal, and captures nothing.  So a chain
  is judged at its last link (chains of one link, the default, at every task).
  """

  RUN = 1
  CAPTURE = 2
  HEAL = 4


ISOLATED = Action.RUN | Action.CAPTURE | Action.HEAL


@dataclasses.dataclass(frozen=True)
class Modes:
  """Modes of one launch; they combine with each other and with a fault.

  All but two reach a launch whichever tensors are asked for.  What must see a
  tensor that is not, makes it: `actions` all that tasks write, and a fault
  of values those that its task reads and writes.

  Attributes:
    poison: what tasks write starts as `POISON`, scratch tiles too; otherwise as
      zeros.
    permute: seed from which each thread draws which ready worker goes next,
      one task at a time; None: in turn.  With one thread the seed decides the
      whole order.
    late_puts: a put and its signals are delivered only when nothing else can
      run: one for which the first blocked worker waits, or with `permute` a
      drawn one.  In the same order for any number of threads.
    races: look for accesses that nothing orders.
    guards: each kernel works on copies of its tiles between margins of NaN,
      and the rows past the last valid one are NaN: what is read beyond shows,
      and what is written beyond a tile ends the launch.
    trace: report the order in which tasks ended.
    times: report when each task ran.
    actions: `[tasks]` u8 of `Action`; None: every task runs.
    heal_with: tensors that HEAL copies in, by name: all that the image's tasks
      write, in the dtype and shape of a launch's outputs.
  """

  poison: bool = True
  permute: int | None = None
  late_puts: bool = False
  races: bool = False
  guards: bool = False
  trace: bool = False
  times: bool = False
  actions: np.ndarray | None = None
  heal_with: collections.abc.Mapping[str, np.ndarray] | None = None

  def __post_init__(self):
    if self.permute is not None and not 0 <= self.permute < _SEEDS:
      raise ValueError(
        f'modes.permute: expected a seed in [0, 2**64), got {self.permute}'
      )


@dataclasses.dataclass(frozen=True)
class Race:
  """Two accesses of the same elements, one a write, that nothing orders.

  Attributes:
    first: the task that comes first in the order of the image.
    second: the other one.
    tensor: name of the tensor.
    rank: rank that holds it.
    rows: [begin, end) of the rank's rows (tokens; slots token * K + k; rows of
      the tasks' expert for a weight gradient).
    cols: [begin, end).  Columns past the tensor's are what travels beside it:
      the row header, the gradient of the row's weight, or the float32 sums of
      a weight gradient.
    kind: 'write-read', 'read-write' or 'write-write', `first` before `second`.
    missing: the missing edge in words.
    blame: the one of the two that is out of order.
  """

  first: task_names.TaskName
  second: task_names.TaskName
  tensor: str
  rank: int
  rows: tuple[int, int]
  cols: tuple[int, int]
  kind: str
  missing: str
  blame: task_names.TaskName

  def __str__(self) -> str:
    return (
      f'{self.kind} race on {self.tensor} of rank {self.rank}, rows '
      f'[{self.rows[0]}, {self.rows[1]}), columns [{self.cols[0]}, '
      f'{self.cols[1]}): {self.missing}'
    )


@dataclasses.dataclass(frozen=True)
class Times:
  """When the tasks of a launch ran, in seconds since its workers began.

  Attributes:
    start: `[tasks]` f64, when the task's waits were met and it began.
    end: `[tasks]` f64, when its work was done, before it signalled.
    wait_times: `[tasks]` f64, from when a thread first found one of its waits
      unmet until it began; 0 where none was found unmet.
    thread: `[tasks]` i32, the OS thread that ran it, from 0.
  """

  start: np.ndarray
  end: np.ndarray
  wait_times: np.ndarray
  thread: np.ndarray

  @property
  def total(self) -> float:
    """Seconds until the last task's end."""
    return float(self.end.max(initial=0.0))


@dataclasses.dataclass(frozen=True)
class LaunchResult:
  """The outputs of a launch, and what its modes recorded.

  Attributes:
    outputs: what was asked for, as the tasks left it.
    captures: by name of the tensors that tasks write, in the shape of
      `outputs`; `POISON` where nothing was captured.  Backward at placements
      of `tensors.EARLY` also has what travels beside rows: d_row_weight
      `[R, N]` f32 and d_slot_weight `[R, T, K]` f32, both gradients of
      topk_weights.  None unless an action asks for it.
    order: `[tasks]` u32, each task's position among those that ended, a legal
      order of what depends on what; None unless traced.
    times: when each task ran; None unless asked for.
    races: the first ones in the order of the image.
    num_races: of all pairs of tasks and tensors, more than `races` has where
      there are many.
  """

  outputs: dict[str, np.ndarray]
  captures: dict[str, np.ndarray] | None = None
  order: np.ndarray | None = None
  times: Times | None = None
  races: tuple[Race, ...] = ()
  num_races: int = 0


def check_actions(image: image_lib.Image, modes: Modes):
  """Returns the checked actions or None, and the tensors that heal."""
  if modes.actions is None:
    if modes.heal_with is not None:
      raise ValueError('modes.heal_with: expected None without actions')
    return None, {}
  actions = np.asarray(modes.actions)
  shape = (len(image.tables['tasks']),)
  if actions.dtype != np.uint8 or actions.shape != shape:
    raise ValueError(
      f'modes.actions: expected uint8 {shape}, got {actions.dtype} '
      f'{actions.shape}'
    )
  if image.policy.rows and (actions & ~Action.RUN).any():
    raise ValueError(
      'modes.actions: expected none that capture or heal with rows of '
      f'{image.policy.rows}, which the oracle has no codes of, got some'
    )
  if (actions > ISOLATED).any():
    raise ValueError(
      f'modes.actions: expected at most {int(ISOLATED)}, got {actions.max()}'
    )
  if not (actions & Action.HEAL).any():
    return np.ascontiguousarray(actions), {}
  return np.ascontiguousarray(actions), _check_healing_tensors(
    image, modes.heal_with or {}
  )


def list_written_tensors(image: image_lib.Image) -> tuple[str, ...]:
  """Returns the tensors that an image's tasks write: names of heal_with."""
  names = arrays.outputs(image)
  return tuple(name for name in names if name not in tensors.PLAN)


def _check_healing_tensors(
  image: image_lib.Image, heal_with
) -> dict[str, np.ndarray]:
  names = list_written_tensors(image)
  if not set(names) <= set(heal_with):
    raise ValueError(
      f'modes.heal_with: expected {sorted(names)}, got {sorted(heal_with)}'
    )
  return {
    name: arrays.fitting(
      image, name, heal_with[name], title=f'modes.heal_with[{name!r}]'
    )
    for name in names
  }


def make_capture_arrays(image: image_lib.Image, actions):
  """Returns poisoned arrays to capture into; None if no action captures."""
  if actions is None or not (actions & Action.CAPTURE).any():
    return None
  captures = arrays.zeros(image, list_written_tensors(image))
  if (
    image.direction == layout.Direction.BACKWARD
    and image.policy.placement in tensors.EARLY
  ):
    r, n, t, k = (image.config.dims()[c] for c in 'RNTK')
    captures['d_row_weight'] = np.zeros((r, n), np.float32)
    captures['d_slot_weight'] = np.zeros((r, t, k), np.float32)
  for array in captures.values():
    array[...] = poison_lib.poison(array.dtype)
  return captures


def times(recorded: np.ndarray) -> Times:
  """Returns times of a launch from `[tasks, 4]` blocked, start, end, thread."""
  blocked_at, start, end, thread = recorded.T
  return Times(
    start=start * 1e-9,
    end=end * 1e-9,
    wait_times=np.where(blocked_at < 0, 0, start - blocked_at) * 1e-9,
    thread=thread.astype(np.int32),
  )
