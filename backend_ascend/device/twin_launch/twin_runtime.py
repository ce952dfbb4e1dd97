"""Executes a task image on the twin: the NPU's source, on a CPU.

The same image and tensors as `host.launch.runtime` takes.  A launch is
deterministic in its image, inputs and modes.
"""

import collections.abc
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.device.twin_launch import _ascend_twin
from hpmoe.backend_ascend.device.twin_launch import twin_report
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.host.load import task_names
from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.reference.contract import option_fields
from hpmoe.reference.contract import tensors

ORDERS = ('in_order', 'seeded', 'late')
MMAD_ORDERS = ('ascending', 'blocks_of_16', 'reversed', 'even_odd')
EXPS = ('nearest', 'up', 'down')
_SOURCE = (
  pathlib.Path(__file__).resolve().parents[1] / 'megakernel/megakernel.cc'
)

Finding = twin_report.Finding
TwinError = twin_report.TwinError
COUNTS = twin_report.COUNTS
PIPES = twin_report.PIPES
RATES = tuple(_ascend_twin.rates())


@dataclasses.dataclass(frozen=True)
class Modes:
  """Choices of the twin where the hardware may do one thing or another.

  Attributes:
    order: one of ORDERS: instructions run as soon as flags allow, in an order
      that a seed draws, or as late as flags allow.
    seed: seed of order 'seeded'.
    hazards: whether unordered accesses end the launch.
    mmad_order: one of MMAD_ORDERS, in which a product adds its terms.
    exp: one of EXPS: rounds to the nearest float, or to the one above or below.
    flush_subnormals: whether the cube and vector units read subnormals as zero.
    saturate: whether infinities become the largest number and NaN zero.
    auto_sync: whether to assume the barriers that the device's compiler inserts
      by default.
    rates: a machine's figures by the names of RATES, which give counts their
      times; None: no times.
    include: headers of Ascend C (asc-devkit, or asc of a CANN) against which
      clang compiles the device source; '': it is built with our own.
  """

  order: str = option_fields.option(
    'in_order',
    'Order of instructions on the twin, among those that flags allow: '
    'in_order: as issued; seeded: random, by --twin_seed; late: each '
    'instruction as late as possible.',
    flag='twin_mode',
    choices=tuple(ORDERS),
  )
  seed: int = option_fields.option(
    0,
    'Seed of --twin_mode=seeded.',
    flag='twin_seed',
    minimum=0,
    maximum=2**64 - 1,
  )
  hazards: bool = option_fields.option(
    True,
    'End the launch at an access that no synchronisation orders; '
    '--notwin_hazards is faster.',
    flag='twin_hazards',
  )
  mmad_order: str = option_fields.option(
    'ascending',
    "Order in which the twin's cube unit adds; the order of the hardware "
    'is not published.',
    choices=tuple(MMAD_ORDERS),
  )
  exp: str = option_fields.option(
    'nearest',
    "Result of the twin's exp: the nearest float, or the one above or below.",
    flag='exp_rounding',
    choices=tuple(EXPS),
  )
  flush_subnormals: bool = option_fields.option(
    False,
    "The twin's units treat subnormal numbers as zeros.",
  )
  saturate: bool = option_fields.option(
    False,
    'On the twin, infinities become the largest number, and NaN becomes zero.',
  )
  auto_sync: bool = option_fields.option(
    False,
    'Treat pairs for which the device compiler inserts synchronisation by '
    'default (--cce-auto-sync) as ordered: V after V, and the scalar unit '
    'with V, MTE2 and MTE3.',
  )
  rates: collections.abc.Mapping[str, float] | None = None
  include: str = option_fields.option(
    '',
    'Headers of Ascend C with which the device source is compiled: '
    "asc-devkit, or asc of an installed CANN. Default: the twin's own.",
    flag='twin_include',
  )

  def __post_init__(self):
    for name, choices in (
      ('order', ORDERS),
      ('mmad_order', MMAD_ORDERS),
      ('exp', EXPS),
    ):
      if getattr(self, name) not in choices:
        raise ValueError(
          f'{name}: expected one of {list(choices)}, got '
          f'{getattr(self, name)!r}'
        )
    if not 0 <= self.seed < 2**64:
      raise ValueError(f'seed: expected one in [0, 2**64), got {self.seed}')


