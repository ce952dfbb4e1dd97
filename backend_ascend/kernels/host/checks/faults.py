"""Faults that the host runtime commits on request, and where to put them.

A fault happens in ONE task.  It spoils what that task writes, or when the task
runs or signals, and nothing else; the same fault in the same task gives the
same bits for any number of threads.  Only a skipped wait is a race: its bits
may be right by luck, and with more than one thread they are anybody's guess
unless puts are late.
"""

import dataclasses
import functools

import numpy as np

from hpmoe.backend_ascend.taskflow import happens_before
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import storage

Kind = layout.Kind
Direction = layout.Direction
_PUTS = layout.kinds(layout.Form.SLICE_PUT)
_PUTS_HOME = layout.kinds(layout.Form.HOME_PUT)
_RELAYS = layout.kinds(layout.Form.RELAY_TILE)
_TOKEN_TILES = layout.kinds(layout.Form.TOKEN_TILE)
_WEIGHT_GRADS = layout.kinds(layout.Form.WEIGHT_TILE)


@dataclasses.dataclass(frozen=True)
class Fault:
  """A fault at a task: what `runtime.launch` takes.

  Attributes:
    name: a name of `TABLE`.
    task: index into the image's tasks.
  """

  name: str
  task: int


@dataclasses.dataclass(frozen=True)
class FaultSpec:
  """A row of the table.

  Attributes:
    name: as commands spell it.
    description: what goes wrong.
    kind: kind of task that commits it.
    stage: tensor in which it must be located, the first that is wrong in
      dependency order (of `layout.Kind`); for faults of order that is what the
      consumer writes.
    before_down: (kind, stage) where the weights are applied before w_down, if
      they differ.
    relayed: (kind, stage) with relay, where rows come another way.
    hangs: the launch ends with a wait diagnosis; the blocked task writes
      `stage`.
    rows: real rows that the task must have at least; of a weight gradient's
      task, rows that it sums.
    empty: the task's expert must have no rows at all.
    top_k: K must be at least this.
    num_experts: E must be at least this.
    num_tokens: T must be at least this.
    d_model: D must be at least this.
    activation: activation without which it does nothing; None: any.
    digits: it is sure to show in storage whose significand has more bits.
    direction: pass in which it is committed; the same fault has another row
      for the other pass.
    needs: field of `modes.Modes` without which a launch is usually right by
      luck; None: none.
  """

  name: str
  description: str
  kind: Kind
  stage: str
  before_down: tuple[Kind, str] | None = None
  relayed: tuple[Kind, str] | None = None
  hangs: bool = False
  rows: int = 1
  top_k: int = 1
  num_experts: int = 1
  num_tokens: int = 1
  d_model: int = 1
  activation: str | None = None
  digits: int = 0
  empty: bool = False
  direction: Direction = Direction.FORWARD
  needs: str | None = None

  @property
  def storages(self) -> tuple[str, ...]:
    """The storage dtypes in which it is sure to show."""
    formats = storage.STORED.values()
    return tuple(f.name for f in formats if f.digits > self.digits)

  def located(self, placement: str, relay: bool = False) -> tuple[Kind, str]:
    """Returns (kind of task, stage) for a placement of the weights.

    With relay those of an image that has it.
    """
    if placement == 'before_down' and self.before_down:
      return self.before_down
    if relay and self.relayed:
      return self.relayed
    return self.kind, self.stage


_grad_fault = functools.partial(FaultSpec, direction=Direction.BACKWARD)

