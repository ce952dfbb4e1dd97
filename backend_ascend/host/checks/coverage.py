"""How much of what a schedule leaves open a set of launches has tried."""

import hashlib

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib

# Two indices, and as many again while they are put together and sorted.
_PAIR_BYTES = 64
# NumPy's own of the arrays of what each task waits for, signals and gives.
_TASK_BYTES = 600


def needed_bytes(image: image_lib.Image) -> int:
  """Returns about how much memory a `Coverage` of an image takes at most."""
  signalled = happens_before.list_signals(image)
  tasks, events, queues = (
    len(image.tables[name]) for name in ('tasks', 'events', 'queues')
  )
  clocks = 4 * (tasks + events) * queues
  pairs = sum(
    len(group) * (len(group) - 1) // 2 for group in _groups(signalled)
  )
  givers = np.bincount(signalled[:, 1], minlength=events)
  edges = int(givers[happens_before.list_waits(image)[:, 1]].sum())
  return clocks + _TASK_BYTES * tasks + _PAIR_BYTES * (pairs + edges)


def _groups(signalled: np.ndarray) -> list[np.ndarray]:
  """Returns the tasks that signal one event, each such set once."""
  order = np.lexsort((signalled[:, 0], signalled[:, 1]))
  groups = np.split(
    signalled[order, 0], np.flatnonzero(np.diff(signalled[order, 1])) + 1
  )
  return list({group.tobytes(): group for group in groups}.values())


def _pairs(signalled: np.ndarray, clocks: happens_before.Clocks) -> np.ndarray:
  """Returns `[p, 2]` tasks that signal the same event and nothing orders.

  Smaller index first, each pair once.  Two puts of one queue are sent in its
  order, but may arrive in any.
  """
  pairs = [np.zeros((0, 2), np.int64)]
  for group in _groups(signalled):
    first, second = np.triu_indices(len(group), 1)
    first, second = group[first], group[second]
    free = ~clocks.before(first, second) & ~clocks.before(second, first)
    pairs.append(np.stack([first[free], second[free]], axis=1))
  return np.unique(np.concatenate(pairs), axis=0)


def _edges(
  signalled: np.ndarray, waits: np.ndarray, clocks: happens_before.Clocks
) -> np.ndarray:
  """Returns `[e, 2]` (task that waits, task that it waits for), sorted.

  Without tasks that another one of the same waiter must follow: they are never
  the last to arrive.
  """
  num_tasks = len(clocks.queue)
  events = int(max(signalled[:, 1].max(initial=0), waits[:, 1].max(initial=0)))
  signallers = happens_before.group_pairs(signalled[:, ::-1], events + 1)
  edges = [np.zeros((0, 2), np.int64)]
  lasts: dict[bytes, np.ndarray] = {}  # by the events that are awaited
  for task, awaited in enumerate(happens_before.group_pairs(waits, num_tasks)):
    if not len(awaited):
      continue
    givers = lasts.get(awaited.tobytes())
    if givers is None:
      givers = np.unique(np.concatenate([signallers[e] for e in awaited]))
      followed = clocks.before(givers[:, None], givers[None, :]).any(axis=1)
      givers = lasts[awaited.tobytes()] = givers[~followed]
    edges.append(np.stack([np.full(len(givers), task), givers], axis=1))
  return np.concatenate(edges)


class Coverage:
  """Counts over the orders of many launches of one image.

  What there is to see is what some legal order shows, with puts in time or
  late: launches without late puts do not see all of it.

  Attributes:
    num_runs: orders added.
  """

  def __init__(self, image: image_lib.Image, signals: np.ndarray | None = None):
    """Prepares for the orders of an image.

    Args:
      image: the parsed image.
      signals: `[s, 2]` (task, event), what is signalled in this routing, as of
        `runtime.inspect`; None: everything that may be, whatever the routing.
    """
    if signals is None:
      signals = happens_before.list_signals(image)
    signals = np.unique(np.asarray(signals, np.int64), axis=0)
    clocks = happens_before.compute_clocks(image, signals)
    self._num_tasks = len(image.tables['tasks'])
    self._pairs = _pairs(signals, clocks)
    self._order_shown = np.zeros((2, len(self._pairs)), bool)
    self._edges = _edges(signals, happens_before.list_waits(image), clocks)
    starts = np.diff(self._edges[:, 0], prepend=-1) > 0
    self._starts = np.flatnonzero(starts)
    self._group = np.cumsum(starts) - 1
    self._last = np.zeros(len(self._edges), bool)
    self._orders: set[bytes] = set()
    self.num_runs = 0

  def add(self, order: np.ndarray) -> None:
    """Adds one launch.

    Args:
      order: `[tasks]` u32, of a traced launch: each task's position.

    Raises:
      ValueError: not one position for every task.
    """
    order = np.asarray(order)
    if order.shape != (self._num_tasks,):
      raise ValueError(
        f'order: expected shape {(self._num_tasks,)}, got {order.shape}'
      )
    self.num_runs += 1
    order_bytes = np.ascontiguousarray(order, np.uint32).tobytes()
    self._orders.add(hashlib.sha256(order_bytes).digest())
    first = order[self._pairs[:, 0]] < order[self._pairs[:, 1]]
    self._order_shown[0] |= first
    self._order_shown[1] |= ~first
    if len(self._edges):
      arrivals = order[self._edges[:, 1]]
      latest = np.maximum.reduceat(arrivals, self._starts)
      self._last |= arrivals == latest[self._group]

  @property
  def num_orders(self) -> int:
    """Different orders of all tasks that were seen."""
    return len(self._orders)

  @property
  def num_pairs(self) -> int:
    """Pairs that signal one event and nothing orders."""
    return len(self._pairs)

  @property
  def num_pairs_seen(self) -> int:
    """Those of `num_pairs` of which both orders were seen."""
    return int(self._order_shown.all(axis=0).sum())

  @property
  def edges(self) -> np.ndarray:
    """`[num_edges, 2]` (task, one that it waits for)."""
    return self._edges

  @property
  def num_edges(self) -> int:
    """Pairs of a task and one that it waits for, which may be the last one."""
    return len(self._edges)

  @property
  def num_edges_seen(self) -> int:
    """Those of `num_edges` in which the latter was in fact the last one."""
    return int(self._last.sum())

  def __str__(self) -> str:
    return (
      f'{self.num_orders} orders in {self.num_runs} runs; both orders of '
      f'{self.num_pairs_seen} of {self.num_pairs} pairs of producers; '
      f'{self.num_edges_seen} of {self.num_edges} producers the last to '
      'arrive'
    )
