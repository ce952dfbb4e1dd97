"""Flows of an MoE layer under DySHARP and its baselines.

A copy is a token on a rank that has at least one of its experts: one copy per
rank.  The work of a rank is divided into chunks of consecutive copies.
Baselines send all copies of a chunk to a rank as one message.
"""

import dataclasses
import functools

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import builder

Op = flow_lib.Op
BYTES = 2.0  # of an element, both ways
_CHUNKS = 32  # of a baseline
_TILE = 128  # rows of an expert that start its GEMM


@dataclasses.dataclass(frozen=True)
class Layer:
  """Sizes of a layer.

  Attributes:
    hidden: width.
    ffn: width of an expert.
    experts: of all ranks.
    tokens: of one rank.
    top_k: experts of a token.
    ranks: that share the experts.
    passes: 2 for the GEMMs of a backward pass, else 1.
    gemms: number of a token's GEMMs in an expert.
    figure: the machine's rate of GEMMs.
    by_expert: whether there is one copy per expert, not per rank.
  """

  hidden: int
  ffn: int
  experts: int
  tokens: int
  top_k: int
  ranks: int = 32
  passes: int = 1
  gemms: int = 2
  figure: str = 'cube_int8'
  by_expert: bool = False

  @property
  def row(self) -> float:
    """Bytes of a token."""
    return BYTES * self.hidden

  @property
  def row_flops(self) -> float:
    """Floating-point operations of one token in one expert."""
    return 2.0 * self.gemms * self.hidden * self.ffn * self.passes

  def routed(self) -> 'Layer':
    """Returns the layer with only the sizes that its routing depends on."""
    return dataclasses.replace(self, hidden=1, ffn=1, passes=1)


def rate(machine: machine_lib.Machine, figure: str = 'cube_int8') -> float:
  """Returns flop/s of a GPU."""
  return machine[figure] * machine['cube_efficiency'] * machine['aic']


