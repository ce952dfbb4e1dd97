"""The law on the twin: same inputs, same policy, same bits, in every mode.

The twin's orders take the place of the host's interleavings.  In which order
the cube unit adds is a part of the policy: launches are compared within one.
Where no sum rounds, all orders must give the same bits.
"""

from collections.abc import Callable, Iterator
import dataclasses
import shlex

import numpy as np

from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime
from hpmoe.backend_ascend.kernels.host.checks import faults
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.parity_tests.check import candidates
from hpmoe.parity_tests.check import passes
from hpmoe.parity_tests.check import twin_candidate
from hpmoe.parity_tests.data import exact_data
from hpmoe.parity_tests.data import inputs as inputs_lib
from hpmoe.parity_tests.law import law
from hpmoe.parity_tests.law import law_table
from hpmoe.parity_tests.law import law_tally

# Of which the device source has kernels.
DTYPES = ('float32', 'bfloat16')
LAYOUTS = ((1, 1), (3, 5))
SEEDS = 2


def modes(plan: law.Plan, mmad_order: str) -> Iterator[twin_runtime.Modes]:
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
  plan: law.Plan
  name: str


def groups(plan: law.Plan) -> list[Group]:
  """Returns what to launch.

  Ascending sums do not depend on where a tile's depth is cut, others do.
  """
  first, *others = twin_runtime.MMAD_ORDERS
  made = [Group('real', (first,), plan, first)]
  for order in others:
    for cut in plan.granularities:
      one = dataclasses.replace(plan, granularities=(cut,))
      name = f'{order}, {cut.event_grain} {cut.row_block}'
      made.append(Group('real', (order,), one, name))
  return [*made, Group('exact', twin_runtime.MMAD_ORDERS, plan, 'exact data')]


def count_steps(plan: law.Plan) -> int:
  """Returns how often `run` calls `progress`."""
  return len(plan.dtypes) * len(plan.directions) * len(groups(plan))


def run(
  plan: law.Plan, progress: Callable[[str], None] = lambda step: None
) -> law_table.Table:
  """Tries the law on every launch of a plan; `interleavings` are its seeds.

  Raises:
    ValueError: the plan names something that does not exist.
    candidates.CandidateError: a launch ended early.
  """
  rows: list[law_table.Row] = []
  for dtype in plan.dtypes:
    real = law.make_inputs(plan, dtype)
    for direction in plan.directions:
      (which,) = passes.of(direction)
      data = dict(real=real, exact=_exact(real, which, plan.seed))
      read = {name: law.read(plan, which, made) for name, made in data.items()}
      for group in groups(plan):
        progress(f'{direction} {dtype} {group.name}')
        rows += _rows(group, which, read[group.data])
  return law_table.Table(tuple(rows), ())


def _exact(
  made: inputs_lib.LayerInputs, which: passes.Pass, seed: int
) -> inputs_lib.LayerInputs:
  policy = dataclasses.replace(made.policy, activation='absolute')
  backward = which is passes.BACKWARD
  make = exact_data.make_grad if backward else exact_data.make
  ids = made.arrays['topk_ids']
  arrays, _ = make(made.config, policy, ids, seed)
  return dataclasses.replace(made, policy=policy, arrays=arrays, data='exact')


def _rows(
  group: Group, which: passes.Pass, made: inputs_lib.LayerInputs
) -> list[law_table.Row]:
  tallies: list[law_tally.Tally] = []
  for options in group.plan.options():
    image = law.compile_image(which, made, options)
    if not tallies:
      serial = _serial(image, made, group.mmad_orders[0])
      tallies = [law_tally.Tally(n, serial[n]) for n in which.results]
    routing = runtime.route(image, made.arrays['topk_ids'])
    fault = law.fault_of(group.plan, which, image, routing)
    for order in group.mmad_orders:
      for one in modes(group.plan, order):
        replay = _replay(group.plan, which, made, options, one)
        outputs = _launch(image, made, one, fault, replay)
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
    law_table.Row(
      which.name,
      made.policy.storage,
      f'{tally.name} ({group.name})',
      tally.launches,
      tuple(tally.digests),
      tally.differing_bits,
      tally.first_break,
    )
    for tally in tallies
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


def _replay(plan, which, made, options, mode) -> str:
  """Returns the command that checks one launch."""
  o = options
  values = dict(
    backend=twin_candidate.NAME,
    preset=plan.preset,
    ranks=plan.ranks,
    tokens=plan.tokens,
    routing=plan.routing,
    seed=plan.seed,
    placement=plan.placement,
    dtype=made.policy.storage,
    direction=which.name,
    event_grain=o.event_grain,
    row_block=o.row_block,
    col_block=o.col_block,
    aic=o.num_aic,
    aiv=o.num_aiv,
    twin_mode=mode.order,
    mmad_order=mode.mmad_order,
  )
  if which is passes.BACKWARD:
    values['chain_rows'] = o.chain_rows
  if mode.order == 'seeded':
    values['twin_seed'] = mode.seed
  if plan.fault in faults.specs(which.direction):
    values['fault'] = plan.fault
  given = [f'--{n}={v}' for n, v in values.items() if v is not None]
  return shlex.join(['hpmoe', 'check', *given])
