"""Systems of CAIS (arXiv 2605.05628): tensor parallelism over merging switches.

A sub-layer is GEMM, reduce-scatter, layer norm, all-gather, GEMM.  A message is
an output tile of the first GEMM, which is an input tile of the second.  Each
row block has one owner that adds and normalises it; blocks are assigned to
owners round robin.
"""

from collections.abc import Callable
import dataclasses

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import builder

Op = flow_lib.Op
ROWS = 128  # of a tile
COLS = 64  # of a message
_SECOND_COLS = 256  # of a tile of the second GEMM
BYTES = 2.0  # of an element
# Outstanding pulls and loads of a rank: 1 MB, more than a round trip needs.
_WINDOW = 64
_CHUNKS = 8  # that CoCoNet passes to its second kernel


@dataclasses.dataclass(frozen=True)
class SubLayer:
  """Sizes of one rank.

  Attributes:
    tokens: rows, of the whole batch.
    hidden: width of the tensor that is reduced, normalised and gathered.
    depth: of the first GEMM.
    width: of the second GEMM.
    ranks: number of ranks that share the sub-layer.
  """

  tokens: int
  hidden: int
  depth: float
  width: float
  ranks: int = 8

  @property
  def flops(self) -> float:
    """Floating-point operations of both GEMMs of one rank."""
    return 2.0 * self.tokens * self.hidden * (self.depth + self.width)

  @property
  def size(self) -> float:
    """Bytes of the activation."""
    return BYTES * self.tokens * self.hidden


def rate(machine: machine_lib.Machine) -> float:
  """Returns flop/s of one SM."""
  return machine['cube_bf16'] * machine['cube_efficiency']


def norm_seconds(machine, size: float) -> float:
  """Returns the seconds to read and write `size` bytes."""
  return 2 * size / machine['hbm']


