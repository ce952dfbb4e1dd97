"""A sub-layer of tensor parallelism as CAIS and its baselines run it.

A sub-layer is GEMM, reduce-scatter, layer norm, all-gather, GEMM.  A message is
an output tile of the first GEMM, which is an input tile of the second.  Each
row block has one owner that adds and normalises it; owners take turns.

Not published, and taken here: how a GPU that is ahead of its peers is held (it
sends a tile when all that half of the table has no room for have left).
"""

from collections.abc import Callable
import dataclasses

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import builder

Op = flow_lib.Op
ROWS = 128  # of a tile
COLS = 64  # of what is sent at a time
_SECOND_COLS = 256  # of a tile of the second GEMM
BYTES = 2.0  # of an element
# Pulls and loads of a rank under way: 1 MB, more than a round trip takes.
_WINDOW = 64
_CHUNKS = 8  # of what CoCoNet hands to its second kernel


@dataclasses.dataclass(frozen=True)
class SubLayer:
  """Sizes of one rank.

  Attributes:
    tokens: rows, of the whole batch.
    hidden: width of what is reduced, normalised and gathered.
    depth: of the first GEMM.
    width: of the second GEMM.
    ranks: that share it.
  """

  tokens: int
  hidden: int
  depth: float
  width: float
  ranks: int = 8

  @property
  def flops(self) -> float:
    """Of both GEMMs of one rank."""
    return 2.0 * self.tokens * self.hidden * (self.depth + self.width)

  @property
  def size(self) -> float:
    """B of the activation."""
    return BYTES * self.tokens * self.hidden


def rate(machine: machine_lib.Machine) -> float:
  """Returns flop/s of one SM."""
  return machine['cube_bf16'] * machine['cube_efficiency']


def norm_seconds(machine, size: float) -> float:
  """Returns s to read and write so many bytes."""
  return 2 * size / machine['hbm']


