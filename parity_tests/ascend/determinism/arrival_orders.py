"""`hpmoe determinism --order`: what an order that is not fixed does to bits.

Rows may take addresses as they come (`arrival`), and a switch may add a token's
rows as they come (`switch`).  A seed draws who comes first, or the simulator
says it of a machine and its fabric: in which order tokens reach their experts,
or experts' rows their token.  Each launch is one of the runtime's whose tokens,
or slots, are numbered in that order; it must give the bits of an oracle of that
order, and is set beside the fixed order, where the law says that bits must not
change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses

import jax.numpy as jnp
import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend.determinism import interleavings
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.determinism import variants
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.report import text_table
from hpmoe.reference import combine
from hpmoe.reference import inner_product
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors

ORDERS = ('arrival', 'switch')
LAUNCHES = 20  # of each storage dtype, unless more are asked for
Arrays = Mapping[str, np.ndarray]

# Of a weight's gradient, the rows on both sides of its product.
_SIDES = {
  'd_w_down': ('activation', 'd_expert_out'),
  'd_w_gate_up': ('expert_in', 'd_gate_up'),
}
# Of a sum over slots, its rows, and whether weights multiply them.
_SUMS = {'y': ('returned', True), 'dx': ('d_returned', False)}
# The puts that a switch adds, by pass.
_RETURNS = {
  layout.Direction.FORWARD: layout.Kind.RETURN,
  layout.Direction.BACKWARD: layout.Kind.RETURN_GRAD,
}


@dataclasses.dataclass(frozen=True)
class Row:
  """One tensor over all launches of an order.

  Attributes:
    direction, dtype, tensor: which.
    launches: how many.
    elements: of one launch.
    apart: elements that are not those of the fixed order, of all launches.
    most: largest distance of such an element, units in the last place.
    first: coordinates of the first, or None.
    unlike_oracle: elements that are not those of the order's oracle.
  """

  direction: str
  dtype: str
  tensor: str
  launches: int
  elements: int
  apart: int
  most: int
  first: tuple[int, ...] | None
  unlike_oracle: int

  @property
  def share(self) -> float:
    return self.apart / (self.elements * self.launches)


@dataclasses.dataclass(frozen=True)
class Come:
  """Who comes first.

  Attributes:
    variant: the layer in that order.
    expert: whose rows come so; None: all experts'.
  """

  variant: variants.Variant
  expert: int | None = None

  def ours(self, name: str, array: np.ndarray) -> np.ndarray:
    """Returns what of a result is in this order."""
    if self.expert is None or name not in _SIDES:
      return array
    return array.reshape(-1, *array.shape[2:])[self.expert]


def _variant(says: str, made: inputs_lib.LayerInputs, tokens=None, slots=None):
  base = variants.as_it_is(made.config, says)
  return dataclasses.replace(
    base,
    tokens=base.tokens if tokens is None else tokens.reshape(base.tokens.shape),
    slots=base.slots if slots is None else slots,
  )


def _drawn(order: str, made: inputs_lib.LayerInputs, seed: int):
  """Returns the variant in which the seed's first is the first."""
  config = made.config
  count = config.num_ranks * config.num_tokens
  size = count if order == 'arrival' else config.top_k
  draw = stable_random.normal(stable_random.seed_of(order, seed), (size,))
  first = np.argsort(draw, kind='stable')
  named = 'tokens' if order == 'arrival' else 'slots'
  return _variant(f'{order} {seed}', made, **{named: first})


def arrivals(
  image: image_lib.Image,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
  kind: layout.Kind,
) -> np.ndarray:
  """Returns `[R T, K]` f8, modelled s at which the put of each row is there.

  Args:
    image: without relay.
    machine: with its fabric.
    topk_ids: `[R, T, K]` i32.
    kind: of puts to experts, or home from them.
  """
  ends = simulate.simulate(image, machine, topk_ids).end
  ids = topk_ids.reshape(len(topk_ids), -1)
  there = np.zeros(ids.shape)
  tasks = image.tables['tasks']
  for at in np.flatnonzero(tasks['kind'] == kind):
    task = tasks[at]
    home = task['rank' if kind == layout.Kind.DISPATCH else 'peer']
    slots = np.flatnonzero(ids[home] == task['expert'])
    slots = slots[task['row_begin'] : task['row_end']]
    there[home, slots] = np.maximum(there[home, slots], ends[at])
  return there.reshape(-1, topk_ids.shape[2])


