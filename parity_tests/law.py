"""`hpmoe law`: same inputs, same policy, same bits, whatever the schedule.

Every launch of a table is one seeded interleaving: the seed draws which ready
worker goes next, on every second launch with puts delivered as late as legal.
Images differ in granularity and worker layout, launches also in threads.  All
must give the bits of a serial run, which neither waits nor signals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import time

import numpy as np

from backend_ascend import compiler
from backend_ascend.kernels.host import coverage as coverage_lib
from backend_ascend.kernels.host import faults
from backend_ascend.kernels.host import modes as modes_lib
from backend_ascend.kernels.host import runtime
from backend_ascend.taskflow import flow as flow_lib
from backend_ascend.taskflow import image as image_lib
from parity_tests import candidates
from parity_tests import inputs as inputs_lib
from parity_tests import passes
from parity_tests import presets
from parity_tests import ulp

DIRECTIONS = (passes.FORWARD.name, passes.BACKWARD.name)

Progress = Callable[[str], None]
Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Granularity:
  """How a layer is cut; `chain_rows` is the backward pass's."""

  event_grain: str
  row_block: int
  col_block: int
  chain_rows: int | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
  """Which launches the law is tried on.

  Attributes:
    preset, ranks, tokens, routing, seed, placement: the layer and its data.
    directions: some of DIRECTIONS.
    dtypes: storage dtypes.
    interleavings: seeds for each (threads, layout, granularity).
    threads: OS threads.
    layouts: (AIC, AIV) workers of one rank.
    granularities: how the layer is cut.
    fault: a fault that every launch commits, or None.
  """

  preset: str = 'tiny'
  ranks: int = 4
  tokens: int | None = None
  routing: str = 'zipf'
  seed: int = 0
  placement: str = 'combine'
  directions: tuple[str, ...] = DIRECTIONS
  dtypes: tuple[str, ...] = ('float32', 'bfloat16')
  interleavings: int = 1000
  threads: tuple[int, ...] = (1, 2, 4)
  layouts: tuple[tuple[int, int], ...] = ((1, 1), (3, 5), (24, 48))
  granularities: tuple[Granularity, ...] = (
      Granularity('expert', 16, 32),
      Granularity('row_block', 8, 16, chain_rows=8),
      Granularity('row_block', 4, 16, chain_rows=16),
  )
  fault: str | None = None

  @property
  def steps(self) -> int:
    """How often `run` calls `progress`."""
    groups = len(self.directions) * len(self.dtypes) * len(self.threads)
    return groups * len(self.layouts) * len(self.granularities)

  def options(self) -> Iterator[flow_lib.Options]:
    for cut in self.granularities:
      for aic, aiv in self.layouts:
        yield flow_lib.Options(
            num_aic=aic, num_aiv=aiv, **dataclasses.asdict(cut)
        )


@dataclasses.dataclass(frozen=True)
class Break:
  """The first launch whose bits differ, and where.

  Attributes:
    options: granularity and layout.
    threads: OS threads.
    interleaving: the seed of the order.
    late_puts: whether puts came late.
    index: coordinates of the first element that differs.
    got, expected: the element.
  """

  options: flow_lib.Options
  threads: int
  interleaving: int
  late_puts: bool
  index: tuple[int, ...]
  got: float
  expected: float

  def __str__(self) -> str:
    o = self.options
    return (
        f'{list(self.index)}: expected {self.expected!r}, got {self.got!r} '
        f'with --event_grain={o.event_grain} --row_block={o.row_block} '
        f'--col_block={o.col_block} --chain_rows={o.chain_rows} '
        f'--aic={o.num_aic} --aiv={o.num_aiv} --threads={self.threads} '
        f'--permute={self.interleaving}'
        + (' --late_puts' if self.late_puts else '')
    )


@dataclasses.dataclass(frozen=True)
class Row:
  """One tensor over all launches.

  Attributes:
    direction, dtype, tensor: which.
    launches: how many.
    sha256: distinct digests, the serial run's first.
    differing_bits: summed over all launches.
    first_break: the first launch that differs, or None.
  """

  direction: str
  dtype: str
  tensor: str
  launches: int
  sha256: tuple[str, ...]
  differing_bits: int
  first_break: Break | None


@dataclasses.dataclass(frozen=True)
class Schedules:
  """What the launches of one direction and dtype saw.

  Attributes:
    direction, dtype: which.
    launches: how many.
    orders: distinct orders in which tasks ended, summed over images.
    pairs, pairs_both: unordered pairs of tasks that signal the same event, and
      those of them that were seen in both orders.
    edges, edges_last: dependent pairs (a task and one that waits for it), and
      those of them where, in some launch, the first was the last to arrive.
    seconds: wall time.
  """

  direction: str
  dtype: str
  launches: int
  orders: int
  pairs: int
  pairs_both: int
  edges: int
  edges_last: int
  seconds: float


