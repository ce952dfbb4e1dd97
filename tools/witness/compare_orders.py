"""Compares the order of the vendor's solver with what the twin asks for."""

import collections
from collections.abc import Collection, Mapping
import dataclasses

from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import order
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import twin as twins

# What a program with the vendor's synchronisation does on the twin.
CLEAN = 'clean'
CLEAN_IF_COUNTED = 'clean where flags count'
# Of a flag or barrier that is left out.
REPORTED = 'reported'
TWICE = 'redundant'
WHOLE_ARRAY = 'vendor stricter: arrays'
ROUNDS = 'vendor stricter: loops'
# Of which one side is wrong.
UNORDERED = 'twin stricter: the vendor leaves the same bytes unordered'
SILENT = 'SILENT: the graph names a lack, the twin does not'
ALONE = 'ALONE: the twin reports, the graph does not'
UNKNOWN = 'UNKNOWN: orders no bytes in common'
UNANSWERED = 'UNANSWERED: what the twin asks for has no call of the vendor'
WRONG = (UNORDERED, SILENT, ALONE, UNKNOWN, UNANSWERED)
_MORE_ROUNDS = 2


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What became of one program.

  Attributes:
    seed: of the program.
    whole: of it as the vendor's solver left it.
    parts: of each group of calls that was left out.
    demands: numbers of groups that the twin asked for, from nothing on.
    example: what the twin said, where `whole` is not clean.
  """

  seed: int
  whole: str
  parts: tuple[str, ...]
  demands: tuple[int, ...]
  example: str = ''


def judge(
  program: programs.Program, body: hivm.Body, twin: twins.Twin
) -> Verdict:
  """Returns the verdict of a program."""
  trace = order.Trace(body)
  whole, example = _whole(program.seed, trace, twin)
  counts = whole != CLEAN
  parts = tuple(
    _part(program.seed, body, trace, group, twin, counts)
    for group in range(len(trace.groups))
  )
  demands, unanswered = _ask(program.seed, trace, twin)
  if unanswered:
    whole, example = UNANSWERED, unanswered
  return Verdict(program.seed, whole, parts, demands, example)


def _whole(seed: int, trace: order.Trace, twin: twins.Twin) -> tuple[str, str]:
  """Returns how the program is with all calls, and what the twin says."""
  reports = [twin.launch(seed, mode=mode, order=seed) for mode in twins.MODES]
  reports = [report for report in reports if report]
  conflicts, resets = trace.unordered(), trace.resets()
  if bool(conflicts or resets) != bool(reports):
    return (ALONE if reports else SILENT), _text(reports)
  if not reports:
    return CLEAN, ''
  reports_counting = [
    twin.launch(seed, mode=mode, order=seed, counts=True)
    for mode in twins.MODES
  ]
  if not any(reports_counting) and not conflicts:
    return CLEAN_IF_COUNTED, _text(reports)
  return (UNORDERED if conflicts else ALONE), _text(reports)


def _text(reports) -> str:
  return reports[0].text if reports else ''


def _part(
  seed: int,
  body: hivm.Body,
  trace: order.Trace,
  group: int,
  twin: twins.Twin,
  counts: bool,
) -> str:
  """Returns what becomes of a program without one group of calls."""
  absent = trace.groups[group]
  report = twin.launch(seed, absent, counts=counts)
  ends = group == _end(trace)
  resets = [] if counts else trace.resets([group])
  is_needed = bool(ends or trace.unordered([group]) or resets)
  if bool(report) != is_needed:
    return ALONE if report else SILENT
  return REPORTED if report else _reason(body, trace, group)


def _end(trace: order.Trace) -> int:
  """Returns the group of the barrier that ends the kernel, or -1."""
  for event in reversed(trace.events):
    if isinstance(event.node, programs.Step):
      return -1
    if event.node.source == 'ALL':
      return trace.groups.index((event.text,))
  return -1


def _reason(body: hivm.Body, trace: order.Trace, group: int) -> str:
  """Returns why a group is not needed."""
  if _share(trace, group, _share_bytes):
    return TWICE
  longer = order.Trace(body, rounds=_MORE_ROUNDS)
  number = trace.groups[group][0]
  (number_there,) = [
    g for g, calls in enumerate(longer.groups) if number in calls
  ]
  if _share(longer, number_there, _share_bytes):
    return ROUNDS
  if _share(longer, number_there, _share_array):
    return WHOLE_ARRAY
  return UNKNOWN


def _share(trace: order.Trace, group: int, alike) -> bool:
  """Whether instructions that a group orders have something in common."""
  return any(alike(trace, *pair) for pair in trace.orders(group))


def _share_bytes(trace: order.Trace, first: int, second: int) -> bool:
  return any((c.first, c.second) == (first, second) for c in trace.conflicts)


def _share_array(trace: order.Trace, first: int, second: int) -> bool:
  """Whether two instructions have an array in common, and one writes it."""
  a, b = trace.step(first), trace.step(second)
  return any(
    isinstance(x, programs.Slice)
    and isinstance(y, programs.Slice)
    and x.array == y.array
    for x, y in (
      *((a.out, y) for y in (*b.ins, b.out)),
      *((x, b.out) for x in a.ins),
    )
  )


def _ask(
  seed: int, trace: order.Trace, twin: twins.Twin
) -> tuple[tuple[int, ...], str]:
  """Returns groups that the twin asks for, one after the other, from none on.

  Each report is answered with calls of the vendor that order what it names,
  as few as do; with the report that has no answer, or ''.
  """
  answers: set[int] = set()
  while True:
    absent = set(range(len(trace.groups))) - answers
    calls = [number for group in absent for number in trace.groups[group]]
    report = twin.launch(seed, calls, counts=True)
    additions = _answer(trace, report, absent) if report else set()
    answers |= additions
    if not additions:
      return tuple(sorted(answers)), report.text if report else ''


def _answer(
  trace: order.Trace, report: twins.Report, absent: set[int]
) -> set[int]:
  """Returns the fewest absent groups that order what a report names."""
  if report.call < 0:
    return {_end(trace)} & absent
  unanswerable = set(trace.unordered())
  conflict = next(
    (
      c
      for c in trace.unordered(absent)
      if c not in unanswerable and _is_of(trace, c, report)
    ),
    None,
  )
  if conflict is None:
    return set()
  answer = set(absent)
  for group in sorted(absent):
    rest = absent - answer | {group}
    if conflict not in trace.unordered(rest):
      answer.discard(group)
  return answer


def _is_of(
  trace: order.Trace, conflict: order.Conflict, report: twins.Report
) -> bool:
  """Whether a report names a conflict, and what would order it.

  In mode late the later of two calls runs first.
  """
  first, second = (trace.events[k] for k in (conflict.first, conflict.second))
  pipes = [
    trace.step(k).instruction.pipe for k in (conflict.first, conflict.second)
  ]
  missing = '_'.join(pipes)
  if pipes[0] == pipes[1]:
    missing = f'PipeBarrier<PIPE_{pipes[0]}>'
  return report.missing == missing and any(
    {first.text, second.text} == {report.call, other} for other in report.calls
  )


def tally(verdicts: Collection[Verdict]) -> Mapping[str, int]:
  """Returns how many programs, groups and demands there are of each kind."""
  counts: collections.Counter[str] = collections.Counter()
  for verdict in verdicts:
    counts['programs'] += 1
    counts[verdict.whole] += 1
    counts['left out'] += len(verdict.parts)
    counts['demands'] += len(verdict.demands)
    counts.update(verdict.parts)
  return counts
