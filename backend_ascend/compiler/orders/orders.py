"""Order policies: from `granularity.Options.order` to a placement.

Every policy places tasks by one order of the whole flow in which producers
stand before their consumers.  A core runs its own tasks in that order, so
queues cannot wait for one another in a circle, whatever the number of cores;
`proofs` checks it of every image all the same.
"""

import dataclasses
import math

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import granularity

Form = layout.Form
RULES = ('lead', 'lag', 'weight_lag', 'gate_weight_lag')


@dataclasses.dataclass(frozen=True)
class _Tasks:
  """What an order is made of, by task.

  Attributes:
    form: layout.Form.
    expert: position of its expert in the order of the expert's rank.
    owner: rank that the expert lives on.
    block: row block, counted from where the rank starts.
    blocks: row blocks of an expert under balanced routing.
  """

  form: np.ndarray
  expert: np.ndarray
  owner: np.ndarray
  block: np.ndarray
  blocks: int


def in_order(flow: flow_lib.Flow) -> placement.Placement:
  """Deals the tasks of a rank and unit to its cores in turn, in one order.

  The published policy (HyperParallel-MoE, arXiv 2605.23764): queue position
  i goes to core i mod n.
  """
  order = sequence(flow)
  pool, cores = pools(flow)
  in_turn = order[np.argsort(pool[order], kind='stable')]
  of_pool = pool[in_turn]
  counts = np.bincount(of_pool, minlength=len(cores))
  position = np.arange(len(order)) - (np.cumsum(counts) - counts)[of_pool]
  core = np.empty(len(order), np.int64)
  core[in_turn] = cores[of_pool, 0] + position % cores[of_pool, 1]
  return placement.Placement(core=core, order=order)


def communicating(share, num_aiv):
  """Returns how many AIVs of a rank do puts and nothing else; 0: none.

  Args:
    share: `Order.comm_share`, a number or an array.
    num_aiv: AIVs of a rank, likewise.
  """
  puts = np.clip(np.round(share * num_aiv), 1, np.maximum(num_aiv - 1, 1))
  return np.where((share == 0) | (num_aiv == 1), 0, puts)


def pools(flow: flow_lib.Flow) -> tuple[np.ndarray, np.ndarray]:
  """Returns the pool of every task, and `[pools, 2]` (first core, cores).

  A pool is the cores of one rank that share their work: its AIC, its AIV that
  communicate, its other AIV.
  """
  tasks, options = flow.tasks, flow.options
  puts = int(communicating(options.order.comm_share, options.num_aiv))
  form = np.array(list(layout.FORM_OF_KIND.values()))[tasks['kind']]
  is_put = (form == Form.SLICE_PUT) | (form == Form.HOME_PUT)
  aiv = tasks['unit'] == layout.Unit.AIV
  pool_index = np.where(aiv, np.where(is_put & (puts > 0), 1, 2), 0)
  pool_cores = np.array(
    [(0, options.num_aic), (0, max(puts, 1)), (puts, options.num_aiv - puts)]
  )
  pool = tasks['rank'].astype(np.int64) * len(pool_cores) + pool_index
  return pool, np.tile(pool_cores, (flow.config.num_ranks, 1))


def sequence(flow: flow_lib.Flow) -> np.ndarray:
  """Returns `[tasks]` the order of all tasks of a flow."""
  t = _tasks(flow)
  inner = _inner(flow, t)
  return np.lexsort((*inner[::-1], flow.tasks['kind'], _position(flow, t)))


