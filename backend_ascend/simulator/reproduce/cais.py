"""CAIS (arXiv 2605.05628): tensor parallelism over switches that merge.

A sub-layer is GEMM, reduce-scatter, layer norm, all-gather, GEMM.  A message is
an output tile of the first GEMM, which is an input tile of the second.  Each
row block has one owner that adds and normalises it; blocks are assigned to
owners round robin.

The paper's text gives only maxima and geometric means over its models, not the
bars of its figures; tiles, their order, the split of SMs, credits and GEMM
rates are not published, nor how a GPU that is ahead of its peers is delayed: we
assume that a tile is sent when all earlier tiles that exceed half of the merge
table have been sent.
"""

from collections.abc import Callable, Iterator
import dataclasses

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import builder
from hpmoe.backend_ascend.simulator.reproduce import factors as factors_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

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


Row = witness_lib.Row
MACHINE = 'cais'
_PAPER = 'arXiv 2605.05628, reading notes'


@dataclasses.dataclass(frozen=True)
class Model:
  """A published workload.

  Attributes:
    hidden: width.
    ffn: width of an FFN.
    ups: matrices of the first FFN: two where it is gated.
    seq: tokens of a sequence.
    batch: sequences.
  """

  hidden: int
  ffn: int
  ups: int
  seq: int
  batch: int

  @property
  def tokens(self) -> int:
    return self.seq * self.batch

  def sub_layers(self, ranks: int = 8) -> dict[str, SubLayer]:
    """Returns L1, L2 forward and L3, L4 backward."""
    out, qkv = self.hidden / ranks, 3 * self.hidden / ranks
    up, down = self.ups * self.ffn / ranks, self.ffn / ranks
    ends = dict(L1=(out, up), L2=(down, qkv), L3=(up, out), L4=(qkv, down))
    return {
      name: SubLayer(self.tokens, self.hidden, *sizes, ranks)
      for name, sizes in ends.items()
    }

  def attention(self, ranks: int = 8) -> float:
    """Returns flops of a rank, forward, half of them masked."""
    return 2.0 * self.tokens * self.seq * self.hidden / ranks


MODELS = {
  'Mega-GPT-4B': Model(2048, 8192, 1, 1024, 16),
  'Mega-GPT-8B': Model(3072, 12288, 1, 1024, 12),
  'LLaMA-7B': Model(4096, 11264, 2, 3072, 3),
}
_LLAMA = 'LLaMA-7B'
FULL = Model(8192, 22528, 2, 3072, 3)

# Speed-up of CAIS over each baseline.
FACTORS = witness_lib.published('cais')['factors']
BASELINES = tuple(FACTORS['sub-layer'])
_SHARE = 'communication over computation, LLaMA-7B'
_TABLE = 'table a port without coordination'
_SCALE = 'gain over TP-NVLS at full over half scale'
_USES = {'CAIS-Base': 62.4, 'CAIS-Partial': 84.7, 'CAIS': 90.2}
_PORTS = 32  # of all switches
# GPUs; hidden size and FFN width grow in proportion.
_GPUS = (8, 16, 32)


def _use_name(system: str) -> str:
  return f'link use, {system}'


def gpus_name(ranks: int) -> str:
  return f'seconds at {ranks} GPUs'


def _rows() -> Iterator[Row]:
  yield Row(_SHARE, 1.6, '1', 'share', _PAPER)
  for group, _, name, value in factors_lib.published(FACTORS):
    yield Row(name, value, 'x', group, _PAPER)
  for system, use in _USES.items():
    yield Row(_use_name(system), use, '%', 'link use', _PAPER)
  yield Row(_TABLE, 250.0, 'KB', 'table', _PAPER)
  yield Row(_SCALE, 1.43 / 1.40, '1', 'scale', _PAPER)


def _serial(model: Model, machine) -> tuple[float, float]:
  """Returns the seconds of attention and of weight gradients on one rank."""
  speed = rate(machine) * machine['aic']
  sub_layers = model.sub_layers()
  grads = sub_layers['L1'].flops + sub_layers['L2'].flops
  return model.attention() / speed, grads / speed


