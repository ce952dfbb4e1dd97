"""Flows of tasks and messages over a fabric that computes, in modelled time.

The engine is native (`flow.h`).  What it leaves out: a message waits whole for
each link of its way, so it should be small beside what a link carries at a
time; queues at links and switches have no end; memories take no time.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import enum

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib


class Op(enum.IntEnum):
  """What a message asks of the fabric, as `MessageOp` of `flow.h`.

  PUT is carried up once and down once to each peer.  GET asks its peer, whose
  answer comes home.  REDUCE_GET asks each peer; their answers come home as one
  sum.  REDUCE_PUT is one part of a sum for its peer.
  """

  PUT = 0
  GET = 1
  REDUCE_GET = 2
  REDUCE_PUT = 3


@dataclasses.dataclass(frozen=True)
class Timing:
  """A flow in modelled time.

  Attributes:
    total: s, the last end or arrival.
    start: `[tasks]` f8, s.
    end: `[tasks]` f8, s.
    last_arrival: `[messages]` f8, s, the last arrival of each.
    row: `[peers]` i4, the first row that a region gave, or -1.
    up_bytes: `[R]` f8, B on the link from each rank, headers among them.
    down_bytes: `[R]` f8, B on the link to each rank.
    up_busy: `[R]` f8, s.
    down_busy: `[R]` f8, s.
    delivered: `[R]` f8, B of payload that came from other ranks or home.
    sessions: of the switches: 'peak' B held, 'residence' s from first to last
      arrival over all, and how many 'sessions', 'merged', 'evicted',
      'timed_out' and 'bypassed'.
  """

  total: float
  start: np.ndarray
  end: np.ndarray
  last_arrival: np.ndarray
  row: np.ndarray
  up_bytes: np.ndarray
  down_bytes: np.ndarray
  up_busy: np.ndarray
  down_busy: np.ndarray
  delivered: np.ndarray
  sessions: Mapping[str, float]


_INTS, _DOUBLES, _LONGS = np.int32, np.float64, np.int64


class _Table:
  """Columns that grow by blocks of rows."""

  def __init__(self, **columns):
    self._types = columns
    self._blocks: list[dict[str, np.ndarray]] = []
    self.rows = 0

  def add(self, **values) -> np.ndarray:
    """Returns the numbers of the new rows; a scalar stands for all of them."""
    columns = np.broadcast_arrays(*(np.asarray(v) for v in values.values()))
    columns = [column.reshape(-1) for column in columns]
    self._blocks.append(dict(zip(values, columns)))
    first, self.rows = self.rows, self.rows + len(columns[0])
    return np.arange(first, self.rows)

  def columns(self) -> dict[str, np.ndarray]:
    return {
      name: np.concatenate(
        [b[name] for b in self._blocks] or [np.zeros(0, kind)],
        dtype=kind,
        casting='unsafe',
      )
      for name, kind in self._types.items()
    }

  def grouped(self, key: str, rows: int):
    """Returns columns sorted by another, and where each of its rows begins."""
    whole = self.columns()
    begin, order, place = _native.grouped(whole.pop(key), rows)
    return {n: c[order] for n, c in whole.items()}, begin, place


class Flow:
  """A flow as it is built: every `add_*` takes arrays, and returns numbers."""

  def __init__(self, ranks: int):
    self.ranks = ranks
    self._pools = _Table(start=_DOUBLES, servers=_INTS)
    self._tasks = _Table(pool=_INTS, own=_DOUBLES, holds=_INTS)
    self._waits = _Table(task=_INTS, wait_event=_INTS)
    self._signals = _Table(task=_INTS, signal_event=_INTS, signal_amount=_INTS)
    self._messages = _Table(
      task=_INTS,
      op=_INTS,
      rank=_INTS,
      channel=_INTS,
      expected=_INTS,
      amount=_INTS,
      bytes=_DOUBLES,
      key=_LONGS,
    )
    self._peers = _Table(message=_INTS, peer=_INTS, ids=_INTS, event=_INTS)
    self._regions = _Table(
      region_event=_INTS, region_block=_INTS, region_rows=_INTS
    )
    self._events = _Table(threshold=_INTS, release=_DOUBLES)

  def add_events(self, threshold, release=0.0) -> np.ndarray:
    """A counter is reached at its threshold, and seen `release` s after."""
    return self._events.add(threshold=threshold, release=release)

  def add_pools(self, servers, start=0.0) -> np.ndarray:
    """Servers begin at `start`, s, and take tasks as they were added."""
    return self._pools.add(start=start, servers=servers)

  def add_tasks(self, pool, own, holds=False) -> np.ndarray:
    """Tasks of `own` s; one that holds ends when its messages have arrived."""
    return self._tasks.add(pool=pool, own=own, holds=holds)

  def add_waits(self, task, event) -> None:
    self._waits.add(task=task, wait_event=event)

  def add_signals(self, task, event, amount=1) -> None:
    self._signals.add(task=task, signal_event=event, signal_amount=amount)

  def add_regions(self, event, block, rows) -> np.ndarray:
    """Rows take addresses as they come; block i counts at `event` + i."""
    return self._regions.add(
      region_event=event, region_block=block, region_rows=rows
    )

  def add_messages(
    self,
    task,
    op: Op,
    rank,
    payload,
    *,
    channel=0,
    key=-1,
    expected=0,
    amount=1,
  ) -> np.ndarray:
    """Messages that tasks send when their own time is over.

    Args:
      task: that sends.
      op: what is asked.
      rank: that it comes from.
      payload: B to one receiver.
      channel: of links.
      key: of a session in the switches, -1 without: equal GETs are merged,
        REDUCE_PUTs of one sum added.
      expected: how many messages have the key.
      amount: what an arrival counts; rows, of a region.
    """
    return self._messages.add(
      task=task,
      op=int(op),
      rank=rank,
      channel=channel,
      expected=expected,
      amount=amount,
      bytes=payload,
      key=key,
    )

  def add_peers(
    self, message, peer, event=-1, ids=1, region=None
  ) -> np.ndarray:
    """The other end of a message, and what an arrival there counts.

    Args:
      message: whose.
      peer: rank.
      event: that is counted, at home for a get; -1: none.
      ids: targets that the packet names.
      region: that gives the rows addresses, in place of an event.
    """
    counted_event = event if region is None else -2 - np.asarray(region)
    return self._peers.add(
      message=message, peer=peer, ids=ids, event=counted_event
    )

  def tables(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns flat tables, and where messages and peers went in them."""
    count = self._tasks.rows
    pools, tasks = self._pools.columns(), self._tasks.columns()
    pool_begin, pool_tasks, _ = _native.grouped(tasks['pool'], self._pools.rows)
    waits, wait_begin, _ = self._waits.grouped('task', count)
    signals, signal_begin, _ = self._signals.grouped('task', count)
    messages, message_begin, place = self._messages.grouped('task', count)
    peers = self._peers.columns()
    peer_begin, order, peer_place = _native.grouped(
      place[peers.pop('message')], len(place)
    )
    tables = dict(
      pool_start=pools['start'],
      pool_servers=pools['servers'],
      pool_begin=pool_begin,
      pool_tasks=pool_tasks,
      own=tasks['own'],
      holds=tasks['holds'],
      wait_begin=wait_begin,
      signal_begin=signal_begin,
      message_begin=message_begin,
      peer_begin=peer_begin,
      **waits,
      **signals,
      **messages,
      **{name: column[order] for name, column in peers.items()},
      **self._regions.columns(),
      **self._events.columns(),
    )
    return tables, place, peer_place


