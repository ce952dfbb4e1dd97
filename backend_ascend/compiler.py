"""The compiler: from a layer's sizes to a proved task image."""

import dataclasses

import numpy as np

from backend_ascend.schedule import placement
from backend_ascend.taskflow import flow as flow_lib
from backend_ascend.taskflow import image as image_lib
from backend_ascend.taskflow import layout
from backend_ascend.taskflow import lower_forward
from backend_ascend.taskflow import proofs
from reference import config as config_lib
from reference import precision


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A compiled layer.

  Attributes:
    image: the blob that host, simulator and NPU execute.
    flow: the placed flow it was made from.
    proof: what was proved about the image.
  """

  image: bytearray
  flow: flow_lib.Flow
  proof: proofs.ProofReport

  def summary(self) -> dict:
    """Returns counts by kind, events, tables, bytes and cores, as plain data.

    `heap_bytes` is the symmetric heap of one rank: everything between the
    layer's inputs and y, counters included.
    """
    flow = self.flow
    kinds = np.bincount(flow.tasks['kind'], minlength=len(layout.Kind))
    loads = flow.queues['count']
    by_unit = {
        unit.name.lower(): loads[flow.queues['unit'] == unit]
        for unit in layout.Unit
    }
    return dict(
        config=dataclasses.asdict(flow.config),
        policy=dataclasses.asdict(flow.policy),
        options=dataclasses.asdict(flow.options),
        tasks={k.name.lower(): int(kinds[k]) for k in layout.Kind},
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
        proofs=[dataclasses.asdict(rule) for rule in self.proof.rules],
        heap_bytes=_heap_bytes(flow),
    )


def _heap_bytes(flow: flow_lib.Flow) -> int:
  sizes = flow.config.dims()
  item = 2 if flow.policy.storage == 'bfloat16' else 4
  row = 2 * sizes['D'] + 3 * sizes['F']
  slots = sizes['T'] * sizes['K'] * sizes['D']
  header = 8 * sizes['N']
  events = 4 * len(flow.events) // sizes['R']
  return item * (sizes['N'] * row + slots) + header + events


def compile_forward(
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    options: flow_lib.Options = flow_lib.Options(),
    scheduler: placement.Scheduler = placement.round_robin,
) -> Compiled:
  """Lowers, places, serialises and proves the forward layer.

  Raises:
    ValueError: sizes, policy or options are out of range.
    ProofError: the flow would deadlock, race, or not write every element
      once; names the tasks and the region.
  """
  flow = lower_forward.lower_forward(config, policy, options)
  flow = placement.place(flow, scheduler(flow))
  image = image_lib.serialize(flow)
  return Compiled(image=image, flow=flow, proof=proofs.require(image))
