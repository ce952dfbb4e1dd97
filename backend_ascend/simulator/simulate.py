"""The task image in modelled time, on a described machine.

The engine is native (`engine.h`): a discrete-event execution of the queues of
all ranks, in which HBM, L2 and links are fluids that demands share at max-min
fair rates.  What the model leaves out:

* A put flows through each link and memory of its way by itself: what waits for
  one of them does not free the others.  That changes nothing where the routing
  is even or goes to one rank.  Where a few dozen puts collide at random, the
  end of all lies 1 to 3 % early on average, and for one routing up to 12 %
  early or 8 % late (`fluid_test.py`, against an exact coupled allocation).
* A task's bytes flow from its start; its fixed time (fetch, signals, latency)
  follows.  What is written goes to L2 and HBM alike, at once.
* L2 is one cache of least recent use with no conflicts.  What comes over a link
  passes HBM's rate, not that of L2.
"""

import collections.abc
import dataclasses

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

# By element: its bytes, the figure of the cube's rate, the depth of one step.
ELEMENTS = {
  'float32': (4, 'cube_f32', 8),
  'bfloat16': (2, 'cube_bf16', 16),
  'float16': (2, 'cube_bf16', 16),
  'int8': (1, 'cube_int8', 32),
}
_FLOAT_BUFFERS = ('d_topk_weights',)
# Of an image of codes: what stays in its storage, and what sums codes.
_STORED_BUFFERS = ('x', 'returned', 'y')
_SUM_BUFFERS = ('gate_up', 'expert_out')
# As `TaskTime` of `engine.h`, which fills a cache line.
_TIMES = (
  'start',
  'end',
  'wait_times',
  'hbm_bytes',
  'l2_bytes',
  'link_bytes',
  'thread',
)
_TIME_WORDS = 8
# As `Cost` of `cost.h`.
_COSTS = (
  *('fixed', 'own', 'flops', 'read', 'miss_bytes', 'write_bytes'),
  'linked',
)


@dataclasses.dataclass(frozen=True)
class Resource:
  """What ranks or cores share.

  Attributes:
    name: 'hbm', 'l2' or a link's.
    rank: whose, or -1.
    capacity: B/s.
    bytes: that it carried.
    busy: s in which it carried any.
  """

  name: str
  rank: int
  capacity: float
  bytes: float
  busy: float


@dataclasses.dataclass(frozen=True)
class Simulation:
  """An image in modelled time.

  Attributes:
    image: what was executed.
    machine: on what.
    start: `[tasks]` f8, s.
    end: `[tasks]` f8, s.
    wait_times: `[tasks]` f8, s that the task's core was blocked before it.
    hbm_bytes: `[tasks]` f8, B of its rank.
    l2_bytes: `[tasks]` f8, B of its rank.
    link_bytes: `[tasks]` f8, B of payload to other ranks.
    thread: `[tasks]` i4, that ran the task, or None where each worker is a core
      of its own.
    total: s, the last end.
    busy: `[queues]` f8, s in which a core had a task.
    resources: HBM and L2 of each rank, then links.
  """

  image: image_lib.Image
  machine: machine_lib.Machine
  start: np.ndarray
  end: np.ndarray
  wait_times: np.ndarray
  hbm_bytes: np.ndarray
  l2_bytes: np.ndarray
  link_bytes: np.ndarray
  thread: np.ndarray | None
  total: float
  busy: np.ndarray
  resources: tuple[Resource, ...]


@dataclasses.dataclass(frozen=True)
class Costs:
  """The demand of each task.

  Attributes:
    fixed: `[tasks]` f8, s of fetch, signals, head and latency of puts.
    own: `[tasks]` f8, s of its core, were nothing shared.
    flops: `[tasks]` f8, of its real rows.
    read: `[tasks]` f8, B of its rank's memory, again and again where the
      accumulators hold a part of its tile only.
    miss_bytes: `[tasks]` f8, B of them that no task touched before.
    write_bytes: `[tasks]` f8, B to its rank's memory.
    linked: `[tasks]` f8, B of payload to other ranks.
    alone: `[tasks]` f8, s of the task if it ran alone and all that it reads
      were in L2.
    link_bytes: `[links]` f8, B of all tasks.
    incoming_bytes: `[R]` f8, B that other ranks put on the rank.
  """

  fixed: np.ndarray
  own: np.ndarray
  flops: np.ndarray
  read: np.ndarray
  miss_bytes: np.ndarray
  write_bytes: np.ndarray
  linked: np.ndarray
  alone: np.ndarray
  link_bytes: np.ndarray
  incoming_bytes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Bound:
  """The roofline: no schedule of the image ends before it.

  Attributes:
    seconds: the largest part.
    name: which.
    parts: s; 'aic', 'aiv', 'hbm', 'l2' `[R]`, and links by name `[1]`; on a
      host 'threads', 'hbm' and 'l2' `[1]`.
  """

  seconds: float
  name: str
  parts: collections.abc.Mapping[str, np.ndarray]