TABLE = (
  FaultSpec(
    'zero_output',
    'a tile is written as zeros',
    Kind.DOWN,
    'expert_out',
  ),
  FaultSpec(
    'dropped_tile',
    'a tile is not written, but announced',
    Kind.GATE_UP,
    'gate_up',
  ),
  FaultSpec(
    'swapped_experts',
    'a tile is computed with the weights of the next expert',
    Kind.GATE_UP,
    'gate_up',
    num_experts=2,
  ),
  FaultSpec(
    'stale_row',
    "a put leaves another token's data in one row",
    Kind.DISPATCH,
    'expert_in',
    relayed=(Kind.RELAY_PUT, 'x_relayed'),
    num_tokens=2,
  ),
  FaultSpec(
    'lost_k_slot',
    'one slot of one token is left out of the sum',
    Kind.COMBINE,
    'y',
    top_k=2,
  ),
  FaultSpec(
    'misplaced_weight',
    'one token is weighted with the weights of the next slot (before '
    'w_down: of the next row)',
    Kind.COMBINE,
    'y',
    before_down=(Kind.SWIGLU, 'activation'),
    top_k=2,
  ),
  FaultSpec(
    'missing_wait',
    'a task runs before its producers',
    Kind.GATE_UP,
    'gate_up',
  ),
  FaultSpec(
    'missing_signal',
    'a task never says that it is done',
    Kind.GATE_UP,
    'activation',
    hangs=True,
  ),
  FaultSpec(
    'early_signal',
    'a task says that it is done and only then begins',
    Kind.SWIGLU,
    'expert_out',
  ),
  FaultSpec(
    'wrong_offset',
    'a put reads its rows one element too far',
    Kind.DISPATCH,
    'expert_in',
    relayed=(Kind.RELAY_PUT, 'x_relayed'),
    d_model=2,
  ),
  FaultSpec(
    'off_by_one_row',
    'a put sends row n + 1 in place of row n',
    Kind.RETURN,
    'returned',
    rows=2,
  ),
  FaultSpec(
    'early_rounding',
    'silu(gate) is rounded to bfloat16 before it meets up',
    Kind.SWIGLU,
    'activation',
    activation='swiglu',
  ),
  FaultSpec(
    'wrong_accumulation',
    'a tile is summed in bfloat16',
    Kind.DOWN,
    'expert_out',
  ),
  FaultSpec(
    'narrow_operands_tf32',
    'the operands of a tile are rounded to TF32',
    Kind.DOWN,
    'expert_out',
    digits=11,
  ),
  FaultSpec(
    'narrow_operands_bf16',
    'the operands of a tile are rounded to bfloat16',
    Kind.GATE_UP,
    'gate_up',
    digits=8,
  ),
  FaultSpec(
    'narrow_accumulator',
    'the sums of a tile are rounded to bfloat16 once, half way',
    Kind.GATE_UP,
    'gate_up',
    d_model=2,
  ),
  FaultSpec(
    'dropped_k_term',
    'the last term of each sum of a tile is left out',
    Kind.DOWN,
    'expert_out',
  ),
  FaultSpec(
    'swapped_gate_up',
    'gate and up change places in a tile',
    Kind.SWIGLU,
    'activation',
  ),
  FaultSpec(
    'silu_off',
    'silu(gate) is 1e-4 too large in a tile',
    Kind.SWIGLU,
    'activation',
    activation='swiglu',
  ),
  FaultSpec(
    'skipped_wait',
    'a task does not wait for puts that have usually arrived at its turn',
    Kind.GATE_UP,
    'gate_up',
    needs='races',
  ),
  _grad_fault(
    'zero_output',
    'a tile is written as zeros',
    Kind.GATE_UP_GRAD,
    'd_expert_in',
  ),
  _grad_fault(
    'dropped_tile',
    'a tile is not written, but announced',
    Kind.DOWN_GRAD,
    'd_activation',
  ),
  _grad_fault(
    'swapped_experts',
    'a tile is computed with the weights of the next expert',
    Kind.DOWN_GRAD,
    'd_activation',
    num_experts=2,
  ),
  _grad_fault(
    'stale_row',
    "a put leaves another token's data in one row",
    Kind.DISPATCH_GRAD,
    'd_expert_out',
    relayed=(Kind.RELAY_PUT_GRAD, 'dy_relayed'),
    num_tokens=2,
  ),
  _grad_fault(
    'lost_k_slot',
    'one slot of one token is left out of the sum',
    Kind.COMBINE_GRAD,
    'dx',
    top_k=2,
  ),
  _grad_fault(
    'misplaced_weight',
    'one row is weighted with the weight of the next slot (before w_down: '
    'of the next row)',
    Kind.DISPATCH_GRAD,
    'd_expert_out',
    before_down=(Kind.SWIGLU_GRAD, 'd_gate_up'),
    relayed=(Kind.RELAY_GRAD, 'd_expert_out'),
    top_k=2,
  ),
  _grad_fault(
    'missing_wait',
    'a task runs before its producers',
    Kind.DOWN_GRAD,
    'd_activation',
  ),
  _grad_fault(
    'missing_signal',
    'a task never says that it is done',
    Kind.DOWN_GRAD,
    'd_gate_up',
    hangs=True,
  ),
  _grad_fault(
    'early_signal',
    'a task says that it is done and only then begins',
    Kind.SWIGLU_GRAD,
    'd_expert_in',
  ),
  _grad_fault(
    'wrong_offset',
    'a put reads its rows one element too far',
    Kind.DISPATCH_GRAD,
    'd_expert_out',
    relayed=(Kind.RELAY_PUT_GRAD, 'dy_relayed'),
    d_model=2,
  ),
  _grad_fault(
    'off_by_one_row',
    'a put sends row n + 1 in place of row n',
    Kind.RETURN_GRAD,
    'd_returned',
    rows=2,
  ),
  _grad_fault(
    'early_rounding',
    'silu(gate) is rounded to bfloat16 before it meets d_activation',
    Kind.SWIGLU_GRAD,
    'd_gate_up',
    activation='swiglu',
  ),
  _grad_fault(
    'wrong_accumulation',
    'a tile is summed in bfloat16',
    Kind.DOWN_WEIGHT_GRAD,
    'd_w_down',
    rows=2,
  ),
  _grad_fault(
    'narrow_operands_tf32',
    'the operands of a tile are rounded to TF32',
    Kind.GATE_UP_GRAD,
    'd_expert_in',
    digits=11,
  ),
  _grad_fault(
    'narrow_operands_bf16',
    'the operands of a tile are rounded to bfloat16',
    Kind.DOWN_GRAD,
    'd_activation',
    digits=8,
  ),
  _grad_fault(
    'narrow_accumulator',
    'the sums of a weight gradient are rounded to bfloat16 once, half way',
    Kind.DOWN_WEIGHT_GRAD,
    'd_w_down',
    rows=2,
  ),
  _grad_fault(
    'dropped_k_term',
    'the last row of a weight gradient is not summed',
    Kind.GATE_UP_WEIGHT_GRAD,
    'd_w_gate_up',
  ),
  _grad_fault(
    'swapped_gate_up',
    'gate and up change places in a tile',
    Kind.SWIGLU_GRAD,
    'd_gate_up',
  ),
  _grad_fault(
    'silu_off',
    'silu(gate) is 1e-4 too large in a tile',
    Kind.SWIGLU_GRAD,
    'd_gate_up',
    activation='swiglu',
  ),
  _grad_fault(
    'empty_grad_not_zeroed',
    'the gradient of an expert without rows keeps what was there',
    Kind.DOWN_WEIGHT_GRAD,
    'd_w_down',
    rows=0,
    empty=True,
  ),
  _grad_fault(
    'weight_grad_twice',
    'the rows of a weight gradient are summed twice',
    Kind.GATE_UP_WEIGHT_GRAD,
    'd_w_gate_up',
  ),
  _grad_fault(
    'blocks_out_of_order',
    'the later half of the rows of a weight gradient is summed first',
    Kind.DOWN_WEIGHT_GRAD,
    'd_w_down',
    rows=2,
    digits=11,
  ),
  _grad_fault(
    'skipped_wait',
    'a task does not wait for puts that have usually arrived at its turn',
    Kind.DOWN_GRAD,
    'd_activation',
    needs='races',
  ),
)


