"""`hpmoe determinism --order`: the bits under an order that is not fixed.

Rows may be stored in order of arrival (`arrival`), and a switch may add a
token's rows in order of arrival (`switch`).  A seed draws that order, or the
simulator models it for a machine and its fabric.  Each launch is one of the
runtime, with tokens or slots numbered in that order.  It must return the bits
of an oracle with the same order, and is compared with the fixed order, under
which bits must not change.
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
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table
from hpmoe.reference import combine
from hpmoe.reference import inner_product
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors

ORDERS = ('arrival', 'switch')
LAUNCHES = 20  # of each storage dtype, by default
Arrays = Mapping[str, np.ndarray]

# The rows on both sides of the product of a weight's gradient.
_SIDES = {
  'd_w_down': ('activation', 'd_expert_out'),
  'd_w_gate_up': ('expert_in', 'd_gate_up'),
}
# The rows of a sum over slots, and whether weights multiply them.
_SUMS = {'y': ('returned', True), 'dx': ('d_returned', False)}
# The puts whose rows a switch adds, by pass.
_RETURNS = {
  layout.Direction.FORWARD: layout.Kind.RETURN,
  layout.Direction.BACKWARD: layout.Kind.RETURN_GRAD,
}


@dataclasses.dataclass(frozen=True)
class Row:
  """One tensor over all launches of an order.

  Attributes:
    direction, dtype, tensor: the tensor.
    launches: number of launches.
    elements: elements of one launch.
    apart: elements of all launches that differ from those of the fixed order.
    max_ulp: largest distance of such an element, units in the last place.
    first: coordinates of the first such element, or None.
    unlike_oracle: elements that differ from those of the order's oracle.
  """

  direction: str
  dtype: str
  tensor: str
  launches: int
  elements: int
  apart: int
  max_ulp: int
  first: tuple[int, ...] | None
  unlike_oracle: int

  @property
  def share(self) -> float:
    return self.apart / (self.elements * self.launches)


@dataclasses.dataclass(frozen=True)
class ArrivalOrder:
  """An order in which rows arrive.

  Attributes:
    variant: the layer in that order.
    expert: the expert whose rows arrive so; None: all experts.
  """

  variant: variants.Variant
  expert: int | None = None

  def select_ordered(self, name: str, array: np.ndarray) -> np.ndarray:
    """Returns the part of a result that has this order."""
    if self.expert is None or name not in _SIDES:
      return array
    return array.reshape(-1, *array.shape[2:])[self.expert]


def _build_variant(
  says: str, layer_inputs: inputs_lib.LayerInputs, tokens=None, slots=None
):
  base = variants.as_it_is(layer_inputs.config, says)
  return dataclasses.replace(
    base,
    tokens=base.tokens if tokens is None else tokens.reshape(base.tokens.shape),
    slots=base.slots if slots is None else slots,
  )


def _draw_variant(order: str, layer_inputs: inputs_lib.LayerInputs, seed: int):
  """Returns the variant in an order that the seed draws."""
  config = layer_inputs.config
  count = config.num_ranks * config.num_tokens
  size = count if order == 'arrival' else config.top_k
  draw = stable_random.normal(stable_random.seed_of(order, seed), (size,))
  first = np.argsort(draw, kind='stable')
  field = 'tokens' if order == 'arrival' else 'slots'
  return _build_variant(f'{order} {seed}', layer_inputs, **{field: first})


def simulate_arrivals(
  image: image_lib.Image,
  machine: machine_lib.Machine,
  topk_ids: np.ndarray,
  kind: layout.Kind,
) -> np.ndarray:
  """Returns `[R T, K]` f8, the modelled time in s at which each row's put ends.

  Args:
    image: an image without relay.
    machine: the machine, with its fabric.
    topk_ids: `[R, T, K]` i32.
    kind: puts to experts (DISPATCH), or from them (a RETURN).
  """
  ends = simulate.simulate(image, machine, topk_ids).end
  ids = topk_ids.reshape(len(topk_ids), -1)
  arrival_times = np.zeros(ids.shape)
  tasks = image.tables['tasks']
  for index in np.flatnonzero(tasks['kind'] == kind):
    task = tasks[index]
    home = task['rank' if kind == layout.Kind.DISPATCH else 'peer']
    slots = np.flatnonzero(ids[home] == task['expert'])
    slots = slots[task['row_begin'] : task['row_end']]
    arrival_times[home, slots] = np.maximum(
      arrival_times[home, slots], ends[index]
    )
  return arrival_times.reshape(-1, topk_ids.shape[2])


def _simulate_orders(
  order: str,
  layer_pass: passes.Pass,
  layer_inputs: inputs_lib.LayerInputs,
  options,
  machine: machine_lib.Machine,
) -> Iterator[ArrivalOrder]:
  """Yields the order at each expert, or one order of all tokens' rows."""
  ids = layer_inputs.arrays['topk_ids']
  if order == 'switch':
    image = interleavings.compile_image(layer_pass, layer_inputs, options)
    arrival_times = simulate_arrivals(
      image, machine, ids, _RETURNS[layer_pass.direction]
    )
    slots = np.argsort(arrival_times, axis=1, kind='stable')
    yield ArrivalOrder(
      _build_variant(f'switch, {machine.name}', layer_inputs, slots=slots)
    )
    return
  # The forward pass decides where rows are stored.
  (forward,) = passes.from_direction('forward')
  image = interleavings.compile_image(forward, layer_inputs, options)
  arrival_times = simulate_arrivals(image, machine, ids, layout.Kind.DISPATCH)
  flat = ids.reshape(arrival_times.shape)
  for expert in range(layer_inputs.config.num_experts):
    first_times = np.where(flat == expert, arrival_times, np.inf).min(axis=1)
    first = np.argsort(first_times, kind='stable')
    yield ArrivalOrder(
      _build_variant(
        f'arrival at {expert}, {machine.name}', layer_inputs, first
      ),
      expert,
    )