def _tasks(flow: flow_lib.Flow) -> _Tasks:
  tasks, order = flow.tasks, flow.options.order
  sizes = flow.config.dims()
  form = np.array(list(layout.FORM_OF_KIND.values()))[tasks['kind']]
  owner, local = np.divmod(tasks['expert'], sizes['L'])
  if order.expert_order == 'descending':
    local = sizes['L'] - 1 - local
  elif order.expert_order == 'rotated':
    local = (local - owner) % sizes['L']
  if flow.options.relay:
    local = _as_first_read(flow, form, owner, local)
  rows = -(-sizes['R'] * sizes['T'] * sizes['K'] // sizes['E'])
  blocks = -(-rows // flow.options.row_block)
  # Vector tiles may be lower than a row block.
  whole = (form == Form.EXPERT_TILE) | (form == Form.HOME_PUT)
  whole &= (flow.options.event_grain == 'row_block') | (form != Form.HOME_PUT)
  row = tasks['row_begin'] // flow.options.row_block
  block = np.where(whole, row, tasks['row_block'])
  if order.row_order != 'ascending':
    place = _place_blocks(order.row_order, block, owner, blocks, sizes['R'])
    block = np.where(whole & (block < blocks), place, block)
  return _Tasks(form, local, owner, block, blocks)


def _place_blocks(row_order: str, block, owner, blocks: int, ranks: int):
  """Returns at which place of an expert its rank takes a row block.

  Rows are sorted by source rank, so that under balanced routing source s has
  the blocks from s * blocks // R on.
  """
  if row_order == 'rotated' or blocks < ranks:
    return (block - owner * blocks // ranks) % blocks
  # Place by (block of its source, source), sources from the own rank on.
  all_blocks = np.arange(blocks)
  source = (
    np.minimum((all_blocks + 1) * ranks - 1, blocks * ranks - 1) // blocks
  )
  first = np.searchsorted(source, source)
  owners = np.arange(ranks)[:, None]
  place = (all_blocks - first) * ranks + (source - owners) % ranks
  rank_of = np.argsort(np.argsort(place, axis=1), axis=1)
  return rank_of[owner, np.minimum(block, blocks - 1)]


def _as_first_read(flow: flow_lib.Flow, form, owner, local) -> np.ndarray:
  """Returns positions of experts; of rows that are relayed, of their first.

  Relayed rows of an expert go to any later expert of its rank, too: they are
  due when the first of those is.
  """
  shape = flow.config.num_ranks, flow.config.experts_per_rank
  expert = np.maximum(flow.tasks['expert'], 0)
  place = np.zeros(shape, np.int64).reshape(-1)
  tiles = form == Form.EXPERT_TILE
  place[expert[tiles]] = local[tiles]
  due = np.minimum.accumulate(place.reshape(shape)[:, ::-1], axis=1)[:, ::-1]
  arrives = (form == Form.SLICE_PUT) | (form == Form.RELAY_TILE)
  return np.where(arrives, due.reshape(-1)[expert], local)


def rules(order: granularity.Order, experts: int) -> dict[str, float]:
  """Returns the rules of `positions.h`; None is all `experts` of a rank."""
  unset = {'lead': -1.0, 'lag': float(experts)}
  order_values = {name: getattr(order, name) for name in RULES}
  return {
    name: unset.get(name, math.inf) if value is None else float(value)
    for name, value in order_values.items()
  }


def _position(flow: flow_lib.Flow, t: _Tasks) -> np.ndarray:
  """Returns `[tasks]` f64, in experts; ties go by kind."""
  order, experts = flow.options.order, flow.config.experts_per_rank
  if flow.config.sublayer:
    # Operator by operator, as the lowering lists them.
    _, first = np.unique(flow.tasks['kind'], return_index=True)
    place = np.zeros(len(layout.Kind))
    place[flow.tasks['kind'][np.sort(first)]] = np.arange(len(first))
    return place[flow.tasks['kind']]
  group = t.block // order.swizzle * order.swizzle if order.swizzle else 0
  positions = np.empty(len(t.expert))
  _native.schedule_positions(
    rules(order, experts),
    experts,
    np.ascontiguousarray(flow.tasks['kind'], np.int32),
    t.expert.astype(np.float64),
    group / t.blocks + np.zeros(len(positions)),
    positions,
  )
  return positions


def _inner(flow: flow_lib.Flow, t: _Tasks) -> tuple[np.ndarray, ...]:
  """Returns the keys that order tasks of one kind and position."""
  tasks, order = flow.tasks, flow.options.order
  swizzle, ranks = order.swizzle, flow.config.num_ranks
  link = np.where(t.form == Form.WEIGHT_TILE, tasks['peer'], 0)
  group = t.block // swizzle if swizzle else 0 * t.block
  tiled = (t.form == Form.EXPERT_TILE) | (t.form == Form.WEIGHT_TILE)
  peer = tasks['peer']
  peer_offset = (peer - tasks['rank'] * order.rotate) % ranks
  # Of a put, first the rows, then where they go; of a tile, the columns of a
  # group of rows.
  first = np.where(tiled, group, t.block)
  second = np.where(tiled, tasks['col_block'], peer_offset)
  second = np.where(peer == layout.ROW_BLOCK_RANGE, tasks['col_block'], second)
  return t.expert, link, first, second, t.block, tasks['row_begin']
