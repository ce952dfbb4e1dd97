"""Determinism on the twin: same inputs, same policy, same bits, in every mode.

The twin's orders take the place of the host's interleavings.  The order in
which the cube unit adds is part of the policy, so launches are compared within
one order.  On data whose sums do not round, all orders must agree.
"""

from collections.abc import Callable, Iterator
import dataclasses

import numpy as np

from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.ascend.determinism import interleavings
from hpmoe.parity_tests.ascend.determinism import interleavings_table
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes

# Storage dtypes of the device source.
DTYPES = ('float32', 'bfloat16')
LAYOUTS = ((1, 1), (3, 5))
SEEDS = 2


def iterate_modes(
  plan: interleavings.Plan, mmad_order: str
) -> Iterator[twin_runtime.Modes]:
  """Yields the modes in which each image is launched: `interleavings` seeds."""
  for order in ('in_order', 'late'):
    yield twin_runtime.Modes(order=order, mmad_order=mmad_order)
  for seed in range(plan.interleavings):
    yield twin_runtime.Modes('seeded', seed, mmad_order=mmad_order)


@dataclasses.dataclass(frozen=True)
class Group:
  """Launches whose bits must agree.

  Attributes:
    data: 'real' or 'exact'.
    mmad_orders: orders in which the cube unit adds.
    plan: the plan, with the group's granularities.
    name: its name in rows.
  """

  data: str
  mmad_orders: tuple[str, ...]
  plan: interleavings.Plan
  name: str


def list_groups(plan: interleavings.Plan) -> list[Group]:
  """Returns the groups of a plan.

  Ascending sums are the same for all tiles; other orders depend on the tiles.
  """
  first, *other_orders = twin_runtime.MMAD_ORDERS
  groups = [Group('real', (first,), plan, first)]
  for order in other_orders:
    for cut in plan.granularities[: 1 if plan.scheduled else None]:
      cut_plan = dataclasses.replace(plan, granularities=(cut,))
      name = f'{order}, {cut.event_grain} {cut.row_block}'
      name = f'{order}, schedule' if plan.scheduled else name
      groups.append(Group('real', (order,), cut_plan, name))
  return [*groups, Group('exact', twin_runtime.MMAD_ORDERS, plan, 'exact data')]


def count_steps(plan: interleavings.Plan) -> int:
  """Returns the number of times that `run` calls `progress`."""
  return len(plan.dtypes) * len(plan.directions) * len(list_groups(plan))


def run(
  plan: interleavings.Plan, progress: Callable[[str], None] = lambda step: None
) -> interleavings_table.Table:
  """Compares the bits of every launch of a plan; `interleavings` are its seeds.

  Raises:
    ValueError: the plan names something that does not exist.
    candidates.CandidateError: a launch ended early.
  """
  rows: list[interleavings_table.Row] = []
  launches = 0
  for dtype in plan.dtypes:
    real = interleavings.make_inputs(plan, dtype)
    for direction in plan.directions:
      (layer_pass,) = passes.from_direction(direction)
      backward = layer_pass is passes.BACKWARD
      exact = inputs_lib.with_data(real, 'exact', backward, plan.seed)
      data = dict(real=real, exact=exact)
      read = {
        name: interleavings.select_pass_inputs(plan, layer_pass, layer_inputs)
        for name, layer_inputs in data.items()
      }
      for group in list_groups(plan):
        progress(f'{direction} {dtype} {group.name}')
        group_rows = _rows(group, layer_pass, read[group.data])
        launches += group_rows[0].launches
        rows += group_rows
  return interleavings_table.Table(tuple(rows), (), launches)


def _rows(
  group: Group, layer_pass: passes.Pass, layer_inputs: inputs_lib.LayerInputs
) -> list[interleavings_table.Row]:
  tallies: list[interleavings_table.Tally] = []
  view = interleavings.view_layer(group.plan, layer_inputs)
  if any(view.sums(name) for name in layer_pass.results):
    raise ValueError(
      'expert_placement: expected no copies of experts in the backward pass '
      'on the twin, got some'
    )
  image_inputs = interleavings.place_inputs(view, layer_inputs)
  for options in group.plan.options():
    image = interleavings.compile_image(layer_pass, image_inputs, options)
    if not tallies:
      serial_image = interleavings.compile_image(
        layer_pass, layer_inputs, options
      )
      serial = _launch_serial(serial_image, layer_inputs, group.mmad_orders[0])
      tallies = [
        interleavings_table.Tally(n, serial[n]) for n in layer_pass.results
      ]
    routing = runtime.route(image, image_inputs.arrays['topk_ids'])
    fault = interleavings.choose_fault(group.plan, layer_pass, image, routing)
    for order in group.mmad_orders:
      for mode in iterate_modes(group.plan, order):
        replay = interleavings.replay(
          group.plan,
          layer_pass,
          layer_inputs.policy.storage,
          options,
          backend=twin_candidate.NAME,
          twin_mode=mode.order,
          mmad_order=order,
          twin_seed=mode.seed if mode.order == 'seeded' else None,
        )
        outputs = _launch(image, image_inputs, mode, fault, replay)
        outputs = view.restore({n: outputs[n] for n in layer_pass.results})
        for tally in tallies:
          tally.add(
            outputs[tally.name],
            options=options,
            threads=1,
            interleaving=mode.seed,
            late_puts=mode.order == 'late',
            replay=replay,
          )
  return [
    t.row(
      layer_pass.name, layer_inputs.policy.storage, f'{t.name} ({group.name})'
    )
    for t in tallies
  ]


def _launch_serial(
  image, layer_inputs, mmad_order: str
) -> dict[str, np.ndarray]:
  plain = twin_runtime.Modes(mmad_order=mmad_order)
  try:
    return twin_runtime.launch_serial(image, layer_inputs.arrays, modes=plain)
  except (twin_runtime.TwinError, runtime.WaitError) as error:
    raise candidates.CandidateError(f'serial run: {error}') from error


def _launch(
  image, layer_inputs, mode, fault, replay: str
) -> dict[str, np.ndarray]:
  try:
    return twin_runtime.run(
      image, layer_inputs.arrays, modes=mode, fault=fault
    ).outputs
  except (twin_runtime.TwinError, runtime.WaitError) as error:
    raise candidates.CandidateError(
      f'{error}; replay: {replay}', None, replay
    ) from error
