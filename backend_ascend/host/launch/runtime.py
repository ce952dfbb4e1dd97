"""Executes a task image on the host: one `Launch`, with checking modes or none.

A plain launch computes only the requested tensors, and fills and scans only
what memory safety needs.  A checking launch, with `modes`, computes any tensor.
Both run the same tasks with the same kernels.
"""

import collections.abc
import dataclasses
import functools

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.host.checks import accesses
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.checks import race_report
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.host.load import task_names
from hpmoe.reference.contract import poison as poison_lib
from hpmoe.reference.contract import tensors

inspect = accesses.inspect
TaskName = task_names.TaskName
task_name = task_names.task_name
POISON = poison_lib.POISON
is_poison = poison_lib.is_poison
list_written_tensors = modes_lib.list_written_tensors

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
    missing: threshold minus the sum of all signals of the image; above 0, the
      threshold can never be reached.
    suspects: up to 8 tasks that should have signalled the event: first those
      that ran without signalling, then those that did not run.
    adders: if `missing` is above 0, up to 8 tasks that signal the event.
    losers: if all tasks signalled, but too little: up to 8 puts whose rows did
      not arrive, and so were not returned.
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
    plan: `tensors.PLAN` by name, as far as computed.
  """

  def __init__(
    self, diagnosis: Diagnosis, plan: collections.abc.Mapping[str, np.ndarray]
  ):
    super().__init__(str(diagnosis))
    self.diagnosis = diagnosis
    self.plan = dict(plan)


# What this library made is wrong, whatever the caller gave.
ImageError = _native.ImageError
BrokenError = _native.BrokenError


def build_diagnosis(image: image_lib.Image, native_diagnosis) -> Diagnosis:
  """Returns a native diagnosis with the names of its tasks."""
  names = lambda tasks: tuple(task_name(image, task) for task in tasks)
  return Diagnosis(
    reason=_REASONS[native_diagnosis.reason],
    task=None
    if native_diagnosis.task < 0
    else task_name(image, native_diagnosis.task),
    event=native_diagnosis.event,
    expected=native_diagnosis.expected,
    actual=native_diagnosis.actual,
    missing=native_diagnosis.missing,
    suspects=names(native_diagnosis.suspects),
    adders=names(native_diagnosis.adders),
    losers=names(native_diagnosis.losers),
    text=native_diagnosis.text,
  )


def _with_poisoned_padding(image: image_lib.Image, read, plan):
  """Returns copies of saved rows; past the last valid one they are NaN."""
  rows = plan.counts.sum(axis=0).reshape(image.config.num_ranks, -1).sum(axis=1)
  poisoned = {}
  for name, bits in read.items():
    spec = tensors.SPECS.get(name)
    if spec is None or spec.shape.split()[1] != 'N':
      continue
    poisoned[name] = bits.copy()
    poison = arrays.bits(np.array(poison_lib.poison(arrays.dtype(image, name))))
    for of_rank, valid in zip(poisoned[name], rows):
      of_rank[valid:] = poison
  return poisoned


# Gradients of the layer's inputs.
FINAL_GRADS = frozenset(['dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down'])

_SUBLAYER_FINALS = frozenset(
  ['gate_up', 'd_activation', 'd_w_norm', 'd_w_gate_up', 'd_w_down']
)


def require_options(threads: int | None, deadline_s: float) -> None:
  """Refuses options that no launch accepts.

  Raises:
    ValueError: names the option.
    TypeError: it is of another type.
  """
  _require_type('threads', threads, (int, np.integer), 'an integer')
  _require_type(
    'deadline_s', deadline_s, (int, float, np.number), 'a number of seconds'
  )
  if threads is not None and not 1 <= threads <= _native.MAX_THREADS:
    raise ValueError(
      f'threads: expected 1 to {_native.MAX_THREADS}, got {threads}'
    )
  if not 0 < deadline_s <= _native.MAX_DEADLINE_S:
    raise ValueError(
      f'deadline_s: expected seconds in (0, {_native.MAX_DEADLINE_S:g}], '
      f'got {deadline_s}'
    )


def _require_type(
  name: str, value, types: tuple[type, ...], expected: str
) -> None:
  if value is not None and not isinstance(value, types):
    raise TypeError(f'{name}: expected {expected}, got {value!r}')


class Launch:
  """One image, loaded once and launched often; its memory is kept."""

  def __init__(
    self,
    image,
    *,
    threads: int | None = None,
    deadline_s: float = 60.0,
    isa: str | None = None,
    scan: bool = False,
  ):
    """Loads an image.

    Args:
      image: `compiler.compile_forward(...).image`, or of `compile_backward`;
        or its bytes.
      threads: OS threads of a launch; None means one per core, and fewer for
        little work.
      deadline_s: seconds without any task ending after which to give up.
      isa: instruction set of the tile kernels; None means the best one.
      scan: whether values that are not finite are looked for, and refused.
        Ids, routing weights and capacity always are.

    Raises:
      ValueError: the image is corrupt, or an option out of range.
      TypeError: the image or an option is of another type.
    """
    require_options(threads, deadline_s)
    _require_type('isa', isa, (str,), 'the name of an instruction set')
    self.image = image_lib.load(image)
    self._native = _native.Launch(self.image)
    self._options = functools.partial(
      _native.LaunchOptions, threads=threads, deadline_s=deadline_s, isa=isa
    )
    self._plain = self._options()
    self._scan = scan

  @property
  def names(self) -> tuple[str, ...]:
    """The tensors that a launch can return."""
    return tuple(dict.fromkeys(tensors.PLAN + arrays.outputs(self.image)))

  @property
  def finals(self) -> tuple[str, ...]:
    """The results of the pass: y, or the gradients of the inputs."""
    if self.image.config.sublayer:
      return tuple(n for n in self.names if n in _SUBLAYER_FINALS)
    return tuple(n for n in self.names if n == 'y' or n in FINAL_GRADS)

  @property
  def arena_bytes(self) -> int:
    """Bytes kept between launches, without packing buffers."""
    return self._native.arena_bytes

  def run(
    self,
    inputs: collections.abc.Mapping[str, np.ndarray],
    names: collections.abc.Iterable[str] | None = None,
    *,
    out: collections.abc.Mapping[str, np.ndarray] | None = None,
    modes: modes_lib.Modes | None = None,
    fault: faults.Fault | None = None,
    plan: _native.Routing | None = None,
  ) -> modes_lib.LaunchResult:
    """Runs the image once.

    Args:
      inputs: by name.  Forward: x `[R, T, D]`, topk_ids `[R, T, K]` i32,
        topk_weights `[R, T, K]` f32, w_gate_up `[R, L, D, 2F]`, w_down
        `[R, L, F, D]`; the rest in the storage dtype of the image's policy.
        Backward: dy `[R, T, D]` in place of x, and of a forward launch
        expert_in `[R, N, D]`, or x, gate_up `[R, N, 2F]`, activation
        `[R, N, F]` and, but for placements of `tensors.EARLY`, which do not
        read it, returned `[R, T, K, D]`, or expert_out `[R, N, D]`.
      names: tensors to make, of `Launch.names`; None means `finals`.
      out: arrays to write some of the names to; none may overlap another or an
        input.  Other tensors get new arrays.
      modes: of a checking launch; None: a plain launch.
      fault: a fault to plant, to test the checks.
      plan: what `route` returned for the inputs' topk_ids, if it was called.

    Returns:
      The requested tensors, by name, and the records of the modes.  Rows past a
      rank's last valid row are zero with modes, and in a sub-layer, whose
      result has such rows; a plain launch of a layer leaves them unchanged in
      arrays of `out`, and undefined in others.

    Raises:
      ValueError: an input, output or mode does not fit the image, outputs
        overlap, a name is not one that the image makes, routing exceeds its
        capacity, or the fault changes nothing where it was put.
      WaitError: a task waited for an event that did not come.
      BrokenError: a kernel wrote beyond its tile; where there are
        `modes.guards`.
    """
    image = self.image
    names = _names_asked(names, self.names, self.finals)
    read = arrays.inputs(
      image, inputs, spares=arrays.SPARES[image.direction], scan=self._scan
    )
    outputs = self._outputs(names, {} if out is None else out, read, modes)
    planned = {}
    if modes is not None:
      planned = arrays.zeros(image, tensors.PLAN) | outputs
      planned = {name: planned[name] for name in tensors.PLAN}
      if modes.guards and 'topk_ids' in read:
        plan = plan or _native.Routing(image, read['topk_ids'])
        read |= _with_poisoned_padding(image, read, plan)
    options, captures = self._native_options(modes, fault)
    report = self._native.run(
      read,
      {n: arrays.bits(a) for n, a in (outputs | planned).items()},
      options,
      plan,
    )
    if report.diagnosis.reason:
      raise WaitError(build_diagnosis(image, report.diagnosis), planned)
    if fault and not report.fault_changed:
      raise faults.NoEffect(
        f'fault: expected a task that {fault.name} changes, got '
        f'{task_name(image, fault.task)}, whose output stays the same'
      )
    if modes is None:
      return modes_lib.LaunchResult(outputs=outputs)
    return modes_lib.LaunchResult(
      outputs=outputs,
      captures=captures,
      order=report.order if modes.trace else None,
      times=modes_lib.times(report.times) if modes.times else None,
      races=tuple(race_report.race(image, race) for race in report.races),
      num_races=report.num_races,
    )

  def _outputs(self, names, out, read, modes) -> dict[str, np.ndarray]:
    """Returns the arrays to make tensors in."""
    if not set(out) <= set(names):
      raise ValueError(
        f'out: expected some of {names}, got {sorted(set(out) - set(names))}'
      )
    plain = modes is None and not self.image.config.sublayer
    new = np.empty if plain else np.zeros
    outputs = {n: _array(self.image, n, out.get(n), new) for n in names}
    _require_apart(read, {n: outputs[n] for n in out})
    return outputs

  def _native_options(self, modes, fault):
    """Returns native options, and the arrays to capture into or None."""
    if modes is None and fault is None:
      return self._plain, None
    make_options = self._options
    if fault:
      make_options = functools.partial(
        make_options, fault=fault.name, fault_task=fault.task
      )
    if modes is None:
      return make_options(), None
    replayed, captures = _replayed(self.image, modes)
    options = make_options(
      poison=modes.poison,
      permute=modes.permute,
      late_puts=modes.late_puts,
      races=modes.races,
      guards=modes.guards,
      trace=modes.trace,
      times=modes.times,
      **replayed,
    )
    return options, captures


def _replayed(image: image_lib.Image, modes: modes_lib.Modes):
  """Returns native options of the modes' actions, and what is captured."""
  actions, healed = modes_lib.check_actions(image, modes)
  captures = modes_lib.make_capture_arrays(image, actions)
  bits = {n: arrays.bits(a) for n, a in (captures or {}).items()}
  return dict(actions=actions, captured=bits, given=healed), captures


