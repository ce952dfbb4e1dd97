"""Two reports side by side: what a change of a kernel did."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import math
import pathlib
from typing import Any

from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import lane_table
from hpmoe.parity_tests.report import report_reader
from hpmoe.parity_tests.report import text_table

BETTER, WORSE, MIXED, UNCHANGED = 'BETTER', 'WORSE', 'MIXED', 'UNCHANGED'
_ABSENT = 'none'
# What the two are expected to differ in, or what says it once more.
_UNTOLD = ('command', 'ranges', 'shape', 'notes', 'inputs', 'name')
_MOST_DIFFERENCES = 8


@dataclasses.dataclass(frozen=True)
class Side:
  """One report, as `hpmoe check --json` wrote it.

  Attributes:
    path: its file.
    verdict: of `verdicts`.
    config: what decided the outcome.
    results: every comparison.
    failure: fields of the first failure, or None.
    error: why there was no answer, or ''.
    seconds: wall time, or None.
    versions: of packages, by name.
    num_changes: tensors that a later run gave other bits, or wrong ones.
    num_races: of our own backend.
  """

  path: str
  verdict: str
  config: Mapping[str, Any]
  results: tuple[verdicts.Result, ...]
  failure: Mapping[str, Any] | None
  error: str
  seconds: float | None
  versions: Mapping[str, str]
  num_changes: int = 0
  num_races: int = 0

  @property
  def heading(self) -> str:
    """Its verdict, candidate and time."""
    candidate = self.config.get('candidate', self.config.get('name', ''))
    seconds = '' if self.seconds is None else f', {self.seconds:.1f} s'
    return f'{self.verdict.upper()} {candidate}{seconds}'

  def describe_failure(self) -> str:
    """Returns where it failed first, and what that looks like."""
    if self.error:
      return f'no answer: {self.error}'
    first = self.failure
    if first is None:
      return _ABSENT
    location = [f'rank {first["rank"]}']
    for name in ('expert', 'row_block', 'col_block'):
      if first[name] is not None:
        location.append(f'{name.replace("_", " ")} {first[name]}')
    pattern = f': {first["pattern"]}' if first.get('pattern') else ''
    return f'{first["stage"]} ({first["lane"]}), {", ".join(location)}{pattern}'


@dataclasses.dataclass(frozen=True)
class Row:
  """What one lane says of one stage, before and after.

  Attributes:
    stage, lane: which.
    before, after: what the reports say.
    factor: the error after over the error before, in limits; None: it has no
      limit in one of them.
  """

  stage: str
  lane: str
  before: lane_table.Cell
  after: lane_table.Cell
  factor: float | None

  @property
  def is_mended(self) -> bool:
    """Whether it failed, and passes."""
    return (self.before.verdict, self.after.verdict) == (
      verdicts.FAIL,
      verdicts.PASS,
    )

  @property
  def is_broken(self) -> bool:
    """Whether it fails, and did not."""
    return verdicts.FAIL == self.after.verdict != self.before.verdict

  @property
  def is_lost(self) -> bool:
    """Whether it was judged, and is no more."""
    unseen = ('', verdicts.NOT_JUDGED)
    return self.before.verdict not in unseen and self.after.verdict in unseen

  @property
  def change(self) -> str:
    """What changed, in a word and a factor; '': nothing did."""
    if self.is_mended:
      return f'mended{self._describe_factor(", ")}'
    if self.is_broken:
      return f'broken{self._describe_factor(", ")}'
    if self.is_lost:
      return 'no more judged'
    if self.before.verdict in ('', verdicts.NOT_JUDGED):
      is_new = self.after.verdict not in ('', verdicts.NOT_JUDGED)
      return 'judged now' if is_new else ''
    return self._describe_factor()

  def _describe_factor(self, before: str = '') -> str:
    if self.factor is None or self.factor == 1:
      return ''
    return f'{before}error x {self.factor:.3g}'


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Two reports.

  Attributes:
    before, after: the reports.
    rows: of each stage and lane that either judged, in dependency order.
  """

  before: Side
  after: Side
  rows: tuple[Row, ...]

  @property
  def outcome(self) -> str:
    """BETTER, WORSE, MIXED or UNCHANGED, by verdicts alone."""
    had_failed = self.before.verdict == verdicts.FAIL
    has_failed = self.after.verdict == verdicts.FAIL
    worse = any(row.is_broken for row in self.rows)
    worse = worse or (has_failed and not had_failed)
    worse = worse or (bool(self.after.error) and not self.before.error)
    better = any(row.is_mended for row in self.rows)
    better = better or (had_failed and not has_failed)
    better = better or (bool(self.before.error) and not self.after.error)
    if better and worse:
      return MIXED
    return BETTER if better else WORSE if worse else UNCHANGED

  @property
  def is_no_worse(self) -> bool:
    """Whether nothing fails that did not."""
    return self.outcome in (BETTER, UNCHANGED)

  def list_differences(self) -> list[str]:
    """Returns what decided the outcome otherwise, a text each."""
    pairs = [
      (dict(_flatten(side.config)), side.versions)
      for side in (self.before, self.after)
    ]
    differences = []
    for before, after in zip(*pairs):
      names = [*dict.fromkeys((*before, *after))]
      differences += [
        f'{name} {before.get(name, _ABSENT)}, now {after.get(name, _ABSENT)}'
        for name in names
        if before.get(name) != after.get(name)
      ]
    return differences