def _links(machine: machine_lib.Machine, ranks: int):
  """Returns B/s of payload and headers from and to each rank."""
  fabric = machine.fabric
  links = fabric.links(ranks)
  ends: Sequence[str] = fabric.routes[0].links
  link_by_end = {fabric.classes[name].end: name for name in ends}
  if len(ends) != 2 or set(link_by_end) != {'source', 'destination'}:
    raise ValueError(
      f'{machine.name}: expected a link at each end of its first route, '
      f'got {list(ends)}'
    )
  rates = {link.name: link.capacity / link.factor for link in links}
  return tuple(
    np.array([rates[f'{link_by_end[end]} {r}'] for r in range(ranks)])
    for end in ('source', 'destination')
  )


def simulate(flow: Flow, machine: machine_lib.Machine) -> Timing:
  """Executes a flow in modelled time: same arguments, same bits.

  Args:
    flow: on at most 64 ranks.
    machine: whose fabric has a switch, and one link of each rank's at each end.

  Raises:
    ValueError: a machine without, or a flow that never ends or has rows that a
      region has no room for.
  """
  switch = machine.fabric.switched()
  if not switch:
    raise ValueError(
      f'{machine.name}: expected a fabric with a switch, got none'
    )
  up, down = _links(machine, flow.ranks)
  tables, place, peer_place = flow.tables()
  result = _native.simulate_flow(
    flow.ranks, tables | dict(up=up, down=down), switch
  )
  result['last_arrival'] = result.pop('arrived')[place]
  result['row'] = result['row'][peer_place]
  return Timing(**result)
