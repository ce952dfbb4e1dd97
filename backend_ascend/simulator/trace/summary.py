"""What a launch's time went into, as plain data.

Every figure follows from the times and the image; nothing is fitted here.
"""

import dataclasses

from jaxtyping import Float
import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.trace import timeline


@dataclasses.dataclass(frozen=True)
class Busy:
  """How busy the cores of a unit were.

  Where workers share threads, these stand for the cores of either unit.

  Attributes:
    name: 'AIC', 'AIV', or 'threads' for both.
    cores: of all ranks, or threads.
    seconds: of all cores together.
    utilisation: of cores * total.
    least: utilisation on the rank, or thread, where it is least.
    most: where it is most.
  """

  name: str
  cores: int
  seconds: float
  utilisation: float
  least: float
  most: float


@dataclasses.dataclass(frozen=True)
class Stage:
  """The tasks of one kind.

  Attributes:
    name: of the kind.
    unit: that runs it.
    tasks: how many.
    busy: seconds of all of them together.
    waited: seconds that their workers stood before them.
    first: seconds at which the first one began.
    last: seconds at which the last one ended.
    on_path: seconds of the critical path.
    path_tasks: how many of them are on it.
  """

  name: str
  unit: str
  tasks: int
  busy: float
  waited: float
  first: float
  last: float
  on_path: float
  path_tasks: int


@dataclasses.dataclass(frozen=True)
class Exposed:
  """Communication that nothing hid, seconds.

  Attributes:
    puts: during which a put ran; mean over ranks.
    without_gemm: of these, while no AIC task of the rank ran.
    without_compute: of these, while no task but puts ran on the rank.
    worst_rank: where `without_gemm` is most.
    worst: `without_gemm` there.
  """

  puts: float
  without_gemm: float
  without_compute: float
  worst_rank: int
  worst: float


@dataclasses.dataclass(frozen=True)
class Part:
  """What one unit, memory or kind of link needs at least, and carried.

  Attributes:
    name: 'aic', 'aiv', 'threads', 'hbm', 'l2', or a link's without its number.
    needs: seconds that the busiest one needs were it never idle.
    busy: share of the total in which it had anything to do, mean over all; for
      units, of all cores.
    rate: share of its capacity that it carried over the total, mean over all;
      for units, as `busy`.
  """

  name: str
  needs: float
  busy: float
  rate: float


@dataclasses.dataclass(frozen=True)
class Roofline:
  """The bound, on a described machine.

  Attributes:
    name: the part that needs longest.
    seconds: that it needs: no schedule of the image ends before.
    share: of the total.
    parts: all of them.
  """

  name: str
  seconds: float
  share: float
  parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Summary:
  """See the fields; seconds throughout.

  Attributes:
    origin: where the times are from.
    direction: of the pass.
    tasks: of the image.
    total: until the last task's end.
    units: how busy they were.
    stages: kinds, in dependency order.
    between: seconds of the critical path between its tasks: to signal, to be
      seen, to fetch, and to get a thread.
    exposed: communication that nothing hid.
    roofline: the bound; None for what was measured.
  """

  origin: str
  direction: str
  tasks: int
  total: float
  units: tuple[Busy, ...]
  stages: tuple[Stage, ...]
  between: float
  exposed: Exposed
  roofline: Roofline | None = None


