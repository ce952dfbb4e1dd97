"""Ranks side by side in one thread, joined by a transport that dawdles."""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.host.ranks import rank_runtime


@dataclasses.dataclass
class Wire:
  """Carries what ranks send, as late and in as odd an order as is legal.

  A put is applied any time up to its flush, in pieces, in any order; an add
  after any delay, in any order.

  Attributes:
    generator: decides.
    ignores_flush: puts come any time after it, which is a fault.
    lost_rank: a rank that every rank's transport knows to be lost, or None.
    is_mapped: ranks write into each other's heaps and counters by themselves.
    heaps: by rank.
    counters: by rank.
    puts: not yet applied, as (rank, offset, data).
    adds: not yet applied, as (rank, event, amount).
  """

  generator: np.random.Generator
  ignores_flush: bool = False
  lost_rank: int | None = None
  is_mapped: bool = False
  heaps: dict = dataclasses.field(default_factory=dict)
  counters: dict = dataclasses.field(default_factory=dict)
  puts: list = dataclasses.field(default_factory=list)
  adds: list = dataclasses.field(default_factory=list)

  def _take_some(self, items: list, chance: float) -> list:
    """Takes each item out with that chance; returns them in any order."""
    is_taken = self.generator.random(len(items)) < chance
    out = [item for item, take in zip(items, is_taken) if take]
    items[:] = [item for item, take in zip(items, is_taken) if not take]
    self.generator.shuffle(out)
    return out

  def apply_puts(self, chance: float) -> None:
    for rank, offset, data in self._take_some(self.puts, chance):
      middle = len(data) // 2
      heap = self.heaps[rank]
      assert offset >= 0 and offset + len(data) <= heap.size
      heap[offset + middle : offset + len(data)] = data[middle:]
      heap[offset : offset + middle] = data[:middle]

  def deliver(self, chance: float) -> None:
    for rank, event, amount in self._take_some(self.adds, chance):
      self.counters[rank][event] += amount


@dataclasses.dataclass
class Loopback:
  """One rank's end of the wire."""

  wire: Wire
  rank: int
  num_ranks: int

  def allocate(self, heap_bytes, num_events):
    for rank in range(self.num_ranks) if self.wire.is_mapped else [self.rank]:
      self.wire.heaps.setdefault(rank, np.zeros(heap_bytes, np.uint8))
      self.wire.counters.setdefault(rank, np.zeros(num_events, np.int32))
    return self.wire.heaps[self.rank], self.wire.counters[self.rank]

  def peers(self):
    if not self.wire.is_mapped:
      return []
    ranks = range(self.num_ranks)
    return [(self.wire.heaps[r], self.wire.counters[r]) for r in ranks]

  def put(self, rank, offset, data):
    assert rank != self.rank and not self.wire.is_mapped
    if self.wire.ignores_flush:
      data = bytes(data)
    data = np.frombuffer(data, np.uint8)
    self.wire.puts.append((rank, offset, data))
    if not self.wire.ignores_flush:
      self.wire.apply_puts(0.3)

  def flush(self, rank):
    if not self.wire.ignores_flush:
      self.wire.apply_puts(1.0)
    assert self.wire.ignores_flush or not self.wire.puts

  def add(self, rank, event, amount):
    assert rank != self.rank and not self.wire.is_mapped
    self.wire.adds.append((rank, event, amount))

  def sync(self):
    pass

  def progress(self):
    if self.wire.lost_rank is not None:
      raise rank_runtime.RankError('lost', [self.wire.lost_rank])

  def allgather(self, value):
    raise NotImplementedError

  def barrier(self):
    raise NotImplementedError


def split(inputs: dict, rank: int) -> dict:
  """Returns a rank's slab of each `[R, ...]` tensor."""
  return {name: array[rank] for name, array in inputs.items()}


def prepare(image, inputs, wire: Wire) -> list[rank_runtime.RankLaunch]:
  """Returns the ranks' launches, past their barrier."""
  num_ranks = image_lib.load(image).config.num_ranks
  offers = [
    rank_runtime.make_offer(image, rank, num_ranks, split(inputs, rank))
    for rank in range(num_ranks)
  ]
  counts = rank_runtime.agree(offers)
  return [
    rank_runtime.RankLaunch(
      image, split(inputs, rank), counts, Loopback(wire, rank, num_ranks)
    )
    for rank in range(num_ranks)
  ]


def run(launches, wire: Wire, max_turns: int = 100_000) -> bool:
  """Gives turns to ranks at random; returns whether all ended."""
  left = list(launches)
  for _ in range(max_turns):
    if not left:
      return True
    launch = left[wire.generator.integers(len(left))]
    if launch.run_some(int(wire.generator.integers(1, 6))) == 'done':
      left.remove(launch)
    wire.deliver(0.2)
    if wire.ignores_flush:
      wire.apply_puts(0.02)
  return False


def launch_all(image, inputs, wire: Wire) -> dict[str, np.ndarray]:
  """Returns the `[R, ...]` outputs of all ranks."""
  launches = prepare(image, inputs, wire)
  assert run(launches, wire)
  return gather(launches)


def gather(launches) -> dict[str, np.ndarray]:
  """Returns the `[R, ...]` outputs of the ranks."""
  slabs = [launch.outputs() for launch in launches]
  return {name: np.stack([s[name] for s in slabs]) for name in slabs[0]}