class _Layer(builder.Builder):
  """A flow of a sub-layer, as its phases are added.

  Tiles of all ranks are in one order, rank by rank: row block by row block, or
  in waves, the blocks of all owners side by side.
  """

  def __init__(self, of: SubLayer, machine: machine_lib.Machine, waves: bool):
    super().__init__(of.ranks, machine)
    self.of = of
    self.blocks = of.tokens // ROWS
    self.cols = -(-of.hidden // COLS)
    self.tile = BYTES * ROWS * of.hidden / self.cols
    rank, block, col = (
      axis.ravel()
      for axis in np.indices((of.ranks, self.blocks, self.cols), np.int32)
    )
    wave = block // of.ranks if waves else block
    order = np.lexsort((block, col, wave, rank))
    self.rank, self.block, self.col = rank[order], block[order], col[order]
    self.owner = self.block % of.ranks
    self.own = self.rank == self.owner
    # Where a tile is in the order of a rank, and its number.
    self.turn = np.tile(np.arange(self.blocks * self.cols), of.ranks)
    self.key = self.turn
    # [blocks, cols] numbers of a block's tiles.
    first = self.block[: len(self.turn) // of.ranks]
    self.tiles = np.argsort(first, kind='stable').reshape(
      self.blocks, self.cols
    )

  def cores(self, start=0.0) -> np.ndarray:
    """Returns a pool of each rank with all of its SMs."""
    return self.pools(int(self.machine['aic']), start)

  def events(self, threshold: float) -> np.ndarray:
    """Returns an event of each tile, that a switch or a hub sees."""
    return self.flow.add_events(np.full(self.tiles.size, threshold))

  def all_of(self, events) -> np.ndarray:
    """Returns an event that all of a number of events were reached."""
    done = self.flow.add_events(np.size(events))
    pool = self.flow.add_pools(1)[0]
    tasks = self.flow.add_tasks(np.full(np.size(events), pool), 0.0)
    self.flow.add_waits(tasks, np.ravel(events))
    self.flow.add_signals(tasks, done)
    return done

  def first(self, pools) -> np.ndarray:
    """Adds the first GEMM; returns the task of each tile."""
    flops = 2.0 * ROWS * self.of.hidden / self.cols * self.of.depth
    return self.flow.add_tasks(pools[self.rank], flops / rate(self.machine))

  def barrier(self, tasks) -> np.ndarray:
    """Returns an event that all tasks have ended."""
    event = self.flow.add_events(len(tasks))
    self.flow.add_signals(tasks, event)
    return event

  def norm(self, summed) -> np.ndarray:
    """Adds the norm of each row block at its owner, after its tiles' sums.

    Returns an event of each row block.
    """
    done = self.flow.add_events(np.ones(self.blocks))
    order = self.block[: self.tiles.size]
    order = order[np.sort(np.unique(order, return_index=True)[1])]
    tasks = np.empty(self.blocks, np.int64)
    tasks[order] = self.flow.add_tasks(
      self.pools(1)[order % self.of.ranks],
      norm_seconds(self.machine, self.tile * self.cols),
    )
    self.flow.add_waits(tasks[:, None].repeat(self.cols, 1), summed[self.tiles])
    self.flow.add_signals(tasks, done)
    return done

  def second(self, pools, event) -> np.ndarray:
    """Adds the second GEMM; a row block's tasks wait for `[R, blocks]`."""
    cols = -(-int(self.of.width) // _SECOND_COLS)
    rank, block, _ = (
      axis.ravel() for axis in np.indices((self.of.ranks, self.blocks, cols))
    )
    flops = 2.0 * ROWS * self.of.width / cols * self.of.hidden
    tasks = self.flow.add_tasks(pools[rank], flops / rate(self.machine))
    events = np.broadcast_to(event, (self.of.ranks, self.blocks))
    self.flow.add_waits(tasks, events[rank, block])
    return tasks

  def arrivals(self) -> np.ndarray:
    """Returns `[R, blocks]` events that all tiles of a row block are there."""
    made = self.flow.add_events(
      np.full(self.of.ranks * self.blocks, self.cols), self.machine['poll']
    )
    return made.reshape(self.of.ranks, self.blocks)

  def reduce_put(self, tasks, summed, *, merge: bool) -> None:
    """Tiles go to their owners, each from its task; its own stay there.

    `summed` counts parts of each tile; with `merge` switches add them.
    """
    self.flow.add_signals(tasks[self.own], summed[self.key[self.own]])
    away = ~self.own
    messages = self.flow.add_messages(
      tasks[away],
      Op.REDUCE_PUT,
      self.rank[away],
      self.tile,
      key=self.key[away] if merge else -1,
      expected=self.of.ranks - 1,
    )
    self.flow.add_peers(messages, self.owner[away], summed[self.key[away]])

  def pull_sums(self, ready, summed, *, own: bool) -> None:
    """Owners read the sum of each tile through the switches.

    Args:
      ready: event of each tile, that it is everywhere.
      summed: counts the sum.
      own: whether the owner's part passes the switches, too.
    """
    key, owner = self.key[self.own], self.owner[self.own]
    tasks = self.idle(self.pools(_WINDOW)[owner], ready[key], holds=True)
    messages = self.flow.add_messages(tasks, Op.REDUCE_GET, owner, self.tile)
    for step in range(0 if own else 1, self.of.ranks):
      peer = (owner + step) % self.of.ranks
      self.flow.add_peers(messages, peer, summed[key])

  def push(self, ready, counted, *, many: bool) -> None:
    """Owners send tiles to all.

    Args:
      ready: event of each tile.
      counted: `[R, blocks]` events that count tiles.
      many: once, for switches to copy.
    """
    key, owner, block = (
      x[self.own] for x in (self.key, self.owner, self.block)
    )
    tasks = self.idle(self.pools(1)[owner], ready[key])
    messages = None
    for step in range(self.of.ranks):
      peer = (owner + step) % self.of.ranks
      if messages is None or not many:
        messages = self.flow.add_messages(tasks, Op.PUT, owner, self.tile)
      self.flow.add_peers(messages, peer, counted[peer, block])

  def load(self, ready, counted, *, channel: int, ahead: int) -> None:
    """Ranks load tiles of others; switches merge equal loads.

    Args:
      ready: `[R, blocks]` events that a rank may load.
      counted: `[R, blocks]` events that count tiles.
      channel: of links.
      ahead: tiles that a rank may be ahead of the last; 0: any.
    """
    away = ~self.own
    rank, block, key, owner = (
      x[away] for x in (self.rank, self.block, self.key, self.owner)
    )
    tasks = self.idle(self.pools(_WINDOW)[rank], ready[rank, block], holds=True)
    if ahead:
      loaded = self.events(self.of.ranks - 1)
      self.flow.add_signals(tasks, loaded[key])
      held = key >= ahead
      self.flow.add_waits(tasks[held], loaded[key[held] - ahead])
    messages = self.flow.add_messages(
      tasks,
      Op.GET,
      rank,
      self.tile,
      channel=channel,
      key=key + self.tiles.size,
      expected=self.of.ranks - 1,
    )
    self.flow.add_peers(messages, owner, counted[rank, block])
    # What it owns is there.
    blocks = np.arange(self.blocks)
    owner = blocks % self.of.ranks
    mine = self.idle(self.pools(_WINDOW)[owner], ready[owner, blocks])
    self.flow.add_signals(mine, counted[owner, blocks], self.cols)


def _to_tiles(layer: _Layer, event) -> np.ndarray:
  """Returns one event as that of each tile."""
  return np.repeat(event, layer.tiles.size)


def _norm_and_second(layer: _Layer, counted) -> flow_lib.Timed:
  """After all tiles are everywhere: the norm of all, then GEMM."""
  there = layer.launched(layer.all_of(counted))
  seconds_of_norm = norm_seconds(layer.machine, layer.of.size)
  normed = layer.launched(layer.all_of(layer.after(there, seconds_of_norm)))
  layer.second(layer.cores(), normed[:, None])
  return layer.run()


def tp_nvls(of: SubLayer, machine) -> flow_lib.Timed:
  """GEMM, all-reduce by switches, norm of all, GEMM; one after the other."""
  layer = _Layer(of, machine, waves=True)
  made = layer.barrier(layer.first(layer.cores()))
  summed, counted = layer.events(1), layer.arrivals()
  started = layer.all_of(layer.launched(made))
  layer.pull_sums(_to_tiles(layer, started), summed, own=True)
  layer.push(summed, counted, many=True)
  return _norm_and_second(layer, counted)


def sp_nvls(of: SubLayer, machine) -> flow_lib.Timed:
  """GEMM, reduce-scatter, norm of a share, all-gather, GEMM; in turn."""
  layer = _Layer(of, machine, waves=True)
  made = layer.barrier(layer.first(layer.cores()))
  summed, counted = layer.events(1), layer.arrivals()
  started = layer.all_of(layer.launched(made))
  layer.pull_sums(_to_tiles(layer, started), summed, own=False)
  scattered = layer.all_of(layer.launched(layer.all_of(summed)))
  normed = layer.norm(_to_tiles(layer, scattered))
  ready = layer.all_of(layer.launched(layer.all_of(normed)))
  layer.push(_to_tiles(layer, ready), counted, many=True)
  there = layer.launched(layer.all_of(counted))
  layer.second(layer.cores(), there[:, None])
  return layer.run()


def _chunked(layer: _Layer, tasks) -> np.ndarray:
  """Returns the event of each tile that the launch behind its chunk is over."""
  chunk = layer.turn * _CHUNKS // layer.tiles.size
  started = [
    layer.all_of(layer.launched(layer.barrier(tasks[chunk == c])))
    for c in range(_CHUNKS)
  ]
  return np.concatenate(started)[chunk[: layer.tiles.size]]


def _all_reduce_beside(
  of: SubLayer, machine, *, chunks: bool, nvls: bool
) -> flow_lib.Timed:
  """GEMM beside an all-reduce of what it made; then norm of all, GEMM."""
  layer = _Layer(of, machine, waves=True)
  tasks = layer.first(layer.cores())
  if chunks:
    ready = _chunked(layer, tasks)
  else:
    ready = layer.events(of.ranks)
    layer.flow.add_signals(tasks, ready[layer.key])
  summed, counted = layer.events(1 if nvls else of.ranks), layer.arrivals()
  if nvls:
    layer.pull_sums(ready, summed, own=True)
  else:
    if chunks:
      tasks = layer.idle(layer.pools(1)[layer.rank], ready[layer.key])
    layer.reduce_put(tasks, summed, merge=False)
  layer.push(summed, counted, many=nvls)
  return _norm_and_second(layer, counted)


def t3(of: SubLayer, machine, nvls: bool = False) -> flow_lib.Timed:
  """GEMM beside reduce-scatter, then all-gather beside GEMM."""
  layer = _Layer(of, machine, waves=True)
  tasks = layer.first(layer.cores())
  summed, counted = layer.events(1 if nvls else of.ranks), layer.arrivals()
  if nvls:
    made = layer.events(of.ranks)
    layer.flow.add_signals(tasks, made[layer.key])
    layer.pull_sums(made, summed, own=False)
  else:
    layer.reduce_put(tasks, summed, merge=False)
  normed = layer.norm(summed)
  ready = layer.all_of(layer.launched(layer.all_of(normed)))
  layer.push(_to_tiles(layer, ready), counted, many=nvls)
  layer.second(layer.cores(), counted)
  return layer.run()


def behind(machine, ranks: int) -> np.ndarray:
  """Returns s that each rank is behind, without coordination."""
  return machine['request_skew'] * np.arange(ranks) / (ranks - 1)


def cais_base(of: SubLayer, machine) -> flow_lib.Timed:
  """Merging loads and sums, by ranks that are apart; one GEMM, then the other.

  In a model of many layers each rank keeps its distance, so what a sub-layer
  takes is the end of the last less the distance.
  """
  layer = _Layer(of, machine, waves=True)
  late = behind(machine, of.ranks)
  tasks = layer.first(layer.cores(late))
  summed, counted = layer.events(of.ranks), layer.arrivals()
  layer.reduce_put(tasks, summed, merge=True)
  ready = layer.all_of(layer.launched(layer.all_of(layer.norm(summed))))
  begun = np.broadcast_to(layer.after(ready, late)[:, None], counted.shape)
  layer.load(begun, counted, channel=0, ahead=0)
  layer.second(layer.cores(), counted)
  return layer.run()


def cais(of: SubLayer, machine) -> flow_lib.Timed:
  """Both GEMMs at once, on half of the SMs each, tile by tile.

  In the better of both orders.
  """
  return min(
    (_merged(of, machine, waves) for waves in (False, True)),
    key=lambda timed: timed.total,
  )


def _merged(of: SubLayer, machine, waves: bool) -> flow_lib.Timed:
  layer = _Layer(of, machine, waves=waves)
  half = int(machine['aic']) // 2
  ahead = int(machine['merge_table'] / layer.tile) // 2
  tasks = layer.first(layer.pools(half, machine['group_barrier']))
  made, summed = layer.events(of.ranks), layer.events(of.ranks)
  layer.flow.add_signals(tasks, made[layer.key])
  sends = layer.idle(layer.pools(1)[layer.rank], made[layer.key])
  held = layer.key >= ahead
  layer.flow.add_waits(sends[held], summed[layer.key[held] - ahead])
  layer.reduce_put(sends, summed, merge=True)
  normed = layer.norm(summed)
  ready = np.broadcast_to(normed, (of.ranks, layer.blocks))
  last = int(machine['virtual_channels']) - 1
  counted = layer.arrivals()
  layer.load(ready, counted, channel=last, ahead=ahead)
  layer.second(layer.pools(int(machine['aic']) - half), counted)
  return layer.run()


def cais_partial(of: SubLayer, machine) -> flow_lib.Timed:
  """As `cais`, loads and reductions in one queue."""
  return cais(of, machine.with_figures(virtual_channels=1.0))


System = Callable[[SubLayer, machine_lib.Machine], flow_lib.Timed]
SYSTEMS: dict[str, System] = {
  'TP-NVLS': tp_nvls,
  'SP-NVLS': sp_nvls,
  'CoCoNet': lambda of, m: _all_reduce_beside(of, m, chunks=True, nvls=False),
  'FuseLib': lambda of, m: _all_reduce_beside(of, m, chunks=False, nvls=False),
  'T3': t3,
  'CoCoNet-N': lambda of, m: _all_reduce_beside(of, m, chunks=True, nvls=True),
  'FuseLib-N': lambda of, m: _all_reduce_beside(of, m, chunks=False, nvls=True),
  'T3-N': lambda of, m: t3(of, m, nvls=True),
  'CAIS-Base': cais_base,
  'CAIS-Partial': cais_partial,
  'CAIS': cais,
}


def seconds(system: str, of: SubLayer, machine) -> float:
  """Returns what a sub-layer takes in a row of many."""
  total = SYSTEMS[system](of, machine).total
  if system != 'CAIS-Base':
    return total
  return total - machine['request_skew']


def link_use(timed: flow_lib.Timed, took: float, machine) -> float:
  """Returns the share of both directions' rate, with headers."""
  moved = timed.up_bytes.sum() + timed.down_bytes.sum()
  return float(moved / (2 * len(timed.up_bytes) * machine['nvlink'] * took))