class NoEffect(ValueError):
  """A fault that changes nothing where it was put, or in no task of a layer."""


def specs(direction: Direction) -> dict[str, FaultSpec]:
  """Returns the rows of one pass by name."""
  return {spec.name: spec for spec in TABLE if spec.direction == direction}


SPECS = specs(Direction.FORWARD)


def _spec(image: image_lib.Image, name: str) -> FaultSpec:
  known = specs(Direction(int(image.header['direction'])))
  if name not in known:
    raise ValueError(f'fault: expected one of {list(known)}, got {name!r}')
  return known[name]


def _refuse_layer(spec: FaultSpec, image: image_lib.Image) -> None:
  for name in ('top_k', 'num_experts', 'num_tokens', 'd_model'):
    needed, got = getattr(spec, name), getattr(image.config, name)
    if got < needed:
      raise NoEffect(
        f'fault {spec.name}: expected {name} of at least {needed}, got {got}'
      )
  for name, needed in (
    ('activation', (spec.activation,) if spec.activation else ()),
    ('storage', spec.storages),
  ):
    got = getattr(image.policy, name)
    if needed and got not in needed:
      raise NoEffect(
        f'fault {spec.name}: expected {name} {" or ".join(needed)}, got {got}'
      )


def real_rows(
  image: image_lib.Image,
  counts: np.ndarray,
  relayed: np.ndarray | None = None,
) -> np.ndarray:
  """Returns how many rows (or tokens) each task really has.

  Args:
    image: the parsed image.
    counts: `[R, E]` i32, of the launch plan.
    relayed: with relay, as many, of its relayed rows.

  Raises:
    ValueError: relayed rows of an image with relay are not said.

  Returns:
    `[tasks]` i32.
  """
  tasks, counts = image.tables['tasks'], np.asarray(counts)
  kind, peer, expert = tasks['kind'], tasks['peer'], tasks['expert']
  put = np.isin(kind, _PUTS)
  to_slice = np.isin(kind, _PUTS_HOME) & (peer != layout.ROW_BLOCK_RANGE)
  source = np.where(put, tasks['rank'], np.where(to_slice, peer, 0))
  extent = np.where(
    put | to_slice, counts[source, expert], counts.sum(axis=0)[expert]
  )
  if image.options.relay:
    if relayed is None:
      raise ValueError('relayed: expected those of the plan, got none')
    relays = np.isin(kind, _RELAYS)
    relayed = np.asarray(relayed)
    extent = np.where(put, relayed[source, expert], extent)
    extent = np.where(relays, relayed.sum(axis=0)[expert], extent)
  extent = np.where(
    np.isin(kind, _TOKEN_TILES), image.config.num_tokens, extent
  )
  # A weight gradient's rows are those that it sums, not those of its tile.
  sums = np.isin(kind, _WEIGHT_GRADS)
  chain = image.options.chain_rows
  begin = np.where(sums, peer * chain, tasks['row_begin'])
  end = np.where(sums, begin + chain, tasks['row_end'])
  return np.maximum(np.minimum(end, extent) - begin, 0).astype(np.int32)