class _Layer(builder.Builder):
  """A flow of a sub-layer, to which phases are added.

  Tiles of all ranks have one order, rank by rank: row block by row block, or in
  waves, each with one block of every owner.
  """

  def __init__(
    self, sub_layer: SubLayer, machine: machine_lib.Machine, waves: bool
  ):
    super().__init__(sub_layer.ranks, machine)
    self.sub_layer = sub_layer
    self.blocks = sub_layer.tokens // ROWS
    self.cols = -(-sub_layer.hidden // COLS)
    self.tile = BYTES * ROWS * sub_layer.hidden / self.cols
    rank, block, col = (
      axis.ravel()
      for axis in np.indices(
        (sub_layer.ranks, self.blocks, self.cols), np.int32
      )
    )
    wave = block // sub_layer.ranks if waves else block
    order = np.lexsort((block, col, wave, rank))
    self.rank, self.block, self.col = rank[order], block[order], col[order]
    self.owner = self.block % sub_layer.ranks
    self.is_owner = self.rank == self.owner
    # The position of a tile in the order of its rank, and its number.
    self.position = np.tile(np.arange(self.blocks * self.cols), sub_layer.ranks)
    self.key = self.position
    # [blocks, cols] numbers of a block's tiles.
    first = self.block[: len(self.position) // sub_layer.ranks]
    self.tiles = np.argsort(first, kind='stable').reshape(
      self.blocks, self.cols
    )

  def cores(self, start=0.0) -> np.ndarray:
    """Returns a pool of each rank with all of its SMs."""
    return self.pools(int(self.machine['aic']), start)

  def events(self, threshold: float) -> np.ndarray:
    """Returns one event per tile, which a switch or a hub sees."""
    return self.flow.add_events(np.full(self.tiles.size, threshold))

  def join(self, events) -> np.ndarray:
    """Returns an event that is reached when all of `events` are."""
    all_reached = self.flow.add_events(np.size(events))
    pool = self.flow.add_pools(1)[0]
    tasks = self.flow.add_tasks(np.full(np.size(events), pool), 0.0)
    self.flow.add_waits(tasks, np.ravel(events))
    self.flow.add_signals(tasks, all_reached)
    return all_reached

  def first(self, pools) -> np.ndarray:
    """Adds the first GEMM; returns the task of each tile."""
    flops = (
      2.0 * ROWS * self.sub_layer.hidden / self.cols * self.sub_layer.depth
    )
    return self.flow.add_tasks(pools[self.rank], flops / rate(self.machine))

  def barrier(self, tasks) -> np.ndarray:
    """Returns an event that all tasks have ended."""
    event = self.flow.add_events(len(tasks))
    self.flow.add_signals(tasks, event)
    return event

  def norm(self, sums) -> np.ndarray:
    """Adds the norm of each row block at its owner, after its tiles' sums.

    Returns one event per row block.
    """
    normalised = self.flow.add_events(np.ones(self.blocks))
    order = self.block[: self.tiles.size]
    order = order[np.sort(np.unique(order, return_index=True)[1])]
    tasks = np.empty(self.blocks, np.int64)
    tasks[order] = self.flow.add_tasks(
      self.pools(1)[order % self.sub_layer.ranks],
      norm_seconds(self.machine, self.tile * self.cols),
    )
    self.flow.add_waits(tasks[:, None].repeat(self.cols, 1), sums[self.tiles])
    self.flow.add_signals(tasks, normalised)
    return normalised

  def second(self, pools, event) -> np.ndarray:
    """Adds the second GEMM; a row block's tasks wait for `[R, blocks]`."""
    cols = -(-int(self.sub_layer.width) // _SECOND_COLS)
    rank, block, _ = (
      axis.ravel()
      for axis in np.indices((self.sub_layer.ranks, self.blocks, cols))
    )
    flops = 2.0 * ROWS * self.sub_layer.width / cols * self.sub_layer.hidden
    tasks = self.flow.add_tasks(pools[rank], flops / rate(self.machine))
    events = np.broadcast_to(event, (self.sub_layer.ranks, self.blocks))
    self.flow.add_waits(tasks, events[rank, block])
    return tasks

  def arrivals(self) -> np.ndarray:
    """Returns `[R, blocks]` events: all tiles of a row block have arrived."""
    events = self.flow.add_events(
      np.full(self.sub_layer.ranks * self.blocks, self.cols),
      self.machine['poll'],
    )
    return events.reshape(self.sub_layer.ranks, self.blocks)

  def reduce_put(self, tasks, sums, *, merge: bool) -> None:
    """Sends each tile to its owner; tiles of the owner itself stay.

    `sums` counts partial sums of each tile; with `merge`, switches add them.
    """
    self.flow.add_signals(tasks[self.is_owner], sums[self.key[self.is_owner]])
    is_remote = ~self.is_owner
    messages = self.flow.add_messages(
      tasks[is_remote],
      Op.REDUCE_PUT,
      self.rank[is_remote],
      self.tile,
      key=self.key[is_remote] if merge else -1,
      expected=self.sub_layer.ranks - 1,
    )
    self.flow.add_peers(
      messages, self.owner[is_remote], sums[self.key[is_remote]]
    )

  def pull_sums(self, ready, sums, *, include_own: bool) -> None:
    """Lets owners read the sum of each tile through the switches.

    Args:
      ready: event of each tile: all ranks have computed it.
      sums: events that count the sums.
      include_own: whether the owner's part passes the switches, too.
    """
    key, owner = self.key[self.is_owner], self.owner[self.is_owner]
    tasks = self.idle(self.pools(_WINDOW)[owner], ready[key], holds=True)
    messages = self.flow.add_messages(tasks, Op.REDUCE_GET, owner, self.tile)
    for step in range(0 if include_own else 1, self.sub_layer.ranks):
      peer = (owner + step) % self.sub_layer.ranks
      self.flow.add_peers(messages, peer, sums[key])

  def push(self, ready, arrivals, *, multicast: bool) -> None:
    """Lets owners send tiles to all ranks.

    Args:
      ready: event of each tile.
      arrivals: `[R, blocks]` events that count tiles.
      multicast: whether a tile is sent once and switches copy it.
    """
    key, owner, block = (
      x[self.is_owner] for x in (self.key, self.owner, self.block)
    )
    tasks = self.idle(self.pools(1)[owner], ready[key])
    messages = None
    for step in range(self.sub_layer.ranks):
      peer = (owner + step) % self.sub_layer.ranks
      if messages is None or not multicast:
        messages = self.flow.add_messages(tasks, Op.PUT, owner, self.tile)
      self.flow.add_peers(messages, peer, arrivals[peer, block])

  def load(self, ready, arrivals, *, channel: int, max_lead: int) -> None:
    """Lets ranks load tiles of others; switches merge equal loads.

    Args:
      ready: `[R, blocks]` events: a rank may load.
      arrivals: `[R, blocks]` events that count tiles.
      channel: virtual channel of the links.
      max_lead: tiles by which a rank may be ahead of the slowest; 0: any.
    """
    is_remote = ~self.is_owner
    rank, block, key, owner = (
      x[is_remote] for x in (self.rank, self.block, self.key, self.owner)
    )
    tasks = self.idle(self.pools(_WINDOW)[rank], ready[rank, block], holds=True)
    if max_lead:
      loads = self.events(self.sub_layer.ranks - 1)
      self.flow.add_signals(tasks, loads[key])
      is_limited = key >= max_lead
      self.flow.add_waits(tasks[is_limited], loads[key[is_limited] - max_lead])
    messages = self.flow.add_messages(
      tasks,
      Op.GET,
      rank,
      self.tile,
      channel=channel,
      key=key + self.tiles.size,
      expected=self.sub_layer.ranks - 1,
    )
    self.flow.add_peers(messages, owner, arrivals[rank, block])
    # Tiles that a rank owns need no load.
    blocks = np.arange(self.blocks)
    owner = blocks % self.sub_layer.ranks
    local_tasks = self.idle(self.pools(_WINDOW)[owner], ready[owner, blocks])
    self.flow.add_signals(local_tasks, arrivals[owner, blocks], self.cols)


def _to_tiles(layer: _Layer, event) -> np.ndarray:
  """Returns one event, repeated for each tile."""
  return np.repeat(event, layer.tiles.size)


def _norm_and_second(layer: _Layer, arrivals) -> flow_lib.Timing:
  """Adds the norm of all rows and the second GEMM, once all tiles arrived."""
  gathered = layer.launch_after(layer.join(arrivals))
  seconds_of_norm = norm_seconds(layer.machine, layer.sub_layer.size)
  normalised = layer.launch_after(
    layer.join(layer.after(gathered, seconds_of_norm))
  )
  layer.second(layer.cores(), normalised[:, None])
  return layer.run()


def tp_nvls(sub_layer: SubLayer, machine) -> flow_lib.Timing:
  """Runs GEMM, all-reduce by switches, norm of all rows, GEMM, in turn."""
  layer = _Layer(sub_layer, machine, waves=True)
  first_done = layer.barrier(layer.first(layer.cores()))
  sums, arrivals = layer.events(1), layer.arrivals()
  start = layer.join(layer.launch_after(first_done))
  layer.pull_sums(_to_tiles(layer, start), sums, include_own=True)
  layer.push(sums, arrivals, multicast=True)
  return _norm_and_second(layer, arrivals)


def sp_nvls(sub_layer: SubLayer, machine) -> flow_lib.Timing:
  """Runs GEMM, reduce-scatter, norm of a share, all-gather, GEMM, in turn."""
  layer = _Layer(sub_layer, machine, waves=True)
  first_done = layer.barrier(layer.first(layer.cores()))
  sums, arrivals = layer.events(1), layer.arrivals()
  start = layer.join(layer.launch_after(first_done))
  layer.pull_sums(_to_tiles(layer, start), sums, include_own=False)
  scattered = layer.join(layer.launch_after(layer.join(sums)))
  normalised = layer.norm(_to_tiles(layer, scattered))
  ready = layer.join(layer.launch_after(layer.join(normalised)))
  layer.push(_to_tiles(layer, ready), arrivals, multicast=True)
  gathered = layer.launch_after(layer.join(arrivals))
  layer.second(layer.cores(), gathered[:, None])
  return layer.run()


def _chunked(layer: _Layer, tasks) -> np.ndarray:
  """Returns one event per tile: the launch after its chunk is over."""
  chunk = layer.position * _CHUNKS // layer.tiles.size
  starts = [
    layer.join(layer.launch_after(layer.barrier(tasks[chunk == c])))
    for c in range(_CHUNKS)
  ]
  return np.concatenate(starts)[chunk[: layer.tiles.size]]


def _overlap_all_reduce(
  sub_layer: SubLayer, machine, *, chunks: bool, nvls: bool
) -> flow_lib.Timing:
  """Overlaps the first GEMM with its all-reduce; then norm and second GEMM."""
  layer = _Layer(sub_layer, machine, waves=True)
  tasks = layer.first(layer.cores())
  if chunks:
    ready = _chunked(layer, tasks)
  else:
    ready = layer.events(sub_layer.ranks)
    layer.flow.add_signals(tasks, ready[layer.key])
  sums, arrivals = (
    layer.events(1 if nvls else sub_layer.ranks),
    layer.arrivals(),
  )
  if nvls:
    layer.pull_sums(ready, sums, include_own=True)
  else:
    if chunks:
      tasks = layer.idle(layer.pools(1)[layer.rank], ready[layer.key])
    layer.reduce_put(tasks, sums, merge=False)
  layer.push(sums, arrivals, multicast=nvls)
  return _norm_and_second(layer, arrivals)


def t3(sub_layer: SubLayer, machine, nvls: bool = False) -> flow_lib.Timing:
  """Overlaps GEMM with reduce-scatter, then all-gather with GEMM."""
  layer = _Layer(sub_layer, machine, waves=True)
  tasks = layer.first(layer.cores())
  sums, arrivals = (
    layer.events(1 if nvls else sub_layer.ranks),
    layer.arrivals(),
  )
  if nvls:
    tile_done = layer.events(sub_layer.ranks)
    layer.flow.add_signals(tasks, tile_done[layer.key])
    layer.pull_sums(tile_done, sums, include_own=False)
  else:
    layer.reduce_put(tasks, sums, merge=False)
  normalised = layer.norm(sums)
  ready = layer.join(layer.launch_after(layer.join(normalised)))
  layer.push(_to_tiles(layer, ready), arrivals, multicast=nvls)
  layer.second(layer.cores(), arrivals)
  return layer.run()


def compute_delays(machine, ranks: int) -> np.ndarray:
  """Returns the seconds by which each rank is late without coordination."""
  return machine['request_skew'] * np.arange(ranks) / (ranks - 1)


def cais_base(sub_layer: SubLayer, machine) -> flow_lib.Timing:
  """Merges loads and sums of ranks that are not synchronised; GEMMs in turn.

  In a model of many layers each rank keeps its delay, so a sub-layer takes the
  time until the last rank ends, less the largest delay.
  """
  layer = _Layer(sub_layer, machine, waves=True)
  delays = compute_delays(machine, sub_layer.ranks)
  tasks = layer.first(layer.cores(delays))
  sums, arrivals = layer.events(sub_layer.ranks), layer.arrivals()
  layer.reduce_put(tasks, sums, merge=True)
  ready = layer.join(layer.launch_after(layer.join(layer.norm(sums))))
  start = np.broadcast_to(layer.after(ready, delays)[:, None], arrivals.shape)
  layer.load(start, arrivals, channel=0, max_lead=0)
  layer.second(layer.cores(), arrivals)
  return layer.run()


def cais(sub_layer: SubLayer, machine) -> flow_lib.Timing:
  """Overlaps both GEMMs tile by tile, each on half of the SMs.

  Uses the better of both orders of tiles.
  """
  return min(
    (_overlap_gemms(sub_layer, machine, waves) for waves in (False, True)),
    key=lambda timing: timing.total,
  )


def _overlap_gemms(
  sub_layer: SubLayer, machine, waves: bool
) -> flow_lib.Timing:
  layer = _Layer(sub_layer, machine, waves=waves)
  half = int(machine['aic']) // 2
  max_lead = int(machine['merge_table'] / layer.tile) // 2
  tasks = layer.first(layer.pools(half, machine['group_barrier']))
  computed, sums = layer.events(sub_layer.ranks), layer.events(sub_layer.ranks)
  layer.flow.add_signals(tasks, computed[layer.key])
  sends = layer.idle(layer.pools(1)[layer.rank], computed[layer.key])
  is_limited = layer.key >= max_lead
  layer.flow.add_waits(
    sends[is_limited], sums[layer.key[is_limited] - max_lead]
  )
  layer.reduce_put(sends, sums, merge=True)
  normalised = layer.norm(sums)
  ready = np.broadcast_to(normalised, (sub_layer.ranks, layer.blocks))
  last = int(machine['virtual_channels']) - 1
  arrivals = layer.arrivals()
  layer.load(ready, arrivals, channel=last, max_lead=max_lead)
  layer.second(layer.pools(int(machine['aic']) - half), arrivals)
  return layer.run()


def cais_partial(sub_layer: SubLayer, machine) -> flow_lib.Timing:
  """Runs `cais` with loads and reductions in one queue."""
  return cais(sub_layer, machine.with_figures(virtual_channels=1.0))


System = Callable[[SubLayer, machine_lib.Machine], flow_lib.Timing]
SYSTEMS: dict[str, System] = {
  'TP-NVLS': tp_nvls,
  'SP-NVLS': sp_nvls,
  'CoCoNet': lambda s, m: _overlap_all_reduce(s, m, chunks=True, nvls=False),
  'FuseLib': lambda s, m: _overlap_all_reduce(s, m, chunks=False, nvls=False),
  'T3': t3,
  'CoCoNet-N': lambda s, m: _overlap_all_reduce(s, m, chunks=True, nvls=True),
  'FuseLib-N': lambda s, m: _overlap_all_reduce(s, m, chunks=False, nvls=True),
  'T3-N': lambda s, m: t3(s, m, nvls=True),
  'CAIS-Base': cais_base,
  'CAIS-Partial': cais_partial,
  'CAIS': cais,
}


def simulate_seconds(system: str, sub_layer: SubLayer, machine) -> float:
  """Returns the seconds of a sub-layer within a sequence of many."""
  total = SYSTEMS[system](sub_layer, machine).total
  if system != 'CAIS-Base':
    return total
  return total - machine['request_skew']


def link_use(timing: flow_lib.Timing, seconds: float, machine) -> float:
  """Returns the used share of both directions' rate, headers included."""
  carried_bytes = timing.up_bytes.sum() + timing.down_bytes.sum()
  return float(
    carried_bytes / (2 * len(timing.up_bytes) * machine['nvlink'] * seconds)
  )
