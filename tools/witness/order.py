"""What a program's flags and barriers order, and what they must.

A third opinion, of a few lines of graph: it shares nothing with the twin, whose
clocks answer the same question, nor with the vendor's solver.
"""

from collections.abc import Collection, Iterator, Sequence
import dataclasses
import functools

from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import programs

_PIPES = ('MTE1', 'MTE2', 'MTE3', 'M', 'V', 'FIX')


@dataclasses.dataclass(frozen=True)
class Event:
  """What a queue is given, in program order.

  Attributes:
    node: a step or a call that synchronises.
    text: its number in the text: events of a loop share it.
  """

  node: programs.Step | hivm.Sync
  text: int


@dataclasses.dataclass(frozen=True)
class Conflict:
  """Two instructions that touch the same bytes, one of which writes them.

  Attributes:
    first, second: events, by number.
    kind: 'RAW', 'WAR' or 'WAW'.
    memory: 'ub' or 'gm'.
  """

  first: int
  second: int
  kind: str
  memory: str


class Trace:
  """A program with synchronisation, as it runs.

  Args:
    body: of the program.
    rounds: how many more each loop runs than it says.

  Attributes:
    events: in program order.
    groups: numbers in the text of calls that only work together: flags and
      their waits, or a barrier alone.
  """

  def __init__(self, body: hivm.Body, rounds: int = 0):
    self._added_rounds = rounds
    self._numbers: dict[int, int] = {}
    self.events = list(self._run(_numbered(body, self._numbers), 0))
    self.groups = _groups(self.events)

  def _run(self, body, i: int) -> Iterator[Event]:
    for node, number in body:
      if isinstance(node, hivm.Round):
        for j in range(node.rounds + self._added_rounds):
          yield from self._run(number, j)
      elif isinstance(node, programs.Step):
        yield Event(programs.in_round(node, i), number)
      else:
        yield Event(node, number)

  def step(self, event: int) -> programs.Step:
    """Returns the step of an event, by number."""
    node = self.events[event].node
    assert isinstance(node, programs.Step), node
    return node

  @functools.cached_property
  def conflicts(self) -> list[Conflict]:
    """Returns every pair whose order matters."""
    steps = [
      (k, e.node)
      for k, e in enumerate(self.events)
      if isinstance(e.node, programs.Step)
    ]
    return [
      Conflict(k, m, *kind)
      for j, (m, later) in enumerate(steps)
      for k, earlier in steps[:j]
      for kind in [_conflict(earlier, later)]
      if kind
    ]

  def unordered(self, absent: Collection[int] = ()) -> list[Conflict]:
    """Returns conflicts that nothing orders without some groups, by number."""
    reach = self._reach(absent)
    return [c for c in self.conflicts if not reach[c.second] >> c.first & 1]

  def resets(self, absent: Collection[int] = ()) -> list[tuple[int, int]]:
    """Returns sets that may come to a flag before its last wait, as events.

    Each with the set before it.
    """
    reach = self._reach(absent)
    out = self._calls(absent)
    last: dict[tuple, list[int]] = {}
    unsafe = []
    for k, event in enumerate(self.events):
      node = event.node
      if isinstance(node, programs.Step) or event.text in out:
        continue
      sets = last.setdefault((node.source, node.target, node.event), [])
      if node.kind == 'set':
        if len(sets) > 1 and not reach[k] >> sets[1] & 1 or len(sets) == 1:
          unsafe.append((sets[0], k))
        sets[:] = [k]
      elif node.kind == 'wait':
        sets.append(k)
    return unsafe

  def orders(self, group: int) -> list[tuple[int, int]]:
    """Returns pairs of instructions that a group alone orders at once."""
    other = [g for g in range(len(self.groups)) if g != group]
    reach = _reach(self.events, self._calls(other))
    return [
      (first, second)
      for second, bits in enumerate(reach)
      if isinstance(self.events[second].node, programs.Step)
      for first in range(second)
      if bits >> first & 1
      and isinstance(self.events[first].node, programs.Step)
    ]

  def _calls(self, groups: Collection[int]) -> set[int]:
    return {number for group in groups for number in self.groups[group]}

  def _reach(self, absent: Collection[int]) -> list[int]:
    return _reach(self.events, self._calls(absent))