def compute_oracle(
  name: str,
  layer_inputs: inputs_lib.LayerInputs,
  pair: variants.Pair,
  fixed: Arrays,
) -> np.ndarray:
  """Returns a result of the variant, from rows of the fixed order.

  Args:
    name: name of the result.
    layer_inputs: the layer in the fixed order.
    pair: the layer and its variant.
    fixed: all tensors of the layer in the fixed order.
  """
  if name in _SIDES:
    left, right = (fixed[side] for side in _SIDES[name])
    flushes = layer_inputs.policy.storage == 'bfloat16'
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
    total = combine.combine(
      layer_inputs.policy, 'y', terms, weights if weighs else None
    )
    return np.asarray(total)
  # Computed row by row: its bits do not depend on its place.
  return pair.map_tensor(name, fixed[name])


def _weight_grads(pair, left, right, like, flushes: bool) -> np.ndarray:
  """Returns the gradients of all experts, with rows in the variant's order."""
  base, other = pair.base, pair.other
  row = pair.variant.gather(base.rows[1])
  positions = other.rows[1]
  ids = other.ids.reshape(positions.shape)
  grads = np.zeros(like.shape, like.dtype)
  local = base.config.experts_per_rank
  for expert in range(base.config.num_experts):
    of_expert = ids == expert
    order = row[of_expert][np.argsort(positions[of_expert])]
    rank, group = divmod(expert, local)
    total = inner_product.chain_over_rows(
      left[rank], right[rank], order, flushes=flushes
    )
    grads[rank, group] = total.astype(like.dtype)
  return grads


def _launch(
  layer_pass, layer_inputs: inputs_lib.LayerInputs, options, seed: int
) -> Arrays:
  image = interleavings.compile_image(layer_pass, layer_inputs, options)
  read = host.select_runtime_inputs(
    layer_pass, layer_inputs.policy, layer_inputs.arrays
  )
  modes = interleavings.modes_lib.Modes(permute=seed, late_puts=seed % 2 == 1)
  return runtime.run(image, read, modes=modes).outputs


def _launches(
  comes: Iterable[ArrivalOrder],
  layer_pass: passes.Pass,
  layer_inputs: inputs_lib.LayerInputs,
  options,
) -> Iterator[tuple[ArrivalOrder, variants.Pair, Arrays]]:
  for seed, come in enumerate(comes):
    pair = variants.pair(layer_inputs, come.variant)
    yield (
      come,
      pair,
      _launch(layer_pass, variants.inputs(layer_inputs, pair), options, seed),
    )


class _Tally:
  """Counts the elements of one tensor that differ, over launches."""

  def __init__(self):
    self.elements = self.launches = self.apart = self.max_ulp = (
      self.unlike_oracle
    ) = 0
    self.first: tuple[int, ...] | None = None

  def add(self, actual, fixed, expected) -> None:
    """Adds a launch, compared with the fixed order and with its oracle."""
    self.launches += 1
    self.elements = actual.size
    self.unlike_oracle += int((ulp.bits(actual) != ulp.bits(expected)).sum())
    bad = ulp.bits(actual) != ulp.bits(fixed)
    if not bad.any():
      return
    self.apart += int(bad.sum())
    self.max_ulp = max(
      self.max_ulp, int(ulp.distance(actual[bad], fixed[bad]).max())
    )
    self.first = self.first or tuple(int(i) for i in np.argwhere(bad)[0])


