"""What `hpmoe invariance` prints and writes."""

from collections.abc import Sequence
import dataclasses

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
  """Returns one line."""
  broken = [
    f'{row.name} ({", ".join(row.broken)})' for row in rows if row.broken
  ]
  steady = [row for row in rows if row.holds == invariance.BITS]
  ran = [row for row in rows if row.tried]
  if broken:
    return f'FAIL: not as promised: {"; ".join(broken)}'
  untried = ', '.join(dict.fromkeys(r.name for r in rows if not r.tried))
  more = f'; not tried: {untried}' if untried else ''
  return f'PASS: {len(steady)} of {len(ran)} properties hold bit for bit{more}'


def to_json(rows: Sequence[invariance.Row]) -> dict:
  """Returns rows as plain data."""
  kept = invariance.is_kept(rows)
  return dict(
    verdict='pass' if kept else 'fail',
    rows=[
      dict(dataclasses.asdict(row), holds=row.holds, broken=row.broken)
      for row in rows
    ],
  )


def _cells(row: invariance.Row) -> tuple[str, ...]:
  if not row.tried:
    return row.direction, row.name, '0', '', row.why, ''
  same = [name for name in row.compared if name not in row.apart]
  apart = [
    f'{name}{"" if one.grade == invariance.ROUNDING else ": WRONG"}'
    for name, one in row.apart.items()
  ]
  promise = sorted({*row.promised.values()}, key=invariance.GRADES.index)
  said = ', '.join(promise) + (': BROKEN' if row.broken else '')
  return (
    row.direction,
    row.name,
    str(len(row.tried)),
    ', '.join(same) if apart else 'all',
    ', '.join(apart),
    said,
  )


def _differs(row: invariance.Row) -> list[str]:
  name, first = next(iter(row.apart.items()))
  lines = [
    f'{row.name}: {name}: {first.elements} of {first.of} elements differ, '
    f'by {first.ulp} ulp at most, {first.grade}: {first.says}; first '
    f'{name}{list(first.index)}, {first.where}: {first.got!r} for '
    f'{first.expected!r}'
  ]
  return [*lines, f'  likely: {row.likely}'] if row.likely else lines