def _simulated(
  order: str,
  which: passes.Pass,
  made: inputs_lib.LayerInputs,
  options,
  machine: machine_lib.Machine,
) -> Iterator[Come]:
  """Yields the order at each expert, or at once that of each token's rows."""
  ids = made.arrays['topk_ids']
  if order == 'switch':
    image = interleavings.compile_image(which, made, options)
    there = arrivals(image, machine, ids, _RETURNS[which.direction])
    slots = np.argsort(there, axis=1, kind='stable')
    yield Come(_variant(f'switch, {machine.name}', made, slots=slots))
    return
  # Rows lie where the forward pass has put them.
  (forward,) = passes.from_direction('forward')
  image = interleavings.compile_image(forward, made, options)
  there = arrivals(image, machine, ids, layout.Kind.DISPATCH)
  flat = ids.reshape(there.shape)
  for expert in range(made.config.num_experts):
    come = np.where(flat == expert, there, np.inf).min(axis=1)
    first = np.argsort(come, kind='stable')
    yield Come(
      _variant(f'arrival at {expert}, {machine.name}', made, first), expert
    )


def oracle(
  name: str, made: inputs_lib.LayerInputs, pair: variants.Pair, fixed: Arrays
) -> np.ndarray:
  """Returns a result of the variant, from rows of the fixed order.

  Args:
    name: of the result.
    made: the layer in the fixed order.
    pair: it, and the variant.
    fixed: all tensors of the layer.
  """
  if name in _SIDES:
    left, right = (fixed[side] for side in _SIDES[name])
    flushes = made.policy.storage == 'bfloat16'
    return _weight_grads(pair, left, right, fixed[name], flushes)
  if name in _SUMS:
    rows, weighs = _SUMS[name]
    terms, weights = (
      jnp.asarray(
        pair.variant.gather(array.reshape(-1, *array.shape[2:])).reshape(
          array.shape
        )
      )
      for array in (fixed[rows], fixed['topk_weights'])
    )
    total = combine.combine(made.policy, terms, weights if weighs else None)
    return np.asarray(total)
  # Made row by row: wherever it stands, it has the same bits.
  return pair.map_tensor(name, fixed[name])


def _weight_grads(pair, left, right, like, flushes: bool) -> np.ndarray:
  """Returns gradients of all experts, rows as the variant has them."""
  base, other = pair.base, pair.other
  row = pair.variant.gather(base.rows[1])
  there = other.rows[1]
  ids = other.ids.reshape(there.shape)
  found = np.zeros(like.shape, like.dtype)
  local = base.config.experts_per_rank
  for expert in range(base.config.num_experts):
    mine = ids == expert
    order = row[mine][np.argsort(there[mine])]
    rank, group = divmod(expert, local)
    total = inner_product.chain_over_rows(
      left[rank], right[rank], order, flushes=flushes
    )
    found[rank, group] = total.astype(like.dtype)
  return found


def _launch(which, made: inputs_lib.LayerInputs, options, seed: int) -> Arrays:
  image = interleavings.compile_image(which, made, options)
  read = host.select_runtime_inputs(which, made.policy, made.arrays)
  modes = interleavings.modes_lib.Modes(permute=seed, late_puts=seed % 2 == 1)
  return runtime.run(image, read, modes=modes).outputs


def _launches(
  comes: Iterable[Come],
  which: passes.Pass,
  made: inputs_lib.LayerInputs,
  options,
) -> Iterator[tuple[Come, variants.Pair, Arrays]]:
  for seed, come in enumerate(comes):
    pair = variants.pair(made, come.variant)
    yield come, pair, _launch(which, variants.inputs(made, pair), options, seed)


