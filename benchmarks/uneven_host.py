r"""Times uneven routing on this host, experts placed or not, by turns.

Each of two ranks is a process with one thread; they share memory.  The experts
of rank 0 are so much more popular that it gets 1.18 or 1.71 times the mean.  (A
hottest rank of 2.04 needs more ranks, and so more idle cores, than two.)  One
side is the published schedule with experts where their numbers say; the other
the same schedule with experts placed by the loads of another batch.  Sides
alternate, forward and backward; a time is from a barrier to the next, and
beside it stands the processor time that the busiest rank spends on tasks, which
other work on this host delays but does not lengthen.

Example:
  python -m benchmarks.uneven_host --turns=15 --keep
"""

from collections.abc import Mapping, Sequence
import dataclasses
import mmap
import multiprocessing
from multiprocessing import synchronize
import time

from absl import app
from absl import flags
import ml_dtypes
import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import expert_placement
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.tools.docs import figures

_TURNS = flags.DEFINE_integer('turns', 15, 'Turns.', lower_bound=1)
_POLICY = precision.PrecisionPolicy(storage='bfloat16')
SIZES = {
  'M': config_lib.MoEConfig(
    num_ranks=2, num_tokens=512, num_experts=16, top_k=4, d_model=512, d_ff=256
  ),
  'L': config_lib.MoEConfig(
    num_ranks=2,
    num_tokens=2048,
    num_experts=16,
    top_k=4,
    d_model=1024,
    d_ff=512,
  ),
}
SKEWS = (1.18, 1.71)
COLUMNS = (
  *('size', 'hottest rank of mean', 'placed'),
  *('busiest rank, ms', 'placed, ms', 'over published', 'by the clock'),
)
_TASKS_PER_POLL = 64
Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass
class SharedTransport:
  """Ranks of one machine that map each other's memory.

  Nothing is put, as heaps are mapped; a launch asks for these methods anyhow.

  Attributes:
    rank: of the caller.
    num_ranks: R.
    heaps, counters: of all ranks.
    gate: which all ranks pass together.
  """

  rank: int
  num_ranks: int
  heaps: Sequence[np.ndarray]
  counters: Sequence[np.ndarray]
  gate: synchronize.Barrier

  def allocate(self, heap_bytes: int, num_events: int):
    heap, counters = self.heaps[self.rank], self.counters[self.rank]
    return heap[:heap_bytes], counters[:num_events]

  def peers(self):
    return list(zip(self.heaps, self.counters))

  def barrier(self) -> None:
    self.gate.wait()

  def put(self, rank: int, offset: int, data: memoryview) -> None:
    raise NotImplementedError('heaps are mapped')

  def flush(self, rank: int) -> None:
    raise NotImplementedError('heaps are mapped')

  def add(self, rank: int, event: int, amount: int) -> None:
    raise NotImplementedError('counters are mapped')

  def sync(self) -> None:
    pass

  def progress(self) -> None:
    pass


def _share(size: int, dtype=np.uint8) -> np.ndarray:
  num_bytes = max(1, size) * np.dtype(dtype).itemsize
  return np.frombuffer(mmap.mmap(-1, num_bytes), dtype)


class RankTimer:
  """One image and its inputs, to be launched by processes of one rank each."""

  def __init__(self, image: image_lib.Image, inputs: Tensors):
    self.num_ranks = image.config.num_ranks
    self.image = image
    self.slabs = [
      {name: np.ascontiguousarray(a[rank]) for name, a in inputs.items()}
      for rank in range(self.num_ranks)
    ]
    self.counts = rank_runtime.agree(
      [
        rank_runtime.make_offer(image, rank, self.num_ranks, slab)
        for rank, slab in enumerate(self.slabs)
      ]
    )
    events = len(image.tables['events'])
    ranks = range(self.num_ranks)
    self.heaps = [_share(image.heap_bytes) for _ in ranks]
    self.counters = [_share(events, np.int32) for _ in ranks]

  def launch(self, rank: int, gate) -> tuple[float, float]:
    """Returns a rank's seconds of processor time on tasks, and of the clock."""
    self.heaps[rank][:] = 0
    self.counters[rank][:] = 0
    gate.wait()
    transport = SharedTransport(
      rank, self.num_ranks, self.heaps, self.counters, gate
    )
    prepared = rank_runtime.RankLaunch(
      self.image, self.slabs[rank], self.counts, transport
    )
    gate.wait()
    start = time.perf_counter()
    busy, state = 0.0, ''
    while state != 'done':
      before = time.thread_time()
      state = prepared.run_some(_TASKS_PER_POLL)
      if state != 'blocked':
        busy += time.thread_time() - before
    gate.wait()
    return busy, time.perf_counter() - start


