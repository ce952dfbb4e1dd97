"""A layer of experts as DySHARP and its baselines exchange its rows.

A copy is a token on a rank that has any of its experts: one copy a rank.  What
a rank computes is cut into chunks of copies that come one after the other.
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
_TILE = 128  # rows of an expert that start its products


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
    passes: 2 where products are those of a backward pass.
    gemms: of a token in an expert.
    figure: rate of the products' elements.
    by_expert: whether a copy is of an expert, not of a rank.
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
    """B of a token."""
    return BYTES * self.hidden

  @property
  def row_flops(self) -> float:
    """Of one token in one expert."""
    return 2.0 * self.gemms * self.hidden * self.ffn * self.passes

  def routed(self) -> 'Layer':
    """Returns what its routing depends on."""
    return dataclasses.replace(self, hidden=1, ffn=1, passes=1)


def rate(machine: machine_lib.Machine, figure: str = 'cube_int8') -> float:
  """Returns flop/s of a GPU."""
  return machine[figure] * machine['cube_efficiency'] * machine['aic']


@functools.lru_cache(maxsize=2)
def _experts_on(of: Layer) -> np.ndarray:
  """Returns `[R, T, R]` i1: experts of each token on each rank."""
  rng = np.random.default_rng(0)
  found = np.zeros((of.ranks, of.tokens, of.ranks), np.int8)
  rows = np.arange(of.tokens)[:, None]
  for rank in range(of.ranks):
    draw = rng.random((of.tokens, of.experts), np.float32)
    chosen = np.argpartition(draw, of.top_k - 1, axis=1)[:, : of.top_k]
    np.add.at(found[rank], (rows, chosen * of.ranks // of.experts), 1)
  return found


def experts_on(of: Layer) -> np.ndarray:
  return _experts_on(of.routed())


def distinct(of: Layer) -> float:
  """Returns on how many other ranks a token's experts lie, on average."""
  on = experts_on(of) > 0
  own = on[np.arange(of.ranks), :, np.arange(of.ranks)].sum()
  return float((on.sum() - own) / (of.ranks * of.tokens))


class _Exchange(builder.Builder):
  """A flow with a pool for products on each rank."""

  def __init__(self, of: Layer, machine: machine_lib.Machine):
    super().__init__(of.ranks, machine)
    self.of = of
    self.products = self.pools(1)
    self.ranks = np.arange(of.ranks)

  def events(self, threshold, polled: bool = True) -> np.ndarray:
    delay = self.machine['poll'] if polled else 0.0
    return self.flow.add_events(threshold, delay)

  def compute(self, rows, share: float = 1.0) -> np.ndarray:
    """Adds products of `[R, chunks]` rows; returns tasks of that shape."""
    rows = np.asarray(rows, float)
    rank = np.broadcast_to(self.ranks[:, None], rows.shape)
    tasks = self.flow.add_tasks(
      self.products[rank].ravel(),
      (
        share * rows * self.of.row_flops / rate(self.machine, self.of.figure)
      ).ravel(),
    )
    return tasks.reshape(rows.shape)

  def send(self, tasks, counts, arrived, channel: int = 0) -> None:
    """Tasks of `[R, chunks]` send `[R, chunks, R]` copies, one message each.

    `arrived`: `[R, chunks]` events at the receiver.
    """
    ranks = len(counts)
    for step in range(ranks):
      peer = (self.ranks + step) % ranks
      moved = counts[self.ranks, :, peer]
      source, chunk = np.nonzero(moved)
      messages = self.flow.add_messages(
        tasks[source, chunk],
        Op.PUT,
        source,
        moved[source, chunk] * self.of.row,
        channel=channel,
      )
      to = peer[source]
      self.flow.add_peers(messages, to, arrived[to, chunk])


def _plain(machine):
  """Returns the machine whose packets name an address and no targets."""
  return machine.with_figures(target_ids=0.0)


