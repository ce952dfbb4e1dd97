"""Two vector operators in a row, serial or interleaved tile by tile.

The paper's microbenchmark: SwiGLU `[M, 2F]` to `[M, F]`, then an addition of
another `[M, F]`.  It is no layer, so there is no image of it.  The rules are
those of the engine: a task takes the longest of its core's time and its shares
of HBM and L2, and a read is from L2 while fewer bytes than L2 holds came in
since it was last touched.  All tasks of a round are alike, so a round is as
long as one of them.
"""

import dataclasses

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

_ITEM = 2  # bytes of a bfloat16


@dataclasses.dataclass(frozen=True)
class Pair:
  """The two operators.

  Attributes:
    rows: M.
    cols: F.
    tile_rows: rows of a task.
    cores: AIVs that work.
    interleaved: whether a tile's addition follows its SwiGLU at once.
  """

  rows: int
  cols: int
  tile_rows: int
  cores: int
  interleaved: bool


@dataclasses.dataclass(frozen=True)
class Timed:
  """What a pair takes.

  Attributes:
    seconds: from the first fetch to the last end.
    hit_rate: bytes read from L2 over all bytes read.
  """

  seconds: float
  hit_rate: float


@dataclasses.dataclass(frozen=True)
class _Operator:
  """Bytes of one tile, all but the read of what the pair hands over."""

  read: float
  written: float
  handed: float
  ops: float


def _operators(pair: Pair, machine) -> tuple[_Operator, _Operator]:
  elements = pair.tile_rows * pair.cols
  width = elements * _ITEM
  return (
    _Operator(2 * width, width, 0, elements * machine['activation_ops']),
    _Operator(width, width, width, elements * machine['sum_ops']),
  )


def _seconds(machine, operator: _Operator, tiles: int, missed: float) -> float:
  """Returns the time of a round of `tiles` tasks of an operator."""
  read = operator.read + operator.handed
  own = max(
    operator.ops / machine['vector'],
    read / machine['aiv_read'],
    operator.written / machine['aiv_write'],
  )
  return machine['aiv_task'] + max(
    own,
    tiles * (missed + operator.written) / machine['hbm'],
    tiles * (read + operator.written) / machine['l2'],
  )


def run(pair: Pair, machine: machine_lib.Machine) -> Timed:
  """Returns time and hit rate of the pair."""
  tiles = -(-pair.rows // pair.tile_rows)
  first, second = _operators(pair, machine)
  rounds = [
    min(pair.cores, tiles - begin) for begin in range(0, tiles, pair.cores)
  ]
  order = [(first, n) for n in rounds] + [(second, n) for n in rounds]
  if pair.interleaved:
    order = [(operator, n) for n in rounds for operator in (first, second)]
  # Bytes between a tile's end of the first and its turn in the second.
  between = 2 * first.written * pair.cores
  if not pair.interleaved:
    between = tiles * (first.read + first.written)
  seconds = hits = reads = 0.0
  for operator, active in order:
    found = operator.handed if between < machine['l2_bytes'] else 0.0
    missed = operator.read + operator.handed - found
    seconds += _seconds(machine, operator, active, missed)
    hits += active * found
    reads += active * (operator.read + operator.handed)
  return Timed(seconds, hits / reads)
