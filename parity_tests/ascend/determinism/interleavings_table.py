"""Results of `hpmoe determinism`: records, plain data and text."""

from collections.abc import Sequence
import dataclasses
import hashlib

import numpy as np

from hpmoe.parity_tests.judge.limits import ulp
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
    got, expected: the element.
  """

  options: granularity.Options
  threads: int
  interleaving: int
  late_puts: bool
  replay: str
  index: tuple[int, ...]
  got: float
  expected: float

  def __str__(self) -> str:
    return (
      f'{list(self.index)}: expected {self.expected!r}, got {self.got!r} '
      f'with {self.replay}'
    )


@dataclasses.dataclass(frozen=True)
class Row:
  """One tensor over all launches.

  Attributes:
    direction, dtype, tensor: which.
    launches: how many.
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
  """What becomes a row: its attributes so far, and the tensor's `name`."""

  def __init__(self, name: str, expected: np.ndarray):
    self.name = name
    self.launches = self.differing_bits = 0
    self.first_break: Break | None = None
    self._expected = expected
    self.digests = {_digest(expected): None}  # a set that keeps its order

  def add(self, got: np.ndarray, **how) -> None:
    """Adds one launch; `how` are the fields of `Break` that say which."""
    self.launches += 1
    digest = _digest(got)
    if digest == next(iter(self.digests)):
      return
    self.digests[digest] = None
    bits = ulp.bits(got) ^ ulp.bits(self._expected)
    self.differing_bits += int(
      np.unpackbits(np.ascontiguousarray(bits).view(np.uint8)).sum()
    )
    if self.first_break is None:
      index = np.unravel_index(np.argmax(bits != 0), bits.shape)
      self.first_break = Break(
        index=tuple(int(i) for i in index),
        got=float(got[index]),
        expected=float(self._expected[index]),
        **how,
      )

  def row(self, direction: str, dtype: str, tensor: str) -> Row:
    """Returns what was added, as a row of that name."""
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
  """What the launches of one direction and dtype saw.

  Attributes:
    direction, dtype: which.
    launches: how many.
    orders: distinct orders in which tasks ended, summed over images.
    pairs, pairs_both: unordered pairs of tasks that signal the same event, and
      those of them that were seen in both orders.
    edges, edges_last: dependent pairs (a task and one that waits for it), and
      those of them where, in some launch, the first was the last to arrive.
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
    rows: of each tensor.
    schedules: of each direction and dtype; the twin counts none.
    launches: that were tried; each made every tensor of its pass.
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
    plan=plan.told(),
    rows=table.rows,
    schedules=table.schedules,
  )


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