def _by_chunk(of: Layer, chunks: int):
  """Returns `[R, chunks, R]` copies sent, and `[R, chunks]` rows of experts."""
  on = experts_on(of)
  cut = (of.ranks, chunks, of.tokens // chunks, of.ranks)
  copies = (on if of.by_expert else on > 0).reshape(cut).sum(2, dtype=int)
  rows = on.reshape(cut).sum((0, 2), dtype=np.int64).T
  return copies, rows


def _arrivals(flow: _Exchange, copies) -> np.ndarray:
  """Returns `[R, chunks]` events of a message of each rank that sends any."""
  senders = (copies > 0).sum(0).T
  return flow.events(senders.ravel()).reshape(senders.shape)


def deepep(of: Layer, machine) -> flow_lib.Timed:
  """Dispatch, products, combine; one after the other."""
  made = _Exchange(of, _plain(machine))
  copies, rows = _by_chunk(of, 1)
  arrived, back = (
    _arrivals(made, copies),
    _arrivals(made, copies.transpose(2, 1, 0)),
  )
  made.send(_idle(made, 1), copies, arrived)
  tasks = made.compute(rows)
  made.flow.add_waits(tasks[:, 0], made.launched(arrived[:, 0]))
  done = made.events(np.ones(of.ranks), polled=False)
  made.flow.add_signals(tasks[:, 0], done)
  sends = _idle(made, 1)
  made.flow.add_waits(sends[:, 0], made.launched(done))
  made.send(sends, copies.transpose(2, 1, 0), back)
  return made.run()


def _idle(made: _Exchange, chunks: int) -> np.ndarray:
  """Returns `[R, chunks]` tasks that take no time, in order."""
  return made.idle(np.repeat(made.pools(1), chunks)).reshape(-1, chunks)


def comet(of: Layer, machine) -> flow_lib.Timed:
  """Dispatch beside the first GEMM, then the second beside combine."""
  made = _Exchange(of, _plain(machine))
  copies, rows = _by_chunk(of, _CHUNKS)
  home = copies.transpose(2, 1, 0)
  arrived, back = _arrivals(made, copies), _arrivals(made, home)
  made.send(_idle(made, _CHUNKS), copies, arrived)
  first = made.compute(rows, 2 / 3)
  made.flow.add_waits(first, arrived)
  done = made.events(np.full(of.ranks, _CHUNKS), polled=False)
  made.flow.add_signals(first, np.repeat(done, _CHUNKS).reshape(first.shape))
  begun = made.launched(done)
  second = made.compute(rows, 1 / 3)
  made.flow.add_waits(second[:, 0], begun)
  made.send(second, home, back)
  return made.run()


def nvls(of: Layer, machine) -> flow_lib.Timed:
  """All tokens to all ranks by switches, products, sums of all ranks home."""
  made = _Exchange(of, _plain(machine))
  _, rows = _by_chunk(of, 1)
  bytes_of = of.row * of.tokens / _CHUNKS
  arrived = made.events(np.full(of.ranks, of.ranks * _CHUNKS))
  sends = _idle(made, _CHUNKS)
  rank = np.repeat(made.ranks, _CHUNKS)
  messages = made.flow.add_messages(sends.ravel(), Op.PUT, rank, bytes_of)
  for peer in range(of.ranks):
    made.flow.add_peers(messages, peer, arrived[peer])
  tasks = made.compute(rows)
  made.flow.add_waits(tasks[:, 0], made.launched(arrived))
  done = made.events(of.ranks, polled=False)
  made.flow.add_signals(tasks[:, 0], done)
  started = made.launched(done)
  pulls = _idle(made, _CHUNKS)
  made.flow.add_waits(pulls, started[:, None])
  messages = made.flow.add_messages(
    pulls.ravel(), Op.REDUCE_GET, rank, bytes_of
  )
  for step in range(of.ranks):
    made.flow.add_peers(messages, (rank + step) % of.ranks)
  return made.run()


@dataclasses.dataclass(frozen=True)
class Parts:
  """What of DySHARP a flow has.

  Attributes:
    many: switches that copy and add.
    fused: dispatch, products and combine at once.
    by_source: rows lie by source, then token; else as they come.
  """

  many: bool = True
  fused: bool = True
  by_source: bool = False


def dysharp(of: Layer, machine, parts: Parts = Parts()) -> flow_lib.Timed:
  """Dispatch, products and combine at once, token by token."""
  made = _Exchange(of, machine if parts.many else _plain(machine))
  on = experts_on(of)
  token, source, rank = _copies(on)
  chunk, chunks = _chunks(of, parts, token, source, rank)
  # [R, chunks]: how many copies start a chunk, and its rows.
  at = rank * chunks + chunk
  size = made.of.ranks * chunks
  counts = np.bincount(at, minlength=size)
  rows = np.bincount(at, on[source, token, rank], size)
  arrived = made.events(counts)
  _dispatch(made, parts, token, source, rank, on, arrived[at])
  tasks = made.compute(rows.reshape(-1, chunks)).ravel()
  if parts.fused:
    made.flow.add_waits(tasks, arrived)
  else:
    made.flow.add_waits(tasks, made.launched(arrived))
  _combine(made, parts, token, source, rank, on, tasks, at)
  return made.run()


def _copies(on: np.ndarray):
  """Returns (token, source, rank) of each copy, as they are sent."""
  token, source, rank = np.nonzero(on.transpose(1, 0, 2))
  return token, source, rank


def _chunks(of: Layer, parts: Parts, token, source, rank):
  """Returns the chunk of each copy, in the order of rows, and how many."""
  if not parts.fused:
    return np.zeros(len(rank), np.int64), 1
  keys = (token, source) if parts.by_source else (source, token)
  order = np.lexsort((*keys, rank))
  counts = np.bincount(rank, minlength=of.ranks)
  place = np.empty(len(rank), np.int64)
  first = np.cumsum(counts) - counts
  place[order] = np.arange(len(rank)) - np.repeat(first, counts)
  # When each expert of a rank has a tile, on average.
  held = _TILE * (of.experts / of.ranks)
  each = max(1, round(held * len(rank) / (of.ranks * of.tokens * of.top_k)))
  chunks = -(-int(counts.max()) // each)
  return place // each, chunks


def _dispatch(made, parts, token, source, rank, on, event) -> None:
  of = made.of
  pools = made.pools(1)
  number = token * of.ranks + source
  ids = on[source, token, rank]
  if parts.many:
    tokens = np.arange(of.tokens * of.ranks)
    tasks = made.idle(pools[tokens % of.ranks])
    messages = made.flow.add_messages(tasks, Op.PUT, tokens % of.ranks, of.row)
    made.flow.add_peers(messages[number], rank, event, ids)
    return
  tasks = made.idle(pools[source])
  messages = made.flow.add_messages(tasks, Op.PUT, source, of.row)
  made.flow.add_peers(messages, rank, event)


def _combine(made, parts, token, source, rank, on, tasks, at) -> None:
  of = made.of
  last = int(made.machine['virtual_channels']) - 1
  away = rank != source
  if not parts.many:
    # Each rank sends home what it made.
    messages = made.flow.add_messages(
      tasks[at[away]], Op.PUT, rank[away], of.row, channel=last
    )
    made.flow.add_peers(messages, source[away])
    return
  number = token * of.ranks + source
  told = 2 * made.machine['hop_latency'] + made.machine['poll']
  ready = made.flow.add_events(
    np.bincount(number, minlength=of.tokens * of.ranks), told
  )
  made.flow.add_signals(tasks[at], ready[number])
  asked = np.flatnonzero(
    np.bincount(number[away], minlength=of.tokens * of.ranks)
  )
  pools = made.pools(int(made.machine['combine_window']))
  pulls = made.idle(pools[asked % of.ranks], ready[asked], holds=True)
  messages = made.flow.add_messages(
    pulls, Op.REDUCE_GET, asked % of.ranks, of.row, channel=last
  )
  place = np.zeros(of.tokens * of.ranks, np.int64)
  place[asked] = messages
  made.flow.add_peers(
    place[number[away]], rank[away], ids=on[source, token, rank][away]
  )