def _element_bytes(image, element: str, overrides) -> list[float]:
  width = float(ELEMENTS[element][0])
  sizes = {b.name.lower(): width for b in layout.Buffer}
  sizes |= dict.fromkeys(_FLOAT_BUFFERS, 4.0)
  if image.policy.rows:
    storage_width = float(ELEMENTS[image.policy.storage][0])
    sizes |= dict.fromkeys(_STORED_BUFFERS, storage_width)
    sizes |= dict.fromkeys(_SUM_BUFFERS, 4.0)
  for name, size in (overrides or {}).items():
    if name not in sizes:
      raise ValueError(
        f'element_bytes: expected names of buffers, got {name!r}'
      )
    sizes[name] = float(size)
  return list(sizes.values())


def _mark_skipped(skip) -> list[bool]:
  kinds = [kind.name.lower() for kind in layout.Kind]
  for name in skip:
    if name not in kinds:
      raise ValueError(f'skip: expected kinds among {kinds}, got {name!r}')
  return [name in skip for name in kinds]


def _routes(fabric, ranks: int):
  pairs = [
    fabric.route(source, destination, ranks)
    for source in range(ranks)
    for destination in range(ranks)
  ]
  begin = np.cumsum([0] + [len(route.links) for route in pairs])
  return (
    begin.tolist(),
    [link for route in pairs for link in route.links],
    [route.latency for route in pairs],
  )


def _require_cores(image, machine) -> None:
  if machine['threads']:  # drive any number of workers
    return
  for unit in ('aic', 'aiv'):
    cores = getattr(image.options, f'num_{unit}')
    if cores > machine[unit]:
      raise ValueError(
        f'image: expected at most {machine[unit]:.0f} {unit.upper()} '
        f'on {machine.name}, got {cores}'
      )


def _figures(machine, barriers: bool) -> dict[str, float]:
  figures = {name: machine[name] for name in machine_lib.UNITS}
  if barriers:
    figures['cube_efficiency'] = figures['operator_efficiency']
  return figures


def _model(
  image,
  machine,
  topk_ids,
  skip,
  element=None,
  element_bytes=None,
  barriers=False,
):
  element = element or ('int8' if image.policy.rows else image.policy.storage)
  if element not in ELEMENTS:
    raise ValueError(
      f'element: expected one of {tuple(ELEMENTS)}, got {element!r}'
    )
  _require_cores(image, machine)
  dims = image.config.dims()
  shape = tuple(dims[letter] for letter in 'RTK')
  topk_ids = np.ascontiguousarray(topk_ids, np.int32)
  if topk_ids.shape != shape:
    raise ValueError(f'topk_ids: expected shape {shape}, got {topk_ids.shape}')
  links = machine.fabric.links(dims['R'])
  begin, route_links, latency = _routes(machine.fabric, dims['R'])
  _, cube, depth = ELEMENTS[element]
  return _native.SimModel(
    image,
    topk_ids,
    _figures(machine, barriers),
    capacity=[link.capacity for link in links],
    factor=[link.factor for link in links],
    route_begin=begin,
    route_links=route_links,
    latency=latency,
    cube=machine[cube],
    cube_depth=float(depth),
    element_bytes=_element_bytes(image, element, element_bytes),
    skipped=_mark_skipped(skip),
  )


