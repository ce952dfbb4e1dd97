"""Results of `hpmoe determinism`: records, plain data and text."""

from collections.abc import Sequence
import dataclasses
import hashlib

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import granularity


@dataclasses.dataclass(frozen=True)
class Break:
  """The first launch whose bits differ, and where.

  Attributes:
    options: granularity and layout.
    threads: OS threads.
    interleaving: the seed of the order.
    late_puts: whether puts came late.
    replay: the command that checks this launch.
    index: coordinates of the first element that differs.
    actual, expected: the element.
  """

  options: granularity.Options
  threads: int
  interleaving: int
  late_puts: bool
  replay: str
  index: tuple[int, ...]
  actual: float
  expected: float

  def __str__(self) -> str:
    return (
      f'{list(self.index)}: expected {self.expected!r}, got {self.actual!r} '
      f'with {self.replay}'
    )


@dataclasses.dataclass(frozen=True)
class Row:
  """One tensor over all launches.

  Attributes:
    direction, dtype, tensor: the tensor.
    launches: number of launches.
    sha256: distinct digests, the serial run's first.
    differing_bits: summed over all launches.
    first_break: the first launch that differs, or None.
  """

  direction: str
  dtype: str
  tensor: str
  launches: int
  sha256: tuple[str, ...]
  differing_bits: int
  first_break: Break | None


class Tally:
  """Collects a row: launches so far of the tensor `name`."""

  def __init__(self, name: str, expected: np.ndarray):
    self.name = name
    self.launches = self.differing_bits = 0
    self.first_break: Break | None = None
    self._expected = expected
    self.digests = {_digest(expected): None}  # a set that keeps its order

  def add(self, actual: np.ndarray, **launch_fields) -> None:
    """Adds a launch; `launch_fields` are the fields of `Break` that name it."""
    self.launches += 1
    digest = _digest(actual)
    if digest == next(iter(self.digests)):
      return
    self.digests[digest] = None
    bits = ulp.bits(actual) ^ ulp.bits(self._expected)
    self.differing_bits += int(
      np.unpackbits(np.ascontiguousarray(bits).view(np.uint8)).sum()
    )
    if self.first_break is None:
      index = np.unravel_index(np.argmax(bits != 0), bits.shape)
      self.first_break = Break(
        index=tuple(int(i) for i in index),
        actual=float(actual[index]),
        expected=float(self._expected[index]),
        **launch_fields,
      )

  def row(self, direction: str, dtype: str, tensor: str) -> Row:
    """Returns the launches so far as a row."""
    return Row(
      direction,
      dtype,
      tensor,
      self.launches,
      tuple(self.digests),
      self.differing_bits,
      self.first_break,
    )


def _digest(array: np.ndarray) -> str:
  data = np.ascontiguousarray(array).view(np.uint8)
  return hashlib.sha256(data.data).hexdigest()


@dataclasses.dataclass(frozen=True)
class Schedules:
  """Schedules of the launches of one direction and dtype.

  Attributes:
    direction, dtype: the pass and the storage dtype.
    launches: number of launches.
    orders: distinct orders in which tasks ended, summed over images.
    pairs, pairs_both: unordered pairs of tasks that signal the same event, and
      those that ran in both orders.
    edges, edges_last: dependent pairs (a task and one that waits for it), and
      those whose first task was the last to signal in some launch.
    seconds: wall time.
  """

  direction: str
  dtype: str
  launches: int
  orders: int
  pairs: int
  pairs_both: int
  edges: int
  edges_last: int
  seconds: float


@dataclasses.dataclass(frozen=True)
class Table:
  """The bits of every launch of a plan.

  Attributes:
    rows: one for each tensor.
    schedules: one for each direction and dtype; none on the twin.
    launches: number of launches; each computed every tensor of its pass.
  """

  rows: tuple[Row, ...]
  schedules: tuple[Schedules, ...]
  launches: int

  @property
  def holds(self) -> bool:
    return all(
      len(row.sha256) == 1 and not row.differing_bits for row in self.rows
    )


def to_json(plan, table: Table) -> dict[str, object]:
  """Returns an `interleavings.Plan` and its table as plain data."""
  return dict(
    verdict='pass' if table.holds else 'fail',
    plan=plan.to_json(),
    rows=[_row_to_json(row) for row in table.rows],
    schedules=table.schedules,
  )


def _row_to_json(row: Row) -> dict[str, object]:
  fields = json_fields.rename_fields(row)
  if row.first_break is None:
    return fields
  first_break = json_fields.rename_fields(row.first_break, actual='got')
  return fields | dict(first_break=first_break)


def text(table: Table) -> str:
  """Returns the table of tensors, the table of schedules, the verdict."""
  parts = [_bits_table(table.rows)]
  if table.schedules:
    parts.append(_schedule_table(table.schedules))
  parts += [
    f'{row.direction} {row.dtype} {row.tensor} {row.first_break}'
    for row in table.rows
    if row.first_break is not None
  ]
  bits = sum(row.differing_bits for row in table.rows)
  verdict = (
    'bits are reproducible' if table.holds else 'bits are NOT reproducible'
  )
  parts.append(f'{verdict}: {table.launches} launches, {bits} differing bits')
  return '\n\n'.join(parts)


def _bits_table(rows: Sequence[Row]) -> str:
  return text_table.format_rows(
    [
      {
        'direction': row.direction,
        'dtype': row.dtype,
        'tensor': row.tensor,
        'launches': row.launches,
        'digests': len(row.sha256),
        'differing bits': row.differing_bits,
        'SHA-256': row.sha256[0][:16],
      }
      for row in rows
    ]
  )


def _schedule_table(schedules: Sequence[Schedules]) -> str:
  return text_table.format_rows(
    [
      {
        'direction': s.direction,
        'dtype': s.dtype,
        'launches': s.launches,
        'distinct orders': s.orders,
        'pairs seen both ways': _share(s.pairs_both, s.pairs),
        'edges seen last': _share(s.edges_last, s.edges),
        'seconds': f'{s.seconds:.1f}',
      }
      for s in schedules
    ]
  )


def _share(part: int, whole: int) -> str:
  return f'{part} of {whole} ({part / whole:.1%})' if whole else 'none'
