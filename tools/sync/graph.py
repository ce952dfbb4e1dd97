"""What flags and barriers of a launch order, by a graph.

It reads what run_program's option `events` wrote: what each core gave its
queues, in program order.  It shares nothing with the twin's clocks, which
answer the same question as the launch runs: where both are asked, they must
agree.

A queue begins in order and ends in any.  A set waits for all that its queue was
given before; who waits for the set begins after that, and so does what its
queue is given later.
"""

from collections.abc import Collection, Iterator, Sequence
import dataclasses
import functools

Core = tuple[str, str, str]  # rank, type, index
# Kinds of events that touch memory.
_ACCESSES = ('work', 'load', 'store', 'global_load', 'write_back')
_SCALAR = 'S'
_CACHE = 'cache'  # lines that the scalar unit writes back
# Between these and S, and of V with itself, an AIV's compiler orders.
_VECTOR = 'V'


class GraphError(ValueError):
  """The events are of what this graph does not know."""


@dataclasses.dataclass(frozen=True)
class Span:
  """Bytes of a memory, in rows.

  Attributes:
    memory: its name; its core's, unless it is GM.
    begin, bytes: of the first row.
    rows, pitch: how many, and from start to start, in bytes.
    writes: whether they are written.
  """

  memory: str
  begin: int
  bytes: int
  rows: int
  pitch: int
  writes: bool

  @property
  def end(self) -> int:
    return self.begin + (self.rows - 1) * self.pitch + self.bytes

  def meets(self, other: 'Span') -> bool:
    """Whether a byte is of both."""
    if self.memory != other.memory:
      return False
    if self.end <= other.begin or other.end <= self.begin:
      return False
    small, large = sorted((self, other), key=lambda span: span.rows)
    return any(large.meets_row(row) for row in small.list_rows())

  def meets_row(self, row: range) -> bool:
    """Whether a byte of a run of bytes is of this span."""
    if row.stop <= self.begin or self.end <= row.start:
      return False
    if self.rows == 1 or not self.pitch:
      return row.start < self.begin + self.bytes
    last = min(self.rows - 1, (row.stop - 1 - self.begin) // self.pitch)
    return row.start < self.begin + last * self.pitch + self.bytes

  def list_rows(self) -> Iterator[range]:
    for i in range(self.rows):
      begin = self.begin + i * self.pitch
      yield range(begin, begin + self.bytes)


@dataclasses.dataclass(frozen=True)
class Event:
  """One event, as watch/event_lines.h writes it."""

  kind: str
  core: Core
  block: str
  pipe: str
  other: str
  flag: str
  mode: str
  atomic: bool
  in_order: bool
  call: str
  place: str
  spans: tuple[Span, ...]

  @property
  def queue(self) -> str:
    """Whose order of completion is its own."""
    return _CACHE if self.kind == 'write_back' else self.pipe

  @property
  def name(self) -> str:
    return f'{self.call} at {self.place} (pipe {self.pipe})'


def read(text: str) -> list[Event]:
  """Returns the events of one launch.

  Raises:
    GraphError: there are several launches, or cores poll words.
  """
  events: list[Event] = []
  for line in text.splitlines():
    words = line.split(' ')
    if words == ['launch']:
      if events:
        raise GraphError('expected one launch, got a second')
      continue
    kind, rank, core, index, *rest = words[:13]
    if kind == 'polled':
      raise GraphError(f'expected no polled words, got {words[11:13]}')
    block, pipe, other, flag, mode, atomic, in_order, call, place = rest
    spans = tuple(
      _read_span(words[i : i + 6]) for i in range(13, len(words), 6)
    )
    name = (rank, core, index)
    event = Event(
      *(kind, name, block, pipe, other, flag, mode),
      *(atomic == '1', in_order == '1', call, place, spans),
    )
    events.append(event)
  return events


def _read_span(words: Sequence[str]) -> Span:
  begin, size, rows, pitch = map(int, words[2:])
  if pitch == 0:
    rows = 1
  elif pitch == size:
    size, rows, pitch = size * rows, 1, 0
  return Span(words[1], begin, size, rows, pitch, words[0] == 'w')


@dataclasses.dataclass
class _Order:
  """Bits of accesses: what is complete before each queue goes on.

  Attributes:
    complete: by core and queue.
    queued: what each queue was given.
    flags: of sets that wait: what is complete by them.
    cross: likewise between cores: of each, sets that not all of a group made.
    messages: of each core and flag, what the next wait learns.
  """

  complete: dict[tuple, int] = dataclasses.field(default_factory=dict)
  queued: dict[tuple, int] = dataclasses.field(default_factory=dict)
  flags: dict[tuple, list[int]] = dataclasses.field(default_factory=dict)
  cross: dict[tuple, list[int]] = dataclasses.field(default_factory=dict)
  messages: dict[tuple, list[int]] = dataclasses.field(default_factory=dict)

  def before(self, core: Core, queue: str) -> int:
    """Returns what is complete before a queue's next set."""
    key = core, queue
    return self.complete.get(key, 0) | self.queued.get(key, 0)

  def learn(self, core: Core, queue: str, bits: int) -> None:
    key = core, queue
    self.complete[key] = self.complete.get(key, 0) | bits

  def drain(self, core: Core) -> None:
    """The scalar unit waits for all queues."""
    for queue in ('MTE1', 'MTE2', 'MTE3', 'M', 'V', 'FIX', _SCALAR):
      self.learn(core, _SCALAR, self.before(core, queue))


class Launch:
  """The events of a launch.

  Args:
    events: in program order.
    inserted: whether an AIV's compiler orders what depends on each other.
  """

  def __init__(self, events: Sequence[Event], inserted: bool = True):
    self._events = events
    self._inserted = inserted
    self._cores = {event.core: event.block for event in events}
    self.accesses = [e for e in events if e.kind in _ACCESSES]

  def drop(
    self, places: Collection[str] = (), inserted: bool = True
  ) -> 'Launch':
    """Returns the launch without the calls at some places.

    Args:
      places: FILE:LINE of calls that synchronise.
      inserted: whether what the compiler inserts stays.
    """
    events = [
      event
      for event in self._events
      if event.kind in _ACCESSES or event.place not in places
    ]
    launch = Launch(events, inserted and self._inserted)
    # They are of the same accesses.
    launch.__dict__['conflicts'] = self.conflicts
    return launch

  @functools.cached_property
  def conflicts(self) -> list[list[int]]:
    """Returns of each access the earlier ones that it must not overtake."""
    by_memory: dict[tuple, list[tuple[int, Span]]] = {}
    conflicts: list[list[int]] = []
    for i, event in enumerate(self.accesses):
      indices = set()
      for span in event.spans:
        own = () if span.memory == 'GM' else event.core
        earlier = by_memory.setdefault((span.memory, own), [])
        indices |= {
          j
          for j, other in earlier
          if (span.writes or other.writes)
          and not self._is_ordered(j, i)
          and span.meets(other)
        }
      for span in event.spans:
        own = () if span.memory == 'GM' else event.core
        by_memory[span.memory, own].append((i, span))
      conflicts.append(sorted(indices - {i}))
    return conflicts

  def _is_ordered(self, first: int, second: int) -> bool:
    """Whether the hardware needs no call to order two accesses."""
    a, b = self.accesses[first], self.accesses[second]
    if a.atomic and b.atomic:
      return True
    if a.core != b.core:
      return False
    return a.pipe == b.pipe and (b.in_order or a.pipe == _SCALAR)

  @functools.cached_property
  def calls(self) -> list[set[str]]:
    """Returns the places of calls that synchronise, sets with their waits."""
    together: list[set[str]] = []
    waiting: dict[tuple, list[str]] = {}
    for event in self._events:
      if event.kind in _ACCESSES:
        continue
      own = {event.place}
      if event.kind == 'set':
        flag = event.core, event.pipe, event.other, event.flag
        waiting.setdefault(flag, []).append(event.place)
      elif event.kind == 'wait':
        sets = waiting.get((event.core, event.other, event.pipe, event.flag))
        own |= {sets.pop(0)} if sets else set()
      shared = [places for places in together if places & own]
      together = [places for places in together if not places & own]
      together.append(own.union(*shared))
    return together

  @functools.cached_property
  def reach(self) -> list[int]:
    """Returns the accesses that are complete before each begins, as bits."""
    reach: list[int] = []
    state = _Order()
    for event in self._events:
      if event.kind in _ACCESSES:
        self._add_access(event, state, reach)
      else:
        self._order(event, state)
    return reach

  def _add_access(self, event: Event, state: _Order, reach: list[int]) -> None:
    i = len(reach)
    key = event.core, event.queue
    scalar = state.complete.get((event.core, _SCALAR), 0)
    state.learn(event.core, event.queue, scalar)
    if self._inserted and event.core[1] == 'AIV':
      for j in self.conflicts[i]:
        if not state.complete[key] >> j & 1:
          self._insert(j, event, state, reach)
    reach.append(state.complete[key])
    state.queued[key] = state.queued.get(key, 0) | 1 << i
    if event.kind == 'global_load':
      state.learn(event.core, _SCALAR, 1 << i)

  def _insert(self, j: int, event: Event, state: _Order, reach) -> None:
    """Adds what the compiler adds between access `j` and an event."""
    other = self.accesses[j]
    if other.core != event.core or other.queue == _CACHE:
      return
    pipes = other.pipe, event.pipe
    if (pipes[0] == _SCALAR) == (pipes[1] == _SCALAR) and pipes != (
      _VECTOR,
      _VECTOR,
    ):
      return
    # All that its queue was given up to it, and what it knew.
    queue_bits = state.queued.get((other.core, other.queue), 0)
    learned = reach[j] | queue_bits & ((2 << j) - 1)
    state.learn(event.core, event.queue, learned)

  def _order(self, event: Event, state: _Order) -> None:
    core, pipe = event.core, event.pipe
    state.learn(core, pipe, state.complete.get((core, _SCALAR), 0))
    if event.kind == 'barrier':
      state.learn(core, pipe, state.before(core, pipe))
    elif event.kind == 'drain':
      state.drain(core)
    elif event.kind == 'write_backs_done':
      state.learn(core, _SCALAR, state.before(core, _CACHE))
    elif event.kind == 'set':
      flag = core, pipe, event.other, event.flag
      state.flags.setdefault(flag, []).append(state.before(core, pipe))
    elif event.kind == 'wait':
      waiting = state.flags.get((core, event.other, pipe, event.flag))
      if not waiting:
        raise GraphError(f'{event.name}: expected its set before it')
      state.learn(core, pipe, waiting.pop(0))
    elif event.kind == 'cross_set':
      self._send(event, state)
    else:
      waiting_sets = state.messages.get((core, event.flag))
      if not waiting_sets:
        raise GraphError(f'{event.name}: expected its set before it')
      state.learn(core, _SCALAR, waiting_sets.pop(0))

  def _send(self, event: Event, state: _Order) -> None:
    """A core sets a flag of others, once all of its group have."""
    core, flag, mode = event.core, event.flag, event.mode
    own = state.cross.setdefault((core, flag, mode), [])
    own.append(state.before(core, event.pipe))
    group = [c for c in self._cores if self._is_beside(core, c, mode)]
    sets = [state.cross.get((c, flag, mode)) for c in group]
    if not all(sets):
      return
    bits = 0
    for waiting in sets:
      if waiting:
        bits |= waiting.pop(0)
    for c in self._cores if mode == '2' else group:
      if mode != '2' or self._is_across(core, c):
        state.messages.setdefault((c, flag), []).append(bits)

  def _is_beside(self, a: Core, b: Core, mode: str) -> bool:
    near = mode == '0' or self._cores[a] == self._cores[b]
    return near and a[:2] == b[:2]

  def _is_across(self, a: Core, b: Core) -> bool:
    return self._cores[a] == self._cores[b] and a[0] == b[0] and a[1] != b[1]

  def find_unordered(self) -> list[tuple[Event, Event]]:
    """Returns pairs of accesses whose order matters and that nothing orders."""
    return [
      (self.accesses[j], self.accesses[i])
      for i, earlier in enumerate(self.conflicts)
      for j in earlier
      if not self.reach[i] >> j & 1
    ]


def count_orders(whole: Launch, part: Launch) -> int:
  """Returns how many pairs of accesses are ordered in one launch alone."""
  return sum((a & ~b).bit_count() for a, b in zip(whole.reach, part.reach))