def _rows(
  order: str,
  layer_pass: passes.Pass,
  layer_inputs: inputs_lib.LayerInputs,
  plan: interleavings.Plan,
  machine: machine_lib.Machine | None,
) -> Iterator[Row]:
  options = next(plan.options())
  image = interleavings.compile_image(layer_pass, layer_inputs, options)
  read = host.select_runtime_inputs(
    layer_pass, layer_inputs.policy, layer_inputs.arrays
  )
  fixed = dict(layer_inputs.arrays) | runtime.launch_serial(image, read)
  comes: Iterable[ArrivalOrder] = (
    ArrivalOrder(_draw_variant(order, layer_inputs, seed))
    for seed in range(plan.interleavings)
  )
  if machine:
    comes = _simulate_orders(order, layer_pass, layer_inputs, options, machine)
  tallies = {name: _Tally() for name in layer_pass.results}
  for come, pair, outputs in _launches(
    comes, layer_pass, layer_inputs, options
  ):
    for name, tally in tallies.items():
      expected = compute_oracle(name, layer_inputs, pair, fixed)
      still = pair.map_tensor(name, fixed[name])
      tally.add(
        *(
          come.select_ordered(name, a) for a in (outputs[name], still, expected)
        )
      )
  for name, tally in tallies.items():
    yield Row(
      layer_pass.name,
      interleavings.describe_sums(layer_inputs),
      name,
      **vars(tally),
    )


def run(
  plan: interleavings.Plan,
  order: str,
  progress: Callable[[str], None],
  machine: machine_lib.Machine | None = None,
) -> list[Row]:
  """Tries an order on launches of a plan's first granularity and layout.

  Args:
    plan: the launches; `interleavings` are seeds.
    order: one of ORDERS.
    progress: called with each step.
    machine: rows arrive in modelled time on it: one launch for all tokens'
      sums, or one for the rows of each expert.  None: seeds draw the order.

  Raises:
    ValueError: the plan names something unknown, or the machine has too few
      cores.
  """
  rows: list[Row] = []
  for dtype, accumulation_order in plan.sums:
    layer_inputs = interleavings.make_inputs(plan, dtype, accumulation_order)
    context = 'whose rows or sums come in another order'
    tensors.require_layer(layer_inputs.config, context)
    for direction in plan.directions:
      (layer_pass,) = passes.from_direction(direction)
      progress(f'{order}: {direction} {dtype}')
      pass_inputs = interleavings.add_forward_outputs(
        plan, layer_pass, layer_inputs
      )
      rows += _rows(order, layer_pass, pass_inputs, plan, machine)
  return rows


def to_json(
  plan: interleavings.Plan, order: str, rows: list[Row]
) -> dict[str, object]:
  """Returns an order's table as plain data."""
  return dict(
    verdict='pass' if match_oracle(rows) else 'fail',
    order=order,
    plan=plan.to_json(),
    rows=[
      json_fields.rename_fields(row, max_ulp='most') | dict(share=row.share)
      for row in rows
    ],
  )


def text(order: str, rows: list[Row]) -> str:
  """Returns the table, and whether each launch has its oracle's bits."""
  table = text_table.format_rows(
    [
      {
        'direction': row.direction,
        'dtype': row.dtype,
        'tensor': row.tensor,
        'elements apart': f'{100 * row.share:.3g}%',
        'ulp at most': row.max_ulp,
        'first at': '-' if row.first is None else [*row.first],
        'unlike oracle': row.unlike_oracle,
      }
      for row in rows
    ]
  )
  changing_tensors = sorted({row.tensor for row in rows if row.apart})
  constant_tensors = sorted(
    {row.tensor for row in rows if not row.apart} - {*changing_tensors}
  )
  return '\n\n'.join(
    [
      table,
      f'order of {order}: bits change by design for '
      f'{", ".join(changing_tensors) or "nothing"}, and are the same for '
      f'{", ".join(constant_tensors) or "nothing"}; {rows[0].launches} '
      'launches of each, '
      + (
        'all as their oracle says'
        if match_oracle(rows)
        else 'NOT as their oracle says'
      ),
    ]
  )


def match_oracle(rows: list[Row]) -> bool:
  """Returns whether each launch has the bits of its order's oracle."""
  return not any(row.unlike_oracle for row in rows)