@functools.lru_cache(maxsize=2)
def _draw_expert_counts(layer: Layer) -> np.ndarray:
  """Returns `[R, T, R]` i1: experts of each token on each rank."""
  rng = np.random.default_rng(0)
  counts = np.zeros((layer.ranks, layer.tokens, layer.ranks), np.int8)
  rows = np.arange(layer.tokens)[:, None]
  for rank in range(layer.ranks):
    draw = rng.random((layer.tokens, layer.experts), np.float32)
    experts = np.argpartition(draw, layer.top_k - 1, axis=1)[:, : layer.top_k]
    np.add.at(counts[rank], (rows, experts * layer.ranks // layer.experts), 1)
  return counts


def count_experts(layer: Layer) -> np.ndarray:
  return _draw_expert_counts(layer.routed())


def count_remote_ranks(layer: Layer) -> float:
  """Returns the mean number of other ranks with experts of a token."""
  is_used = count_experts(layer) > 0
  own = is_used[np.arange(layer.ranks), :, np.arange(layer.ranks)].sum()
  return float((is_used.sum() - own) / (layer.ranks * layer.tokens))


class _Exchange(builder.Builder):
  """A flow with a pool for GEMMs on each rank."""

  def __init__(self, layer: Layer, machine: machine_lib.Machine):
    super().__init__(layer.ranks, machine)
    self.layer = layer
    self.products = self.pools(1)
    self.ranks = np.arange(layer.ranks)

  def events(self, threshold, polled: bool = True) -> np.ndarray:
    delay = self.machine['poll'] if polled else 0.0
    return self.flow.add_events(threshold, delay)

  def compute(self, rows, share: float = 1.0) -> np.ndarray:
    """Adds the GEMMs of `[R, chunks]` rows; returns tasks of that shape."""
    rows = np.asarray(rows, float)
    rank = np.broadcast_to(self.ranks[:, None], rows.shape)
    tasks = self.flow.add_tasks(
      self.products[rank].ravel(),
      (
        share
        * rows
        * self.layer.row_flops
        / rate(self.machine, self.layer.figure)
      ).ravel(),
    )
    return tasks.reshape(rows.shape)

  def send(self, tasks, counts, arrivals, channel: int = 0) -> None:
    """Lets `[R, chunks]` tasks send `[R, chunks, R]` copies, a message each.

    `arrivals`: `[R, chunks]` events at the receiver.
    """
    ranks = len(counts)
    for step in range(ranks):
      peer = (self.ranks + step) % ranks
      copies = counts[self.ranks, :, peer]
      source, chunk = np.nonzero(copies)
      messages = self.flow.add_messages(
        tasks[source, chunk],
        Op.PUT,
        source,
        copies[source, chunk] * self.layer.row,
        channel=channel,
      )
      receiver = peer[source]
      self.flow.add_peers(messages, receiver, arrivals[receiver, chunk])


def _plain(machine):
  """Returns the machine whose packets name an address and no targets."""
  return machine.with_figures(target_ids=0.0)


def _by_chunk(layer: Layer, chunks: int):
  """Returns `[R, chunks, R]` copies sent, and `[R, chunks]` rows of experts."""
  expert_counts = count_experts(layer)
  cut = (layer.ranks, chunks, layer.tokens // chunks, layer.ranks)
  copies = (
    (expert_counts if layer.by_expert else expert_counts > 0)
    .reshape(cut)
    .sum(2, dtype=int)
  )
  rows = expert_counts.reshape(cut).sum((0, 2), dtype=np.int64).T
  return copies, rows


def _arrivals(flow: _Exchange, copies) -> np.ndarray:
  """Returns `[R, chunks]` events that count one message per sending rank."""
  senders = (copies > 0).sum(0).T
  return flow.events(senders.ravel()).reshape(senders.shape)


def deepep(layer: Layer, machine) -> flow_lib.Timing:
  """Runs dispatch, GEMMs and combine one after the other."""
  exchange = _Exchange(layer, _plain(machine))
  copies, rows = _by_chunk(layer, 1)
  arrivals, returns = (
    _arrivals(exchange, copies),
    _arrivals(exchange, copies.transpose(2, 1, 0)),
  )
  exchange.send(_idle(exchange, 1), copies, arrivals)
  tasks = exchange.compute(rows)
  exchange.flow.add_waits(tasks[:, 0], exchange.launch_after(arrivals[:, 0]))
  computed = exchange.events(np.ones(layer.ranks), polled=False)
  exchange.flow.add_signals(tasks[:, 0], computed)
  sends = _idle(exchange, 1)
  exchange.flow.add_waits(sends[:, 0], exchange.launch_after(computed))
  exchange.send(sends, copies.transpose(2, 1, 0), returns)
  return exchange.run()


def _idle(exchange: _Exchange, chunks: int) -> np.ndarray:
  """Returns `[R, chunks]` tasks that take no time, in order."""
  return exchange.idle(np.repeat(exchange.pools(1), chunks)).reshape(-1, chunks)


def comet(layer: Layer, machine) -> flow_lib.Timing:
  """Overlaps dispatch with the first GEMM, then the second with combine."""
  exchange = _Exchange(layer, _plain(machine))
  copies, rows = _by_chunk(layer, _CHUNKS)
  return_copies = copies.transpose(2, 1, 0)
  arrivals, returns = (
    _arrivals(exchange, copies),
    _arrivals(exchange, return_copies),
  )
  exchange.send(_idle(exchange, _CHUNKS), copies, arrivals)
  first = exchange.compute(rows, 2 / 3)
  exchange.flow.add_waits(first, arrivals)
  first_done = exchange.events(np.full(layer.ranks, _CHUNKS), polled=False)
  exchange.flow.add_signals(
    first, np.repeat(first_done, _CHUNKS).reshape(first.shape)
  )
  second_start = exchange.launch_after(first_done)
  second = exchange.compute(rows, 1 / 3)
  exchange.flow.add_waits(second[:, 0], second_start)
  exchange.send(second, return_copies, returns)
  return exchange.run()


def nvls(layer: Layer, machine) -> flow_lib.Timing:
  """Multicasts all tokens to all ranks, runs GEMMs, reduces in switches."""
  exchange = _Exchange(layer, _plain(machine))
  _, rows = _by_chunk(layer, 1)
  message_bytes = layer.row * layer.tokens / _CHUNKS
  arrivals = exchange.events(np.full(layer.ranks, layer.ranks * _CHUNKS))
  sends = _idle(exchange, _CHUNKS)
  rank = np.repeat(exchange.ranks, _CHUNKS)
  messages = exchange.flow.add_messages(
    sends.ravel(), Op.PUT, rank, message_bytes
  )
  for peer in range(layer.ranks):
    exchange.flow.add_peers(messages, peer, arrivals[peer])
  tasks = exchange.compute(rows)
  exchange.flow.add_waits(tasks[:, 0], exchange.launch_after(arrivals))
  computed = exchange.events(layer.ranks, polled=False)
  exchange.flow.add_signals(tasks[:, 0], computed)
  combine_start = exchange.launch_after(computed)
  pulls = _idle(exchange, _CHUNKS)
  exchange.flow.add_waits(pulls, combine_start[:, None])
  messages = exchange.flow.add_messages(
    pulls.ravel(), Op.REDUCE_GET, rank, message_bytes
  )
  for step in range(layer.ranks):
    exchange.flow.add_peers(messages, (rank + step) % layer.ranks)
  return exchange.run()


@dataclasses.dataclass(frozen=True)
class Parts:
  """The features of DySHARP that a flow has.

  Attributes:
    multicast: switches copy and add.
    fused: dispatch, GEMMs and combine overlap.
    by_source: rows are stored by source, then token; else in arrival order.
  """

  multicast: bool = True
  fused: bool = True
  by_source: bool = False


def dysharp(layer: Layer, machine, parts: Parts = Parts()) -> flow_lib.Timing:
  """Overlaps dispatch, GEMMs and combine, token by token."""
  exchange = _Exchange(layer, machine if parts.multicast else _plain(machine))
  expert_counts = count_experts(layer)
  token, source, rank = _copies(expert_counts)
  chunk, chunks = _chunks(layer, parts, token, source, rank)
  # [R, chunks]: the number of copies that start a chunk, and its rows.
  chunk_index = rank * chunks + chunk
  size = exchange.layer.ranks * chunks
  counts = np.bincount(chunk_index, minlength=size)
  rows = np.bincount(chunk_index, expert_counts[source, token, rank], size)
  arrivals = exchange.events(counts)
  _dispatch(
    exchange, parts, token, source, rank, expert_counts, arrivals[chunk_index]
  )
  tasks = exchange.compute(rows.reshape(-1, chunks)).ravel()
  if parts.fused:
    exchange.flow.add_waits(tasks, arrivals)
  else:
    exchange.flow.add_waits(tasks, exchange.launch_after(arrivals))
  _combine(
    exchange, parts, token, source, rank, expert_counts, tasks, chunk_index
  )
  return exchange.run()


def _copies(expert_counts: np.ndarray):
  """Returns (token, source, rank) of each copy, in the order of sending."""
  token, source, rank = np.nonzero(expert_counts.transpose(1, 0, 2))
  return token, source, rank


def _chunks(layer: Layer, parts: Parts, token, source, rank):
  """Returns the chunk of each copy, and the number of chunks."""
  if not parts.fused:
    return np.zeros(len(rank), np.int64), 1
  keys = (token, source) if parts.by_source else (source, token)
  order = np.lexsort((*keys, rank))
  counts = np.bincount(rank, minlength=layer.ranks)
  place = np.empty(len(rank), np.int64)
  first = np.cumsum(counts) - counts
  place[order] = np.arange(len(rank)) - np.repeat(first, counts)
  # Rows at which each expert of a rank has a full tile, on average.
  start_rows = _TILE * (layer.experts / layer.ranks)
  chunk_copies = max(
    1,
    round(start_rows * len(rank) / (layer.ranks * layer.tokens * layer.top_k)),
  )
  chunks = -(-int(counts.max()) // chunk_copies)
  return place // chunk_copies, chunks


def _dispatch(
  exchange, parts, token, source, rank, expert_counts, event
) -> None:
  layer = exchange.layer
  pools = exchange.pools(1)
  number = token * layer.ranks + source
  ids = expert_counts[source, token, rank]
  if parts.multicast:
    tokens = np.arange(layer.tokens * layer.ranks)
    tasks = exchange.idle(pools[tokens % layer.ranks])
    messages = exchange.flow.add_messages(
      tasks, Op.PUT, tokens % layer.ranks, layer.row
    )
    exchange.flow.add_peers(messages[number], rank, event, ids)
    return
  tasks = exchange.idle(pools[source])
  messages = exchange.flow.add_messages(tasks, Op.PUT, source, layer.row)
  exchange.flow.add_peers(messages, rank, event)


def _combine(
  exchange, parts, token, source, rank, expert_counts, tasks, chunk_index
) -> None:
  layer = exchange.layer
  last = int(exchange.machine['virtual_channels']) - 1
  is_remote = rank != source
  if not parts.multicast:
    # Each rank returns the rows that it computed.
    messages = exchange.flow.add_messages(
      tasks[chunk_index[is_remote]],
      Op.PUT,
      rank[is_remote],
      layer.row,
      channel=last,
    )
    exchange.flow.add_peers(messages, source[is_remote])
    return
  number = token * layer.ranks + source
  notify_seconds = (
    2 * exchange.machine['hop_latency'] + exchange.machine['poll']
  )
  ready = exchange.flow.add_events(
    np.bincount(number, minlength=layer.tokens * layer.ranks), notify_seconds
  )
  exchange.flow.add_signals(tasks[chunk_index], ready[number])
  remote_tokens = np.flatnonzero(
    np.bincount(number[is_remote], minlength=layer.tokens * layer.ranks)
  )
  pools = exchange.pools(int(exchange.machine['combine_window']))
  pulls = exchange.idle(
    pools[remote_tokens % layer.ranks], ready[remote_tokens], holds=True
  )
  messages = exchange.flow.add_messages(
    pulls, Op.REDUCE_GET, remote_tokens % layer.ranks, layer.row, channel=last
  )
  place = np.zeros(layer.tokens * layer.ranks, np.int64)
  place[remote_tokens] = messages
  exchange.flow.add_peers(
    place[number[is_remote]],
    rank[is_remote],
    ids=expert_counts[source, token, rank][is_remote],
  )