def _times(model: Model, machine, seconds) -> dict[str, float]:
  """Returns seconds by group, and by sub-layer."""
  sub_layer_times = {n: seconds(n, s) for n, s in model.sub_layers().items()}
  attention, grads = _serial(model, machine)
  prefill = sub_layer_times['L1'] + sub_layer_times['L2'] + attention
  # Backward attention has five products for two.
  backward = (
    sub_layer_times['L3'] + sub_layer_times['L4'] + 2.5 * attention + grads
  )
  return sub_layer_times | dict(prefill=prefill, training=prefill + backward)


def _all_times(machine, seconds):
  """Returns seconds by system, model, and group or sub-layer."""
  return {
    system: {
      name: _times(model, machine, seconds(system))
      for name, model in MODELS.items()
    }
    for system in (*BASELINES, 'CAIS')
  }


def _factors(times) -> dict[str, float]:
  """Returns rows from seconds by system, model and group or sub-layer."""
  values: dict[str, float] = {}
  for group, systems in FACTORS.items():
    for system in systems:
      gains = [
        times[system][model][part] / times['CAIS'][model][part]
        for model in MODELS
        for part in (
          ('L1', 'L2', 'L3', 'L4') if group == 'sub-layer' else (group,)
        )
      ]
      values |= factors_lib.values(group, system, gains)
  return values


def _compute_seconds(machine) -> float:
  """Returns the compute seconds of LLaMA-7B under TP-NVLS, with norms."""
  sub_layers = MODELS[_LLAMA].sub_layers()
  speed = rate(machine) * machine['aic']
  norms = 2 * norm_seconds(machine, sub_layers['L1'].size)
  attention, _ = _serial(MODELS[_LLAMA], machine)
  return (
    (sub_layers['L1'].flops + sub_layers['L2'].flops) / speed
    + norms
    + attention
  )


def _share(machine, times) -> float:
  """Returns the ratio of communication to computation of TP-NVLS."""
  attention, _ = _serial(MODELS[_LLAMA], machine)
  compute_seconds = _compute_seconds(machine)
  return (
    times['L1'] + times['L2'] + attention - compute_seconds
  ) / compute_seconds


def _uses(machine) -> dict[str, float]:
  """Returns link use of LLaMA-7B's L2, as published."""
  sub_layer = MODELS[_LLAMA].sub_layers()['L2']
  values = {}
  for system in _USES:
    timing = SYSTEMS[system](sub_layer, machine)
    seconds = simulate_seconds(system, sub_layer, machine)
    values[_use_name(system)] = 100 * link_use(timing, seconds, machine)
  unlimited = machine.with_figures(merge_table=1e12, merge_timeout=0.0)
  table_bytes = cais_base(sub_layer, unlimited).sessions['peak']
  return values | {_TABLE: table_bytes / _PORTS / 1e3}


def _gain(model: Model, machine) -> float:
  sub_layer = model.sub_layers()['L2']
  return simulate_seconds('TP-NVLS', sub_layer, machine) / simulate_seconds(
    'CAIS', sub_layer, machine
  )


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]

  def seconds(system: str):
    def simulate(name: str, sub_layer: SubLayer) -> float:
      tell(f'{system}, {name}')
      return simulate_seconds(system, sub_layer, machine)

    return simulate

  times = _all_times(machine, seconds)
  tell('links, table, scale')
  values = _factors(times) | _uses(machine)
  values[_SHARE] = _share(machine, times['TP-NVLS'][_LLAMA])
  full = machine.with_figures(aic=2 * machine['aic'])
  values[_SCALE] = _gain(FULL, full) / _gain(MODELS[_LLAMA], machine)
  for ranks in _GPUS:
    tell(f'{ranks} GPUs')
    model = MODELS['Mega-GPT-4B']
    scaled = dataclasses.replace(
      model, hidden=model.hidden * ranks // 8, ffn=model.ffn * ranks // 8
    )
    sub_layer = scaled.sub_layers(ranks)['L2']
    values[gpus_name(ranks)] = (
      simulate_seconds('CAIS', sub_layer, machine) / sub_layer.flops
    )
  return values


