"""Faults that the host runtime commits on request, and where to put them.

A fault happens in ONE task.  It spoils what that task writes, or when the task
runs or signals, and nothing else; the same fault in the same task gives the
same bits for any number of threads.
"""

import dataclasses

import numpy as np

from backend_ascend.taskflow import image as image_lib
from backend_ascend.taskflow import layout

Kind = layout.Kind


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
    stage: tensor in which it must be located, the first that is wrong; for
      faults of order that is what the consumer writes.
    before_down: (kind, stage) where the weights are applied before w_down, if
      they differ.
    hangs: the launch ends with a wait diagnosis; the blocked task writes
      `stage`.
    rows: real rows that the task must have at least.
    top_k: K must be at least this.
    num_experts: E must be at least this.
    num_tokens: T must be at least this.
    d_model: D must be at least this.
    activation: activation without which it does nothing; None: any.
  """

  name: str
  description: str
  kind: Kind
  stage: str
  before_down: tuple[Kind, str] | None = None
  hangs: bool = False
  rows: int = 1
  top_k: int = 1
  num_experts: int = 1
  num_tokens: int = 1
  d_model: int = 1
  activation: str | None = None

  def located(self, placement: str) -> tuple[Kind, str]:
    """Returns (kind of task, stage) for a placement of the weights."""
    if placement == 'before_down' and self.before_down:
      return self.before_down
    return self.kind, self.stage


TABLE = (
    FaultSpec(
        'zero_output',
        'a tile is written as zeros',
        Kind.DOWN, 'expert_out',
    ),
    FaultSpec(
        'dropped_tile',
        'a tile is not written, but announced',
        Kind.GATE_UP, 'gate_up',
    ),
    FaultSpec(
        'swapped_experts',
        'a tile is computed with the weights of the next expert',
        Kind.GATE_UP, 'gate_up', num_experts=2,
    ),
    FaultSpec(
        'stale_row',
        "a put leaves another token's data in one row",
        Kind.DISPATCH, 'expert_in', num_tokens=2,
    ),
    FaultSpec(
        'lost_k_slot',
        'one slot of one token is left out of the sum',
        Kind.COMBINE, 'y', top_k=2,
    ),
    FaultSpec(
        'misplaced_weight',
        'one token is weighted with the weights of the next slot (before '
        'w_down: of the next row)',
        Kind.COMBINE, 'y', before_down=(Kind.SWIGLU, 'activation'), top_k=2,
    ),
    FaultSpec(
        'missing_wait',
        'a task runs before its producers',
        Kind.GATE_UP, 'gate_up',
    ),
    FaultSpec(
        'missing_signal',
        'a task never says that it is done',
        Kind.GATE_UP, 'activation', hangs=True,
    ),
    FaultSpec(
        'early_signal',
        'a task says that it is done and only then begins',
        Kind.SWIGLU, 'expert_out',
    ),
    FaultSpec(
        'wrong_offset',
        'a put reads its rows one element too far',
        Kind.DISPATCH, 'expert_in', d_model=2,
    ),
    FaultSpec(
        'off_by_one_row',
        'a put sends row n + 1 in place of row n',
        Kind.RETURN, 'returned', rows=2,
    ),
    FaultSpec(
        'early_rounding',
        'silu(gate) is rounded to bfloat16 before it meets up',
        Kind.SWIGLU, 'activation', activation='swiglu',
    ),
    FaultSpec(
        'wrong_accumulation',
        'a tile is summed in bfloat16',
        Kind.DOWN, 'expert_out',
    ),
)  # fmt: skip

SPECS = {spec.name: spec for spec in TABLE}


def _refuse_layer(spec: FaultSpec, image: image_lib.Image) -> None:
  for name in ('top_k', 'num_experts', 'num_tokens', 'd_model'):
    needed, got = getattr(spec, name), getattr(image.config, name)
    if got < needed:
      raise ValueError(
          f'fault {spec.name}: expected {name} of at least {needed}, got {got}'
      )
  if spec.activation not in (None, image.policy.activation):
    raise ValueError(
        f'fault {spec.name}: expected activation {spec.activation}, '
        f'got {image.policy.activation}'
    )


def real_rows(image: image_lib.Image, counts: np.ndarray) -> np.ndarray:
  """Returns how many rows (or tokens) each task really has.

  Args:
    image: the parsed image.
    counts: `[R, E]` i32, of the launch plan.

  Returns:
    `[tasks]` i32.
  """
  tasks = image.tables['tasks']
  kind, peer, expert = tasks['kind'], tasks['peer'], tasks['expert']
  of_expert = np.asarray(counts).sum(axis=0)[expert]
  to_slice = (kind == Kind.RETURN) & (peer != layout.ROW_BLOCK_RANGE)
  source = np.where(kind == Kind.DISPATCH, tasks['rank'], peer)
  extent = np.where(
      (kind == Kind.DISPATCH) | to_slice,
      np.asarray(counts)[source, expert],
      of_expert,
  )
  extent = np.where(kind == Kind.COMBINE, image.config.num_tokens, extent)
  end = np.minimum(tasks['row_end'], extent)
  return np.maximum(end - tasks['row_begin'], 0).astype(np.int32)


def candidates(
    image: image_lib.Image, counts: np.ndarray, name: str
) -> np.ndarray:
  """Returns the tasks in which a fault may be put, the best first.

  Best is the middle one, then its neighbours: away from the first and last
  tile, where a checker may be right by luck.

  Args:
    image: the parsed image.
    counts: `[R, E]` i32, of the launch plan.
    name: a name of `TABLE`.

  Returns:
    `[candidates]` task indices, possibly none.

  Raises:
    ValueError: an unknown fault, or a layer in which it does nothing.
  """
  if name not in SPECS:
    raise ValueError(f'fault: expected one of {list(SPECS)}, got {name!r}')
  spec = SPECS[name]
  _refuse_layer(spec, image)
  kind, _ = spec.located(image.policy.placement)
  needed = spec.rows
  if name == 'misplaced_weight' and kind == Kind.SWIGLU:
    needed = 2
  fits = image.tables['tasks']['kind'] == kind
  found = np.flatnonzero(fits & (real_rows(image, counts) >= needed))
  distance = np.abs(np.arange(len(found)) - len(found) // 2)
  return found[np.argsort(distance, kind='stable')]


def choose_target(image, counts: np.ndarray, name: str) -> int:
  """Returns the task in which to put a fault, always the same one.

  Whether the fault shows also depends on the data (equal weights cannot be
  misplaced); `runtime.launch` refuses a fault that changed nothing.

  Args:
    image: an image that `runtime.load` accepts.
    counts: `[R, E]` i32, of the launch plan.
    name: a name of `TABLE`.

  Raises:
    ValueError: no task qualifies, an unknown fault, or a layer in which the
      fault does nothing.
  """
  parsed = image_lib.parse(image)
  found = candidates(parsed, counts, name)
  if not len(found):
    raise ValueError(
        f'fault {name}: expected a task that can commit it, got none among '
        f'{len(parsed.tables["tasks"])} tasks'
    )
  return int(found[0])
