"""What a launch's time went into, as plain data.

Every figure follows from the times and the image; nothing is fitted here.
"""

import dataclasses
from typing import Any

from jaxtyping import Float
import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.trace import timeline


@dataclasses.dataclass(frozen=True)
class Busy:
  """How busy the cores of a unit were.

  If workers share threads, the threads count as the cores of both units.

  Attributes:
    name: 'AIC', 'AIV', or 'threads' for both.
    cores: number of cores of all ranks, or of threads.
    seconds: busy time of all cores together.
    utilisation: `seconds` divided by cores * total.
    lowest: utilisation on the rank, or thread, with the lowest.
    highest: utilisation on the rank, or thread, with the highest.
  """

  name: str
  cores: int
  seconds: float
  utilisation: float
  lowest: float
  highest: float


@dataclasses.dataclass(frozen=True)
class Stage:
  """The tasks of one kind.

  Attributes:
    name: of the kind.
    unit: that runs it.
    tasks: how many.
    busy: seconds of all of them together.
    wait_seconds: time that workers waited before these tasks.
    first: seconds at which the first task began.
    last: seconds at which the last task ended.
    on_path: seconds of the critical path in these tasks.
    path_tasks: number of these tasks on the critical path.
  """

  name: str
  unit: str
  tasks: int
  busy: float
  wait_seconds: float
  first: float
  last: float
  on_path: float
  path_tasks: int


@dataclasses.dataclass(frozen=True)
class ExposedPuts:
  """Communication time that computation does not hide, seconds.

  Attributes:
    puts: time with a put running; mean over ranks.
    without_gemm: part of it with no AIC task of the rank running.
    without_compute: part of it with only puts running on the rank.
    worst_rank: the rank with the most `without_gemm`.
    worst: its `without_gemm`.
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
    exposed_puts: communication that computation does not hide.
    roofline: the bound; None for measured times.
  """

  origin: str
  direction: str
  tasks: int
  total: float
  units: tuple[Busy, ...]
  stages: tuple[Stage, ...]
  between: float
  exposed_puts: ExposedPuts
  roofline: Roofline | None = None