def _bound_seconds(system: str, sub_layer: SubLayer, machine) -> float:
  """Returns the roofline: the seconds that a link or all SMs need at peak."""
  peak = machine['cube_bf16'] * machine['aic']
  first_seconds, second_seconds = (
    2.0 * sub_layer.tokens * sub_layer.hidden * side / peak
    for side in (sub_layer.depth, sub_layer.width)
  )
  whole = sub_layer.size / machine['nvlink']
  scattered = whole * (sub_layer.ranks - 1) / sub_layer.ranks
  norm = norm_seconds(machine, sub_layer.size)
  shared_norm = norm / sub_layer.ranks
  if system in ('CAIS', 'CAIS-Partial'):
    return max(first_seconds + second_seconds, whole)
  if system in ('T3', 'T3-N', 'CAIS-Base'):
    return (
      max(first_seconds, scattered)
      + shared_norm
      + max(second_seconds, scattered)
    )
  if system == 'SP-NVLS':
    return first_seconds + second_seconds + shared_norm + 2 * scattered
  reduced = whole * (sub_layer.ranks + 1) / sub_layer.ranks
  if system == 'TP-NVLS':
    return first_seconds + second_seconds + norm + reduced
  transfer = reduced if system.endswith('-N') else 2 * scattered
  return max(first_seconds, transfer) + norm + second_seconds


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  machine = machines[MACHINE].at_peak()

  def seconds(system: str):
    return lambda _, s: _bound_seconds(system, s, machine)

  times = _all_times(machine, seconds)
  uses = {_use_name(system): 100.0 for system in _USES}
  table_kilobytes = machine['nvlink'] * machine['request_skew'] / _PORTS / 1e3
  return _factors(times) | uses | {_TABLE: table_kilobytes, _SCALE: 1.0}


def out_of_order(values: witness_lib.Values) -> str:
  """Returns baselines out of the published order, but for near ties."""
  published = {s: mean for s, (_, mean) in FACTORS['sub-layer'].items()}
  gains = {
    s: values[factors_lib.row_name('sub-layer', s, 'geomean')]
    for s in published
  }
  return '; '.join(
    f'{a} {gains[a]:.2f}, {b} {gains[b]:.2f}'
    for a in published
    for b in published
    if published[a] > 1.05 * published[b] and gains[a] <= gains[b]
  )


def growth(values: witness_lib.Values) -> str:
  """Returns the growth of the time per flop with GPUs, if it is over 5 %."""
  times = [values[gpus_name(ranks)] for ranks in _GPUS]
  if max(times) <= 1.05 * times[0]:
    return ''
  return ', '.join(
    f'{ranks} GPUs: {time / times[0] - 1:+.1%}'
    for ranks, time in zip(_GPUS[1:], times[1:])
  )


_BASE = witness_lib.Witness(
  **witness_lib.load_fields('cais'),
  machines=(MACHINE,),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  roofline=_roofline,
  claims=(
    witness_lib.Claim(
      'baselines are slower than CAIS in the published order', out_of_order
    ),
    witness_lib.Claim(
      'time per flop grows by 5 % at most to 16 and 32 GPUs', growth
    ),
  ),
)


def _ring_share(machine) -> dict[str, float]:
  """Returns the share if the all-reduce used no switches."""
  size = MODELS[_LLAMA].sub_layers()['L1'].size
  packets = 1 + machine['header_flits'] * machine['flit'] / machine['packet']
  ring_seconds = 2 * 2 * size * 7 / 8 * packets / machine['nvlink']
  return {_SHARE: ring_seconds / _compute_seconds(machine)}


def _run_with_ring(machines: witness_lib.Machines, tell) -> dict[str, float]:
  return _run(machines, tell) | _ring_share(machines[MACHINE])


WITNESS = dataclasses.replace(
  _BASE,
  variants=(
    # Only norms pass memory here.
    witness_lib.under(
      _BASE, 'norms take no time, not that of memory', MACHINE, hbm=1e30
    ),
    witness_lib.Variant(
      '1.6 is of an all-reduce by ring, not by switches',
      dataclasses.replace(_BASE, run=_run_with_ring),
    ),
  ),
)
