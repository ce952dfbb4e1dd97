"""Executes a task image on the host, in one launch or stage by stage."""

import collections.abc
import dataclasses

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.kernels.host.checks import faults
from hpmoe.backend_ascend.kernels.host.checks import modes as modes_lib
from hpmoe.backend_ascend.kernels.host.checks import race_report
from hpmoe.backend_ascend.kernels.host.launch import arrays
from hpmoe.backend_ascend.kernels.host.launch import task_names
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import tensors

TaskName = task_names.TaskName
task_name = task_names.task_name
POISON = modes_lib.POISON
is_poison = modes_lib.is_poison

_REASONS = ('none', 'deadlock', 'deadline')


@dataclasses.dataclass(frozen=True)
class Diagnosis:
  """Why a launch stopped.

  Attributes:
    reason: 'deadlock', nothing runs and nothing can start; or 'deadline', no
      task ended in time.
    task: the blocked task; None if no task is blocked and one that runs took
      too long.
    event: index of the event that it waits for.
    expected: the wait's threshold.
    actual: the event's counter.
    missing: what all tasks of the image together fall short of the threshold:
      it can never be reached.
    suspects: up to 8 tasks that should have signalled the event: first those
      that ran without, then those that did not run.
    adders: where some is missing, up to 8 tasks that add to the event.
    losers: where all signalled, and yet too little: up to 8 puts whose rows
      did not arrive, so that they were not sent home.
    text: all of it in one sentence.
  """

  reason: str
  task: TaskName | None
  event: int
  expected: int
  actual: int
  missing: int
  suspects: tuple[TaskName, ...]
  adders: tuple[TaskName, ...]
  losers: tuple[TaskName, ...]
  text: str

  def __str__(self) -> str:
    return self.text


class WaitError(RuntimeError):
  """A launch ended before its last task.

  Attributes:
    diagnosis: why.
    plan: `tensors.PLAN` by name, which it had made by then.
  """

  def __init__(
    self,
    diagnosis: Diagnosis,
    plan: collections.abc.Mapping[str, np.ndarray],
  ):
    super().__init__(str(diagnosis))
    self.diagnosis = diagnosis
    self.plan = dict(plan)


# What this library made is wrong, whatever the caller gave.
ImageError = _native.ImageError
BrokenError = _native.BrokenError


def _launch(image: image_lib.Image, inputs, plan, native, guards=False):
  """Returns what the image computes, its plan, and what `native` returns."""
  read = arrays.inputs(image, inputs)
  plan = plan or _native.Routing(image, read['topk_ids'])
  if guards:
    read |= _with_poisoned_padding(image, read, plan)
  names = arrays.outputs(image)
  outputs = arrays.zeros(image, tensors.PLAN + names)
  result = native(plan, read, {n: arrays.bits(a) for n, a in outputs.items()})
  made = [{n: outputs[n] for n in some} for some in (names, tensors.PLAN)]
  return *made, result


def _with_poisoned_padding(image: image_lib.Image, read, plan):
  """Returns copies of saved rows; past the last valid one they are NaN."""
  rows = plan.counts.sum(axis=0).reshape(image.config.num_ranks, -1).sum(axis=1)
  packed = {}
  for name, bits in read.items():
    if tensors.SPECS[name].shape.split()[1] != 'N':
      continue
    packed[name] = bits.copy()
    poison = arrays.bits(np.array(modes_lib.poison(arrays.dtype(image, name))))
    for of_rank, valid in zip(packed[name], rows):
      of_rank[valid:] = poison
  return packed


def diagnosis(image: image_lib.Image, found) -> Diagnosis:
  """Returns a native diagnosis with the names of its tasks."""
  names = lambda tasks: tuple(task_name(image, task) for task in tasks)
  return Diagnosis(
    reason=_REASONS[found.reason],
    task=None if found.task < 0 else task_name(image, found.task),
    event=found.event,
    expected=found.expected,
    actual=found.actual,
    missing=found.missing,
    suspects=names(found.suspects),
    adders=names(found.adders),
    losers=names(found.losers),
    text=found.text,
  )