@dataclasses.dataclass(frozen=True)
class TwinResult:
  """The result of a launch.

  Attributes:
    outputs: tensors by name.
    counts: `[n]` COUNTS, the work of each core for each task.
    cycles: modelled cycles of 50 MHz.
  """

  outputs: dict[str, np.ndarray]
  counts: np.ndarray
  cycles: int


def run(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  modes: Modes = Modes(),
  deadline_s: float = 60.0,
  fault: faults.Fault | None = None,
) -> TwinResult:
  """Executes the image in one launch.

  Args:
    image: as in `runtime.launch`.
    inputs: as in `runtime.launch`.
    modes: modes of the twin.
    deadline_s: seconds of one wait, on the modelled clock.
    fault: a fault to plant.  A fault of order changes the waits or signals of
      a task in the image; any other gives the task's stores the bits of the
      host's launch with this fault.

  Raises:
    ValueError: an input does not fit the image, routing exceeds its capacity,
      the device source cannot run it, or the fault changes nothing.
    TwinError: the device source did something undefined on an NPU.
    runtime.WaitError: a task waited for an event that did not come.
  """
  return _launch(image, inputs, modes, deadline_s, fault, _ascend_twin.launch)


def launch(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  modes: Modes = Modes(),
  deadline_s: float = 60.0,
) -> dict[str, np.ndarray]:
  """Returns every tensor of a launch, as `runtime.launch` does; see `run`."""
  return run(image, inputs, modes=modes, deadline_s=deadline_s).outputs


def launch_serial(
  image,
  inputs: collections.abc.Mapping[str, np.ndarray],
  *,
  modes: Modes = Modes(),
) -> dict[str, np.ndarray]:
  """Runs the same tasks kind by kind, each kind on one core of a rank.

  Nothing waits and nothing signals, so any schedule must return the same bits.
  """
  return _launch(
    image, inputs, modes, 1.0, None, _ascend_twin.launch_serial
  ).outputs


def _launch(image, inputs, modes, deadline_s, fault, native) -> TwinResult:
  image = image_lib.load(image)
  read = arrays.inputs(image, inputs)
  names = arrays.outputs(image)
  outputs = arrays.zeros(image, tensors.PLAN + names)
  if fault and fault.name not in faults.OF_ORDER:
    outputs |= runtime.launch(image, inputs, fault=fault)
  report = native(
    np.frombuffer(memoryview(image), np.uint8),
    read,
    {name: arrays.bits(array) for name, array in outputs.items()},
    options(modes, deadline_s, fault),
  )
  plan = {name: outputs[name] for name in tensors.PLAN}
  _raise(image, report, plan)
  if fault and not report.fault_changed:
    raise faults.NoEffect(
      f'fault: expected a task that {fault.name} changes, got '
      f'{task_names.task_name(image, fault.task)}, whose work stays the same'
    )
  return TwinResult(
    {name: outputs[name] for name in names},
    twin_report.counts(report),
    report.cycles,
  )


@functools.cache
def device_code(headers: str) -> build_kernel.Kernel:
  """Returns the device source, compiled against real headers.

  Raises:
    ValueError: `headers` is no such folder, or the source does not compile.
  """
  return build_kernel.build(
    _SOURCE,
    build_kernel.headers(headers),
    build_kernel.make_cache_folder(),
    ['-DHPMOE_ON_TASK(index)=hpmoe_twin_task(index)'],
  )


def options(
  modes: Modes, deadline_s: float = 60.0, fault: faults.Fault | None = None
) -> _ascend_twin.Options:
  """Returns the options of the extension module; arguments as in `run`."""
  # Fields at their default keep the extension module's default.
  changes: dict[str, Any] = {
    field.name: getattr(modes, field.name)
    for field in dataclasses.fields(Modes)
    if getattr(modes, field.name) != field.default
  }
  code: dict[str, Any] = {}
  if headers := changes.pop('include', ''):
    kernel = device_code(headers)
    code = dict(vector=str(kernel.vector), cube=str(kernel.cube))
  return _ascend_twin.Options(
    mode=changes.pop('order', 'in_order'),
    **code,
    **changes,
    deadline_s=deadline_s,
    fault=fault.name if fault else None,
    fault_task=fault.task if fault else -1,
  )


def _raise(image, report, plan) -> None:
  """Raises the error of a launch, if there is one.

  A core that the twin stopped leaves others waiting, so findings come first.
  """
  findings = twin_report.findings(image, report)
  if findings:
    raise TwinError(findings)
  if report.diagnosis is not None:
    raise runtime.WaitError(
      runtime.build_diagnosis(image, report.diagnosis), plan
    )
