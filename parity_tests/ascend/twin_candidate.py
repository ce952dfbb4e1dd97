"""The device source on its twin, as a candidate."""

import dataclasses
from typing import ClassVar

import numpy as np

from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import image_launch
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import flag_tables
from hpmoe.reference.contract import granularity

NAME = 'ascend_twin'


_PLAIN = twin_runtime.Modes()
# They set fields of `twin_runtime.Modes`.
_CHOICES = dict(
  twin_mode=twin_runtime.ORDERS,
  mmad_order=twin_runtime.MMAD_ORDERS,
  exp_rounding=twin_runtime.EXPS,
)
FLAGS = tuple(
  row.replace(
    default=getattr(_PLAIN, row.field),
    kind=type(getattr(_PLAIN, row.field)),
    choices=tuple(_CHOICES.get(row.name, ())),
  )
  for row in flag_tables.read_flags('twin')
)


class TwinFailure(candidates.CandidateError):
  """The device source did what an NPU does not do, or not surely.

  Attributes:
    findings: what, the first one first.
  """

  def __init__(self, error: twin_runtime.TwinError):
    super().__init__(f'{NAME}: {error}')
    self.findings = error.findings


@dataclasses.dataclass(frozen=True)
class Twin(host.Megakernel):
  """One launch of the image that the host would run, on the twin.

  Attributes:
    twin: its modes.
    counts: of each launch, what its cores did.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    dtypes=('float32', 'bfloat16'),
    orders=('ascending',),
    relays=True,
    description="the twin runs the device's source, which has no other",
  )
  name: str = NAME
  twin: twin_runtime.Modes = twin_runtime.Modes()
  counts: list[np.ndarray] = candidates.noted(list)

  def _launch(
    self, which, image, plan, inputs, fault, *, modes, asked, view
  ) -> dict[str, np.ndarray]:
    del modes, asked  # Those of the host, of which the twin has none.
    try:
      launched = twin_runtime.run(
        image,
        inputs,
        modes=self.twin,
        deadline_s=self.deadline_s,
        fault=fault,
      )
    except twin_runtime.TwinError as error:
      raise TwinFailure(error) from error
    self.launches.append(
      image_launch.ImageLaunch(which, image=image, plan=plan, view=view)
    )
    self.counts.append(launched.counts)
    return launched.outputs

  @property
  def as_used(self) -> None:
    """None: front ends launch on the host, or on an NPU."""
    return None

  def _serial_options(self, config, which) -> granularity.Options:
    """Returns another cut where the order of terms does not depend on it."""
    if self.twin.mmad_order == 'ascending':
      other = host.cut_otherwise(self.options, config, which)
      # Smaller, never larger: a core's memories hold it too.
      block = self.options.col_block
      smaller = -(-block // 2) if block > 1 else 2
      return dataclasses.replace(other, col_block=min(other.col_block, smaller))
    return dataclasses.replace(self.options, num_aic=1, num_aiv=1)

  def _launch_serial(
    self, image, inputs, plan, modes
  ) -> modes_lib.LaunchResult:
    del plan, modes  # The launch makes its own, and none of the host's.
    mine = dataclasses.replace(self.twin, order='in_order')
    try:
      outputs = twin_runtime.launch_serial(image, inputs, modes=mine)
    except twin_runtime.TwinError as error:
      raise TwinFailure(error) from error
    return modes_lib.LaunchResult(outputs)
