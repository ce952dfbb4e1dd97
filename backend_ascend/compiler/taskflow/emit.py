"""Emitters: all tile tasks of one operator, with the regions they touch.

Forward and backward are made of the same forms: puts of slices to the owners of
experts, relays there, grouped GEMM tiles, row-wise vector tiles, puts home, and
token-wise tiles.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import events
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import memory
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Buffer = layout.Buffer
Kind = layout.Kind
View = layout.View

# What lowering, proofs and image hold of a task at their peak, as measured.
_TASK_BYTES = 640


@dataclasses.dataclass(frozen=True)
class Batch:
  """All tasks of one kind.

  Attributes:
    tasks: `[n]` layout.TASK without its table references.
    reads: `[n, i]` layout.REGION.
    writes: `[n, j]` layout.REGION.
  """

  tasks: np.ndarray
  reads: np.ndarray
  writes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shape:
  """Sizes that every emitter needs, in the notation's letters.

  Attributes:
    c: rows that one expert can receive.
    slice_rows: rows of one (source rank, expert): a token goes to an expert
      once, so at most T.
    options: resolved granularity.
    placement: where the routing weight multiplies.
    quantised: whether rows are codes, each with a scale beside it.
  """

  r: int
  t: int
  e: int
  l: int
  k: int
  d: int
  f: int
  c: int
  slice_rows: int
  options: granularity.Options
  placement: str
  quantised: bool

  @property
  def early(self) -> bool:
    """Whether an expert's rank multiplies rows by their weights."""
    return self.placement in tensors.EARLY

  @property
  def row_blocks(self) -> int:
    return self.c // self.options.row_block

  @property
  def vector_rows(self) -> int:
    return self.options.vector_rows or self.options.row_block

  @property
  def weight_rows(self) -> int:
    return self.options.weight_rows or self.options.col_block

  @property
  def vector_blocks(self) -> int:
    return self.c // self.vector_rows

  @property
  def by_row(self) -> bool:
    """Whether events are row blocks."""
    return self.options.event_grain == 'row_block'


def shape(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options,
) -> Shape:
  """Returns the sizes.

  Raises:
    ValueError: the policy is not one that the backend computes, or the tasks
      would need more memory than there is.
  """
  if policy.storage not in layout.DTYPES or policy.accumulate != 'float32':
    raise ValueError(
      f'policy: expected {" or ".join(layout.DTYPES)} storage with float32 '
      f'accumulation, got {policy.storage}/{policy.accumulate}'
    )
  for name, value, choices, expected in _limits(config, policy, options):
    if value not in choices:
      raise ValueError(f'{name}: expected {expected}, got {value!r}')
  dims = config.dims()
  options = options.resolve(config, policy.accumulation_order)
  memory.check(_TASK_BYTES * _least_tasks(dims, options), 'list of tasks')
  return Shape(
    **{letter: dims[letter.upper()] for letter in 'rtelkdf'},
    c=options.expert_capacity,
    slice_rows=min(dims['T'], options.expert_capacity),
    options=options,
    placement=policy.placement,
    quantised=bool(policy.rows),
  )


def _limits(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options,
) -> list[tuple]:
  """Returns (name, value, choices of the backend, choices in words)."""
  scope, forms = 'for the megakernel', precision.LAUNCHED_ACTIVATIONS
  plain = dict.fromkeys(precision.SUM_ORDERS, 'slot')
  points = ((), layout.WIDE_POINTS)[: 1 + bool(policy.rows)]
  stores = f'{scope}, which rounds what it stores and nothing else'
  of_policy = [
    ('points', points, f'{" or ".join(map(str, points))} {stores}'),
    *((n, (value,), f'{value!r} {stores}') for n, value in plain.items()),
    (
      'placement',
      precision.LAUNCHED_PLACEMENTS,
      f'one of {precision.LAUNCHED_PLACEMENTS} {scope}',
    ),
    *((name, ('',), f"'' {scope}") for name in ('x_form', 'operand_forms')),
  ]
  if config.sublayer:
    of_policy.append(('placement', ('combine',), "'combine' of a sub-layer"))
  if policy.rows:
    of_policy.append(
      ('placement', precision.LAUNCHED_PLACEMENTS[:2], _SUMS_UNWEIGHTED)
    )
  return [
    *_code_limits(config, policy, scope),
    ('bias', config.bias, (False,), f'False {scope}'),
    ('d_shared', config.d_shared, (0,), f'0 {scope}'),
    *((f'policy.{n}', getattr(policy, n), *rest) for n, *rest in of_policy),
    (
      *('policy.activation', policy.form, forms),
      f'one of {list(forms)} {scope}, without alpha, limit and offset',
    ),
    (
      *('relay', config.sublayer and options.relay, (False,)),
      'False of a sub-layer',
    ),
  ]


