"""Lowers the forward layer to tile tasks with the regions they touch.

The operators and their order are those of HyperParallel-MoE (arXiv 2605.23764):
dispatch, gate/up GEMM, SwiGLU, down GEMM, return.  The ordered combine, which
runs outside the published kernel, is a task here.  Nothing in this file says
who waits for whom: `events.py` derives that from the regions.
"""

import dataclasses

import numpy as np

from backend_ascend.taskflow import events
from backend_ascend.taskflow import flow as flow_lib
from backend_ascend.taskflow import layout
from reference import config as config_lib
from reference import precision

Kind = layout.Kind
Buffer = layout.Buffer
View = layout.View


@dataclasses.dataclass(frozen=True)
class Batch:
  """All tasks of one kind.

  Attributes:
    tasks: `[n]` layout.TASK without its table references.
    reads: `[n, i]` layout.REGION.
    writes: `[n, j]` layout.REGION.
    wave: `[n]` i4, see `Flow.wave`.
  """

  tasks: np.ndarray
  reads: np.ndarray
  writes: np.ndarray
  wave: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Shape:
  """Sizes that every emitter needs, in the notation's letters."""

  r: int
  t: int
  e: int
  l: int
  k: int
  d: int
  f: int
  c: int
  slice_rows: int
  options: flow_lib.Options
  before_down: bool

  @property
  def row_blocks(self) -> int:
    return self.c // self.options.row_block


def _shape(config, policy, options) -> _Shape:
  dims = config.dims()
  capacity = options.expert_capacity
  return _Shape(
      r=dims['R'],
      t=dims['T'],
      e=dims['E'],
      l=dims['L'],
      k=dims['K'],
      d=dims['D'],
      f=dims['F'],
      c=capacity,
      # A token goes to an expert once, so a slice has at most T rows.
      slice_rows=min(dims['T'], capacity),
      options=options,
      before_down=policy.placement == 'before_down',
  )


def _grid(**axes: int) -> dict[str, np.ndarray]:
  """Returns index arrays of a row-major grid, first axis slowest."""
  grids = np.indices(tuple(axes.values()), dtype=np.int32)
  return {name: grid.reshape(-1) for name, grid in zip(axes, grids)}


def _blocks(index, size: int, extent: int):
  """Returns [begin, end) of block `index`, cut at `extent`."""
  begin = index * size
  return begin, np.minimum(begin + size, extent)