def _actions(image: image_lib.Image, modes: modes_lib.Modes):
  """Returns the checked actions or None, and the tensors that heal."""
  if modes.actions is None:
    if modes.given is not None:
      raise ValueError('modes.given: expected None without actions')
    return None, {}
  actions = np.asarray(modes.actions)
  shape = (len(image.tables['tasks']),)
  if actions.dtype != np.uint8 or actions.shape != shape:
    raise ValueError(
      f'modes.actions: expected uint8 {shape}, got {actions.dtype} '
      f'{actions.shape}'
    )
  if (actions > modes_lib.ISOLATED).any():
    raise ValueError(
      f'modes.actions: expected at most {int(modes_lib.ISOLATED)}, '
      f'got {actions.max()}'
    )
  if not (actions & modes_lib.Action.HEAL).any():
    return np.ascontiguousarray(actions), {}
  return np.ascontiguousarray(actions), _healed(image, modes.given or {})


def written(image: image_lib.Image) -> tuple[str, ...]:
  """Returns the tensors that an image's tasks write: Modes.given's names."""
  names = arrays.outputs(image)
  return tuple(name for name in names if name not in tensors.PLAN)


def _healed(image: image_lib.Image, given) -> dict[str, np.ndarray]:
  names = written(image)
  if not set(names) <= set(given):
    raise ValueError(
      f'modes.given: expected {sorted(names)}, got {sorted(given)}'
    )
  return {
    name: arrays.fitting(
      image, name, given[name], called=f'modes.given[{name!r}]'
    )
    for name in names
  }


def _captured(image: image_lib.Image, actions):
  """Returns poisoned tensors for what is captured, or None."""
  if actions is None or not (actions & modes_lib.Action.CAPTURE).any():
    return None
  captured = arrays.zeros(image, written(image))
  if (
    image.direction == layout.Direction.BACKWARD
    and image.policy.placement == 'before_down'
  ):
    r, n, t, k = (image.config.dims()[c] for c in 'RNTK')
    captured['d_row_weight'] = np.zeros((r, n), np.float32)
    captured['d_slot_weight'] = np.zeros((r, t, k), np.float32)
  for array in captured.values():
    array[...] = modes_lib.poison(array.dtype)
  return captured


def _times(recorded: np.ndarray) -> modes_lib.Times:
  """Returns times of a launch from `[tasks, 4]` blocked, start, end, thread."""
  blocked, start, end, thread = recorded.T
  return modes_lib.Times(
    start=start * 1e-9,
    end=end * 1e-9,
    waited=np.where(blocked < 0, 0, start - blocked) * 1e-9,
    thread=thread.astype(np.int32),
  )


def run(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  threads: int | None = None,
  deadline_s: float = 60.0,
  fault: faults.Fault | None = None,
  isa: str | None = None,
  modes: modes_lib.Modes = modes_lib.Modes(),
  plan: _native.Routing | None = None,
) -> modes_lib.Launched:
  """Executes the image in one launch that checks; otherwise as `launch`.

  `plan`: what `route` returned for the inputs' topk_ids, if it was called.

  Raises:
    ValueError: as `launch`, or `modes` does not fit the image.
    WaitError: a task waited for an event that did not come.
    BrokenError: a kernel wrote beyond its tile; where there are `modes.guards`.
  """
  image = image_lib.load(image)
  actions, healed = _actions(image, modes)
  captured = _captured(image, actions)
  options = _native.LaunchOptions(
    threads=threads,
    deadline_s=deadline_s,
    isa=isa,
    fault=fault.name if fault else None,
    fault_task=fault.task if fault else -1,
    poison=modes.poison,
    permute=modes.permute,
    late_puts=modes.late_puts,
    races=modes.races,
    guards=modes.guards,
    trace=modes.trace,
    times=modes.times,
    actions=actions,
    captured={
      name: arrays.bits(array) for name, array in (captured or {}).items()
    },
    given=healed,
  )
  outputs, planned, report = _launch(
    image,
    inputs,
    plan,
    lambda plan, read, out: _native.launch(image, plan, read, out, options),
    guards=modes.guards,
  )
  if report.diagnosis.reason:
    raise WaitError(diagnosis(image, report.diagnosis), planned)
  if fault and not report.fault_changed:
    raise faults.NoEffect(
      f'fault: expected a task that {fault.name} changes, got '
      f'{task_name(image, fault.task)}, whose output stays the same'
    )
  return modes_lib.Launched(
    outputs=outputs,
    captured=captured,
    order=report.order if modes.trace else None,
    times=_times(report.times) if modes.times else None,
    races=tuple(race_report.race(image, race) for race in report.races),
    num_races=report.num_races,
  )