def time_in_turn(sides: Sequence[Sequence[RankTimer]], rounds: int):
  """Returns `[rounds, sides, 2]` s of all launches of a side, sides in turn.

  That is the processor time of the busiest rank, and the time by the clock.
  """
  num_ranks = sides[0][0].num_ranks
  context = multiprocessing.get_context('fork')
  gate = context.Barrier(num_ranks)
  shape = num_ranks, rounds, len(sides), 2
  seconds = _share(int(np.prod(shape)), np.float64).reshape(shape)

  def work(rank: int) -> None:
    for turn in range(rounds):
      for side, timers in enumerate(sides):
        launches = [timer.launch(rank, gate) for timer in timers]
        seconds[rank, turn, side] = np.sum(launches, axis=0)

  processes = [
    context.Process(target=work, args=(rank,)) for rank in range(num_ranks)
  ]
  for process in processes:
    process.start()
  for process in processes:
    process.join()
    if process.exitcode:
      raise RuntimeError(f'a rank ended with exit status {process.exitcode}')
  return seconds.max(axis=0)


def draw_ids(
  config: config_lib.MoEConfig, factor: float, batch: int
) -> np.ndarray:
  """Returns `[R, T, K]` i32: rank 0's experts are so much more popular."""
  shape = config.num_ranks, config.num_tokens, config.num_experts
  noise = np.random.default_rng(batch).gumbel(size=shape)
  hot = np.arange(config.num_experts) < config.experts_per_rank
  scores = noise + np.log(factor) * hot
  return np.argsort(-scores, axis=-1)[..., : config.top_k].astype(np.int32)


def find_factor(config: config_lib.MoEConfig, skew: float) -> float:
  """Returns the popularity under which the hottest rank has such a share."""
  low, high = 1.0, 1e3
  for _ in range(40):
    middle = (low * high) ** 0.5
    measured = routings.measure_skew(config, draw_ids(config, middle, 0))
    if measured['max_over_mean_rank'] < skew:
      low = middle
    else:
      high = middle
  return high


def _draw_inputs(config: config_lib.MoEConfig, ids: np.ndarray) -> Tensors:
  sizes, rng = config.dims(), np.random.default_rng(1)
  r, t, k, l, d, f = (sizes[letter] for letter in 'RTKLDF')

  def draw(*shape):
    values = rng.standard_normal(shape, np.float32) * shape[-2] ** -0.5
    return values.astype(ml_dtypes.bfloat16)

  return dict(
    x=draw(r, t, d),
    dy=draw(r, t, d),
    topk_ids=ids,
    topk_weights=np.full((r, t, k), 1 / k, np.float32),
    w_gate_up=draw(r, l, d, 2 * f),
    w_down=draw(r, l, f, d),
  )


def make_sides(
  config: config_lib.MoEConfig,
  ids: np.ndarray,
  placement: expert_placement.ExpertPlacement,
) -> tuple[list[RankTimer], list[RankTimer]]:
  """Returns both passes, experts unplaced and placed.

  Raises:
    RuntimeError: their results differ in a bit.
  """
  inputs = _draw_inputs(config, ids)
  rows = int(np.bincount(ids.ravel()).max())
  options = dataclasses.replace(space.PUBLISHED, expert_capacity=rows)
  views = (
    expert_placement.UnplacedLayer(config),
    expert_placement.PlacedLayer(placement, config, ids),
  )
  sides: tuple[list[RankTimer], list[RankTimer]] = ([], [])
  for direction in layout.Direction:
    results: list[Tensors] = []
    for side, view in zip(sides, views):
      image = compiler.COMPILE[direction](view.config, _POLICY, options).image
      names = runtime.arrays.inputs_of(image)
      local = view.place({n: inputs[n] for n in names})
      side.append(RankTimer(image, local))
      results.append(view.restore(runtime.launch(image, local)))
    for name, array in results[0].items():
      if array.tobytes() != results[1][name].tobytes():
        raise RuntimeError(f'{name}: expected the same bits, got others')
    inputs = inputs | results[0]
  return sides


def time_skew(size: str, skew: float, rounds: int) -> list[str]:
  """Returns the row of a size and a routing."""
  config = SIZES[size]
  factor = find_factor(config, skew)
  ids, other = (draw_ids(config, factor, batch) for batch in (0, 1))
  loads = np.bincount(other.ravel(), minlength=config.num_experts)
  placement = expert_placement.place_by_loads(loads, config.num_ranks)
  skews = [
    routings.measure_skew(config, experts)
    for experts in (ids, placement.map_ids(ids))
  ]
  rows = max(measured['max_rows_of_rank'] for measured in skews)
  config = dataclasses.replace(config, capacity=rows)
  seconds = time_in_turn(make_sides(config, ids, placement), rounds)
  (published, by_clock), (best, best_by_clock) = np.median(seconds, axis=0)
  return [
    size,
    *(f'{measured["max_over_mean_rank"]:.2f}' for measured in skews),
    *(f'{1e3 * median:.1f}' for median in (published, best)),
    f'{published / best:.2f}x',
    f'{by_clock / best_by_clock:.2f}x',
  ]


def main(argv: Sequence[str]) -> None:
  del argv
  rows = []
  print(*(cell.ljust(20) for cell in COLUMNS), flush=True)
  for size in SIZES:
    for skew in SKEWS:
      rows.append(time_skew(size, skew, _TURNS.value))
      print(*(cell.ljust(20) for cell in rows[-1]), flush=True)
  if figures.KEEP.value:
    command = f'python -m benchmarks.uneven_host --turns={_TURNS.value}'
    figures.write('uneven_host', COLUMNS, rows, [figures.run(command)])


if __name__ == '__main__':
  app.run(main)