@dataclasses.dataclass(frozen=True)
class Table:
  """The law, tried."""

  rows: tuple[Row, ...]
  schedules: tuple[Schedules, ...]

  @property
  def holds(self) -> bool:
    return all(
        len(row.sha256) == 1 and not row.differing_bits for row in self.rows
    )


def run(plan: Plan, progress: Progress = lambda step: None) -> Table:
  """Tries the law on every launch of a plan.

  Raises:
    ValueError: the plan names something that does not exist.
    candidates.CandidateError: a launch ended early.
  """
  rows: list[Row] = []
  schedules: list[Schedules] = []
  for dtype in plan.dtypes:
    made = make_inputs(plan, dtype)
    for direction in plan.directions:
      (which,) = passes.of(direction)
      start = time.perf_counter()
      mine, seen = _try(plan, which, read(plan, which, made), progress)
      rows += mine
      seconds = round(time.perf_counter() - start, 3)
      schedules.append(dataclasses.replace(seen, seconds=seconds))
  return Table(tuple(rows), tuple(schedules))


def make_inputs(plan: Plan, dtype: str) -> inputs_lib.LayerInputs:
  """Returns a plan's data in a storage dtype."""
  return inputs_lib.make_inputs(
      presets.get(plan.preset), plan.ranks, plan.tokens, dtype, plan.routing,
      plan.seed, placement=plan.placement,
  )  # fmt: skip


def read(
    plan: Plan, which: passes.Pass, made: inputs_lib.LayerInputs
) -> inputs_lib.LayerInputs:
  """Returns a pass's inputs, the backward one's from a serial forward."""
  arrays = dict(made.arrays)
  if which is passes.BACKWARD:
    image = compile_image(passes.FORWARD, made, next(plan.options()))
    read = candidates.read_by_runtime(passes.FORWARD, made.policy, arrays)
    arrays |= runtime.launch_serial(image, read)
  read = candidates.read_by_runtime(which, made.policy, arrays)
  return dataclasses.replace(made, arrays=read)


def compile_image(
    which: passes.Pass, made: inputs_lib.LayerInputs, options: flow_lib.Options
) -> bytearray:
  """Returns the image of a pass."""
  lower = compiler.COMPILE[which.direction]
  return lower(made.config, made.policy, options).image


def serial(
    image: bytearray, made: inputs_lib.LayerInputs
) -> dict[str, np.ndarray]:
  """Returns what every launch must give."""
  return runtime.launch_serial(image, made.arrays)


class _Tally:
  """All launches' bits of one tensor."""

  def __init__(self, name: str, expected: np.ndarray):
    self.name = name
    self.launches = self.differing_bits = 0
    self.first_break: Break | None = None
    self._expected = expected
    self.digests = {_digest(expected): None}  # a set that keeps its order

  def add(self, got: np.ndarray, **how) -> None:
    self.launches += 1
    digest = _digest(got)
    if digest in self.digests and digest == next(iter(self.digests)):
      return
    self.digests[digest] = None
    bits = ulp.bits(got) ^ ulp.bits(self._expected)
    self.differing_bits += int(
        np.unpackbits(np.ascontiguousarray(bits).view(np.uint8)).sum()
    )
    if self.first_break is None:
      index = np.unravel_index(np.argmax(bits != 0), bits.shape)
      self.first_break = Break(
          index=tuple(int(i) for i in index),
          got=float(got[index]),
          expected=float(self._expected[index]),
          **how,
      )


def _digest(array: np.ndarray) -> str:
  data = np.ascontiguousarray(array).view(np.uint8)
  return hashlib.sha256(data.data).hexdigest()


def _try(
    plan: Plan,
    which: passes.Pass,
    made: inputs_lib.LayerInputs,
    progress: Progress,
) -> tuple[list[Row], Schedules]:
  tallies: list[_Tally] = []
  coverages = []
  for options in plan.options():
    image = compile_image(which, made, options)
    if not tallies:
      expected = serial(image, made)
      tallies = [_Tally(name, expected[name]) for name in which.results]
    _, signals = runtime.inspect(image, made.arrays['topk_ids'])
    seen = coverage_lib.Coverage(image_lib.parse(image), signals)
    coverages.append(seen)
    for threads in plan.threads:
      progress(
          f'{which.name} {made.policy.storage} {options.event_grain} '
          f'{options.row_block} {options.num_aic}x{options.num_aiv} '
          f'{threads} threads'
      )
      for launch in _launches(plan, image, made, options, threads):
        _add(tallies, seen, *launch)
  dtype = made.policy.storage
  rows = [
      Row(
          which.name, dtype, t.name, t.launches, tuple(t.digests),
          t.differing_bits, t.first_break,
      )
      for t in tallies
  ]  # fmt: skip
  return rows, _schedules(which.name, dtype, tallies[0].launches, coverages)


