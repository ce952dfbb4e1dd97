"""What `hpmoe invariance` prints and writes."""

from collections.abc import Sequence
from typing import Any

from hpmoe.parity_tests.determinism import invariance
from hpmoe.parity_tests.report import text_table

_HEADING = ('pass', 'property', 'tried', 'same bits', 'differ', 'promise')


def text(rows: Sequence[invariance.Row]) -> str:
  """Returns a table, what differs first of each property, and the verdict."""
  lines = [text_table.format_table(_HEADING, [_cells(row) for row in rows])]
  for row in rows:
    if row.apart:
      lines += ['', *_differs(row)]
  return '\n'.join([*lines, '', verdict(rows)])


def verdict(rows: Sequence[invariance.Row]) -> str:
  """Returns the verdict on all properties as one line."""
  broken_rows = [
    f'{row.name} ({", ".join(row.broken_promises)})'
    for row in rows
    if row.broken_promises
  ]
  steady = [row for row in rows if row.holds == invariance.BITS]
  ran = [row for row in rows if row.variants_tried]
  if broken_rows:
    return f'FAIL: broken promise: {"; ".join(broken_rows)}'
  untried = ', '.join(
    dict.fromkeys(r.name for r in rows if not r.variants_tried)
  )
  suffix = f'; not tried: {untried}' if untried else ''
  return (
    f'PASS: {len(steady)} of {len(ran)} properties hold bit for bit{suffix}'
  )


def to_json(rows: Sequence[invariance.Row]) -> dict:
  """Returns rows as plain data."""
  is_kept = invariance.is_kept(rows)
  return dict(
    verdict='pass' if is_kept else 'fail',
    rows=[
      dict(
        name=row.name,
        direction=row.direction,
        tried=row.variants_tried,
        compared=row.tensors_compared,
        apart={name: _describe(apart) for name, apart in row.apart.items()},
        promised=row.promised,
        why=row.reason,
        likely=row.likely,
        holds=row.holds,
        broken=row.broken_promises,
      )
      for row in rows
    ],
  )


def _describe(apart: invariance.Apart) -> dict[str, Any]:
  return dict(
    says=apart.says,
    grade=apart.grade,
    elements=apart.elements,
    of=apart.compared_elements,
    ulp=apart.ulp,
    index=apart.index,
    where=apart.place,
    got=apart.actual,
    expected=apart.expected,
  )


def _cells(row: invariance.Row) -> tuple[str, ...]:
  if not row.variants_tried:
    return row.direction, row.name, '0', '', row.reason, ''
  equal_tensors = [
    name for name in row.tensors_compared if name not in row.apart
  ]
  apart = [
    f'{name}{"" if difference.grade == invariance.ROUNDING else ": WRONG"}'
    for name, difference in row.apart.items()
  ]
  promise = sorted({*row.promised.values()}, key=invariance.GRADES.index)
  promise_cell = ', '.join(promise) + (
    ': BROKEN' if row.broken_promises else ''
  )
  return (
    row.direction,
    row.name,
    str(len(row.variants_tried)),
    ', '.join(equal_tensors) if apart else 'all',
    ', '.join(apart),
    promise_cell,
  )


def _differs(row: invariance.Row) -> list[str]:
  name, first = next(iter(row.apart.items()))
  lines = [
    f'{row.name}: {name}: {first.elements} of {first.compared_elements} '
    f'elements differ, by {first.ulp} ulp at most, {first.grade}: '
    f'{first.says}; first '
    f'{name}{list(first.index)}, {first.place}: {first.actual!r} for '
    f'{first.expected!r}'
  ]
  return [*lines, f'  likely: {row.likely}'] if row.likely else lines