def simulate(
  image: image_lib.Image,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
  *,
  skip: collections.abc.Collection[str] = (),
  barriers: bool = False,
  sharing: bool = True,
  element: str | None = None,
  element_bytes: collections.abc.Mapping[str, float] | None = None,
) -> Simulation:
  """Executes an image in modelled time: same arguments, same bits.

  Args:
    image: of any pass; at most the machine's cores.
    machine: its figures.
    topk_ids: `[R, T, K]` i32.
    skip: names of kinds whose tasks take no time, and signal.
    barriers: operator by operator, as a framework runs a layer: a kind starts
      on a rank when all before it have ended there, and `launch` after; puts,
      and what follows them, when they have ended on all ranks.  Links have
      `collective` of their capacity, matrix products `operator_efficiency`.
    sharing: whether cores and ranks share memories and links; without, each
      demand has them for itself, and L2 holds what tasks of lower numbers left.
    element: one of ELEMENTS; None is the image's storage, or its codes'.
    element_bytes: B of an element of some buffers, by name, if another.

  Raises:
    ValueError: an argument that does not fit the image or the machine.
  """
  if barriers and machine['threads']:
    raise ValueError(
      f'barriers: expected none on {machine.name}, whose threads drive all '
      'workers'
    )
  model = _model(
    image, machine, topk_ids, skip, element, element_bytes, barriers
  )
  times = np.zeros((int(image.header['tasks']['count']), _TIME_WORDS))
  result = model.simulate(times, barriers=barriers, sharing=sharing)
  columns = {name: times[:, i] for i, name in enumerate(_TIMES)}
  thread = columns.pop('thread').astype(np.int32)
  links = machine.fabric.links(image.config.num_ranks)
  share = machine['collective'] if barriers else 1.0
  resources = [
    Resource(name, rank, machine[name], *usage)
    for name in ('hbm', 'l2')
    for rank, usage in enumerate(result[name])
  ] + [
    Resource(link.name, -1, share * link.capacity, *usage)
    for link, usage in zip(links, result['links'])
  ]
  return Simulation(
    image=image,
    machine=machine,
    total=result['total'],
    thread=thread if machine['threads'] else None,
    busy=np.array(result['busy']),
    resources=tuple(resources),
    **columns,
  )


def costs(
  image: image_lib.Image,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
  *,
  skip: collections.abc.Collection[str] = (),
  element: str | None = None,
  element_bytes: collections.abc.Mapping[str, float] | None = None,
) -> Costs:
  """Returns what each task asks for; arguments as of `simulate`."""
  model = _model(image, machine, topk_ids, skip, element, element_bytes)
  tasks = int(image.header['tasks']['count'])
  table = np.zeros((tasks, len(_COSTS)))
  totals = model.costs(table)
  columns = dict(zip(_COSTS, np.ascontiguousarray(table.T)))
  unit = image.tables['tasks']['unit']
  aic = unit == layout.Unit.AIC
  read = np.where(aic, machine['aic_read'], machine['aiv_read'])
  cap = np.where(aic, read, read + machine['aiv_write'])
  moved_bytes = columns['read'] + columns['write_bytes']
  alone = columns['fixed'] + np.maximum.reduce(
    [
      columns['own'],
      moved_bytes / np.minimum(cap, machine['l2']),
      columns['write_bytes'] / np.minimum(cap, machine['hbm']),
    ]
  )
  return Costs(
    **columns,
    alone=alone,
    link_bytes=np.array(totals['links']),
    incoming_bytes=np.array(totals['arrives']),
  )


def bound(
  image: image_lib.Image,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
  *,
  skip: collections.abc.Collection[str] = (),
  element: str | None = None,
  element_bytes: collections.abc.Mapping[str, float] | None = None,
) -> Bound:
  """Returns the time that the busiest unit, memory or link needs at least.

  Every core of a unit busy to the end; HBM carries what is written and what
  is read for the first time.  Arguments as of `simulate`.
  """
  cost = costs(
    image,
    machine,
    topk_ids,
    skip=skip,
    element=element,
    element_bytes=element_bytes,
  )
  tasks = image.tables['tasks']
  ranks = image.config.num_ranks

  def by_rank(values, mask=slice(None)):
    return np.bincount(tasks['rank'][mask], values[mask], ranks)

  hbm_bytes = by_rank(cost.miss_bytes + cost.write_bytes) + cost.incoming_bytes
  l2_bytes = by_rank(cost.read + cost.write_bytes)
  parts = {}
  if machine['threads']:
    seconds = np.sum(cost.fixed + cost.own)
    parts['threads'] = np.array([seconds / machine['threads']])
    hbm_bytes, l2_bytes = (
      hbm_bytes.sum(keepdims=True),
      l2_bytes.sum(keepdims=True),
    )
  else:
    for unit in layout.Unit:
      name = unit.name.lower()
      cores = getattr(image.options, f'num_{name}')
      mask = tasks['unit'] == unit
      parts[name] = by_rank(cost.fixed + cost.own, mask) / cores
  parts['hbm'] = hbm_bytes / machine['hbm']
  parts['l2'] = l2_bytes / machine['l2']
  for link, link_bytes in zip(machine.fabric.links(ranks), cost.link_bytes):
    parts[link.name] = np.array([link_bytes / link.capacity])
  name = max(parts, key=lambda part: parts[part].max())
  return Bound(float(parts[name].max()), name, parts)