def _names_asked(
  requested: collections.abc.Iterable[str] | None,
  available: tuple[str, ...],
  finals: tuple[str, ...],
) -> tuple[str, ...]:
  """Returns the names of tensors to make; None means the finals."""
  if requested is None:
    return finals
  # The letters of a string are no names.
  names = () if isinstance(requested, str) else tuple(requested)
  if isinstance(requested, str) or any(name not in available for name in names):
    raise ValueError(
      f'names: expected a list of names of {available}, got {requested!r}'
    )
  return names


def _array(image, name: str, out: np.ndarray | None, new) -> np.ndarray:
  shape, dtype = arrays.shape(image, name), arrays.dtype(image, name)
  if out is None:
    return new(shape, dtype)
  if not isinstance(out, np.ndarray):
    raise ValueError(
      f'out[{name!r}]: expected an array, got {type(out).__name__}'
    )
  if wrong := _unfit(out, shape, dtype):
    raise ValueError(
      f'out[{name!r}]: expected a writable, contiguous {dtype} {shape}, '
      f'got {wrong}'
    )
  return out


def _unfit(array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> str:
  """Returns why tasks cannot write into an array; empty if they can."""
  wrong = []
  if array.shape != shape or array.dtype != dtype:
    wrong.append(f'{array.dtype} {array.shape}')
  if not array.flags.writeable:
    wrong.append('one that is read-only')
  if not array.flags.c_contiguous:
    wrong.append(f'strides of {array.strides} bytes')
  if not array.flags.aligned:
    wrong.append('one that is not aligned to its elements')
  return ', '.join(wrong)


def _require_apart(
  read: collections.abc.Mapping[str, np.ndarray],
  written_arrays: collections.abc.Mapping[str, np.ndarray],
) -> None:
  """Refuses memory of one array for another: tasks have no order for it.

  Raises:
    ValueError: an array to write overlaps one that is read or written.
  """
  previous = list(read.items())
  for name, array in written_arrays.items():
    for other, other_array in previous:
      # Of contiguous arrays the bounds tell.
      if np.may_share_memory(array, other_array):
        raise ValueError(
          f'out: expected memory of its own for {name}, got an overlap with '
          f'{other}'
        )
    previous.append((name, array))


def run(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  names: collections.abc.Iterable[str] | None = None,
  fault: faults.Fault | None = None,
  modes: modes_lib.Modes = modes_lib.Modes(),
  plan: _native.Routing | None = None,
  **options,
) -> modes_lib.LaunchResult:
  """Launches an image once, to check: inputs are scanned.

  Args:
    image: as of `Launch`.
    inputs: as of `Launch.run`, and the four below.
    names: tensors to make; None means all.
    fault: a fault.
    modes: beside these, what is not written is `POISON`.
    plan: of the routing.
    **options: `threads`, `deadline_s` and `isa` of `Launch`.

  Raises:
    ValueError, WaitError, BrokenError: as `Launch.run`.
  """
  checking_launch = Launch(image, scan=True, **options)
  if names is None:
    names = arrays.outputs(checking_launch.image)
  return checking_launch.run(inputs, names, modes=modes, fault=fault, plan=plan)


def launch(
  image, inputs: collections.abc.Mapping[str, np.ndarray], **options
) -> dict[str, np.ndarray]:
  """Returns the outputs of `run`."""
  return run(image, inputs, **options).outputs


def run_serial(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  isa: str | None = None,
  plan: _native.Routing | None = None,
  modes: modes_lib.Modes = modes_lib.Modes(),
) -> modes_lib.LaunchResult:
  """Runs the same tasks on one thread, kind by kind; see `run`.

  Nothing waits and nothing signals, and some rows of every kind of task are
  computed in plain C++, whatever the instruction set: so this is what any
  launch must equal, bit for bit.  Of the modes it has `actions`.

  Raises:
    ValueError: as `Launch.run`.
    BrokenError: the sums of an instruction set are not those of plain C++.
  """
  image = image_lib.load(image)
  read = arrays.inputs(image, inputs)
  names = arrays.outputs(image)
  outputs = arrays.zeros(image, tensors.PLAN + names)
  plan = plan or _native.Routing(image, read['topk_ids'])
  replayed, captures = _replayed(image, modes)
  _native.launch_serial(
    image,
    plan,
    read,
    {n: arrays.bits(a) for n, a in outputs.items()},
    _native.LaunchOptions(isa=isa, **replayed),
  )
  return modes_lib.LaunchResult({n: outputs[n] for n in names}, captures)


def launch_serial(
  image, inputs: collections.abc.Mapping[str, np.ndarray], **options
) -> dict[str, np.ndarray]:
  """Returns the outputs of `run_serial`."""
  return run_serial(image, inputs, **options).outputs


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