def read_side(path: str) -> Side:
  """Returns a report from its file.

  Raises:
    ValueError: it is no report of one check.
  """
  message = f'{path}: expected a report of `hpmoe check --json={path}`'
  try:
    content = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    if 'shapes' in content:
      raise ValueError(f'{message}, got one of --shapes')
    results = tuple(report_reader.read_result(row) for row in content['stages'])
    return Side(
      path,
      content['verdict'],
      content['config'],
      results,
      content['first_failure'],
      content.get('error', ''),
      content['seconds'],
      content['versions'],
      len(content.get('changes', ())),
      content.get('num_races', 0),
    )
  except OSError as error:
    raise ValueError(f'{message}, got {error.strerror}') from error
  except KeyError as error:
    raise ValueError(f'{message}, got a file without {error}') from error
  except (ValueError, TypeError, AttributeError) as error:
    if str(error).startswith(message):
      raise
    raise ValueError(f'{message}, got {type(error).__name__}') from error


def compare_sides(before: Side, after: Side) -> Comparison:
  """Returns both, a row for each stage and lane that either judged."""
  sides = before, after
  keys = {
    (r.stage, r.lane)
    for side in sides
    for r in side.results
    if r.verdict != verdicts.NOT_JUDGED
  }
  stages = verdicts.ordered(stage for stage, _ in keys)
  rows = []
  for stage in stages:
    for lane in verdicts.LANES:
      if (stage, lane) in keys:
        before_cell, after_cell = (
          _make_cell(side, stage, lane) for side in sides
        )
        factor = _divide(before_cell, after_cell)
        rows.append(Row(stage, lane, before_cell, after_cell, factor))
  return Comparison(before, after, tuple(rows))


def _make_cell(side: Side, stage: str, lane: str) -> lane_table.Cell:
  results = [r for r in side.results if (r.stage, r.lane) == (stage, lane)]
  return lane_table.make_cell(results)


def _divide(before: lane_table.Cell, after: lane_table.Cell) -> float | None:
  """Returns one error over another, each in its limit; None: they have none."""
  shares = [
    [r.values[lane_table.SHARE] for r in cell.results if _has_share(r)]
    for cell in (before, after)
  ]
  if not all(shares):
    return None
  largest = [max(values) for values in shares]
  if largest[0] == largest[1]:
    return 1.0
  return largest[1] / largest[0] if largest[0] else None


def _has_share(result: verdicts.Result) -> bool:
  return (
    lane_table.SHARE in result.values and result.verdict != verdicts.NOT_JUDGED
  )


def _flatten(
  config: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, Any]]:
  for name, value in config.items():
    if not prefix and name in _UNTOLD:
      continue
    if isinstance(value, Mapping):
      yield from _flatten(value, f'{prefix}{name}.')
    else:
      yield f'{prefix}{name}', value


