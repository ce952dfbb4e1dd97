"""Reports on a run against its model: a table, and plain data."""

import dataclasses
import math
from typing import Any

from hpmoe.parity_tests.compare import run_diff
from hpmoe.parity_tests.compare.weights import weight_report
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table

_HEADING = (
  *('', 'module', 'after all before it', 'alone', 'rounding explains'),
  'verdict',
)


def format_table(result: run_diff.Result) -> str:
  """Returns a line for each module; '>' marks the first that differs."""
  cells = [
    (
      '>' if row is result.first else '',
      row.name,
      *map(_format, (row.after_all, row.alone, row.rounding)),
      f'{row.verdict}: {row.note}' if row.note else row.verdict,
    )
    for row in result.rows
  ]
  return text_table.format_table(_HEADING, cells)


def _format(value: float) -> str:
  return '-' if math.isnan(value) else f'{value:.2g}'


def conclude(result: run_diff.Result) -> str:
  """Returns the first module that differs, its weights, and the verdict."""
  first, lines = result.first, []
  if first is not None:
    lines.append(
      f'first module that differs by more than rounding: {first.name}: by '
      f'{_format(first.alone)} of its size on its inputs; rounding explains '
      f'{_format(first.rounding)}'
    )
    wrong = [r.name for r in result.rows if r.verdict == run_diff.PARTS][1:]
    if wrong:
      suffix = f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''
      lines.append(f'  others: {", ".join(wrong[:3])}{suffix}')
  if result.weights is not None:
    names = weight_report.list_lines(result.weights)
    lines += [f"the run's weights: {name}" for name in names]
  absent = [r.name for r in result.rows if r.verdict == run_diff.ABSENT]
  if absent:
    lines.append(f'not in the dump: {len(absent)} modules, first {absent[0]}')
  sentence = {
    verdicts.PASS: (
      'rounding explains every difference of the forward pass from the model'
    ),
    verdicts.FAIL: 'the run is not of this model',
    verdicts.NOT_JUDGED: 'the dump holds none of the modules',
  }[result.verdict]
  lines.append(f'{result.verdict}: {sentence}')
  return '\n'.join(lines)


def to_json(result: run_diff.Result, model: str, dump: str) -> dict[str, Any]:
  """Returns the whole report as plain data."""
  weights = result.weights
  return json_fields.to_plain_data(
    dict(
      verdict=result.verdict,
      model=model,
      right=f'dump:{dump}',
      first=result.first and result.first.name,
      modules=[dataclasses.asdict(row) for row in result.rows],
      weights=weights and weight_report.to_json(weights, model, dump),
    )
  )
