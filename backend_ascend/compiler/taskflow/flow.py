"""A flow: the tile tasks of one layer with regions, events and queues."""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision


@dataclasses.dataclass(frozen=True)
class Flow:
  """One layer as tile tasks.  Tables are numpy structs of `layout`.

  Attributes:
    config: the layer's sizes.
    policy: the precision policy.
    options: the resolved granularity.
    direction: which pass it computes.
    tasks: `[tasks]` layout.TASK; `core` is set by placement.
    waits: `[waits]` layout.WAIT, a slice per task.
    signals: `[signals]` layout.SIGNAL, a slice per task.
    regions: `[regions]` layout.REGION, per task its reads, then its writes.
    events: `[events]` layout.EVENT.
    spaces: `[spaces]` layout.SPACE, what writers must tile exactly.
    queues: `[queues]` layout.QUEUE sorted by (rank, unit, core), or empty
      before placement.
    queue_tasks: `[tasks]` u4, task indices, queue by queue.
  """

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  options: granularity.Options
  direction: layout.Direction
  tasks: np.ndarray
  waits: np.ndarray
  signals: np.ndarray
  regions: np.ndarray
  events: np.ndarray
  spaces: np.ndarray
  queues: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, layout.QUEUE)
  )
  queue_tasks: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, layout.QUEUE_TASK)
  )
