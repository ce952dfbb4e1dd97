"""Executes a task image on the host, in one launch or stage by stage."""

import collections.abc
import dataclasses

import ml_dtypes
import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.kernels.host.checks import faults
from hpmoe.backend_ascend.kernels.host.checks import modes as modes_lib
from hpmoe.backend_ascend.kernels.host.checks import race_report
from hpmoe.backend_ascend.kernels.host.launch import task_names
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import tensors

TaskName = task_names.TaskName
task_name = task_names.task_name
POISON = modes_lib.POISON
is_poison = modes_lib.is_poison

_REASONS = ('none', 'deadlock', 'deadline')
_MAX_DEADLINE_S = 1e9
_INPUTS = {
  layout.Direction.FORWARD: tensors.INPUTS,
  layout.Direction.BACKWARD: (
    'dy',
    *(name for name in tensors.INPUTS if name != 'x'),
    *tensors.saved('combine'),
  ),
}
_OUTPUTS = {
  layout.Direction.FORWARD: tensors.PLAN + tensors.STAGES,
  layout.Direction.BACKWARD: tensors.GRADS,
}


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


def load(image) -> tuple[np.ndarray, image_lib.Image]:
  """Returns an image's bytes and its tables, after the native checks.

  Raises:
    ValueError: the image is truncated, corrupt or inconsistent.
  """
  # A copy only where the loader could not read the tables in place.
  blob = np.frombuffer(image, np.uint8)
  if blob.ctypes.data % 8:
    blob = blob.copy()
  _native.check_image(blob)
  return blob, image_lib.parse(blob)


def _storage(image: image_lib.Image) -> np.dtype:
  if image.policy.storage == 'bfloat16':
    return np.dtype(ml_dtypes.bfloat16)
  return np.dtype(np.float32)


def _dtype(spec: tensors.TensorSpec, storage: np.dtype) -> np.dtype:
  kinds = {
    'storage': storage,
    'f32': np.dtype(np.float32),
    'i32': np.dtype(np.int32),
  }
  return kinds[spec.kind]


def _bits(array: np.ndarray) -> np.ndarray:
  """Returns bfloat16 as uint16, anything else as it is; never a copy."""
  return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def _fitting(name: str, value, shape, dtype: np.dtype) -> np.ndarray:
  value = np.asarray(value)
  if value.dtype != dtype:
    raise ValueError(f'{name}: expected dtype {dtype}, got {value.dtype}')
  if value.shape != shape:
    raise ValueError(f'{name}: expected shape {shape}, got {value.shape}')
  return np.ascontiguousarray(value)


def _checked(name: str, value, shape, dtype: np.dtype) -> np.ndarray:
  value = _bits(_fitting(name, value, shape, dtype))
  # What a forward pass saved may have overflowed, and it is its user's.
  if dtype != np.int32 and name not in tensors.STAGES:
    at = _native.first_non_finite(value)
    if at >= 0:
      index = tuple(int(i) for i in np.unravel_index(at, shape))
      got = value.reshape(-1)[at : at + 1].view(dtype)[0]
      raise ValueError(f'{name}: expected finite values, got {got} at {index}')
  return value


def direction(image: image_lib.Image) -> layout.Direction:
  """Returns which pass a parsed image computes."""
  return layout.Direction(int(image.header['direction']))


def _inputs(image: image_lib.Image, inputs) -> dict[str, np.ndarray]:
  names = _INPUTS[direction(image)]
  # A weight that is applied before w_down has its gradient there.
  unread = {'returned'} if image.policy.placement == 'before_down' else set()
  unread &= set(names)
  if not set(names) - unread <= set(inputs) <= set(names):
    raise ValueError(
      f'inputs: expected {sorted(set(names) - unread)}, got {sorted(inputs)}'
    )
  storage, dims = _storage(image), image.config.dims()
  specs = [tensors.SPECS[name] for name in names if name not in unread]
  return {
    s.name: _checked(s.name, inputs[s.name], s.dims(**dims), _dtype(s, storage))
    for s in specs
  }


def _outputs(image: image_lib.Image, names) -> dict[str, np.ndarray]:
  # Zeroed by the operating system on first touch: rows past the last valid
  # one cost nothing.
  storage, dims = _storage(image), image.config.dims()
  specs = [tensors.SPECS[name] for name in names]
  return {s.name: np.zeros(s.dims(**dims), _dtype(s, storage)) for s in specs}


def _launch(blob, image: image_lib.Image, inputs, plan, native):
  """Returns what the image computes, its plan, and what `native` returns."""
  arrays = _inputs(image, inputs)
  plan = plan or _native.make_plan(blob, arrays['topk_ids'])
  names = _OUTPUTS[direction(image)]
  outputs = _outputs(image, dict.fromkeys(tensors.PLAN + names))
  result = native(plan, arrays, {n: _bits(a) for n, a in outputs.items()})
  made = [{n: outputs[n] for n in some} for some in (names, tensors.PLAN)]
  return *made, result


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
  names = _OUTPUTS[direction(image)]
  return tuple(name for name in names if name not in tensors.PLAN)


def _healed(image: image_lib.Image, given) -> dict[str, np.ndarray]:
  names = written(image)
  if not set(names) <= set(given):
    raise ValueError(
      f'modes.given: expected {sorted(names)}, got {sorted(given)}'
    )
  storage, dims = _storage(image), image.config.dims()
  specs = [tensors.SPECS[name] for name in names]
  return {
    s.name: _bits(
      _fitting(
        f'modes.given[{s.name!r}]',
        given[s.name],
        s.dims(**dims),
        _dtype(s, storage),
      )
    )
    for s in specs
  }