def _add(tallies, seen, launched: modes_lib.Launched, how: dict) -> None:
  seen.add(launched.order)
  for tally in tallies:
    tally.add(launched.outputs[tally.name], **how)


def _launches(plan, image, made, options, threads) -> Iterator[tuple]:
  fault = _fault(plan, image, made)
  for interleaving in range(plan.interleavings):
    late = interleaving % 2 == 1
    modes = modes_lib.Modes(permute=interleaving, late_puts=late, trace=True)
    try:
      launched = runtime.run(
          image, made.arrays, threads=threads, fault=fault, modes=modes
      )
    except runtime.WaitError as error:
      raise candidates.CandidateError(
          f'--threads={threads} --permute={interleaving}: {error.diagnosis}',
          error.diagnosis,
      ) from error
    yield launched, dict(
        options=options, threads=threads, interleaving=interleaving,
        late_puts=late,
    )  # fmt: skip


def _fault(plan: Plan, image, made) -> faults.Fault | None:
  if plan.fault is None:
    return None
  parsed = image_lib.parse(image)
  counts = runtime.make_plan(image, made.arrays['topk_ids'])['counts']
  task = faults.candidates(parsed, counts, plan.fault)[0]
  return faults.Fault(plan.fault, int(task))


def _schedules(direction, dtype, launches, coverages) -> Schedules:
  def total(name: str) -> int:
    return sum(getattr(c, name) for c in coverages)

  return Schedules(
      direction, dtype, launches, total('num_orders'), total('num_pairs'),
      total('num_pairs_seen'), total('num_edges'), total('num_edges_seen'),
      seconds=0.0,
  )  # fmt: skip


def to_json(plan: Plan, table: Table) -> dict[str, object]:
  """Returns the table as plain data."""
  return dict(
      verdict='pass' if table.holds else 'fail',
      plan=dataclasses.asdict(plan),
      rows=[dataclasses.asdict(row) for row in table.rows],
      schedules=[dataclasses.asdict(s) for s in table.schedules],
  )


def text(table: Table) -> str:
  """Returns the table of tensors, the table of schedules, the verdict."""
  parts = [_bits_table(table.rows), _schedule_table(table.schedules)]
  parts += [
      f'{row.direction} {row.dtype} {row.tensor} {row.first_break}'
      for row in table.rows
      if row.first_break is not None
  ]
  launches = sum(s.launches for s in table.schedules)
  bits = sum(row.differing_bits for row in table.rows)
  verdict = 'the law holds' if table.holds else 'the law is BROKEN'
  parts.append(f'{verdict}: {launches} launches, {bits} differing bits')
  return '\n\n'.join(parts)


def _bits_table(rows: Sequence[Row]) -> str:
  cells = [(
      'direction', 'dtype', 'tensor', 'launches', 'digests', 'differing bits',
      'SHA-256',
  )]  # fmt: skip
  cells += [
      (
          row.direction, row.dtype, row.tensor, str(row.launches),
          str(len(row.sha256)), str(row.differing_bits), row.sha256[0][:16],
      )
      for row in rows
  ]  # fmt: skip
  return aligned(cells)


def _schedule_table(schedules: Sequence[Schedules]) -> str:
  cells = [(
      'direction', 'dtype', 'launches', 'distinct orders',
      'pairs seen both ways', 'edges seen last', 'seconds',
  )]  # fmt: skip
  cells += [
      (
          s.direction, s.dtype, str(s.launches), str(s.orders),
          _share(s.pairs_both, s.pairs), _share(s.edges_last, s.edges),
          f'{s.seconds:.1f}',
      )
      for s in schedules
  ]  # fmt: skip
  return aligned(cells)


def _share(part: int, whole: int) -> str:
  return f'{part} of {whole} ({part / whole:.1%})' if whole else 'none'


def aligned(cells: Sequence[Sequence[str]]) -> str:
  """Returns lines of cells in columns."""
  widths = [max(map(len, column)) for column in zip(*cells)]
  return '\n'.join(
      '  '.join(f'{c:<{w}}' for c, w in zip(line, widths)).rstrip()
      for line in cells
  )