_SUMS_UNWEIGHTED = (
  f'one of {precision.LAUNCHED_PLACEMENTS[:2]} with rows, as sums of codes are '
  'integers'
)


def _code_limits(
  config: config_lib.MoEConfig, policy: precision.PrecisionPolicy, scope: str
) -> list[tuple]:
  """Returns what `_limits` does, of products of codes."""
  forms = layout.QUANTISED[1:] if policy.rows else layout.QUANTISED[:1]
  pair = ' and '.join(layout.QUANTISED[1])
  limits: list[tuple] = [
    (
      'policy.quantised, policy.rows',
      (policy.quantised, policy.rows),
      forms,
      f"{pair}, or '' of both, {scope}",
    )
  ]
  if policy.rows:
    depths = range(1, layout.MAX_CODE_DEPTH + 1)
    expected = f'at most {depths[-1]} with rows, whose sums are int32'
    limits += [
      (n, getattr(config, n), depths, expected) for n in ('d_model', 'd_ff')
    ]
  return limits


def refuse_codes(policy: precision.PrecisionPolicy, scope: str) -> None:
  """Refuses products of codes where there are none.

  Raises:
    ValueError: the policy has rows of codes.
  """
  if policy.rows or policy.quantised:
    raise ValueError(
      f"policy.rows: expected '' {scope}, which multiplies the dtype alone, "
      f'got {policy.rows or policy.quantised!r}'
    )


def _least_tasks(dims: Mapping[str, int], options: granularity.Options) -> int:
  """Returns the fewest tasks that a pass can have: tiles as wide as a row."""
  tokens, capacity = dims['T'], options.expert_capacity
  puts = dims['R'] * count(min(tokens, capacity), options.put_rows)
  tiles = 3 * count(capacity, options.row_block)  # two GEMMs and between them
  return dims['E'] * (puts + tiles) + dims['R'] * count(
    tokens, options.token_block
  )


def grid(**axes: int) -> dict[str, np.ndarray]:
  """Returns index arrays of a row-major grid, first axis slowest."""
  grids = np.indices(tuple(axes.values()), dtype=np.int32)
  return {name: index.reshape(-1) for name, index in zip(axes, grids)}


def blocks(index, size: int, extent: int):
  """Returns [begin, end) of block `index`, cut at `extent`."""
  begin = index * size
  return begin, np.minimum(begin + size, extent)


