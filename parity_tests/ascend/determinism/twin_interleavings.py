"""Determinism on the twin: same inputs, same policy, same bits, in every mode.

The twin's orders take the place of the host's interleavings.  In which order
the cube unit adds is a part of the policy: launches are compared within one.
Where no sum rounds, all orders must give the same bits.
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

# Of which the device source has kernels.
DTYPES = ('float32', 'bfloat16')
LAYOUTS = ((1, 1), (3, 5))
SEEDS = 2


def modes(
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
    mmad_orders: in which the cube unit adds.
    plan: its granularities are the group's.
    name: as rows call it.
  """

  data: str
  mmad_orders: tuple[str, ...]
  plan: interleavings.Plan
  name: str


def groups(plan: interleavings.Plan) -> list[Group]:
  """Returns what to launch.

  Ascending sums do not depend on where a tile's depth is cut, others do.
  """
  first, *others = twin_runtime.MMAD_ORDERS
  made = [Group('real', (first,), plan, first)]
  for order in others:
    for cut in plan.granularities[: 1 if plan.scheduled else None]:
      one = dataclasses.replace(plan, granularities=(cut,))
      name = f'{order}, {cut.event_grain} {cut.row_block}'
      name = f'{order}, schedule' if plan.scheduled else name
      made.append(Group('real', (order,), one, name))
  return [*made, Group('exact', twin_runtime.MMAD_ORDERS, plan, 'exact data')]


def count_steps(plan: interleavings.Plan) -> int:
  """Returns how often `run` calls `progress`."""
  return len(plan.dtypes) * len(plan.directions) * len(groups(plan))


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
      (which,) = passes.from_direction(direction)
      backward = which is passes.BACKWARD
      exact = inputs_lib.with_data(real, 'exact', backward, plan.seed)
      data = dict(real=real, exact=exact)
      read = {
        name: interleavings.read(plan, which, made)
        for name, made in data.items()
      }
      for group in groups(plan):
        progress(f'{direction} {dtype} {group.name}')
        mine = _rows(group, which, read[group.data])
        launches += mine[0].launches
        rows += mine
  return interleavings_table.Table(tuple(rows), (), launches)


def _rows(
  group: Group, which: passes.Pass, made: inputs_lib.LayerInputs
) -> list[interleavings_table.Row]:
  tallies: list[interleavings_table.Tally] = []
  view = interleavings.view_layer(group.plan, made)
  if any(view.sums(name) for name in which.results):
    raise ValueError(
      'expert_placement: expected no copies of experts in the backward pass '
      'on the twin, got some'
    )
  image_inputs = interleavings.place_inputs(view, made)
  for options in group.plan.options():
    image = interleavings.compile_image(which, image_inputs, options)
    if not tallies:
      serial_image = interleavings.compile_image(which, made, options)
      serial = _serial(serial_image, made, group.mmad_orders[0])
      tallies = [interleavings_table.Tally(n, serial[n]) for n in which.results]
    routing = runtime.route(image, image_inputs.arrays['topk_ids'])
    fault = interleavings.fault_of(group.plan, which, image, routing)
    for order in group.mmad_orders:
      for one in modes(group.plan, order):
        replay = interleavings.replay(
          group.plan,
          which,
          made.policy.storage,
          options,
          backend=twin_candidate.NAME,
          twin_mode=one.order,
          mmad_order=order,
          twin_seed=one.seed if one.order == 'seeded' else None,
        )
        outputs = _launch(image, image_inputs, one, fault, replay)
        outputs = view.restore({n: outputs[n] for n in which.results})
        for tally in tallies:
          tally.add(
            outputs[tally.name],
            options=options,
            threads=1,
            interleaving=one.seed,
            late_puts=one.order == 'late',
            replay=replay,
          )
  return [
    t.row(which.name, made.policy.storage, f'{t.name} ({group.name})')
    for t in tallies
  ]


def _serial(image, made, mmad_order: str) -> dict[str, np.ndarray]:
  plain = twin_runtime.Modes(mmad_order=mmad_order)
  try:
    return twin_runtime.launch_serial(image, made.arrays, modes=plain)
  except (twin_runtime.TwinError, runtime.WaitError) as error:
    raise candidates.CandidateError(f'serial run: {error}') from error


def _launch(image, made, mode, fault, replay: str) -> dict[str, np.ndarray]:
  try:
    return twin_runtime.run(image, made.arrays, modes=mode, fault=fault).outputs
  except (twin_runtime.TwinError, runtime.WaitError) as error:
    raise candidates.CandidateError(
      f'{error}; replay: {replay}', None, replay
    ) from error
