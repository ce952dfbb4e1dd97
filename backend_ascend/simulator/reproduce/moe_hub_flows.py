"""A layer of experts whose rows get their addresses from a hub as they come.

A row is a token for one expert.  Tiles of 128 rows of an expert fill in order
of arrival, so whichever rows come first start its products.
"""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.reproduce import builder
from hpmoe.backend_ascend.simulator.reproduce import dysharp_flows as exchange

Op = flow_lib.Op
_TILE = 128  # rows


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a GPU has of MoE-Hub.

  Attributes:
    joins: its sender joins stores to packets.
    counts: its hub starts blocks; else they poll, and take turns by a counter
      in memory.
    order: of rows: 'arrival'; or fixed before they are sent, when all know
      what others send: by 'source', then token, or by 'token', then source.
  """

  joins: bool = True
  counts: bool = True
  order: str = 'arrival'


def chosen(of: exchange.Layer) -> np.ndarray:
  """Returns `[R, T, K]` experts, drawn without preference."""
  draw = np.random.default_rng(0).random(
    (of.ranks, of.tokens, of.experts), np.float32
  )
  return np.argpartition(draw, of.top_k - 1, axis=2)[..., : of.top_k]


@dataclasses.dataclass(frozen=True)
class Hub:
  """A layer in modelled time.

  Attributes:
    timed: the flow.
    window: s until all first products are done.
  """

  timed: flow_lib.Timed
  window: float


def moe_hub(of: exchange.Layer, machine, parts: Parts = Parts()) -> Hub:
  """Dispatch, products and combine at once."""
  if not parts.joins:
    machine = machine.with_figures(packet=machine['sector'])
  made = builder.Builder(of.ranks, machine)
  flow = made.flow
  experts = chosen(of)
  rows = np.bincount(experts.ravel(), minlength=of.experts)
  tiles = -(-rows // _TILE)
  first = np.cumsum(tiles) - tiles
  expert = np.repeat(np.arange(of.experts), tiles)
  tile = np.arange(tiles.sum()) - first[expert]
  held = np.minimum(_TILE, rows[expert] - tile * _TILE)
  delay = 0.0 if parts.counts else machine['poll']
  events = flow.add_events(held, delay)
  regions = flow.add_regions(
    events[np.minimum(first, len(events) - 1)], _TILE, rows
  )
  _dispatch(made, of, parts.order, experts, regions, events, first)
  firsts = _products(made, of, parts, expert, tile, held, events, delay)
  timed = made.run()
  return Hub(timed, float(timed.end[firsts].max()))


def _dispatch(made, of, order, experts, regions, events, first):
  """Each rank sends its rows token by token."""
  flow = made.flow
  source, token, _ = (axis.ravel() for axis in np.indices(experts.shape))
  pools = made.pools(1)
  known = None if order == 'arrival' else _tell(made, of, pools, order)
  tasks = made.idle(pools[source])
  messages = flow.add_messages(tasks, Op.PUT, source, of.row)
  to = experts.ravel()
  rank = to * of.ranks // of.experts
  if known is None:
    flow.add_peers(messages, rank, region=regions[to])
    return
  flow.add_waits(tasks, known[source])
  keys = (token, source, to) if order == 'source' else (source, token, to)
  sort = np.lexsort(keys)
  held = np.bincount(to, minlength=of.experts)
  place = np.empty(len(to), np.int64)
  place[sort] = np.arange(len(to)) - (np.cumsum(held) - held)[to[sort]]
  flow.add_peers(messages, rank, events[first[to] + place // _TILE])


def _tell(made, of, pools, order: str) -> np.ndarray:
  """Adds what all must know: counts by expert, or all experts of tokens.

  Returns an event a rank, that it knows.
  """
  flow = made.flow
  known = flow.add_events(np.full(of.ranks, of.ranks), made.machine['poll'])
  told = 4.0 * (of.experts if order == 'source' else of.tokens * of.top_k)
  ranks = np.arange(of.ranks)
  tasks = made.idle(pools)
  for step in range(of.ranks):
    messages = flow.add_messages(tasks, Op.PUT, ranks, told)
    peer = (ranks + step) % of.ranks
    flow.add_peers(messages, peer, known[peer])
  return known


def _products(made, of, parts, expert, tile, held, events, delay):
  """Adds both GEMMs of each tile, the second a wave behind, and rows home.

  Returns the tasks of the first.
  """
  rank = expert * of.ranks // of.experts
  flow, machine = made.flow, made.machine
  turn = 0.0 if parts.counts else machine['aic_task']
  pools = made.pools(1)
  count = len(expert)
  second = np.repeat([0, 1], count)
  wave = np.concatenate([tile, tile + 1])
  order = np.lexsort((np.tile(expert, 2), second, wave))
  took = held * of.row_flops / exchange.rate(machine, of.figure)
  own = np.concatenate([took * 2 / 3, took / 3]) + turn
  tasks = np.empty(2 * count, np.int64)
  tasks[order] = flow.add_tasks(pools[np.tile(rank, 2)[order]], own[order])
  done = flow.add_events(np.ones(count), delay)
  flow.add_waits(tasks[:count], events)
  flow.add_signals(tasks[:count], done)
  flow.add_waits(tasks[count:], done)
  for step in range(of.ranks):
    messages = flow.add_messages(
      tasks[count:], Op.PUT, rank, held * of.row / of.ranks
    )
    flow.add_peers(messages, (rank + step) % of.ranks)
  return tasks[:count]


def megatron(of: exchange.Layer, machine) -> float:
  """Returns s of a layer one operator after the other.

  Rows are permuted before and after each exchange, there and back.
  """
  permuted = 2 * of.tokens * of.top_k * of.row / machine['hbm']
  alone = exchange.deepep(of, machine).total
  return alone + 4 * (machine['launch'] + permuted)
