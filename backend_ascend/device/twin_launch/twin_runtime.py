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
  """What the twin chooses where the hardware may do one thing or another.

  Attributes:
    order: one of ORDERS: instructions run as soon as flags allow, in an order
      that a seed draws, or as late as flags allow.
    seed: of order 'seeded'.
    hazards: accesses that nothing orders end the launch.
    mmad_order: one of MMAD_ORDERS, in which a product adds its terms.
    exp: one of EXPS: the nearest float, or the one above or below.
    flush_subnormals: the cube and vector units take them for zero.
    saturate: infinities become the largest number, NaN zero.
    auto_sync: what the device's compiler inserts by default is no hazard.
    rates: a machine's figures by the names of RATES, from which counts have
      times; None: no times.
    include: compiles the device source against these headers of Ascend C
      (asc-devkit, or asc of a CANN), by clang; '': it is built with our own.
  """

  order: str = 'in_order'
  seed: int = 0
  hazards: bool = True
  mmad_order: str = 'ascending'
  exp: str = 'nearest'
  flush_subnormals: bool = False
  saturate: bool = False
  auto_sync: bool = False
  rates: collections.abc.Mapping[str, float] | None = None
  include: str = ''

  def __post_init__(self):
    for name, known in (
      ('order', ORDERS),
      ('mmad_order', MMAD_ORDERS),
      ('exp', EXPS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
          f'{name}: expected one of {list(known)}, got {getattr(self, name)!r}'
        )
    if not 0 <= self.seed < 2**64:
      raise ValueError(f'seed: expected one in [0, 2**64), got {self.seed}')


@dataclasses.dataclass(frozen=True)
class Launched:
  """What a launch gives.

  Attributes:
    outputs: by name.
    counts: `[n]` COUNTS: what each core did for each task.
    cycles: modelled, 50 MHz.
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
) -> Launched:
  """Executes the image in one launch.

  Args:
    image: as of `runtime.launch`.
    inputs: as of `runtime.launch`.
    modes: of the twin.
    deadline_s: of one wait, in the seconds of the modelled clock.
    fault: a fault to plant.  One of order is an image whose task waits or
      signals otherwise; of any other the task's stores have the bits of the
      host's launch with this fault.

  Raises:
    ValueError: an input does not fit the image, routing exceeds its capacity,
      the device source cannot run it, or the fault changes nothing.
    TwinError: the device source did what an NPU does not do, or not surely.
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

  Nothing waits and nothing signals, so this is what any schedule must equal,
  bit for bit.
  """
  return _launch(
    image, inputs, modes, 1.0, None, _ascend_twin.launch_serial
  ).outputs


def _launch(image, inputs, modes, deadline_s, fault, native) -> Launched:
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
  return Launched(
    {name: outputs[name] for name in names},
    twin_report.counts(report),
    report.cycles,
  )


@functools.cache
def device_code(headers: str) -> build_kernel.Kernel:
  """Returns the device source, compiled against real headers.

  Raises:
    ValueError: `headers` are none, or it does not compile against them.
  """
  return build_kernel.build(
    _SOURCE,
    build_kernel.headers(headers),
    build_kernel.kept(),
    ['-DHPMOE_ON_TASK(index)=hpmoe_twin_task(index)'],
  )


def options(
  modes: Modes, deadline_s: float = 60.0, fault: faults.Fault | None = None
) -> _ascend_twin.Options:
  """Returns the native part's options; arguments as of `run`."""
  # What stays at its default is the native part's own.
  asked: dict[str, Any] = {
    field.name: getattr(modes, field.name)
    for field in dataclasses.fields(Modes)
    if getattr(modes, field.name) != field.default
  }
  code: dict[str, Any] = {}
  if headers := asked.pop('include', ''):
    kernel = device_code(headers)
    code = dict(vector=str(kernel.vector), cube=str(kernel.cube))
  return _ascend_twin.Options(
    mode=asked.pop('order', 'in_order'),
    **code,
    **asked,
    deadline_s=deadline_s,
    fault=fault.name if fault else None,
    fault_task=fault.task if fault else -1,
  )


def _raise(image, report, plan) -> None:
  """Raises what went wrong, if anything did.

  A core that the twin stopped leaves others waiting: it is told first.
  """
  found = twin_report.findings(image, report)
  if found:
    raise TwinError(found)
  if report.diagnosis is not None:
    raise runtime.WaitError(
      runtime.build_diagnosis(image, report.diagnosis), plan
    )