def _captured(image: image_lib.Image, actions):
  """Returns poisoned tensors for what is captured, or None."""
  if actions is None or not (actions & modes_lib.Action.CAPTURE).any():
    return None
  captured = _outputs(image, written(image))
  if (
    direction(image) == layout.Direction.BACKWARD
    and image.policy.placement == 'before_down'
  ):
    r, n, t, k = (image.config.dims()[c] for c in 'RNTK')
    captured['d_row_weight'] = np.zeros((r, n), np.float32)
    captured['d_slot_weight'] = np.zeros((r, t, k), np.float32)
  for array in captured.values():
    array[...] = modes_lib.poison(array.dtype)
  return captured


def _refuse(threads: int | None, deadline_s: float) -> None:
  if threads is not None and not 1 <= threads <= 4096:
    raise ValueError(f'threads: expected 1 to 4096, got {threads}')
  if not 0 < deadline_s <= _MAX_DEADLINE_S:
    raise ValueError(
      f'deadline_s: expected seconds in (0, {_MAX_DEADLINE_S:g}], '
      f'got {deadline_s}'
    )


def _flags(modes: modes_lib.Modes) -> dict[str, bool]:
  return dict(
    poison=modes.poison,
    permute=modes.permute is not None,
    late_puts=modes.late_puts,
    races=modes.races,
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
  plan=None,
) -> modes_lib.Launched:
  """Executes the image in one launch that checks; otherwise as `launch`.

  `plan`: what `route` returned for the inputs' topk_ids, if it was called.

  Raises:
    ValueError: as `launch`, or `modes` does not fit the image.
    WaitError: a task waited for an event that did not come.
  """
  _refuse(threads, deadline_s)
  blob, parsed = load(image)
  actions, healed = _actions(parsed, modes)
  captured = _captured(parsed, actions)
  num_tasks = len(parsed.tables['tasks'])
  order = np.zeros(num_tasks, np.uint32) if modes.trace else None
  tables = dict(order=order, actions=actions)
  outputs, planned, (stopped, fault_changed, (num_races, races)) = _launch(
    blob,
    parsed,
    inputs,
    plan,
    lambda plan, read, out: _native.launch(
      blob,
      plan,
      read,
      out,
      threads or 0,
      deadline_s,
      isa or '',
      fault.name if fault else '',
      fault.task if fault else -1,
      _flags(modes),
      modes.permute or 0,
      {name: table for name, table in tables.items() if table is not None},
      {name: _bits(array) for name, array in (captured or {}).items()},
      healed,
    ),
  )
  if stopped.reason:
    raise WaitError(diagnosis(parsed, stopped), planned)
  if fault and not fault_changed:
    raise faults.NoEffect(
      f'fault: expected a task that {fault.name} changes, got '
      f'{task_name(parsed, fault.task)}, whose output stays the same'
    )
  return modes_lib.Launched(
    outputs=outputs,
    captured=captured,
    order=order,
    races=tuple(race_report.race(parsed, *race) for race in races),
    num_races=num_races,
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
    image: the blob of `compiler.compile_forward` or `compile_backward`, any
      contiguous buffer; it says which pass is computed.
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
    dy, by name.  Rows past a rank's last valid row are zero; what no task wrote
    is `POISON`.

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
) -> dict[str, np.ndarray]:
  """Runs the same tasks on one thread, kind by kind; see `launch`.

  Nothing waits and nothing signals, so this is what any schedule must equal,
  bit for bit.
  """
  blob, parsed = load(image)
  outputs, *_ = _launch(
    blob,
    parsed,
    inputs,
    None,
    lambda plan, given, written: _native.launch_serial(
      blob, plan, given, written, isa or ''
    ),
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


def inspect(image, topk_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns what the tasks of a launch would access and signal.

  Args:
    image: a compiled image of either direction.
    topk_ids: `[R, T, K]` i32.

  Returns:
    `[a]` ACCESS by task: the rectangles that the kernels are given, in physical
    rows of a slab (a rank, or the expert of a weight).  Columns past the
    tensor's are what travels beside it, see `modes.Race.cols`.
    `[s, 2]` i32 of (task, event) by task, once for every time that it signals.

  Raises:
    ValueError: as `make_plan`.
  """
  blob, parsed = load(image)
  shape = tensors.SPECS['topk_ids'].dims(**parsed.config.dims())
  ids = _checked('topk_ids', topk_ids, shape, np.dtype(np.int32))
  accesses, signals = _native.inspect(blob, ids)
  return (
    np.frombuffer(accesses, ACCESS),
    np.frombuffer(signals, np.int32).reshape(-1, 2),
  )


def route(image, topk_ids: np.ndarray):
  """Returns the native plan of a routing, for `run`; see `make_plan`."""
  blob, parsed = load(image)
  shape = tensors.SPECS['topk_ids'].dims(**parsed.config.dims())
  ids = _checked('topk_ids', topk_ids, shape, np.dtype(np.int32))
  return _native.make_plan(blob, ids)


def make_plan(image, topk_ids: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the launch plan of a routing.

  Args:
    image: a compiled image of either direction.
    topk_ids: `[R, T, K]` i32.

  Returns:
    counts `[R, E]`, row_base `[R, E]` and row_of_slot `[R, T, K]`, all i32.

  Raises:
    ValueError: an id is out of range, a token names an expert twice, or a
      rank or an expert gets more rows than the image has room for.
  """
  blob, parsed = load(image)
  plan = route(blob, topk_ids)
  dims = parsed.config.dims()
  return {
    name: getattr(plan, name).reshape(tensors.SPECS[name].dims(**dims)).copy()
    for name in tensors.PLAN
  }
