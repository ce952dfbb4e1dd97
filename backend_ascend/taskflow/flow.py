"""A flow: the tile tasks of one layer with regions, events and queues."""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

EVENT_GRAINS = ('expert', 'row_block')
WEIGHT_GRAD_ORDERS = ('interleaved', 'last')


def _round_up(value: int, multiple: int) -> int:
  return -(-value // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class Options:
  """Granularity of the lowering and the cores that it is placed on.

  Attributes:
    event_grain: 'expert' (as HyperParallel-MoE publishes it: a stage waits for
      the whole expert) or 'row_block' (a tile waits for its row block; puts
      count rows).
    row_block: rows of one expert that a tile task covers.
    col_block: columns of a grouped GEMM tile.
    put_rows: rows of one dispatch put; None means `row_block`.
    token_block: tokens of one combine task; None means `row_block`.
    num_aic: AIC workers per rank.
    num_aiv: AIV workers per rank.
    expert_capacity: C, rows that one expert can receive; None means lossless,
      min(R * T, N).  Rounded up to a multiple of `row_block`.
    chain_rows: backward: rows that one task of a weight gradient sums; None
      means all rows of its expert, one task.  Rounded up to a multiple of
      `row_block`.
    weight_grad_order: backward: 'interleaved' (next to the input gradient of
      the same expert, as published) or 'last' (after all input gradients).

  Raises:
    ValueError: an unknown grain, or a size that is not positive.
  """

  event_grain: str = 'row_block'
  row_block: int = 64
  col_block: int = 128
  put_rows: int | None = None
  token_block: int | None = None
  num_aic: int = 24
  num_aiv: int = 48
  expert_capacity: int | None = None
  chain_rows: int | None = None
  weight_grad_order: str = 'interleaved'

  def __post_init__(self):
    for name, known in (
      ('event_grain', EVENT_GRAINS),
      ('weight_grad_order', WEIGHT_GRAD_ORDERS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
          f'{name}: expected one of {known}, got {getattr(self, name)!r}'
        )
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type == 'str' or field.type is str or value is None:
        continue
      if not isinstance(value, int) or value < 1:
        raise ValueError(
          f'{field.name}: expected a positive integer, got {value!r}'
        )
    for name in ('num_aic', 'num_aiv'):
      if getattr(self, name) > 0xFFFF:
        raise ValueError(
          f'{name}: expected at most 65535 cores, got {getattr(self, name)}'
        )

  def resolve(self, config: config_lib.MoEConfig) -> 'Options':
    """Returns the options with every None replaced by its default."""
    lossless = min(config.num_ranks * config.num_tokens, config.num_rows)
    capacity = _round_up(self.expert_capacity or lossless, self.row_block)
    chain = _round_up(self.chain_rows or capacity, self.row_block)
    return dataclasses.replace(
      self,
      put_rows=self.put_rows or self.row_block,
      token_block=self.token_block or self.row_block,
      expert_capacity=capacity,
      chain_rows=min(chain, capacity),
    )


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
    wave: `[tasks]` i4, an order hint: sorting any subset of tasks by (wave,
      kind) puts every producer before its consumers.
    queues: `[queues]` layout.QUEUE sorted by (rank, unit, core), or empty
      before placement.
    queue_tasks: `[tasks]` u4, task indices, queue by queue.
  """

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  options: Options
  direction: layout.Direction
  tasks: np.ndarray
  waits: np.ndarray
  signals: np.ndarray
  regions: np.ndarray
  events: np.ndarray
  spaces: np.ndarray
  wave: np.ndarray
  queues: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, layout.QUEUE)
  )
  queue_tasks: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, layout.QUEUE_TASK)
  )