def merge_intervals(
  start: Float[np.ndarray, ' n'], end: Float[np.ndarray, ' n']
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the union of intervals as disjoint ones in order."""
  order = np.argsort(start, kind='stable')
  start, reach = start[order], np.maximum.accumulate(end[order])
  opens = np.concatenate([[True], start[1:] > reach[:-1]])[: len(start)]
  closes = np.concatenate([opens[1:], [True]])[: len(start)]
  return start[opens], reach[closes]


def _length_before(times: np.ndarray, start, end) -> np.ndarray:
  """Returns how much of disjoint intervals lies before each time."""
  length = np.concatenate([[0.0], np.cumsum(end - start)])
  index = np.searchsorted(start, times)
  past = np.maximum(0, np.concatenate([[0.0], end])[index] - times)
  return length[index] - past


def uncovered(intervals, cover) -> float:
  """Returns the length of one union of intervals outside another.

  Args:
    intervals: (start, end), as of `merge_intervals`.
    cover: likewise.
  """
  inside = _length_before(intervals[1], *cover) - _length_before(
    intervals[0], *cover
  )
  return float((intervals[1] - intervals[0] - inside).sum())


def _busy(name: str, seconds: np.ndarray, cores: int, total: float) -> Busy:
  """`seconds`: `[groups]`, of groups of as many cores each."""
  share = seconds / (cores * total) if total else seconds * 0
  return Busy(
    name=name,
    cores=cores * len(seconds),
    seconds=float(seconds.sum()),
    utilisation=float(share.mean()),
    lowest=float(share.min()),
    highest=float(share.max()),
  )


def units(times: timeline.Timeline) -> tuple[Busy, ...]:
  """Returns how busy each unit was, and the threads where there are any."""
  options, seconds_of_task = times.image.options, times.end - times.start
  by_unit: dict[str, tuple[tuple[layout.Unit, ...], int]] = {
    'AIC': ((layout.Unit.AIC,), options.num_aic),
    'AIV': ((layout.Unit.AIV,), options.num_aiv),
  }
  group, groups = times.tasks['rank'], times.image.config.num_ranks
  if times.thread is not None:
    group, groups = times.thread, int(times.thread.max(initial=0)) + 1
    by_unit = {name: (units_, 1) for name, (units_, _) in by_unit.items()}
    by_unit['threads'] = (tuple(layout.Unit), 1)
  busy_units = []
  for name, (units_, cores) in by_unit.items():
    mask = np.isin(times.tasks['unit'], units_)
    seconds = np.bincount(group[mask], seconds_of_task[mask], groups)
    busy_units.append(_busy(name, seconds, cores, times.total))
  return tuple(busy_units)


def stages(times: timeline.Timeline, path: np.ndarray) -> tuple[Stage, ...]:
  """Returns the kinds, in dependency order."""
  tasks, durations = times.tasks, times.end - times.start
  rows = []
  for kind in timeline.kinds(tasks):
    members = np.flatnonzero(tasks['kind'] == kind)
    of_path = path[tasks['kind'][path] == kind]
    rows.append(
      Stage(
        name=kind.name.lower(),
        unit=layout.UNIT_OF_KIND[kind].name,
        tasks=len(members),
        busy=float(durations[members].sum()),
        wait_seconds=float(times.wait_times[members].sum()),
        first=float(times.start[members].min()),
        last=float(times.end[members].max()),
        on_path=float(durations[of_path].sum()),
        path_tasks=len(of_path),
      )
    )
  return tuple(rows)


def measure_exposed_puts(times: timeline.Timeline) -> ExposedPuts:
  """Returns the communication time that computation does not hide.

  Ranks that share threads count as one rank: a put of one and a GEMM of another
  run on the same machine.
  """
  tasks, puts = times.tasks, timeline.is_put(times.tasks)
  rank = tasks['rank'] if times.thread is None else np.zeros(len(tasks), int)
  rows = []
  for rank_number in np.unique(rank):
    is_local = rank == rank_number
    union = lambda mask: merge_intervals(times.start[mask], times.end[mask])
    put_time = union(is_local & puts)
    gemms = union(is_local & (tasks['unit'] == layout.Unit.AIC))
    rows.append(
      (
        float((put_time[1] - put_time[0]).sum()),
        uncovered(put_time, gemms),
        uncovered(put_time, union(is_local & ~puts)),
      )
    )
  table = np.array(rows)
  worst = int(np.argmax(table[:, 1]))
  puts_run, without_gemm, without_compute = table.mean(axis=0).tolist()
  return ExposedPuts(
    puts=puts_run,
    without_gemm=without_gemm,
    without_compute=without_compute,
    worst_rank=worst,
    worst=float(table[worst, 1]),
  )


def roofline(
  simulation: simulate.Simulation, bound: simulate.Bound
) -> Roofline:
  """Returns how far a simulation is from the bound, and on what."""
  total = simulation.total or 1.0
  shares_by_class: dict[str, list[tuple[float, float]]] = {}
  for resource in simulation.resources:
    shares = resource.busy / total, resource.bytes / (resource.capacity * total)
    if simulation.thread is None or resource.rank <= 0:  # a host has one memory
      shares_by_class.setdefault(_class_of(resource.name), []).append(shares)
  for unit, busy in _unit_shares(simulation):
    shares_by_class[unit] = [(busy, busy)]
  needs: dict[str, float] = {}
  for name, seconds in bound.parts.items():
    longest = float(np.max(seconds, initial=0.0))
    needs[_class_of(name)] = max(needs.get(_class_of(name), 0.0), longest)
  parts = []
  for name, longest in needs.items():
    busy, rate = np.mean(shares_by_class[name], axis=0).tolist()
    parts.append(Part(name=name, needs=longest, busy=busy, rate=rate))
  return Roofline(
    name=_class_of(bound.name),
    seconds=bound.seconds,
    share=bound.seconds / total,
    parts=tuple(parts),
  )


def _unit_shares(simulation: simulate.Simulation) -> list[tuple[str, float]]:
  """Returns how much of the total each unit's cores are busy."""
  share = simulation.busy / (simulation.total or 1.0)
  if simulation.thread is not None:
    return [('threads', float(share.sum()) / simulation.machine['threads'])]
  units_ = simulation.image.tables['queues']['unit']
  return [
    (unit.name.lower(), float(share[units_ == unit].mean()))
    for unit in layout.Unit
  ]


def _class_of(name: str) -> str:
  """Returns the name of a link without its number."""
  return name.split()[0]


# Names of fields in reports, where they differ.
_JSON_NAMES = dict(
  lowest='least', highest='most', wait_seconds='waited', exposed_puts='exposed'
)


def to_json(summary: Summary) -> dict[str, Any]:
  """Returns the fields of a summary under their names in reports."""
  return dataclasses.asdict(
    summary,
    dict_factory=lambda fields: {_JSON_NAMES.get(n, n): v for n, v in fields},
  )


def summarise(
  times: timeline.Timeline, bound: Roofline | None = None
) -> Summary:
  """Returns a summary of the times of a launch."""
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
    exposed_puts=measure_exposed_puts(times),
    roofline=bound,
  )
