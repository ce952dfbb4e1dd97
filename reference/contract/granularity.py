"""How a layer is cut into tiles and tasks, and in which order they run.

The judge reads the tiles alone; the compiler reads everything.
"""

import dataclasses
import math

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import option_fields

EVENT_GRAINS = ('expert', 'row_block')
ORDER_POLICIES = ('round_robin', 'list')
EXPERT_ORDERS = ('ascending', 'descending', 'rotated')
ROW_ORDERS = ('ascending', 'rotated', 'interleaved')
_ALL_EXPERTS = ('lead', 'lag', 'weight_lag', 'gate_weight_lag')
_NO_SIZES = ('event_grain', 'order', 'relay')

# Terms that an order of accumulation takes at a time: no link cuts them.
_TERMS = dict(ascending=1, even_odd_32=32)


def _round_up(value: int, multiple: int) -> int:
  return -(-value // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class Order:
  """In which order and on which cores the tasks of a rank run.

  A rule, not a list of tasks: it holds for a layer of any size.

  Attributes:
    policy: 'round_robin' (position i of a unit's order goes to core i mod n) or
      'list' (the first free core takes the ready task with the longest path to
      the end, by the costs of `machine`).
    swizzle: number of row blocks of an expert whose GEMM tiles run column by
      column before the next blocks; 1: row by row; 0: all blocks of an expert.
    lead: experts by which dispatch runs ahead of its consumers in the order;
      None: all of it comes first.
    lag: experts from an expert's first GEMM to its second; None: all of them.
      A fraction orders tiles by row block, not by expert, which needs event
      grain 'row_block'.
    weight_lag: backward: experts by which the weight gradient of the down GEMM
      runs later than its input gradient of the same expert; below 0 it runs
      first; None: all of them come after all input gradients.
    gate_weight_lag: the same for the gate/up GEMM.
    comm_share: share of the AIVs that run only puts; 0: all AIVs run both.
    rotate: whether each rank starts its puts with another destination.
    row_order: order of an expert's row blocks: 'ascending'; 'rotated': each
      rank starts with its own tokens, so that ranks do not all return rows to
      the same rank; 'interleaved': the first block of each rank's tokens,
      starting with the own rank, then the second ones, so that tokens are
      complete early.
    expert_order: 'ascending', 'descending', or 'rotated': each rank starts with
      another of its experts.
    machine: whose costs policy 'list' plans with.

  Raises:
    ValueError: a value is unknown or out of range.
  """

  policy: str = 'round_robin'
  swizzle: int = 1
  lead: float | None = None
  lag: float | None = 1.0
  weight_lag: float | None = 0.0
  gate_weight_lag: float | None = 0.0
  comm_share: float = 0.0
  rotate: bool = True
  row_order: str = 'ascending'
  expert_order: str = 'ascending'
  machine: str = 'ascend_a3'

  def __post_init__(self):
    for name, choices in (
      ('policy', ORDER_POLICIES),
      ('expert_order', EXPERT_ORDERS),
      ('rotate', (False, True)),
      ('row_order', ROW_ORDERS),
    ):
      if getattr(self, name) not in choices:
        raise ValueError(
          f'order.{name}: expected one of {choices}, got '
          f'{getattr(self, name)!r}'
        )
    for name, start, end in (
      ('swizzle', 0, math.inf),
      ('lead', 0, math.inf),
      ('lag', 0, math.inf),
      ('weight_lag', -1, math.inf),
      ('gate_weight_lag', 0, math.inf),
      ('comm_share', 0, 1),
    ):
      value = getattr(self, name)
      if name in _ALL_EXPERTS and value is None:
        continue
      if type(value) not in (int, float) or not start <= value < end:
        raise ValueError(
          f'order.{name}: expected a number in [{start}, {end:g}), '
          f'got {value!r}'
        )
    if type(self.swizzle) is not int:
      raise ValueError(
        f'order.swizzle: expected an integer, got {self.swizzle!r}'
      )

  @property
  def by_row(self) -> bool:
    """Whether the two GEMMs of an expert take turns, row block by row block."""
    return self.lag is not None and self.lag != int(self.lag)


# Operator by operator, as the public code of HyperParallel-MoE fills its queues
# (arXiv 2605.23764; hyper_parallel/core/multicore of its repository).
PUBLISHED_ORDER = Order(lag=None, weight_lag=-0.5, gate_weight_lag=None)
# By where weight gradients run: next to the input gradient of their expert, or
# after all input gradients.
WEIGHT_GRAD_ORDERS = {
  'interleaved': Order(),
  'last': Order(weight_lag=None, gate_weight_lag=None),
}


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
      `row_block`, and of what the order of accumulation takes at a time.
    weight_rows: backward: rows of a weight that one tile of its gradient
      covers; None means `col_block`.  A cube core holds at most 128 x 256
      sums.
    order: in which order and on which cores tasks run.
    vector_rows: rows of one row-wise vector tile and, at grain 'row_block', of
      one put that returns rows; None means `row_block`, which it must divide.
      A vector core can thus have a smaller tile than a cube core.
    relay: a token for several experts of one rank crosses the link once, and
      is copied there (UniEP, arXiv 2604.19241).

  Raises:
    ValueError: an unknown grain, a size that is not positive, or relay is no
      bool.
  """

  event_grain: str = option_fields.option(
    'row_block',
    'Part of a buffer that has one event: an expert or a row block.',
    choices=EVENT_GRAINS,
  )
  row_block: int = option_fields.option(
    64,
    'Rows of a GEMM tile, all of one expert.',
  )
  col_block: int = option_fields.option(
    128,
    'Columns of a GEMM tile.',
  )
  put_rows: int | None = option_fields.option(
    None,
    'Rows of one put. Default: --row_block.',
  )
  token_block: int | None = option_fields.option(
    None,
    'Tokens of a combine tile. Default: --row_block.',
  )
  num_aic: int = option_fields.option(
    24,
    'Cube workers of one rank.',
    flag='aic',
  )
  num_aiv: int = option_fields.option(
    48,
    'Vector workers of one rank.',
    flag='aiv',
  )
  expert_capacity: int | None = None
  chain_rows: int | None = option_fields.option(
    None,
    'Backward: rows that one task of a weight gradient sums; a chain of '
    'tasks sums all rows of an expert. Default: all rows in one task.',
    direction='backward',
  )
  order: Order = option_fields.option(
    Order(),
    'Backward: weight gradients run next to the input gradient of the same '
    'expert (`interleaved`) or after all input gradients (`last`).',
    flag='weight_grad_order',
    direction='backward',
    typed='interleaved',
    choices=WEIGHT_GRAD_ORDERS,
  )
  vector_rows: int | None = option_fields.option(
    None,
    'Rows of a vector tile and, with --event_grain=row_block, of a put '
    'that returns rows; divides --row_block. Default: --row_block.',
  )
  relay: bool = option_fields.option(
    False,
    'A token for several experts of one rank crosses the link once, and is '
    'copied on that rank.',
  )
  weight_rows: int | None = option_fields.option(
    None,
    'Backward: rows of a tile of a weight gradient. Default: --col_block.',
    direction='backward',
  )

  def __post_init__(self):
    if self.event_grain not in EVENT_GRAINS:
      raise ValueError(
        f'event_grain: expected one of {EVENT_GRAINS}, got {self.event_grain!r}'
      )
    if not isinstance(self.relay, bool):
      raise ValueError(f'relay: expected a bool, got {self.relay!r}')
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name in _NO_SIZES or value is None:
        continue
      if not isinstance(value, int) or value < 1:
        raise ValueError(
          f'{field.name}: expected a positive integer, got {value!r}'
        )
    if not isinstance(self.order, Order):
      raise ValueError(f'order: expected an Order, got {self.order!r}')
    if self.event_grain == 'expert' and self.order.by_row:
      raise ValueError(
        "order.lag: expected a whole number with event_grain 'expert', got "
        f'{self.order.lag:g}: its rows are ready all at once'
      )
    if self.row_block % (self.vector_rows or self.row_block):
      raise ValueError(
        f'vector_rows: expected a divisor of row_block={self.row_block}, got '
        f'{self.vector_rows}'
      )
    for name in ('num_aic', 'num_aiv'):
      if getattr(self, name) > 0xFFFF:
        raise ValueError(
          f'{name}: expected at most 65535 cores, got {getattr(self, name)}'
        )

  def resolve(
    self, config: config_lib.MoEConfig, accumulation_order: str = 'ascending'
  ) -> 'Options':
    """Returns the options with every None replaced by its default."""
    lossless = min(config.num_ranks * config.num_tokens, config.num_rows)
    capacity = _round_up(self.expert_capacity or lossless, self.row_block)
    link = math.lcm(self.row_block, _TERMS[accumulation_order])
    chain = _round_up(self.chain_rows or capacity, link)
    return dataclasses.replace(
      self,
      put_rows=self.put_rows or self.row_block,
      token_block=self.token_block or self.row_block,
      expert_capacity=capacity,
      chain_rows=min(chain, capacity),
    )


# What suits the cube cores of an NPU: the sums of such a tile fill L0C, and it
# reads so little for each product that the cube bounds it.
NPU_OPTIONS = Options(
  row_block=128,
  col_block=256,
  weight_rows=128,
  put_rows=64,
  vector_rows=64,
  token_block=64,
)

# Rows of a block on the host; weights are packed once for each block.
_HOST_ROWS = 512
_HOST_TOKENS = 64
# Queues of a rank and unit on the host, at most.
_HOST_QUEUES = 251


def _prime_from(number: int) -> int:
  while any(number % i == 0 for i in range(2, math.isqrt(number) + 1)):
    number += 1
  return number


def host_options(config: config_lib.MoEConfig) -> Options:
  """Returns the granularity that suits the host's production launches.

  Tiles have whole rows, so that one task computes an expert's block from the
  tokens to its output; a block has twice the rows of an expert under an even
  load.  Each block has a queue, up to a limit, so that idle threads find work.
  Tasks are dealt to queues in turn, and the tasks with rows are the first of
  each expert; a prime number of queues spreads these over all queues.
  """
  sizes = config.dims()
  load = -(-sizes['R'] * sizes['T'] * sizes['K'] // sizes['E'])
  row_block = min(_round_up(2 * load, 16), _HOST_ROWS)
  lossless = min(config.num_ranks * config.num_tokens, config.num_rows)
  blocks = config.experts_per_rank * -(-lossless // row_block)
  queues = _prime_from(min(blocks, _HOST_QUEUES))
  return Options(
    row_block=row_block,
    num_aic=queues,
    num_aiv=queues,
    col_block=max(sizes['D'], 2 * sizes['F']),
    put_rows=_HOST_ROWS,
    token_block=_HOST_TOKENS,
  )