def count(extent: int, size: int) -> int:
  """Returns how many blocks of `size` cover `extent`."""
  return -(-extent // size)


def tasks(kind: Kind, n: int, rows, cols, **fields) -> np.ndarray:
  """Returns `[n]` layout.TASK of one kind."""
  table = np.zeros(n, layout.TASK)
  table['kind'] = kind
  table['unit'] = layout.UNIT_OF_KIND[kind]
  table['peer'] = layout.ROW_BLOCK_RANGE
  table['expert'] = layout.NO_EXPERT
  table['row_begin'], table['row_end'] = rows
  table['col_begin'], table['col_end'] = cols
  for name, value in fields.items():
    table[name] = value
  return table


def expert_tasks(s: Shape, kind: Kind, g, rows, cols, **fields) -> np.ndarray:
  """Returns tasks of the experts of a grid: axis l of axis r."""
  owner_fields = dict(rank=g['r'], expert=g['r'] * s.l + g['l'])
  return tasks(kind, g['r'].size, rows, cols, **(owner_fields | fields))


def region(n: int, buffer, view, rank, group, rows, cols) -> np.ndarray:
  """Returns `[n]` layout.REGION."""
  table = np.zeros(n, layout.REGION)
  table['buffer'] = buffer
  table['view'] = view
  table['rank'] = rank
  table['group'] = group
  table['row_begin'], table['row_end'] = rows
  table['col_begin'], table['col_end'] = cols
  return table


def stack(*regions: np.ndarray) -> np.ndarray:
  return np.stack(regions, axis=1)


def rotate_peers(g, s: Shape):
  """Returns the peer, rotated by the own rank.

  So ranks do not all send to rank 0 first (HyperParallel-MoE, RATR).
  """
  return (g['i'] + g['r']) % s.r


def dispatch(s: Shape, kind: Kind, source, target) -> Batch:
  """Puts: rank r sends its slice for expert e, a few rows at a time."""
  put = s.options.put_rows
  g = grid(r=s.r, l=s.l, p=count(s.slice_rows, put), i=s.r)
  n = g['r'].size
  owner = rotate_peers(g, s)
  rows = blocks(g['p'], put, s.slice_rows)
  table = tasks(
    kind,
    n,
    rows,
    (0, s.d),
    rank=g['r'],
    expert=owner * s.l + g['l'],
    peer=owner,
    row_block=g['p'],
  )
  read = region(n, source, View.ROWS, g['r'], 0, (0, s.t), (0, s.d))
  sent_region = region(
    n, target, View.SENDER, owner, g['l'] * s.r + g['r'], rows, (0, s.d + 1)
  )
  return Batch(table, stack(read), stack(sent_region))


def relay(s: Shape, kind: Kind, source, target) -> Batch:
  """Copies of relayed rows, a row block a task, to the experts they are for."""
  g = grid(r=s.r, l=s.l, b=s.row_blocks)
  n = g['r'].size
  rows = blocks(g['b'], s.options.row_block, s.c)
  rank_group = (g['r'], g['l'])
  table = expert_tasks(s, kind, g, rows, (0, s.d), row_block=g['b'])
  reads = stack(region(n, source, View.ROWS, *rank_group, rows, (0, s.d + 1)))
  sent_region = region(n, target, View.SENDER, *rank_group, rows, (0, s.d + 1))
  return Batch(table, reads, stack(sent_region))


@dataclasses.dataclass(frozen=True)
class Arrivals:
  """How rows of tokens reach their experts.

  Attributes:
    source: buffer of the tokens.
    relayed: with relay, buffer where a token lands once on each rank.
    expert_rows: buffer of the rows of experts.
    put: kind that sends from source to expert_rows.
    once: with relay, kind that sends from source to relayed.
    copy: with relay, kind that copies from relayed to expert_rows.
  """

  source: Buffer
  relayed: Buffer
  expert_rows: Buffer
  put: Kind
  once: Kind
  copy: Kind

  def batches(self, s: Shape) -> list[Batch]:
    if not s.options.relay:
      return [dispatch(s, self.put, self.source, self.expert_rows)]
    return [
      dispatch(s, self.once, self.source, self.relayed),
      relay(s, self.copy, self.relayed, self.expert_rows),
    ]

  def spaces(self, s: Shape) -> list[tuple]:
    """Returns (buffer, groups, rows) of the sender views."""
    slice_extent = (s.l * s.r, s.slice_rows)
    if not s.options.relay:
      return [(self.expert_rows, *slice_extent)]
    return [(self.relayed, *slice_extent), (self.expert_rows, s.l, s.c)]

  def partitions(self, s: Shape, part: int) -> list[events.Partition]:
    cut = (s.l, s.c, part, True)
    if not s.options.relay:
      return [events.Partition(self.expert_rows, *cut, fold=s.r)]
    return [
      events.Partition(self.relayed, *cut, fold=s.r),
      events.Partition(self.expert_rows, *cut, onward=True),
    ]


def gemm(
  s: Shape,
  kind: Kind,
  depth: int,
  width: int,
  transposed: bool = False,
  extra_reads: Sequence[tuple] = (),
) -> Batch:
  """Tiles of a grouped GEMM `[rows, depth] @ [depth, width]` per expert.

  `extra_reads` lists further reads of each row: (buffer, columns).
  """
  g = grid(r=s.r, l=s.l, b=s.row_blocks, c=count(width, s.options.col_block))
  n = g['r'].size
  rows = blocks(g['b'], s.options.row_block, s.c)
  cols = blocks(g['c'], s.options.col_block, width)
  rank_group = (g['r'], g['l'])
  source, weight = layout.OPERANDS[kind]
  table = expert_tasks(
    s, kind, g, rows, cols, row_block=g['b'], col_block=g['c']
  )
  box = (cols, (0, depth)) if transposed else ((0, depth), cols)
  reads = stack(
    region(n, source, View.ROWS, *rank_group, rows, (0, depth)),
    region(n, weight, View.ROWS, *rank_group, *box),
    *(
      region(n, b, View.ROWS, *rank_group, rows, read)
      for b, read in extra_reads
    ),
  )
  target = layout.OUTPUT_OF_KIND[kind]
  writes = stack(region(n, target, View.ROWS, *rank_group, rows, cols))
  return Batch(table, reads, writes)


def row_wise(
  s: Shape, kind: Kind, reads, width: int, beside: bool = False
) -> Batch:
  """One vector tile per `vector_rows`; `reads` lists (buffer, columns).

  `beside`: it writes what travels beside its rows, too.
  """
  g = grid(r=s.r, l=s.l, b=s.vector_blocks)
  n = g['r'].size
  rows = blocks(g['b'], s.vector_rows, s.c)
  rank_group = (g['r'], g['l'])
  block = rows[0] // s.options.row_block
  table = expert_tasks(s, kind, g, rows, (0, width), row_block=block)
  read = [region(n, b, View.ROWS, *rank_group, rows, cols) for b, cols in reads]
  target = layout.OUTPUT_OF_KIND[kind]
  cols = (0, width + beside)
  writes = stack(region(n, target, View.ROWS, *rank_group, rows, cols))
  return Batch(table, stack(*read), writes)


def puts_home(s: Shape, kind: Kind, reads, width: int) -> Batch:
  """Puts of expert rows to the ranks of their tokens.

  At grain row_block a task sends `vector_rows`, to whichever ranks its rows
  go.  At grain expert it sends the slice (destination rank, expert), dispatch
  mirrored; where the slice lies in the expert's rows is known at launch only,
  so it reads the whole expert.
  """
  if s.by_row:
    g = grid(r=s.r, l=s.l, p=s.vector_blocks)
    peer, destination = layout.ROW_BLOCK_RANGE, layout.ANY_RANK
    read_rows = rows = blocks(g['p'], s.vector_rows, s.c)
    block = rows[0] // s.options.row_block
  else:
    put = s.options.put_rows
    g = grid(r=s.r, l=s.l, p=count(s.slice_rows, put), i=s.r)
    peer = destination = rotate_peers(g, s)
    rows, read_rows = blocks(g['p'], put, s.slice_rows), (0, s.c)
    block = g['p']
  n = g['r'].size
  rank_group = (g['r'], g['l'])
  table = expert_tasks(s, kind, g, rows, (0, s.d), peer=peer, row_block=block)
  read = [
    region(n, b, View.ROWS, *rank_group, read_rows, cols) for b, cols in reads
  ]
  home = layout.OUTPUT_OF_KIND[kind]
  sent_region = region(
    n, home, View.SENDER, destination, table['expert'], rows, (0, width)
  )
  return Batch(table, stack(*read), stack(sent_region))


def token_wise(s: Shape, kind: Kind, reads, width: int) -> Batch:
  """One tile per token block; `reads` lists (buffer, rows a token, columns)."""
  g = grid(r=s.r, b=count(s.t, s.options.token_block))
  n = g['r'].size
  begin, end = blocks(g['b'], s.options.token_block, s.t)
  table = tasks(
    kind, n, (begin, end), (0, width), rank=g['r'], row_block=g['b']
  )
  read = [
    region(n, b, View.ROWS, g['r'], 0, (begin * per, end * per), cols)
    for b, per, cols in reads
  ]
  target = layout.OUTPUT_OF_KIND[kind]
  writes = stack(
    region(n, target, View.ROWS, g['r'], 0, (begin, end), (0, width))
  )
  return Batch(table, stack(*read), writes)


def spaces(s: Shape, arrivals: Arrivals, rows, homes, tokens) -> np.ndarray:
  """Returns what the writers of every buffer must tile, in their view.

  Args:
    s: sizes.
    arrivals: how rows come to the experts.
    rows: (buffer, groups, rows, columns) of buffers written where they lie.
    homes: (buffer, columns) of buffers that puts home fill.
    tokens: (buffer, columns) of token-wise buffers.
  """
  ranks = range(s.r)
  home_ranks = [layout.ANY_RANK] if s.by_row else ranks
  home_rows = s.c if s.by_row else s.slice_rows
  spec = [
    *((b, View.SENDER, ranks, *e, s.d + 1) for b, *e in arrivals.spaces(s)),
    *((b, View.ROWS, ranks, *extent) for b, *extent in rows),
    *((b, View.SENDER, home_ranks, s.e, home_rows, w) for b, w in homes),
    *((b, View.ROWS, ranks, 1, s.t, w) for b, w in tokens),
  ]
  table = [
    (buffer, view, rank, groups, height, width, 0)
    for buffer, view, space_ranks, groups, height, width in spec
    for rank in space_ranks
  ]
  return np.array(table, layout.SPACE)


def partitions(
  s: Shape, arrivals: Arrivals, rows, homes
) -> tuple[events.Partition, ...]:
  """Returns how each buffer that tasks wait for is divided into events."""
  part = s.options.row_block if s.by_row else s.c
  slots = (s.options.token_block if s.by_row else s.t) * s.k
  return (
    *arrivals.partitions(s, part),
    *(events.Partition(b, s.l, s.c, part) for b in rows),
    *(events.Partition(b, 1, s.t * s.k, slots, True, fold=s.e) for b in homes),
  )


def flow(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  s: Shape,
  direction: layout.Direction,
  batches,
  cuts,
  extents,
) -> flow_lib.Flow:
  """Returns the unplaced flow of batches in dependency order."""
  return flow_lib.Flow(
    config=config,
    policy=policy,
    options=s.options,
    direction=direction,
    spaces=extents,
    **events.derive(batches, cuts, s.r, s.by_row),
  )