def list_facts(comparison: Comparison) -> list[tuple[str, str, str]]:
  """Returns rows of (name, before, after) of the whole reports."""
  before, after = comparison.before, comparison.after
  facts = [
    ('report', before.path, after.path),
    ('verdict', before.heading, after.heading),
    ('first failure', before.describe_failure(), after.describe_failure()),
  ]
  if before.num_changes or after.num_changes:
    counts = [f'{side.num_changes} tensors' for side in (before, after)]
    facts.append(('not steady', counts[0], counts[1]))
  if before.num_races or after.num_races:
    facts.append(('races', str(before.num_races), str(after.num_races)))
  return facts


def describe_differences(comparison: Comparison) -> str:
  """Returns what else differs between the two, in one text, or ''."""
  differences = comparison.list_differences()
  num_cut = len(differences) - _MOST_DIFFERENCES
  parts = differences[:_MOST_DIFFERENCES]
  return '; '.join(parts + [f'and {num_cut} more'] * (num_cut > 0))


def format_summary(comparison: Comparison) -> str:
  """Returns the last line."""
  rows = comparison.rows
  parts = []
  for rows_of_kind, text in (
    ([r for r in rows if r.is_mended], '{} mended'),
    ([r for r in rows if r.is_broken], '{} broken'),
    ([r for r in rows if r.is_lost], '{} no more judged'),
  ):
    if rows_of_kind:
      stages = ', '.join(dict.fromkeys(r.stage for r in rows_of_kind))
      parts.append(f'{text.format(len(rows_of_kind))} ({stages})')
  factors = [(abs(math.log(r.factor)), r) for r in rows if r.factor]
  size, row = max(factors, key=lambda pair: pair[0], default=(0.0, None))
  if row is not None and size:
    parts.append(f'largest change of an error: x {row.factor:.3g}, {row.stage}')
  before, after = comparison.before.seconds, comparison.after.seconds
  if before is not None and after is not None:
    parts.append(f'{before:.1f} s, now {after:.1f} s')
  parts = parts or ['nothing changed']
  return f'{comparison.outcome}: {"; ".join(parts)}'


def format_text(comparison: Comparison) -> str:
  """Returns all that a reader is told."""
  facts = [
    f'{name:<13}  before  {before}\n{"":<13}  after   {after}'
    for name, before, after in list_facts(comparison)
  ]
  differences = describe_differences(comparison)
  table = text_table.format_table(
    ('stage', 'lane', 'before', 'after', 'change'),
    [
      (r.stage, r.lane, str(r.before), str(r.after), r.change)
      for r in comparison.rows
    ],
  )
  parts = (
    '\n'.join(facts),
    f'differs: {differences}' if differences else '',
    table if comparison.rows else '',
    format_summary(comparison),
  )
  return '\n\n'.join(filter(None, parts))


def to_json(comparison: Comparison) -> dict[str, Any]:
  """Returns it as plain data."""
  before, after = comparison.before, comparison.after
  return json_fields.to_plain_data(
    dict(
      outcome=comparison.outcome,
      before=_summarise_side(before),
      after=_summarise_side(after),
      differences=comparison.list_differences(),
      stages=[
        dict(
          stage=row.stage,
          lane=row.lane,
          before=row.before.verdict,
          after=row.after.verdict,
          error_before=_find_share(row.before.results),
          error_after=_find_share(row.after.results),
          change=row.change,
        )
        for row in comparison.rows
      ],
    )
  )


def _summarise_side(side: Side) -> dict[str, Any]:
  return dict(
    path=side.path,
    verdict=side.verdict,
    candidate=side.config.get('candidate', side.config.get('name')),
    first_failure=side.failure,
    error=side.error,
    seconds=side.seconds,
  )


def _find_share(results: Sequence[verdicts.Result]) -> float | None:
  """Returns the largest error over its limit; None: there is no limit."""
  return max(
    (r.values[lane_table.SHARE] for r in results if _has_share(r)), default=None
  )