def _expert_rows(image: image_lib.Image, counts: np.ndarray):
  """Returns [begin, end) of the rows of its expert that each task has."""
  tasks = image.tables['tasks']
  put = np.isin(tasks['kind'], _PUTS)
  slice_begin = np.cumsum(counts, axis=0) - counts
  begin = tasks['row_begin'] + np.where(
    put, slice_begin[tasks['rank'], tasks['expert']], 0
  )
  return begin, begin + real_rows(image, counts)


def _signals(image: image_lib.Image, counts: np.ndarray) -> np.ndarray:
  """Returns `[s, 2]` (task, event): of puts, what they signal in this routing.

  A put signals the partitions of its rows; that of the expert's last row also
  those which stay short of their threshold.
  """
  may = happens_before.signals(image)
  task = image.tables['tasks'][may[:, 0]]
  event = image.tables['events'][may[:, 1]]
  begin, end = (rows[may[:, 0]] for rows in _expert_rows(image, counts))
  first = event['part'] * event['part_rows']
  total = counts.sum(axis=0)[task['expert']]
  last = np.where(
    total > 0,
    (end == total) & (begin < end),
    (task['rank'] == 0) & (task['row_begin'] == 0),
  )
  short = np.clip(total - first, 0, event['part_rows']) < event['threshold']
  lands = (begin < end) & (begin < first + event['part_rows']) & (first < end)
  put = np.isin(task['kind'], _PUTS)
  return may[~put | lands | (last & short)]