def launch(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  threads: int | None = None,
  deadline_s: float = 60.0,
  fault: faults.Fault | None = None,
  isa: str | None = None,
) -> dict[str, np.ndarray]:
  """Executes the image in one launch.

  Args:
    image: of `compiler.compile_forward` or `compile_backward`, or its bytes; it
      says which pass is computed.
    inputs: by name.  Forward: x `[R, T, D]`, topk_ids `[R, T, K]` i32,
      topk_weights `[R, T, K]` f32, w_gate_up `[R, L, D, 2F]`, w_down
      `[R, L, F, D]`; the rest in the storage dtype of the image's policy.
      Backward: dy `[R, T, D]` in place of x, and what the forward launch
      returned: expert_in `[R, N, D]`, gate_up `[R, N, 2F]`, activation
      `[R, N, F]` and, but for placement 'before_down', which does not read
      it, returned `[R, T, K, D]`.
    threads: OS threads that drive the image's workers; None means one per
      core.
    deadline_s: seconds without any task ending after which to give up.
    fault: a fault to commit, for checking checkers.
    isa: instruction set of the tile kernels; None means the best one.

  Returns:
    Every tensor of `tensors.PLAN` and `STAGES`, or of `BACKWARD` but
    dy, by name; with relay that of `RELAYED`, too.  Rows past a rank's last
    valid row are zero; what no task wrote is `POISON`.

  Raises:
    ValueError: an input does not fit the image, routing exceeds its capacity,
      the image is corrupt, or the fault changes nothing where it was put.
    WaitError: a task waited for an event that did not come.
  """
  return run(
    image,
    inputs,
    threads=threads,
    deadline_s=deadline_s,
    fault=fault,
    isa=isa,
  ).outputs


def launch_serial(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  isa: str | None = None,
  plan: _native.Routing | None = None,
) -> dict[str, np.ndarray]:
  """Runs the same tasks on one thread, kind by kind; see `launch`.

  Nothing waits and nothing signals, so this is what any schedule must equal,
  bit for bit.
  """
  image = image_lib.load(image)
  outputs, *_ = _launch(
    image,
    inputs,
    plan,
    lambda plan, read, out: _native.launch_serial(image, plan, read, out, isa),
  )
  return outputs


ACCESS = np.dtype(
  [
    (name, '<i4')
    for name in (
      'task',
      'buffer',
      'write',
      'slab',
      'row_begin',
      'row_end',
      'col_begin',
      'col_end',
    )
  ]
)


def inspect(image, plan: _native.Routing) -> tuple[np.ndarray, np.ndarray]:
  """Returns what the tasks of a launch would access and signal.

  Args:
    image: a compiled image of either direction.
    plan: of a routing, as of `route`.

  Returns:
    `[a]` ACCESS by task: the rectangles that the kernels are given, in physical
    rows of a slab (a rank, or the expert of a weight).  Columns past the
    tensor's are what travels beside it, see `modes.Race.cols`.
    `[s, 2]` i32 of (task, event) by task, once for every time that it signals.

  Raises:
    ValueError: the plan is not of this image's sizes.
  """
  accesses, signals = _native.inspect(image_lib.load(image), plan)
  return (
    np.frombuffer(accesses, ACCESS),
    np.frombuffer(signals, np.int32).reshape(-1, 2),
  )


def route(image, topk_ids: np.ndarray) -> _native.Routing:
  """Returns the launch plan of a routing, which launches take.

  Args:
    image: a compiled image of either direction.
    topk_ids: `[R, T, K]` i32.

  Returns:
    Read-only counts `[R, E]`, row_base `[R, E]` and row_of_slot `[R, T, K]`,
    all i32; good for every image of these sizes.

  Raises:
    ValueError: an id is out of range, a token names an expert twice, or a
      rank or an expert gets more rows than the image has room for.
  """
  image = image_lib.load(image)
  return _native.Routing(image, arrays.fitting(image, 'topk_ids', topk_ids))
