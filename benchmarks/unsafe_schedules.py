r"""Counts unsafe schedules that the proofs accept, and right ones they refuse.

Schedules of small forward images are generated: waits dropped, thresholds
lowered, events merged, tasks of queues swapped or moved.  Each is proved, and
judged anew by an execution of its own, for every routing that the layer can
have and for every interleaving.

Counters only grow, so a task that can start stays able to.  A reader can thus
start before a writer has finished iff it starts in the one execution in which
that writer never finishes and all else runs as far as it can: a GEMM or vector
task holds up its queue, a put only what waits for its signals.  A schedule is
right if no reader starts so, and if all tasks run when no writer is held up.

Example:
  python -m benchmarks.unsafe_schedules --schedules=10000
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import itertools

from absl import app
from absl import flags
import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler import interpreter
from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.tools.docs import figures

_SCHEDULES = flags.DEFINE_integer(
  'schedules', 10_000, 'Schedules to generate.', lower_bound=1
)
COLUMNS = (
  'change',
  'schedules',
  'right',
  'unsafe',
  'unsafe, accepted',
  'right, refused',
)
CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=2, num_experts=2, top_k=1, d_model=4, d_ff=2
)
_PUTS = layout.select_kinds(*layout.PUTS)
_MOST_CHANGES = 3  # of one schedule
_FIRST_ROUTINGS = (2, 6)  # ends of parts that are judged one after the other


def base_flows() -> list[flow_lib.Flow]:
  """Returns the proven flows that schedules are changes of."""
  return [
    compiler.compile_forward(
      CONFIG,
      precision.PrecisionPolicy(),
      granularity.Options(
        grain, 1, 2, put_rows=1, num_aic=cores, num_aiv=cores
      ),
    ).flow
    for grain in granularity.EVENT_GRAINS
    for cores in (1, 2)
  ]


def routings() -> Iterator[np.ndarray]:
  """Yields `[R, T, K]` i32: every routing of the layer."""
  shape = (CONFIG.num_ranks, CONFIG.num_tokens, CONFIG.top_k)
  experts = range(CONFIG.num_experts)
  for ids in itertools.product(experts, repeat=int(np.prod(shape))):
    yield np.array(ids, np.int32).reshape(shape)


class _Counters(interpreter.Interpreter):
  """An image under a routing, of which only rows and signals are asked for."""

  def __init__(self, image: image_lib.Image, topk_ids: np.ndarray):
    dims = CONFIG.dims()
    size = dims['R'], dims['L']
    super().__init__(
      image,
      dict(
        x=np.zeros((dims['R'], dims['T'], dims['D'])),
        topk_ids=topk_ids,
        topk_weights=np.zeros(topk_ids.shape),
        w_gate_up=np.zeros((*size, dims['D'], 2 * dims['F'])),
        w_down=np.zeros((*size, dims['F'], dims['D'])),
      ),
    )

  def increments(self, task: np.void) -> np.ndarray:
    """Returns `[events]`: what a task adds to the counters."""
    self.counters[:] = 0
    self.signal(task)
    return self.counters.copy()

  def rows(self, task: np.void, buffer: int) -> set[tuple[int, ...]]:
    """Returns the rows of a buffer that a task reads or writes."""
    kind = layout.Kind(task['kind'])
    if kind == layout.Kind.COMBINE:
      tokens = range(task['row_begin'], task['row_end'])
      slots = range(CONFIG.top_k)
      return {(task['rank'], t, k) for t in tokens for k in slots}
    rows, slots = self.tiles.list_expert_rows(task)
    if buffer == layout.Buffer.RETURNED:
      return {tuple(slot) for slot in slots}
    return {(task['expert'], row) for row in rows}


@dataclasses.dataclass(frozen=True)
class Conflicts:
  """Which tasks of a flow read what another writes.

  Attributes:
    pairs: `[routings, tasks, tasks]` bool, of (writer, reader).
    writers: tasks that something reads from under a routing.
    amounts: what tasks add to counters, by the tables that say so; a cache.
  """

  pairs: np.ndarray
  writers: np.ndarray
  amounts: dict[bytes, np.ndarray] = dataclasses.field(default_factory=dict)


def _boxes(flow, counters: _Counters, task: int, writes: bool):
  """Yields (buffer, columns, rows) of what a task reads, or writes."""
  entry = flow.tasks[task]
  begin, reads = int(entry['region_begin']), int(entry['read_count'])
  end = begin + reads + int(entry['write_count'])
  span = slice(begin + reads, end) if writes else slice(begin, begin + reads)
  for region in flow.regions[span]:
    columns = set(range(region['col_begin'], region['col_end']))
    buffer = int(region['buffer'])
    yield buffer, columns, counters.rows(entry, buffer)


def find_conflicts(flow: flow_lib.Flow) -> Conflicts:
  """Returns the conflicts of a flow under every routing."""
  image = image_lib.load(image_lib.serialize(flow))
  tasks = range(len(flow.tasks))
  pairs = []
  for topk_ids in routings():
    counters = _Counters(image, topk_ids)
    write_boxes, read_boxes = (
      [list(_boxes(flow, counters, task, writes)) for task in tasks]
      for writes in (True, False)
    )
    pairs.append(
      [
        [
          any(
            w[0] == r[0] and w[1] & r[1] and w[2] & r[2]
            for w in write_boxes[writer]
            for r in read_boxes[reader]
          )
          for reader in tasks
        ]
        for writer in tasks
      ]
    )
  table = np.array(pairs)
  return Conflicts(table, np.flatnonzero(table.any((0, 2))))


def _find_amounts(flow: flow_lib.Flow) -> np.ndarray:
  """Returns `[routings, tasks + 1, events]`: what tasks add to the counters."""
  image = image_lib.load(image_lib.serialize(flow))
  nothing = np.zeros(len(flow.events), np.int32)
  rows = []
  for topk_ids in routings():
    counters = _Counters(image, topk_ids)
    rows.append([*map(counters.increments, flow.tasks), nothing])
  return np.array(rows)


def is_right(flow: flow_lib.Flow, conflicts: Conflicts) -> bool:
  """Whether each interleaving under each routing ends and races nowhere."""
  num_tasks, num_events = len(flow.tasks), len(flow.events)
  # Row `num_tasks` is the end of a queue: it never starts.
  threshold = np.zeros((num_tasks + 1, num_events), np.int32)
  threshold[-1] = np.iinfo(np.int32).max
  for task, entry in enumerate(flow.tasks):
    begin = int(entry['wait_begin'])
    for wait in flow.waits[begin : begin + int(entry['wait_count'])]:
      event = wait['event']
      threshold[task, event] = max(threshold[task, event], wait['threshold'])
  key = flow.signals.tobytes() + flow.events.tobytes()
  if key not in conflicts.amounts:
    conflicts.amounts[key] = _find_amounts(flow)
  amounts = conflicts.amounts[key]
  is_put = np.isin(np.append(flow.tasks['kind'], 0), _PUTS)
  num_routings = len(amounts)
  everything = np.full(num_routings, num_tasks)
  if not _run(
    flow, threshold, amounts, np.arange(num_routings), everything, is_put
  ).all():
    return False
  # Most that race do so under the first routings.
  for part in np.split(np.arange(num_routings), _FIRST_ROUTINGS):
    routing, stalled = (
      axis.ravel() for axis in np.meshgrid(part, conflicts.writers)
    )
    is_started = _run(flow, threshold, amounts, routing, stalled, is_put)
    if (conflicts.pairs[routing, stalled] & is_started).any():
      return False
  return True


def _run(flow, threshold, amounts, routing, stalled, is_put) -> np.ndarray:
  """Runs each execution as far as it can; returns `[n, tasks]`: started."""
  num_tasks = len(flow.tasks)
  count = np.arange(len(routing))
  counters = np.zeros((len(routing), amounts.shape[2]), np.int32)
  is_started = np.zeros((len(routing), num_tasks + 1), bool)
  queues = [
    np.append(
      flow.queue_tasks[q['begin'] : int(q['begin']) + int(q['count'])].astype(
        int
      ),
      num_tasks,
    )
    for q in flow.queues
  ]
  position = np.zeros((len(queues), len(routing)), int)
  is_moving = True
  while is_moving:
    is_moving = False
    for queue, place in zip(queues, position):
      task = queue[place]
      starts = (counters >= threshold[task]).all(axis=1)
      starts &= (task != stalled) | is_put[task]
      if not starts.any():
        continue
      is_moving = True
      is_started[count[starts], task[starts]] = True
      finishes = starts & (task != stalled)
      counters[finishes] += amounts[routing[finishes], task[finishes]]
      place[starts] += 1
  return is_started[:, :num_tasks]


def _copy(flow: flow_lib.Flow) -> flow_lib.Flow:
  tables = {name: getattr(flow, name).copy() for name in layout.TABLES}
  return dataclasses.replace(flow, **tables)


def drop_wait(flow: flow_lib.Flow, rng: np.random.Generator) -> None:
  """Takes one wait from a task."""
  task = rng.choice(np.flatnonzero(flow.tasks['wait_count'] > 0))
  begin, count = (
    int(flow.tasks[f'wait_{n}'][task]) for n in ('begin', 'count')
  )
  index = begin + int(rng.integers(count))
  flow.waits[index : begin + count - 1] = flow.waits[index + 1 : begin + count]
  flow.tasks['wait_count'][task] -= 1


def lower_threshold(flow: flow_lib.Flow, rng: np.random.Generator) -> None:
  """Lowers what one wait, or an event and all its waits, ask for."""
  # An image refuses a threshold of 0.
  index = int(rng.choice(np.flatnonzero(flow.waits['threshold'] > 1)))
  event = flow.waits['event'][index]
  if rng.random() < 0.5 or flow.events['threshold'][event] < 2:
    flow.waits['threshold'][index] -= 1
    return
  waits = (flow.waits['event'] == event) & (flow.waits['threshold'] > 1)
  flow.waits['threshold'][waits] -= 1
  flow.events['threshold'][event] -= 1


def merge_events(flow: flow_lib.Flow, rng: np.random.Generator) -> None:
  """Lets one event of a rank stand for two."""
  single = np.ones(len(flow.events), bool)
  for signal in flow.signals[flow.signals['span'] > 1]:
    single[signal['event'] : signal['event'] + signal['span']] = False
  single &= flow.events['mode'] == layout.Mode.COUNT_TASKS
  target = int(rng.choice(np.flatnonzero(single)))
  alike = single & (flow.events['rank'] == flow.events['rank'][target])
  source = int(rng.choice(np.flatnonzero(alike)))
  if target == source:
    return
  flow.events['threshold'][target] += flow.events['threshold'][source]
  for table in (flow.waits, flow.signals):
    table['event'][table['event'] == source] = target
  flow.waits['threshold'][flow.waits['event'] == target] = flow.events[
    'threshold'
  ][target]


def swap_tasks(flow: flow_lib.Flow, rng: np.random.Generator) -> None:
  """Exchanges two tasks of a rank and unit, in one queue or in two."""
  first = int(rng.integers(len(flow.queue_tasks)))
  tasks = flow.tasks[flow.queue_tasks]
  alike = (tasks['rank'] == tasks['rank'][first]) & (
    tasks['unit'] == tasks['unit'][first]
  )
  second = int(rng.choice(np.flatnonzero(alike)))
  former, latter = flow.queue_tasks[[first, second]].tolist()
  flow.queue_tasks[[first, second]] = latter, former
  cores = flow.tasks['core'][[former, latter]]
  flow.tasks['core'][[latter, former]] = cores


CHANGES: dict[str, Callable[[flow_lib.Flow, np.random.Generator], None]] = {
  'waits dropped': drop_wait,
  'thresholds lowered': lower_threshold,
  'events merged': merge_events,
  'tasks of queues swapped': swap_tasks,
}


@dataclasses.dataclass
class Count:
  """Schedules of one kind of change.

  Attributes:
    right: right in every interleaving under every routing.
    unsafe: not so.
    accepted: unsafe ones that the proofs accept.
    refusals: right ones that the proofs refuse, by the rule that does.
  """

  right: int = 0
  unsafe: int = 0
  accepted: int = 0
  refusals: dict[str, int] = dataclasses.field(default_factory=dict)

  def cells(self, name: str) -> list[str]:
    """Returns a row of the table."""
    rules = ', '.join(f'{n} {c}' for n, c in sorted(self.refusals.items()))
    total = sum(self.refusals.values())
    return [
      name,
      f'{self.right + self.unsafe:,}',
      f'{self.right:,}',
      f'{self.unsafe:,}',
      f'{self.accepted:,}',
      f'{total:,}' + (f' ({rules})' if total else ''),
    ]


@functools.cache
def _bases() -> list[tuple[flow_lib.Flow, Conflicts]]:
  return [(flow, find_conflicts(flow)) for flow in base_flows()]


def count_schedules(schedules: int, seed: int = 0) -> dict[str, Count]:
  """Returns the counts of generated schedules, by kind of change."""
  bases = _bases()
  counts = {name: Count() for name in CHANGES}
  for index in range(schedules):
    rng = np.random.default_rng((seed, index))
    base, conflicts = bases[index // len(CHANGES) % len(bases)]
    name = list(CHANGES)[index % len(CHANGES)]
    flow = _copy(base)
    for _ in range(int(rng.integers(1, _MOST_CHANGES + 1))):
      CHANGES[name](flow, rng)
    report = proofs.prove(image_lib.serialize(flow))
    count = counts[name]
    if is_right(flow, conflicts):
      count.right += 1
      if not report.proved:
        rule = next(rule.name for rule in report.rules if not rule.proved)
        count.refusals[rule] = count.refusals.get(rule, 0) + 1
    else:
      count.unsafe += 1
      count.accepted += report.proved
  return counts


def main(argv):
  del argv
  counts = count_schedules(_SCHEDULES.value)
  rows = [count.cells(name) for name, count in counts.items()]
  for row in (COLUMNS, *rows):
    print(*(cell.ljust(24) for cell in row))
  if figures.KEEP.value:
    run = figures.run('python -m benchmarks.unsafe_schedules')
    run |= dict(processor=figures.ANY, load=figures.ANY)
    figures.write('unsafe_schedules', COLUMNS, rows, [run])


if __name__ == '__main__':
  app.run(main)