def _luck(image: image_lib.Image, counts, tasks) -> np.ndarray:
  """Returns how well each of the tasks shows what comes of a skipped wait.

  0: not at all, something else orders all puts that it reads.  1: it races.
  More where the task before it in its queue waits, so that the puts are likely
  to be there at its turn: 1 more, and again on rank 0, whose workers come first
  and again only after all others; 2 more on the first core of a rank, for
  which late puts are delivered before any other core of it.

  Returns:
    `[all tasks]` i32.
  """
  table = image.tables['tasks']
  known = happens_before.clocks(image, _signals(image, counts))
  begin, end = _expert_rows(image, counts)
  puts = np.flatnonzero(np.isin(table['kind'], _PUTS))
  luck = np.zeros(len(table), np.int32)
  for task in tasks:
    before = known.predecessor[task]
    read = puts[
      (table[puts]['expert'] == table[task]['expert'])
      & (begin[puts] < np.minimum(end[task], end[puts]))
      & (begin[task] < end[puts])
    ]
    if before >= 0:
      read = read[~known.before(read, before)]
    luck[task] = len(read) > 0
    if luck[task] and before >= 0 and table[before]['wait_count']:
      luck[task] += 1 + (table[task]['rank'] == 0)
      luck[task] += 2 * (table[task]['core'] == 0)
  return luck


def _first_waiters(image: image_lib.Image) -> np.ndarray:
  """Returns `[tasks]` i32, 1 for a core's first task that waits for an event.

  Whatever it reads, nothing else of its core has waited for that.
  """
  first = np.zeros(len(image.tables['tasks']), np.int32)
  waits = happens_before.grouped(happens_before.waits(image), len(first))
  tasks = image.tables['queue_tasks']
  for queue in image.tables['queues']:
    seen: set[int] = set()
    begin = int(queue['begin'])
    for task in tasks[begin : begin + int(queue['count'])]:
      events = set(map(int, waits[task]))
      first[task] = bool(events - seen)
      seen |= events
  return first


def candidates(
  image: image_lib.Image,
  counts: np.ndarray,
  name: str,
  relayed: np.ndarray | None = None,
) -> np.ndarray:
  """Returns the tasks in which a fault may be put, the best first.

  Best is the middle one, then its neighbours: away from the first and last
  tile, where a checker may be right by luck.

  Args:
    image: the parsed image.
    counts: `[R, E]` i32, of the launch plan.
    name: a name of `TABLE`, in the image's direction.
    relayed: as of `real_rows`.

  Returns:
    `[candidates]` task indices, possibly none.

  Raises:
    NoEffect: a layer in which it does nothing.
    ValueError: an unknown fault.
  """
  spec = _spec(image, name)
  _refuse_layer(spec, image)
  relay = image.options.relay
  kind, _ = spec.located(image.policy.placement, relay)
  needed = spec.rows
  if name == 'misplaced_weight' and kind in (Kind.SWIGLU, Kind.SWIGLU_GRAD):
    needed = 2
  tasks = image.tables['tasks']
  rows = real_rows(image, counts, relayed)
  fits = (tasks['kind'] == kind) & (rows >= needed)
  if spec.empty:
    # The first link of a chain starts from zero, the others go on.
    no_rows = np.asarray(counts).sum(axis=0)[tasks['expert']] == 0
    fits &= no_rows & (tasks['peer'] == 0)
  luck = fits.astype(np.int32)
  if spec.needs == 'races' and relay:
    luck = luck * _first_waiters(image)
    fits = luck > 0
  elif spec.needs == 'races':
    luck = _luck(image, np.asarray(counts), np.flatnonzero(fits))
    fits = luck > 0
  found = np.flatnonzero(fits)
  distance = np.abs(np.arange(len(found)) - len(found) // 2)
  return found[np.lexsort((distance, -luck[found]))]


def choose_target(
  image, counts: np.ndarray, name: str, relayed: np.ndarray | None = None
) -> int:
  """Returns the task in which to put a fault, always the same one.

  Whether the fault shows also depends on the data (equal weights cannot be
  misplaced); `runtime.launch` refuses a fault that changed nothing.

  Args:
    image: a loaded one, or its bytes.
    counts: `[R, E]` i32, of the launch plan.
    name: a name of `TABLE`.
    relayed: as of `real_rows`.

  Raises:
    NoEffect: no task qualifies, or a layer in which the fault does nothing.
    ValueError: an unknown fault.
  """
  image = image_lib.load(image)
  found = candidates(image, counts, name, relayed)
  if not len(found):
    raise NoEffect(
      f'fault {name}: expected a task that can commit it, got none among '
      f'{len(image.tables["tasks"])} tasks'
    )
  return int(found[0])