def covered(
  start: Float[np.ndarray, ' n'], end: Float[np.ndarray, ' n']
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the union of intervals as disjoint ones in order."""
  order = np.argsort(start, kind='stable')
  start, reach = start[order], np.maximum.accumulate(end[order])
  opens = np.concatenate([[True], start[1:] > reach[:-1]])[: len(start)]
  closes = np.concatenate([opens[1:], [True]])[: len(start)]
  return start[opens], reach[closes]


def _length_before(at: np.ndarray, start, end) -> np.ndarray:
  """Returns how much of disjoint intervals lies before each time."""
  length = np.concatenate([[0.0], np.cumsum(end - start)])
  begun = np.searchsorted(start, at)
  past = np.maximum(0, np.concatenate([[0.0], end])[begun] - at)
  return length[begun] - past


def uncovered(mine, others) -> float:
  """Returns the length of one union of intervals outside another.

  Args:
    mine: (start, end), as of `covered`.
    others: as well.
  """
  inside = _length_before(mine[1], *others) - _length_before(mine[0], *others)
  return float((mine[1] - mine[0] - inside).sum())


def _busy(name: str, seconds: np.ndarray, cores: int, total: float) -> Busy:
  """`seconds`: `[groups]`, of groups of as many cores each."""
  share = seconds / (cores * total) if total else seconds * 0
  return Busy(
    name=name,
    cores=cores * len(seconds),
    seconds=float(seconds.sum()),
    utilisation=float(share.mean()),
    least=float(share.min()),
    most=float(share.max()),
  )


def units(times: timeline.Timeline) -> tuple[Busy, ...]:
  """Returns how busy each unit was, and the threads where there are any."""
  options, took = times.image.options, times.end - times.start
  by_unit: dict[str, tuple[tuple[layout.Unit, ...], int]] = {
    'AIC': ((layout.Unit.AIC,), options.num_aic),
    'AIV': ((layout.Unit.AIV,), options.num_aiv),
  }
  group, groups = times.tasks['rank'], times.image.config.num_ranks
  if times.thread is not None:
    group, groups = times.thread, int(times.thread.max(initial=0)) + 1
    by_unit = {name: (units_, 1) for name, (units_, _) in by_unit.items()}
    by_unit['threads'] = (tuple(layout.Unit), 1)
  found = []
  for name, (units_, cores) in by_unit.items():
    mine = np.isin(times.tasks['unit'], units_)
    seconds = np.bincount(group[mine], took[mine], groups)
    found.append(_busy(name, seconds, cores, times.total))
  return tuple(found)


def stages(times: timeline.Timeline, path: np.ndarray) -> tuple[Stage, ...]:
  """Returns the kinds, in dependency order."""
  tasks, took = times.tasks, times.end - times.start
  found = []
  for kind in timeline.kinds(tasks):
    mine = np.flatnonzero(tasks['kind'] == kind)
    of_path = path[tasks['kind'][path] == kind]
    found.append(
      Stage(
        name=kind.name.lower(),
        unit=layout.UNIT_OF_KIND[kind].name,
        tasks=len(mine),
        busy=float(took[mine].sum()),
        waited=float(times.waited[mine].sum()),
        first=float(times.start[mine].min()),
        last=float(times.end[mine].max()),
        on_path=float(took[of_path].sum()),
        path_tasks=len(of_path),
      )
    )
  return tuple(found)


def exposed(times: timeline.Timeline) -> Exposed:
  """Returns what communication nothing hid.

  Ranks that share threads are one: a put of one and a GEMM of another are of
  the same machine.
  """
  tasks, puts = times.tasks, timeline.is_put(times.tasks)
  rank = tasks['rank'] if times.thread is None else np.zeros(len(tasks), int)
  rows = []
  for one in np.unique(rank):
    here = rank == one
    union = lambda mask: covered(times.start[mask], times.end[mask])
    sent = union(here & puts)
    gemms = union(here & (tasks['unit'] == layout.Unit.AIC))
    rows.append(
      (
        float((sent[1] - sent[0]).sum()),
        uncovered(sent, gemms),
        uncovered(sent, union(here & ~puts)),
      )
    )
  table = np.array(rows)
  worst = int(np.argmax(table[:, 1]))
  puts_run, without_gemm, without_compute = table.mean(axis=0).tolist()
  return Exposed(
    puts=puts_run,
    without_gemm=without_gemm,
    without_compute=without_compute,
    worst_rank=worst,
    worst=float(table[worst, 1]),
  )


def roofline(simulated: simulate.Simulation, bound: simulate.Bound) -> Roofline:
  """Returns how far a simulation is from the bound, and on what."""
  total = simulated.total or 1.0
  used: dict[str, list[tuple[float, float]]] = {}
  for one in simulated.resources:
    shares = one.busy / total, one.bytes / (one.capacity * total)
    if simulated.thread is None or one.rank <= 0:  # a host has one memory
      used.setdefault(_class_of(one.name), []).append(shares)
  for unit, busy in _unit_shares(simulated):
    used[unit] = [(busy, busy)]
  needs: dict[str, float] = {}
  for name, seconds in bound.parts.items():
    longest = float(np.max(seconds, initial=0.0))
    needs[_class_of(name)] = max(needs.get(_class_of(name), 0.0), longest)
  parts = []
  for name, longest in needs.items():
    busy, rate = np.mean(used[name], axis=0).tolist()
    parts.append(Part(name=name, needs=longest, busy=busy, rate=rate))
  return Roofline(
    name=_class_of(bound.name),
    seconds=bound.seconds,
    share=bound.seconds / total,
    parts=tuple(parts),
  )


def _unit_shares(simulated: simulate.Simulation) -> list[tuple[str, float]]:
  """Returns how much of the total each unit's cores are busy."""
  share = simulated.busy / (simulated.total or 1.0)
  if simulated.thread is not None:
    return [('threads', float(share.sum()) / simulated.machine['threads'])]
  units_ = simulated.image.tables['queues']['unit']
  return [
    (unit.name.lower(), float(share[units_ == unit].mean()))
    for unit in layout.Unit
  ]


def _class_of(name: str) -> str:
  """Returns the name of a link without its number."""
  return name.split()[0]


def summarise(
  times: timeline.Timeline, bound: Roofline | None = None
) -> Summary:
  """Returns what a launch's time went into."""
  path = timeline.critical_path(times)
  took = float((times.end - times.start)[path].sum())
  return Summary(
    origin=times.origin,
    direction=times.image.direction.name.lower(),
    tasks=len(times.start),
    total=times.total,
    units=units(times),
    stages=stages(times, path),
    between=times.total - took,
    exposed=exposed(times),
    roofline=bound,
  )
