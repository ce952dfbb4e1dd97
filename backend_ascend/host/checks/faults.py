"""Faults that the host runtime commits on request, and where to put them.

A fault happens in ONE task.  It spoils what that task writes, or when the task
runs or signals, and nothing else; the same fault in the same task gives the
same bits for any number of threads.  Only a skipped wait is a race: its bits
may be right by luck, and with more than one thread they are anybody's guess
guess unless puts are late.  What there is stands in `faults.toml`.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
import tomllib
from typing import Any

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import accesses
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

Kind = layout.Kind
Direction = layout.Direction
# Of these the work stays right; when it is done, or announced, does not.
OF_ORDER = ('missing_wait', 'missing_signal', 'early_signal', 'skipped_wait')
_PUTS = layout.select_kinds(layout.Form.SLICE_PUT)
_PUTS_HOME = layout.select_kinds(layout.Form.HOME_PUT)
_RELAYS = layout.select_kinds(layout.Form.RELAY_TILE)
_TOKEN_TILES = layout.select_kinds(layout.Form.TOKEN_TILE, sublayer=None)
# What waits for rows waits for these.
_BRINGS = (*_PUTS, *_RELAYS)
_WEIGHT_GRADS = layout.select_kinds(layout.Form.WEIGHT_TILE)


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
  """A row of the table: a fault in one pass.

  Attributes:
    name: as commands spell it.
    description: what goes wrong.
    direction: pass in which it is committed; the same fault has another row
      for the other pass.
    kind: kind of task that commits it.
    shown_by: kind of task that writes the tensor in which it must be located:
      the first wrong tensor in dependency order (of `layout.Kind`), for faults
      of order; None: its own kind.
    kind_at: placement to kind, for placements where it is another kind.
    relayed: kind with relay, where rows come another way.
    rows: real rows that the task must have at least; of a weight gradient's
      task, rows that it sums.
    hangs: the launch ends with a wait diagnosis; the blocked task is of kind
      `seen`.
    empty: the task's expert must have no rows at all.
    top_k: K must be at least this.
    num_experts: E must be at least this.
    num_tokens: T must be at least this.
    d_model: D must be at least this.
    activation: activation without which it does nothing; None: any.
    digits: it is sure to show in storage whose significand has more bits.
    needs: field of `modes.Modes` without which a launch is usually right by
      luck; None: none.
  """

  name: str
  description: str
  direction: Direction
  kind: Kind
  shown_by: Kind | None = None
  kind_at: Mapping[str, Kind] = dataclasses.field(default_factory=dict)
  relayed: Kind | None = None
  rows: int = 1
  hangs: bool = False
  empty: bool = False
  top_k: int = 1
  num_experts: int = 1
  num_tokens: int = 1
  d_model: int = 1
  activation: str | None = None
  digits: int = 0
  needs: str | None = None

  @property
  def storages(self) -> tuple[str, ...]:
    """The storage dtypes in which it is sure to show."""
    formats = storage.KERNEL_FORMATS.values()
    return tuple(f.name for f in formats if f.digits > self.digits)

  @property
  def stage(self) -> str:
    """The tensor in which it is located, of rows that are put directly."""
    return self.located('combine')[1]

  def located(self, placement: str, relay: bool = False) -> tuple[Kind, str]:
    """Returns (kind of task, stage) for a placement of the weights.

    With relay those of an image that has it.
    """
    usual = self.relayed if relay and self.relayed else self.kind
    kind = self.kind_at.get(placement, usual)
    return kind, layout.STAGE_OF_KIND[self.shown_by or kind]


_KINDS = {'': None} | {kind.name.lower(): kind for kind in Kind}
_ROWS = tomllib.loads(pathlib.Path(__file__).with_suffix('.toml').read_text())


def _of_pass(row: Mapping[str, Any], direction: Direction) -> dict[str, Any]:
  """Returns the fields of a row of `faults.toml` in a pass."""
  fields = {
    field: value[direction] if isinstance(value, list) else value
    for field, value in row.items()
    if field != 'sublayer'
  }
  for field in fields.keys() & {'kind', 'shown_by', 'relayed'}:
    fields[field] = _KINDS[fields[field]]
  kind_at = fields.get('kind_at', {})
  return fields | dict(
    kind_at={placement: _KINDS[kind] for placement, kind in kind_at.items()}
  )


def _specs_of(direction: Direction) -> list[FaultSpec]:
  fields = {name: _of_pass(row, direction) for name, row in _ROWS.items()}
  return [
    FaultSpec(name=name, direction=direction, **values)
    for name, values in fields.items()
    if values['kind'] is not None
  ]


# Of each pass in turn.
TABLE = tuple(s for direction in Direction for s in _specs_of(direction))


class NoEffect(ValueError):
  """A fault that changes nothing where it was put, or in no task of a layer."""


def specs(direction: Direction, sublayer: bool = False) -> dict[str, FaultSpec]:
  """Returns the rows of one pass by name, those that a sub-layer has, too."""
  named_specs = {
    spec.name: spec for spec in TABLE if spec.direction == direction
  }
  if not sublayer:
    return named_specs
  for name, spec in named_specs.items():
    if 'sublayer' in _ROWS[name]:
      other = _of_pass(_ROWS[name]['sublayer'], direction)
      named_specs[name] = dataclasses.replace(spec, **other)
  sublayer_kinds = layout.select_kinds(sublayer=True)
  return {
    name: spec
    for name, spec in named_specs.items()
    if spec.kind in sublayer_kinds
  }


SPECS = specs(Direction.FORWARD)


def _spec(image: image_lib.Image, name: str) -> FaultSpec:
  image_pass = Direction(int(image.header['direction'])), image.config.sublayer
  named_specs = specs(*image_pass)
  if name not in named_specs:
    raise ValueError(f'fault: {messages.refuse_choice(named_specs, name)}')
  return named_specs[name]


def _refuse_layer(spec: FaultSpec, image: image_lib.Image) -> None:
  for name in ('top_k', 'num_experts', 'num_tokens', 'd_model'):
    required, actual = getattr(spec, name), getattr(image.config, name)
    if actual < required:
      raise NoEffect(
        f'fault {spec.name}: expected {name} of at least {required}, '
        f'got {actual}'
      )
  for name, required in (
    ('activation', (spec.activation,) if spec.activation else ()),
    ('storage', spec.storages),
  ):
    actual = getattr(image.policy, name)
    if required and actual not in required:
      raise NoEffect(
        f'fault {spec.name}: expected {name} {" or ".join(required)}, '
        f'got {actual}'
      )


def real_rows(
  image: image_lib.Image, counts: np.ndarray, relayed: np.ndarray | None = None
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


def _luck(image: image_lib.Image, plan: _native.Routing, tasks) -> np.ndarray:
  """Returns how well each of the tasks shows what comes of a skipped wait.

  0: not at all, something else orders all that it reads.  1: it races.  More
  where the task before it in its queue waits, so that rows are likely to be
  there at its turn: 1 more, and again on rank 0, whose workers come first and
  again only after all others; 2 more on the first core of a rank, for which
  late puts are delivered before any other core of it.

  Returns:
    `[all tasks]` i32.
  """
  table = image.tables['tasks']
  boxes, signals = accesses.inspect(image, plan)
  clocks = happens_before.compute_clocks(image, signals)
  writes = boxes[
    (boxes['write'] == 1) & np.isin(table['kind'], _BRINGS)[boxes['task']]
  ]
  luck = np.zeros(len(table), np.int32)
  for task in tasks:
    before = clocks.predecessor[task]
    suppliers = _overlapping(
      writes, boxes[(boxes['task'] == task) & (boxes['write'] == 0)]
    )
    if before >= 0:
      suppliers = suppliers[~clocks.before(suppliers, before)]
    luck[task] = len(suppliers) > 0
    if luck[task] and before >= 0 and table[before]['wait_count']:
      luck[task] += 1 + (table[task]['rank'] == 0)
      luck[task] += 2 * (table[task]['core'] == 0)
  return luck


def _overlapping(writes: np.ndarray, reads: np.ndarray) -> np.ndarray:
  """Returns the tasks of the writes of rows that some read has, too."""
  overlaps = np.zeros(len(writes), bool)
  for read in reads:
    overlaps |= (
      (writes['buffer'] == read['buffer'])
      & (writes['slab'] == read['slab'])
      & (writes['row_begin'] < read['row_end'])
      & (read['row_begin'] < writes['row_end'])
    )
  return np.unique(writes['task'][overlaps])


def candidates(
  image: image_lib.Image, plan: _native.Routing, name: str
) -> np.ndarray:
  """Returns the tasks in which a fault may be put, the best first.

  Best is the middle one, then its neighbours: away from the first and last
  tile, where a checker may be right by luck.

  Args:
    image: the parsed image.
    plan: of the launch.
    name: a name of `TABLE`, in the image's direction.

  Returns:
    `[candidates]` task indices, possibly none.

  Raises:
    NoEffect: a layer in which it does nothing.
    ValueError: an unknown fault.
  """
  spec = _spec(image, name)
  _refuse_layer(spec, image)
  kind, _ = spec.located(image.policy.placement, image.options.relay)
  min_rows = spec.rows
  if name == 'misplaced_weight' and image.policy.placement in tensors.EARLY:
    min_rows = 2
  tasks = image.tables['tasks']
  rows = real_rows(image, plan.counts, plan.relayed_counts)
  fits = (tasks['kind'] == kind) & (rows >= min_rows)
  if spec.empty:
    # The first link of a chain starts from zero, the others go on.
    no_rows = plan.counts.sum(axis=0)[tasks['expert']] == 0
    fits &= no_rows & (tasks['peer'] == 0)
  luck = fits.astype(np.int32)
  if spec.needs == 'races':
    luck = _luck(image, plan, np.flatnonzero(fits))
    fits = luck > 0
  targets = np.flatnonzero(fits)
  distance = np.abs(np.arange(len(targets)) - len(targets) // 2)
  return targets[np.lexsort((distance, -luck[targets]))]


def choose_target(image, plan: _native.Routing, name: str) -> int:
  """Returns the task in which to put a fault, always the same one.

  Whether the fault shows also depends on the data (equal weights cannot be
  misplaced); `runtime.launch` refuses a fault that changed nothing.

  Args:
    image: a loaded one, or its bytes.
    plan: of the launch.
    name: a name of `TABLE`.

  Raises:
    NoEffect: no task qualifies, or a layer in which the fault does nothing.
    ValueError: an unknown fault.
  """
  image = image_lib.load(image)
  targets = candidates(image, plan, name)
  if not len(targets):
    raise NoEffect(
      f'fault {name}: expected a task that can commit it, got none among '
      f'{len(image.tables["tasks"])} tasks'
    )
  return int(targets[0])