def _count(extent: int, size: int) -> int:
  return -(-extent // size)


def _tasks(kind: Kind, n: int, **fields) -> np.ndarray:
  tasks = np.zeros(n, layout.TASK)
  tasks['kind'] = kind
  tasks['unit'] = layout.UNIT_OF_KIND[kind]
  tasks['peer'] = layout.ROW_BLOCK_RANGE
  tasks['expert'] = layout.NO_EXPERT
  for name, value in fields.items():
    tasks[name] = value
  return tasks


def _region(n: int, buffer, view, rank, group, rows, cols) -> np.ndarray:
  region = np.zeros(n, layout.REGION)
  region['buffer'] = buffer
  region['view'] = view
  region['rank'] = rank
  region['group'] = group
  region['row_begin'], region['row_end'] = rows
  region['col_begin'], region['col_end'] = cols
  return region


def _stack(*regions: np.ndarray) -> np.ndarray:
  return np.stack(regions, axis=1)


def dispatch(s: _Shape) -> Batch:
  """Puts: rank r sends its slice for expert e, a few rows at a time.

  Order: local expert, tile, then destination rotated by the own rank
  ("rank-rotated"), so that ranks do not all send to rank 0 first.
  """
  g = _grid(r=s.r, l=s.l, p=_count(s.slice_rows, s.options.put_rows), i=s.r)
  n = g['r'].size
  owner = (g['i'] + g['r']) % s.r
  rows = _blocks(g['p'], s.options.put_rows, s.slice_rows)
  tasks = _tasks(
      Kind.DISPATCH, n, rank=g['r'], expert=owner * s.l + g['l'], peer=owner,
      row_begin=rows[0], row_end=rows[1], col_end=s.d, row_block=g['p'],
  )  # fmt: skip
  x = _region(n, Buffer.X, View.ROWS, g['r'], 0, (0, s.t), (0, s.d))
  sent = _region(
      n, Buffer.EXPERT_IN, View.SENDER, owner, g['l'] * s.r + g['r'], rows,
      (0, s.d + 1),
  )  # fmt: skip
  return Batch(tasks, _stack(x), _stack(sent), np.full(n, -1, np.int32))


def _gemm(
    s: _Shape, kind: Kind, source, weight, target, depth: int, width: int,
    lag: int,
) -> Batch:  # fmt: skip
  """Tiles of a grouped GEMM `[rows, depth] @ [depth, width]` per expert."""
  col = s.options.col_block
  g = _grid(r=s.r, l=s.l, b=s.row_blocks, c=_count(width, col))
  n = g['r'].size
  rows = _blocks(g['b'], s.options.row_block, s.c)
  cols = _blocks(g['c'], col, width)
  at = (g['r'], g['l'])
  tasks = _tasks(
      kind, n, rank=g['r'], expert=g['r'] * s.l + g['l'],
      row_begin=rows[0], row_end=rows[1], col_begin=cols[0], col_end=cols[1],
      row_block=g['b'], col_block=g['c'],
  )  # fmt: skip
  reads = _stack(
      _region(n, source, View.ROWS, *at, rows, (0, depth)),
      _region(n, weight, View.ROWS, *at, (0, depth), cols),
  )
  writes = _stack(_region(n, target, View.ROWS, *at, rows, cols))
  return Batch(tasks, reads, writes, g['l'] + lag)


def gate_up(s: _Shape) -> Batch:
  return _gemm(
      s, Kind.GATE_UP, Buffer.EXPERT_IN, Buffer.W_GATE_UP, Buffer.GATE_UP,
      s.d, 2 * s.f, 0,
  )  # fmt: skip


def down(s: _Shape) -> Batch:
  # One wave later than its expert's gate/up GEMM: while the vector cores run
  # SwiGLU of expert l, the cube cores have gate/up of expert l + 1 to do.
  return _gemm(
      s, Kind.DOWN, Buffer.ACTIVATION, Buffer.W_DOWN, Buffer.EXPERT_OUT,
      s.f, s.d, 1,
  )  # fmt: skip


def swiglu(s: _Shape) -> Batch:
  g = _grid(r=s.r, l=s.l, b=s.row_blocks)
  n = g['r'].size
  rows = _blocks(g['b'], s.options.row_block, s.c)
  at = (g['r'], g['l'])
  tasks = _tasks(
      Kind.SWIGLU, n, rank=g['r'], expert=g['r'] * s.l + g['l'],
      row_begin=rows[0], row_end=rows[1], col_end=s.f, row_block=g['b'],
  )  # fmt: skip
  reads = [_region(n, Buffer.GATE_UP, View.ROWS, *at, rows, (0, 2 * s.f))]
  if s.before_down:
    reads.append(_row_header(n, s, at, rows))
  writes = _stack(
      _region(n, Buffer.ACTIVATION, View.ROWS, *at, rows, (0, s.f))
  )
  return Batch(tasks, _stack(*reads), writes, g['l'])


def _row_header(n, s, at, rows) -> np.ndarray:
  rank, group = at
  cols = (s.d, s.d + 1)
  return _region(n, Buffer.EXPERT_IN, View.ROWS, rank, group, rows, cols)


def return_blocks(s: _Shape) -> Batch:
  """Puts of one row block of an expert, to whichever ranks its rows go."""
  g = _grid(r=s.r, l=s.l, b=s.row_blocks)
  n = g['r'].size
  rows = _blocks(g['b'], s.options.row_block, s.c)
  at = (g['r'], g['l'])
  expert = g['r'] * s.l + g['l']
  tasks = _tasks(
      Kind.RETURN, n, rank=g['r'], expert=expert, row_begin=rows[0],
      row_end=rows[1], col_end=s.d, row_block=g['b'],
  )  # fmt: skip
  reads = _stack(
      _region(n, Buffer.EXPERT_OUT, View.ROWS, *at, rows, (0, s.d)),
      _row_header(n, s, at, rows),
  )
  sent = _region(
      n, Buffer.RETURNED, View.SENDER, layout.ANY_RANK, expert, rows, (0, s.d)
  )
  return Batch(tasks, reads, _stack(sent), g['l'] + 1)


def return_slices(s: _Shape) -> Batch:
  """Puts of the slice (destination rank, expert): dispatch, mirrored."""
  put = s.options.put_rows
  g = _grid(r=s.r, l=s.l, p=_count(s.slice_rows, put), i=s.r)
  n = g['r'].size
  target = (g['i'] + g['r']) % s.r
  rows = _blocks(g['p'], put, s.slice_rows)
  at = (g['r'], g['l'])
  expert = g['r'] * s.l + g['l']
  tasks = _tasks(
      Kind.RETURN, n, rank=g['r'], expert=expert, peer=target,
      row_begin=rows[0], row_end=rows[1], col_end=s.d, row_block=g['p'],
  )  # fmt: skip
  # Where the slice lies in the expert's rows is known at launch only.
  reads = _stack(
      _region(n, Buffer.EXPERT_OUT, View.ROWS, *at, (0, s.c), (0, s.d)),
      _row_header(n, s, at, (0, s.c)),
  )
  sent = _region(
      n, Buffer.RETURNED, View.SENDER, target, expert, rows, (0, s.d)
  )
  return Batch(tasks, reads, _stack(sent), g['l'] + 1)


def combine(s: _Shape) -> Batch:
  g = _grid(r=s.r, b=_count(s.t, s.options.token_block))
  n = g['r'].size
  tokens = _blocks(g['b'], s.options.token_block, s.t)
  tasks = _tasks(
      Kind.COMBINE, n, rank=g['r'], row_begin=tokens[0], row_end=tokens[1],
      col_end=s.d, row_block=g['b'],
  )  # fmt: skip
  slots = (tokens[0] * s.k, tokens[1] * s.k)
  reads = _stack(
      _region(n, Buffer.RETURNED, View.ROWS, g['r'], 0, slots, (0, s.d))
  )
  writes = _stack(_region(n, Buffer.Y, View.ROWS, g['r'], 0, tokens, (0, s.d)))
  return Batch(tasks, reads, writes, np.full(n, s.l + 1, np.int32))


def _spaces(s: _Shape) -> np.ndarray:
  """What the writers of every buffer must tile, in the view they write in."""
  any_rank = s.options.event_grain == 'row_block'
  returned_rows = s.c if any_rank else s.slice_rows
  ranks = range(s.r)
  rows = []
  for buffer, view, of, groups, height, cols in (
      (Buffer.EXPERT_IN, View.SENDER, ranks, s.l * s.r, s.slice_rows, s.d + 1),
      (Buffer.GATE_UP, View.ROWS, ranks, s.l, s.c, 2 * s.f),
      (Buffer.ACTIVATION, View.ROWS, ranks, s.l, s.c, s.f),
      (Buffer.EXPERT_OUT, View.ROWS, ranks, s.l, s.c, s.d),
      (
          Buffer.RETURNED, View.SENDER,
          [layout.ANY_RANK] if any_rank else ranks, s.e, returned_rows, s.d,
      ),
      (Buffer.Y, View.ROWS, ranks, 1, s.t, s.d),
  ):  # fmt: skip
    rows += [(buffer, view, r, groups, height, cols, 0) for r in of]
  return np.array(rows, layout.SPACE)


def _partitions(s: _Shape) -> tuple[events.Partition, ...]:
  """How each written buffer is cut into events, by grain."""
  if s.options.event_grain == 'expert':
    rows, slots = s.c, s.t * s.k
  else:
    rows, slots = s.options.row_block, s.options.token_block * s.k
  return (
      events.Partition(Buffer.EXPERT_IN, s.l, s.c, rows, True, fold=s.r),
      events.Partition(Buffer.GATE_UP, s.l, s.c, rows),
      events.Partition(Buffer.ACTIVATION, s.l, s.c, rows),
      events.Partition(Buffer.EXPERT_OUT, s.l, s.c, rows),
      events.Partition(Buffer.RETURNED, 1, s.t * s.k, slots, True, fold=s.e),
  )


def lower_forward(
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    options: flow_lib.Options,
) -> flow_lib.Flow:
  """Returns the unplaced flow of the forward layer.

  Args:
    config: sizes of the layer; `config.num_rows` is N of the packed buffers.
    policy: storage must be float32 or bfloat16, accumulation float32.
    options: granularity; None fields take their defaults.

  Raises:
    ValueError: the policy is not one that the backend computes.
  """
  if policy.storage == 'float64' or policy.accumulate != 'float32':
    raise ValueError(
        'policy: expected float32 or bfloat16 storage with float32 '
        f'accumulation, got {policy.storage}/{policy.accumulate}'
    )
  options = options.resolve(config)
  s = _shape(config, policy, options)
  returns = (
      return_slices if options.event_grain == 'expert' else return_blocks
  )
  batches = [
      emit(s) for emit in (dispatch, gate_up, swiglu, down, returns, combine)
  ]
  tables = events.derive(
      batches, _partitions(s), s.r, options.event_grain == 'row_block'
  )
  return flow_lib.Flow(
      config=config,
      policy=policy,
      options=options,
      wave=np.concatenate([b.wave for b in batches]),
      spaces=_spaces(s),
      **tables,
  )
