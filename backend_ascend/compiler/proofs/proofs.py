"""Proofs about a task image: no deadlock, no race, every element once.

What each rule says, and why together they suffice, stands in `proofs.h`.
"""

import dataclasses

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib


@dataclasses.dataclass(frozen=True)
class Rule:
  """Outcome of one rule.

  Attributes:
    name: 'unit', 'regions', 'progress', 'event', 'once' or 'order'.
    num_checked: how many tasks, events, writes or reads it looked at.
    proved: whether it holds.
  """

  name: str
  num_checked: int
  proved: bool


@dataclasses.dataclass(frozen=True)
class Region:
  """A box of a buffer.

  Attributes:
    buffer: tensor name.
    view: 'rows' (where rows lie) or 'sender' (who sends them).
    rank: rank that holds it, or -1 for any.
    group: see the table in `image.h`.
    rows: [begin, end).
    cols: [begin, end).
  """

  buffer: str
  view: str
  rank: int
  group: int
  rows: tuple[int, int]
  cols: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Violation:
  """One reason why a flow is refused.

  Attributes:
    rule: name of the rule.
    task_a: index of the first task, or None.
    task_b: index of the second task, or None.
    event: index of the event, or None.
    region: what is raced for, unsignalled, written twice or missing.
    text: one line that names all of them.
  """

  rule: str
  task_a: int | None
  task_b: int | None
  event: int | None
  region: Region | None
  text: str


@dataclasses.dataclass(frozen=True)
class ProofReport:
  """What was proved about an image.

  Attributes:
    tasks: number of tasks.
    events: number of events.
    regions: number of regions.
    waits: number of waits.
    rules: one outcome per rule.
    violations: the first few of every refused rule.
  """

  tasks: int
  events: int
  regions: int
  waits: int
  rules: tuple[Rule, ...]
  violations: tuple[Violation, ...]

  @property
  def proved(self) -> bool:
    return all(rule.proved for rule in self.rules)


class ProofError(RuntimeError):
  """A flow that could deadlock, race or miss an element.

  No ValueError: who asked for the flow did not lower it.

  Attributes:
    report: the proofs' report.
  """

  def __init__(self, report: ProofReport):
    super().__init__('\n'.join(v.text for v in report.violations))
    self.report = report


def _violation(raw: dict) -> Violation:
  indices = {
    name: None if raw[name] < 0 else raw[name]
    for name in ('task_a', 'task_b', 'event')
  }
  region = raw['region'] and Region(**raw['region'])
  return Violation(rule=raw['rule'], region=region, text=raw['text'], **indices)


def prove(image, max_violations: int = 8) -> ProofReport:
  """Proves an image.

  Args:
    image: a loaded one, or its bytes.
    max_violations: how many violations to report per rule, at least 1.

  Returns:
    What was checked and what was refused.

  Raises:
    ValueError: the image is corrupt, or `max_violations` is not positive.
  """
  if max_violations < 1:
    raise ValueError(
      f'max_violations: expected at least 1, got {max_violations}'
    )
  raw = _native.prove(image_lib.load(image), max_violations)
  return ProofReport(
    tasks=raw['tasks'],
    events=raw['events'],
    regions=raw['regions'],
    waits=raw['waits'],
    rules=tuple(
      Rule(name, num_checked, outcome == 'proved')
      for name, num_checked, outcome in raw['rules']
    ),
    violations=tuple(_violation(v) for v in raw['violations']),
  )


def require(image) -> ProofReport:
  """Proves an image.

  Raises:
    ProofError: a rule does not hold; the text names tasks and regions.
    ValueError: the image is corrupt.
  """
  report = prove(image)
  if not report.proved:
    raise ProofError(report)
  return report