def _numbered(body: hivm.Body, numbers: dict[int, int]):
  """Returns nodes with their numbers; of a loop, its body so numbered."""
  numbered: list[tuple] = []
  for node in body:
    if isinstance(node, hivm.Round):
      numbered.append((node, _numbered(node.body, numbers)))
    else:
      numbers[len(numbers)] = len(numbers)
      numbered.append((node, len(numbers) - 1))
  return numbered


def _groups(events: Sequence[Event]) -> list[tuple[int, ...]]:
  """Returns calls that meet as the program runs, each set with its wait."""
  root: dict[int, int] = {}

  def find(number: int) -> int:
    while root.setdefault(number, number) != number:
      number = root[number]
    return number

  pending: dict[tuple, list[int]] = {}
  for event in events:
    node = event.node
    if isinstance(node, programs.Step):
      continue
    find(event.text)
    flag = (node.source, node.target, node.event)
    if node.kind == 'set':
      pending.setdefault(flag, []).append(event.text)
    elif node.kind == 'wait' and pending.get(flag):
      root[find(event.text)] = find(pending[flag].pop(0))
  groups: dict[int, list[int]] = {}
  for number in sorted(root):
    groups.setdefault(find(number), []).append(number)
  return [tuple(group) for group in groups.values()]


def _spans(operand) -> tuple[str, int, range]:
  if isinstance(operand, programs.Place):
    return 'ub', 0, operand.bytes
  size = programs.SIZES[operand.dtype]
  begin = operand.begin * size
  return 'gm', operand.array, range(begin, begin + operand.count * size)


def _meet(a, b) -> bool:
  *memory, span = _spans(a)
  *other_memory, other = _spans(b)
  if memory != other_memory:
    return False
  return span.start < other.stop and other.start < span.stop


def _conflict(
  earlier: programs.Step, later: programs.Step
) -> tuple[str, str] | None:
  for kind, firsts, seconds in (
    ('RAW', (earlier.out,), later.ins),
    ('WAW', (earlier.out,), (later.out,)),
    ('WAR', earlier.ins, (later.out,)),
  ):
    for first in firsts:
      for second in seconds:
        if _meet(first, second):
          return kind, _spans(first)[0]
  return None


def _reach(events: Sequence[Event], out: Collection[int]) -> list[int]:
  """Returns which instructions are before before each event begins, as bits.

  A queue begins in order and ends in any.  A set waits for what its queue was
  given before; who waits for the set begins after that, and so does what its
  queue is given later.
  """
  complete: dict[str, int] = {}  # of a queue: what is before before it goes on
  queued: dict[str, int] = {}  # of a queue: what it was given
  flags: dict[tuple, list[int]] = {}
  reach = []
  for k, event in enumerate(events):
    node = event.node
    if isinstance(node, programs.Step):
      pipe = node.instruction.pipe
      reach.append(complete.get(pipe, 0))
      queued[pipe] = queued.get(pipe, 0) | 1 << k
      continue
    source = node.source
    before = complete.get(source, 0) | queued.get(source, 0)
    reach.append(before)
    if event.text in out:
      continue
    if node.kind == 'barrier' and source == 'ALL':
      before = 0
      for bits in (*complete.values(), *queued.values()):
        before |= bits
      complete = dict.fromkeys(_PIPES, before)
    elif node.kind == 'barrier':
      complete[source] = before
    elif node.kind == 'set':
      flags.setdefault((source, node.target, node.event), []).append(before)
    else:
      waiting = flags.get((source, node.target, node.event))
      if waiting:
        learned = waiting.pop(0) | 1 << k
        complete[node.target] = complete.get(node.target, 0) | learned
  return reach
