"""The device source on its twin, as a candidate."""

import dataclasses
from typing import ClassVar

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import image_launch
from hpmoe.parity_tests.candidates import candidates
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import option_fields

NAME = 'ascend_twin'


FLAGS = option_fields.list_options(twin_runtime.Modes)


class TwinFailure(candidates.CandidateError):
  """The device source did something whose effect on an NPU is undefined.

  Attributes:
    findings: what the twin reports, in the order of execution.
  """

  def __init__(self, error: twin_runtime.TwinError):
    super().__init__(f'{NAME}: {error}')
    self.findings = error.findings


@dataclasses.dataclass(frozen=True)
class Twin(host.Megakernel):
  """One launch of the image that the host would run, on the twin.

  Attributes:
    twin: the twin's modes.
    counts: for each launch, what its cores did.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    dtypes=('float32', 'bfloat16'),
    orders=('ascending',),
    relays=True,
    forms=layout.QUANTISED[1:],
    description="the twin runs the device's source, which has no other",
  )
  name: str = NAME
  twin: twin_runtime.Modes = twin_runtime.Modes()
  counts: list[np.ndarray] = candidates.noted(list)

  def _launch(
    self, layer_pass, image, plan, inputs, fault, *, modes, output_names, view
  ) -> dict[str, np.ndarray]:
    del modes, output_names  # The twin has none of the host's modes.
    try:
      result = twin_runtime.run(
        image,
        inputs,
        modes=self.twin,
        deadline_s=self.deadline_s,
        fault=fault,
      )
    except twin_runtime.TwinError as error:
      raise TwinFailure(error) from error
    self.launches.append(
      image_launch.ImageLaunch(layer_pass, image=image, plan=plan, view=view)
    )
    self.counts.append(result.counts)
    return host.decode_sums(image, plan, inputs, result.outputs)

  @property
  def as_used(self) -> None:
    """None: front ends launch on the host, or on an NPU."""
    return None

  def _serial_options(self, config, layer_pass) -> granularity.Options:
    """Returns other tiles if the order of additions does not depend on them."""
    if self.twin.mmad_order == 'ascending':
      other = host.choose_other_tiling(self.options, config, layer_pass)
      # Smaller, never larger: it must fit a core's memories.
      block = self.options.col_block
      smaller = -(-block // 2) if block > 1 else 2
      return dataclasses.replace(other, col_block=min(other.col_block, smaller))
    return dataclasses.replace(self.options, num_aic=1, num_aiv=1)

  def _launch_serial(
    self, image, inputs, plan, modes
  ) -> modes_lib.LaunchResult:
    del plan, modes  # The twin plans its own launch and has no host modes.
    serial_modes = dataclasses.replace(self.twin, order='in_order')
    try:
      outputs = twin_runtime.launch_serial(image, inputs, modes=serial_modes)
    except twin_runtime.TwinError as error:
      raise TwinFailure(error) from error
    return modes_lib.LaunchResult(outputs)
