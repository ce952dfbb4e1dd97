"""The compiler: from a layer's sizes to a proved task image."""

import dataclasses

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.orders import select_scheduler
from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_backward
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.backend_ascend.compiler.taskflow import lower_sublayer
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# What an image can be compiled for; any of them is run by the host, too.
TARGETS = ('host', 'ascend')


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A compiled layer.

  Attributes:
    image: what host, simulator and NPU execute.
    flow: the placed flow it was made from.
    proof: what was proved about the image.
  """

  image: image_lib.Image
  flow: flow_lib.Flow
  proof: proofs.ProofReport

  def summary(self) -> dict:
    """Returns counts by kind, events, tables, bytes and cores, as plain data.

    `heap_bytes` is the symmetric heap of one rank: everything between the
    inputs of its pass and the results, counters included.
    """
    flow = self.flow
    kinds = np.bincount(flow.tasks['kind'], minlength=len(layout.Kind))
    loads = flow.queues['count']
    by_unit = {
      unit.name.lower(): loads[flow.queues['unit'] == unit]
      for unit in layout.Unit
    }
    return dict(
      direction=flow.direction.name.lower(),
      config=dataclasses.asdict(flow.config),
      policy=dataclasses.asdict(flow.policy),
      options=dataclasses.asdict(flow.options),
      tasks={
        k.name.lower(): int(kinds[k])
        for k in layout.select_kinds(sublayer=flow.config.sublayer)
      },
      tasks_total=len(flow.tasks),
      events=len(flow.events),
      waits=len(flow.waits),
      signals=len(flow.signals),
      regions=len(flow.regions),
      queues=len(flow.queues),
      tasks_per_core={
        unit: dict(min=int(n.min()), max=int(n.max()))
        for unit, n in by_unit.items()
      },
      image_bytes=len(self.image),
      proofs=[
        dict(name=rule.name, checked=rule.num_checked, proved=rule.proved)
        for rule in self.proof.rules
      ],
      heap_bytes=_heap_bytes(flow),
    )


def _heap_bytes(flow: flow_lib.Flow) -> int:
  sizes = flow.config.dims()
  item = storage.FORMATS[flow.policy.storage].numpy.itemsize
  # Of elements that are stored, codes and sums.
  code, total = (1, 4) if flow.policy.rows else (item, item)
  # Both passes hold two tensors of D columns and one each of F and 2F.
  row = (code + total) * sizes['D'] + (code + 2 * total) * sizes['F']
  row += 8 if flow.policy.rows else 0  # two scales
  slots = sizes['T'] * sizes['K']
  header = 8 * sizes['N']
  events = 4 * len(flow.events) // sizes['R']
  num_bytes = sizes['N'] * row + item * slots * sizes['D'] + header + events
  if flow.options.relay:
    # A row of D columns more, and beside it row, slot and weight of each copy.
    copies = min(sizes['K'], sizes['L'])
    scale = 4 if flow.policy.rows else 0
    num_bytes += sizes['N'] * (code * sizes['D'] + scale + 12 * copies)
  if flow.direction == layout.Direction.FORWARD:
    return num_bytes
  return num_bytes + _grad_sums_bytes(flow)


def _grad_sums_bytes(flow: flow_lib.Flow) -> int:
  """Returns bytes of what backward tasks hand on in float32."""
  sizes, options = flow.config.dims(), flow.options.resolve(flow.config)
  values = 0
  if flow.policy.placement in tensors.EARLY:
    values += sizes['N'] + sizes['T'] * sizes['K']
  if (options.chain_rows or 0) < (options.expert_capacity or 0):
    values += 3 * sizes['L'] * sizes['D'] * sizes['F']
  return 4 * values


def require_target(image: image_lib.Image, target: str) -> None:
  """Refuses an image that a target cannot run.

  Raises:
    ValueError: no such target, or 'ascend' with a storage dtype or placement
      that its source has no kernels for, or tiles that do not fit in a core's
      memories.
  """
  if target not in TARGETS:
    raise ValueError(f'target: expected one of {TARGETS}, got {target!r}')
  if target == 'ascend':
    refusal = _native.find_refusal(image)
    if refusal is not None:
      raise ValueError(refusal)


def _finish(
  flow: flow_lib.Flow, scheduler: placement.Scheduler | None, target: str
) -> Compiled:
  flow = placement.place(
    flow, (scheduler or select_scheduler.select_scheduler(flow.options))(flow)
  )
  image = image_lib.load(image_lib.serialize(flow))
  require_target(image, target)
  return Compiled(image=image, flow=flow, proof=proofs.require(image))


def compile_forward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options = granularity.Options(),
  scheduler: placement.Scheduler | None = None,
  target: str = 'host',
) -> Compiled:
  """Lowers, places, serialises and proves the forward layer.

  Args:
    config: sizes.
    policy: precision.
    options: granularity, cores and order.
    scheduler: places the flow; None: as `options.order` says.
    target: one of TARGETS.

  Raises:
    ValueError: sizes, policy or options are out of range, or of the target's
      (one of TARGETS).
    ProofError: the flow would deadlock, race, or not write every element
      once; names the tasks and the region.
  """
  lower = lower_forward.lower_forward
  if config.sublayer:
    lower = lower_sublayer.lower_forward_pass
  return _finish(lower(config, policy, options), scheduler, target)


def compile_backward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options = granularity.Options(),
  scheduler: placement.Scheduler | None = None,
  target: str = 'host',
) -> Compiled:
  """As `compile_forward`, for the backward layer."""
  lower = lower_backward.lower_backward
  if config.sublayer:
    lower = lower_sublayer.lower_backward_pass
  return _finish(lower(config, policy, options), scheduler, target)


# By the pass that is compiled.
COMPILE = {
  layout.Direction.FORWARD: compile_forward,
  layout.Direction.BACKWARD: compile_backward,
}


def compile(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy = precision.PrecisionPolicy(),
  options: granularity.Options | None = None,
  *,
  direction: str = 'forward',
  target: str = 'host',
) -> Compiled:
  """Lowers, places, serialises and proves one pass of a layer.

  Args:
    config: sizes.
    policy: precision.
    options: granularity, cores and order; None: `granularity.host_options`, or
      `granularity.NPU_OPTIONS` for an NPU.
    direction: 'forward' or 'backward'.
    target: one of TARGETS.

  Raises:
    ValueError: an argument is out of range, or of the target's.
    ProofError: the flow would deadlock, race, or not write every element
      once; names the tasks and the region.
  """
  compile_functions = {
    member.name.lower(): function for member, function in COMPILE.items()
  }
  if direction not in compile_functions:
    raise ValueError(
      f'direction: expected one of {[*compile_functions]}, got {direction!r}'
    )
  if options is None:
    host = target == 'host'
    options = (
      granularity.host_options(config) if host else granularity.NPU_OPTIONS
    )
  return compile_functions[direction](config, policy, options, target=target)
