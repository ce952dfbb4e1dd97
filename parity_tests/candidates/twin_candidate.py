"""The device source on its twin, as a candidate."""

import dataclasses
from typing import ClassVar

import numpy as np

from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime
from hpmoe.backend_ascend.kernels.host.checks import modes as modes_lib
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import host
from hpmoe.parity_tests.case import flag as flag_lib

NAME = 'ascend_twin'


_PLAIN = twin_runtime.Modes()
# They set fields of `twin_runtime.Modes`.
FLAGS = (
  flag_lib.Flag(
    'twin_mode',
    'order',
    'Which of the orders that flags allow the twin takes: as issued, drawn by '
    '--twin_seed, or each instruction as late as it can be.',
    _PLAIN.order,
    choices=tuple(twin_runtime.ORDERS),
  ),
  flag_lib.Flag(
    'mmad_order',
    'mmad_order',
    'Order in which the cube unit of the twin adds; that of the hardware is '
    'not published.',
    _PLAIN.mmad_order,
    choices=tuple(twin_runtime.MMAD_ORDERS),
  ),
  flag_lib.Flag(
    'exp_rounding',
    'exp',
    "The twin's exp: the nearest float, or the one above or below.",
    _PLAIN.exp,
    choices=tuple(twin_runtime.EXPS),
  ),
  flag_lib.Flag(
    'twin_seed',
    'seed',
    'Seed of the order of --twin_mode=seeded.',
    _PLAIN.seed,
    int,
  ),
  flag_lib.Flag(
    'twin_hazards',
    'hazards',
    'Accesses that nothing orders end the launch; without, it is faster.',
    _PLAIN.hazards,
    bool,
  ),
  flag_lib.Flag(
    'auto_sync',
    'auto_sync',
    'On the twin what the device compiler inserts by default '
    '(--cce-auto-sync) is no hazard: V after V, and the scalar unit with V, '
    'MTE2 and MTE3.',
    _PLAIN.auto_sync,
    bool,
  ),
  flag_lib.Flag(
    'flush_subnormals',
    'flush_subnormals',
    'The units of the twin take subnormal numbers for zeros.',
    _PLAIN.flush_subnormals,
    bool,
  ),
  flag_lib.Flag(
    'saturate',
    'saturate',
    'On the twin infinities become the largest number, NaN zero.',
    _PLAIN.saturate,
    bool,
  ),
  flag_lib.Flag(
    'twin_include',
    'include',
    'Headers of Ascend C that the device source is compiled against: '
    'asc-devkit, or asc of an installed CANN. Default: our own.',
    _PLAIN.include,
  ),
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

  can: ClassVar[candidates.Can] = candidates.Can(
    dtypes=('float32', 'bfloat16'),
    orders=('ascending',),
    relays=True,
    why="the twin runs the device's source, which has no other",
  )
  name: str = NAME
  twin: twin_runtime.Modes = twin_runtime.Modes()
  counts: list[np.ndarray] = dataclasses.field(
    default_factory=list, init=False, compare=False
  )

  def _launch(
    self, which, image, plan, inputs, fault, *, modes, asked
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
    tasks = len(image.tables['tasks'])
    self.launches.append(
      candidates.Launch(which, image, plan, (), 0, tasks, tasks)
    )
    self.counts.append(launched.counts)
    return launched.outputs

  @property
  def as_used(self) -> None:
    """None: front ends launch on the host, or on an NPU."""
    return None

  def _serial_options(self, config, which) -> flow_lib.Options:
    """Returns another cut where the order of terms does not depend on it."""
    if self.twin.mmad_order == 'ascending':
      other = host.cut_otherwise(self.options, config, which)
      # Smaller, never larger: a core's memories hold it too.
      block = self.options.col_block
      smaller = -(-block // 2) if block > 1 else 2
      return dataclasses.replace(other, col_block=min(other.col_block, smaller))
    return dataclasses.replace(self.options, num_aic=1, num_aiv=1)

  def _launch_serial(self, image, inputs, plan, modes) -> modes_lib.Launched:
    del plan, modes  # The launch makes its own, and none of the host's.
    mine = dataclasses.replace(self.twin, order='in_order')
    try:
      outputs = twin_runtime.launch_serial(image, inputs, modes=mine)
    except twin_runtime.TwinError as error:
      raise TwinFailure(error) from error
    return modes_lib.Launched(outputs)
