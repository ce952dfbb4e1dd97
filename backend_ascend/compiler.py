"""The compiler: from a layer's sizes to a proved task image."""

import dataclasses

from backend_ascend.schedule import placement
from backend_ascend.taskflow import flow as flow_lib
from backend_ascend.taskflow import image as image_lib
from backend_ascend.taskflow import lower_forward
from reference import config as config_lib
from reference import precision


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A compiled layer.

  Attributes:
    image: the blob that host, simulator and NPU execute.
    flow: the placed flow it was made from.
  """

  image: bytearray
  flow: flow_lib.Flow


def compile_forward(
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    options: flow_lib.Options = flow_lib.Options(),
    scheduler: placement.Scheduler = placement.round_robin,
) -> Compiled:
  """Lowers, places and serialises the forward layer.

  Raises:
    ValueError: sizes, policy or options are out of range.
  """
  flow = lower_forward.lower_forward(config, policy, options)
  flow = placement.place(flow, scheduler(flow))
  return Compiled(image=image_lib.serialize(flow), flow=flow)