class _Tally:
  """What is apart in one tensor, over launches."""

  def __init__(self):
    self.elements = self.launches = self.apart = self.most = (
      self.unlike_oracle
    ) = 0
    self.first: tuple[int, ...] | None = None

  def add(self, got, fixed, expected) -> None:
    """Adds a launch beside the fixed order, and what its oracle expects."""
    self.launches += 1
    self.elements = got.size
    self.unlike_oracle += int((ulp.bits(got) != ulp.bits(expected)).sum())
    bad = ulp.bits(got) != ulp.bits(fixed)
    if not bad.any():
      return
    self.apart += int(bad.sum())
    self.most = max(self.most, int(ulp.distance(got[bad], fixed[bad]).max()))
    self.first = self.first or tuple(int(i) for i in np.argwhere(bad)[0])


def _rows(
  order: str,
  which: passes.Pass,
  made: inputs_lib.LayerInputs,
  plan: interleavings.Plan,
  machine: machine_lib.Machine | None,
) -> Iterator[Row]:
  options = next(plan.options())
  image = interleavings.compile_image(which, made, options)
  read = host.select_runtime_inputs(which, made.policy, made.arrays)
  fixed = dict(made.arrays) | runtime.launch_serial(image, read)
  comes: Iterable[Come] = (
    Come(_drawn(order, made, seed)) for seed in range(plan.interleavings)
  )
  if machine:
    comes = _simulated(order, which, made, options, machine)
  tallies = {name: _Tally() for name in which.results}
  for come, pair, got in _launches(comes, which, made, options):
    for name, tally in tallies.items():
      expected = oracle(name, made, pair, fixed)
      still = pair.map_tensor(name, fixed[name])
      tally.add(*(come.ours(name, a) for a in (got[name], still, expected)))
  for name, tally in tallies.items():
    yield Row(which.name, interleavings.sums_of(made), name, **vars(tally))


def run(
  plan: interleavings.Plan,
  order: str,
  progress: Callable[[str], None],
  machine: machine_lib.Machine | None = None,
) -> list[Row]:
  """Tries an order on launches of a plan's first granularity and layout.

  Args:
    plan: what is launched; `interleavings` are seeds.
    order: of ORDERS.
    progress: is told each step.
    machine: who comes first is what comes first there, in modelled time: one
      launch for all tokens' sums, or one for the rows of each expert.

  Raises:
    ValueError: the plan names something that does not exist, or the machine
      has too few cores.
  """
  rows: list[Row] = []
  for dtype, summed in plan.sums:
    made = interleavings.make_inputs(plan, dtype, summed)
    by = 'whose rows or sums come in another order'
    tensors.require_layer(made.config, by)
    for direction in plan.directions:
      (which,) = passes.from_direction(direction)
      progress(f'{order}: {direction} {dtype}')
      saved = interleavings._saved(plan, which, made)
      rows += _rows(order, which, saved, plan, machine)
  return rows


def to_json(
  plan: interleavings.Plan, order: str, rows: list[Row]
) -> dict[str, object]:
  """Returns an order's table as plain data."""
  return dict(
    verdict='pass' if holds(rows) else 'fail',
    order=order,
    plan=plan.told(),
    rows=[dataclasses.asdict(row) | dict(share=row.share) for row in rows],
  )


def text(order: str, rows: list[Row]) -> str:
  """Returns the table, and whether each launch is its oracle's."""
  table = text_table.format_rows(
    [
      {
        'direction': row.direction,
        'dtype': row.dtype,
        'tensor': row.tensor,
        'elements apart': f'{100 * row.share:.3g}%',
        'ulp at most': row.most,
        'first at': '-' if row.first is None else [*row.first],
        'unlike oracle': row.unlike_oracle,
      }
      for row in rows
    ]
  )
  broken = sorted({row.tensor for row in rows if row.apart})
  kept = sorted({row.tensor for row in rows if not row.apart} - {*broken})
  return '\n\n'.join(
    [
      table,
      f'order of {order}: bits change by design for '
      f'{", ".join(broken) or "nothing"}, and are the same for '
      f'{", ".join(kept) or "nothing"}; {rows[0].launches} launches of each, '
      + (
        'all as their oracle says'
        if holds(rows)
        else 'NOT as their oracle says'
      ),
    ]
  )


def holds(rows: list[Row]) -> bool:
  """Whether each launch gave the bits of its order's oracle."""
  return not any(row.unlike_oracle for row in rows)
