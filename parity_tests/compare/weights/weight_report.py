"""Reports on two folders of weights: a table, and plain data."""

import collections
import dataclasses
import math
import re
from typing import Any

from hpmoe.parity_tests.compare.weights import weight_diff
from hpmoe.parity_tests.compare.weights import weight_experts
from hpmoe.parity_tests.compare.weights import weight_forms
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table

_HEADING = ('tensor', 'left', 'right', 'distance', 'right is')
_MOST_LINES = 40
_LAYER = re.compile(r'\.layers\.(\d+)\.')


@dataclasses.dataclass(frozen=True)
class _Group:
  """Tensors with the same finding.

  Attributes:
    name: common to all of them.
    dtypes: the left's and the right's.
    kind: one of `weight_forms.KINDS`.
    text: the finding.
    distance: the largest distance, if it is their only finding; else NaN.
  """

  name: str
  dtypes: tuple[str, str]
  kind: str
  text: str
  distance: float


def _list_groups(result: weight_diff.Result) -> list[_Group]:
  """Returns findings by tensor over all layers, the worst first.

  Tensors that are only rounded form one group.
  """
  rows_by_key = collections.defaultdict(list)
  for row in result.rows:
    for finding in row.findings:
      name = _LAYER.sub('.layers.*.', row.name)
      if finding.kind == weight_forms.ROUNDED:
        name = ''
      rows_by_key[name, row.dtypes, finding.kind, finding.text].append(row)
  groups = [
    _Group(
      _name_layers(name, rows) if name else f'{len(rows)} tensors',
      dtypes,
      kind,
      text,
      max((r.distance for r in rows if r.kind == kind), default=math.nan),
    )
    for (name, dtypes, kind, text), rows in rows_by_key.items()
  ]
  return sorted(groups, key=lambda g: -weight_forms.KINDS.index(g.kind))


def list_lines(result: weight_diff.Result) -> list[str]:
  """Returns a line for each finding, the worst first."""
  lines = [
    f'config: {line}' for line, has_effect in result.config if has_effect
  ]
  lines += [f'{group.name}: {group.text}' for group in _list_groups(result)]
  extra = [n for n in result.extra[1] if n not in result.extra[0]]
  if extra:
    suffix = f' and {len(extra) - 1} more' if len(extra) > 1 else ''
    lines.append(f'no parameters, in right alone: {extra[0]}{suffix}')
  return lines


def _name_layers(name: str, rows: list[weight_diff.Row]) -> str:
  numbers = [int(m[1]) for row in rows if (m := _LAYER.search(row.name))]
  if not numbers:
    return name
  return name.replace('*', weight_experts.name_numbers(sorted(numbers)), 1)


def format_table(result: weight_diff.Result) -> str:
  """Returns a line for each group of tensors that differ."""
  cells = [
    (
      group.name,
      group.dtypes[0] or '-',
      group.dtypes[1] or '-',
      '-' if math.isnan(group.distance) else f'{group.distance:.2g}',
      group.text,
    )
    for group in _list_groups(result)
  ]
  if not cells:
    return ''
  table = text_table.format_table(_HEADING, cells[:_MOST_LINES])
  hidden = len(cells) - _MOST_LINES
  return f'{table}\nand {hidden} more, see --json' if hidden > 0 else table


def conclude(result: weight_diff.Result) -> str:
  """Returns counts, lines about configurations, and the verdict."""
  counts = collections.Counter(row.kind for row in result.rows)
  words = {weight_forms.EQUAL: 'with the same values'}
  items = [
    f'{counts[kind]} {words.get(kind, kind)}'
    for kind in weight_forms.KINDS
    if counts[kind]
  ]
  lines = [f'{len(result.rows)} tensors: {", ".join(items)}']
  for line, has_effect in result.config:
    note = '' if has_effect else ' (no logit depends on it)'
    lines.append(f'config: {line}{note}')
  extra = [n for n in result.extra[1] if n not in result.extra[0]]
  if extra:
    lines.append(
      f'right holds {len(extra)} tensors of no parameter: {extra[0]}'
    )
  sentence = {
    weight_forms.EQUAL: 'a right conversion: the same values',
    weight_forms.ROUNDED: f'a right conversion, {_name_roundings(result)}',
    weight_forms.REORDERED: 'another order, the same function',
    weight_forms.WRONG: 'a wrong conversion',
  }[result.kind]
  lines.append(f'{result.verdict}: {sentence}')
  return '\n'.join(lines)


def _name_roundings(result: weight_diff.Result) -> str:
  texts = {f.text for row in result.rows for f in row.findings}
  return ', '.join(sorted(re.sub('^experts? [^:]*: ', '', t) for t in texts))


def to_json(
  result: weight_diff.Result, left: str, right: str
) -> dict[str, Any]:
  """Returns the whole report as plain data."""
  return json_fields.to_plain_data(
    dict(
      verdict=result.verdict,
      kind=result.kind,
      left=left,
      right=right,
      findings=list_lines(result),
      config=[
        dict(line=line, has_effect=has_effect)
        for line, has_effect in result.config
      ],
      extra=dict(left=result.extra[0], right=result.extra[1]),
      tensors=[
        dict(
          name=row.name,
          shape=row.shape,
          left_dtype=row.dtypes[0],
          right_dtype=row.dtypes[1],
          kind=row.kind,
          distance=row.distance,
          findings=[dict(kind=f.kind, text=f.text) for f in row.findings],
        )
        for row in result.rows
      ],
    )
  )
