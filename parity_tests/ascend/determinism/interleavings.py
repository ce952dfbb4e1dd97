"""`hpmoe determinism`: same inputs and policy, same bits in any schedule.

Every launch of a table is one seeded interleaving: the seed draws which ready
worker goes next; on every second launch each put is held back until nothing
else can run, which is late, though not as late for each reader as could be.
Images differ in granularity and worker layout, launches also in threads.  All
must give the bits of a serial run, which neither waits nor signals.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
import dataclasses
import shlex
import time

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.host.checks import coverage as coverage_lib
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import expert_placement as placement_lib
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend.determinism import interleavings_table
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import memory
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import storage

DIRECTIONS = (passes.FORWARD.name, passes.BACKWARD.name)

# Fields of `interleavings_table.Schedules`, and the figure of a `Coverage` that
# each sums up.
_COUNTS = dict(
  orders='num_orders',
  pairs='num_pairs',
  pairs_both='num_pairs_seen',
  edges='num_edges',
  edges_last='num_edges_seen',
)

# Of a granularity, what cuts the layer.
_CUT = ('event_grain', 'row_block', 'col_block', 'chain_rows', 'vector_rows')

Progress = Callable[[str], None]
Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Plan:
  """The launches whose bits are compared.

  Attributes:
    preset, ranks, tokens, routing, seed, placement: the layer and its data.
    directions: some of DIRECTIONS.
    dtypes: storage dtypes.
    accumulation_orders: of sums, each of the dtypes that it is defined for.
    isa: instruction sets, which launches take in turn; none: the best.
    interleavings: seeds for each (threads, layout, granularity).
    threads: OS threads.
    layouts: (AIC, AIV) workers of one rank.
    granularities: how the layer is cut; `chain_rows` is the backward pass's.
    fault: a fault that every launch of a pass that knows it commits, or None.
    scheduled: how the layer is cut and ordered, in place of `granularities`;
      its cores are those of `layouts`.
    schedule_arguments: of hpmoe check, that ask for it.
    relay: whether tokens cross to a rank once; of a schedule, the schedule's.
    expert_placement: as of `expert_placement.read`: launches, but not the
      serial run whose bits they must give, have experts there; '': they stay.
    quantised, rows: of the policy, of the forward pass alone.
  """

  preset: str = 'tiny'
  ranks: int = 4
  tokens: int | None = None
  routing: str = 'zipf'
  seed: int = 0
  placement: str = 'combine'
  directions: tuple[str, ...] = DIRECTIONS
  dtypes: tuple[str, ...] = tuple(storage.KERNEL_FORMATS)
  accumulation_orders: tuple[str, ...] = ('ascending',)
  isa: tuple[str, ...] = ()
  interleavings: int = 1000
  threads: tuple[int, ...] = (1, 2, 4)
  layouts: tuple[tuple[int, int], ...] = ((1, 1), (3, 5), (24, 48))
  granularities: tuple[granularity.Options, ...] = (
    granularity.Options('expert', 16, 32, vector_rows=4),
    granularity.Options('row_block', 8, 16, chain_rows=8),
    granularity.Options('row_block', 4, 16, chain_rows=16),
  )
  fault: str | None = None
  scheduled: granularity.Options | None = None
  schedule_arguments: tuple[str, ...] = ()
  relay: bool = False
  expert_placement: str = ''
  quantised: str = ''
  rows: str = ''

  def __post_init__(self):
    for name, value in vars(self).items():
      empty = isinstance(value, (tuple, list)) and not value
      if empty and name not in ('isa', 'schedule_arguments'):
        raise ValueError(f'{name}: expected at least one, got none')
    if self.interleavings < 1:
      raise ValueError(
        f'interleavings: expected at least 1, got {self.interleavings}'
      )
    if self.rows and self.directions != DIRECTIONS[:1]:
      raise ValueError(
        f'direction: expected forward alone with rows={self.rows}, got '
        f'{", ".join(self.directions)}'
      )
    self._refuse_unknown_sums()
    passes_ = [
      which for name in self.directions for which in passes.from_direction(name)
    ]
    known = {n: None for w in passes_ for n in faults.specs(w.direction)}
    if self.fault is not None and self.fault not in known:
      raise ValueError(
        f'fault: expected one of {list(known)} in directions '
        f'{list(self.directions)}, got {self.fault!r}'
      )

  def _refuse_unknown_sums(self) -> None:
    known = _native.isas()
    unknown = [isa for isa in self.isa if isa not in known]
    if unknown:
      raise ValueError(
        f'isa: expected some of {known} on this CPU, got {unknown[0]!r}'
      )
    precision.sums(self.dtypes, self.accumulation_orders)

  @property
  def sums(self) -> tuple[tuple[str, str], ...]:
    """Storage dtypes with each order that is asked for of them."""
    return precision.sums(self.dtypes, self.accumulation_orders)

  @property
  def steps(self) -> int:
    """How often `run` calls `progress`."""
    groups = len(self.directions) * len(self.sums) * len(self.threads)
    cuts = 1 if self.scheduled else len(self.granularities)
    return groups * len(self.layouts) * cuts

  def told(self) -> dict[str, object]:
    """Returns its fields; of a granularity only what cuts the layer."""
    cuts = [{n: getattr(c, n) for n in _CUT} for c in self.granularities]
    return vars(self) | dict(granularities=cuts)

  def options(self) -> Iterator[granularity.Options]:
    cuts = [
      dataclasses.replace(c, relay=self.relay) for c in self.granularities
    ]
    for cut in [self.scheduled] if self.scheduled else cuts:
      for aic, aiv in self.layouts:
        yield dataclasses.replace(cut, num_aic=aic, num_aiv=aiv)


def run(
  plan: Plan, progress: Progress = lambda step: None
) -> interleavings_table.Table:
  """Compares the bits of every launch of a plan.

  Raises:
    ValueError: the plan names something that does not exist, or a layer that
      takes more memory than there is.
    candidates.CandidateError: a launch ended early.
  """
  shape = presets.config(presets.get(plan.preset), plan.ranks, plan.tokens)
  policy = precision.PrecisionPolicy(plan.sums[0][0])
  memory.check(memory.bytes_needed(shape, policy, 'both'), 'launch')
  rows: list[interleavings_table.Row] = []
  schedules: list[interleavings_table.Schedules] = []
  for dtype, order in plan.sums:
    made = make_inputs(plan, dtype, order)
    if not schedules:  # before the long part: all dtypes have the same tasks
      for direction in plan.directions:
        (which,) = passes.from_direction(direction)
        for options in plan.options():
          image = compile_image(which, made, options)
          needed = coverage_lib.needed_bytes(image)
          memory.check(needed, f'list of schedules of the {direction} pass')
    for direction in plan.directions:
      (which,) = (
        one.of_layer(made.config) for one in passes.from_direction(direction)
      )
      start = time.perf_counter()
      mine, seen = _try(plan, which, _saved(plan, which, made), progress)
      rows += mine
      seconds = round(time.perf_counter() - start, 3)
      schedules.append(dataclasses.replace(seen, seconds=seconds))
  launches = sum(seen.launches for seen in schedules)
  return interleavings_table.Table(tuple(rows), tuple(schedules), launches)


def make_inputs(
  plan: Plan, dtype: str, order: str = 'ascending'
) -> inputs_lib.LayerInputs:
  """Returns a plan's data in a storage dtype, to be summed in an order."""
  made = inputs_lib.make_inputs(
    presets.get(plan.preset),
    plan.ranks,
    plan.tokens,
    dtype,
    plan.routing,
    plan.seed,
    placement=plan.placement,
    coded=bool(plan.rows),
  )
  return made.with_policy(accumulation_order=order, rows=plan.rows).with_codes(
    plan.quantised
  )


def sums_of(made: inputs_lib.LayerInputs) -> str:
  """Returns the storage dtype and, if it is not ascending, the order."""
  order = made.policy.accumulation_order
  name = made.policy.storage
  return name if order == 'ascending' else f'{name} {order}'


def read(
  plan: Plan, which: passes.Pass, made: inputs_lib.LayerInputs
) -> inputs_lib.LayerInputs:
  """Returns a pass's inputs, the backward one's from a serial forward."""
  saved = _saved(plan, which, made)
  read = host.select_runtime_inputs(which, made.policy, saved.arrays)
  return dataclasses.replace(made, arrays=read)


def _saved(
  plan: Plan, which: passes.Pass, made: inputs_lib.LayerInputs
) -> inputs_lib.LayerInputs:
  """Returns data with all that a forward pass makes, if one comes before."""
  arrays = dict(made.arrays)
  if which.name == passes.BACKWARD.name:
    image = compile_image(passes.FORWARD, made, next(plan.options()))
    read = host.select_runtime_inputs(passes.FORWARD, made.policy, arrays)
    arrays |= runtime.launch_serial(image, read)
  return dataclasses.replace(made, arrays=arrays)


def view_layer(
  plan: Plan, inputs: inputs_lib.LayerInputs
) -> placement_lib.View:
  """Returns the plan's layer as its images have it."""
  ids = inputs.arrays['topk_ids']
  return placement_lib.view_layer(plan.expert_placement, inputs.config, ids)


def place_inputs(
  view: placement_lib.View, inputs: inputs_lib.LayerInputs
) -> inputs_lib.LayerInputs:
  """Returns a layer's data as its images have it."""
  arrays = view.place(dict(inputs.arrays))
  return dataclasses.replace(inputs, config=view.config, arrays=arrays)


def compile_image(
  which: passes.Pass, made: inputs_lib.LayerInputs, options: granularity.Options
) -> image_lib.Image:
  """Returns the image of a pass."""
  lower = compiler.COMPILE[which.direction]
  return lower(made.config, made.policy, options).image


def _try(
  plan: Plan,
  which: passes.Pass,
  made: inputs_lib.LayerInputs,
  progress: Progress,
) -> tuple[list[interleavings_table.Row], interleavings_table.Schedules]:
  tallies: list[interleavings_table.Tally] = []
  counts = collections.Counter[str]()
  view = view_layer(plan, made)
  image_inputs = place_inputs(view, made)
  for options in plan.options():
    image = compile_image(which, image_inputs, options)
    if not tallies:
      expected = _launch_serial(which, view, made, image_inputs, options)
      tallies = [
        interleavings_table.Tally(n, expected[n]) for n in which.results
      ]
    routing = runtime.route(image, image_inputs.arrays['topk_ids'])
    _, signals = runtime.inspect(image, routing)
    seen = coverage_lib.Coverage(image, signals)
    for threads in plan.threads:
      progress(
        f'{which.name} {sums_of(made)} {options.event_grain} '
        f'{options.row_block} {options.num_aic}x{options.num_aiv} '
        f'{threads} threads'
      )
      for launched, how in _launches(
        plan, which, image, routing, image_inputs, options, threads
      ):
        seen.add(launched.order)
        outputs = {n: launched.outputs[n] for n in which.results}
        outputs = view.restore(outputs)
        for tally in tallies:
          tally.add(outputs[tally.name], **how)
    counts.update({name: getattr(seen, of) for name, of in _COUNTS.items()})
  dtype = sums_of(made)
  rows = [t.row(which.name, dtype, t.name) for t in tallies]
  launches = tallies[0].launches
  seen_ = interleavings_table.Schedules(
    which.name, dtype, launches, **counts, seconds=0.0
  )
  return rows, seen_


def _launch_serial(layer_pass, view, inputs, image_inputs, options) -> Tensors:
  """Returns what a serial run gives where experts are as their numbers say.

  But for gradients of experts that have copies, whose sums have another order.
  """
  results = {}
  for serial in (image_inputs, inputs):
    image = compile_image(layer_pass, serial, options)
    read = host.select_runtime_inputs(layer_pass, serial.policy, serial.arrays)
    outputs = runtime.launch_serial(image, read)
    outputs = {name: outputs[name] for name in layer_pass.results}
    if serial is image_inputs:
      results = view.restore(outputs)
      continue
    results |= {n: a for n, a in outputs.items() if not view.sums(n)}
  return results


def _launches(
  plan: Plan,
  which: passes.Pass,
  image: image_lib.Image,
  routing: _native.Routing,
  made: inputs_lib.LayerInputs,
  options: granularity.Options,
  threads: int,
) -> Iterator[tuple[modes_lib.LaunchResult, dict]]:
  fault = fault_of(plan, which, image, routing)
  policy, arrays = made.policy, made.arrays
  whole = host.select_runtime_inputs(which, policy, arrays)
  kept = host.build_front_end_inputs(which, made.config, policy, arrays)
  for interleaving in range(plan.interleavings):
    late = interleaving % 2 == 1
    # In turn, each with puts in time and late, and with all numbers of threads.
    # `hpmoe faults` judges what a fused launch makes of a fault.
    fused = not fault and (interleaving // 2 + threads) % 2 == 1
    isa = None
    if plan.isa:  # each with puts in time and late
      isa = plan.isa[interleaving // 2 % len(plan.isa)]
    how = dict(
      options=options,
      threads=threads,
      interleaving=interleaving,
      late_puts=late,
    )
    how['replay'] = replay(
      plan,
      which,
      policy.storage,
      options,
      fused=fused or None,
      accumulation_order=_not_ascending(made),
      isa=isa,
      threads=threads,
      permute=interleaving,
      late_puts=late or None,
    )
    modes = modes_lib.Modes(permute=interleaving, late_puts=late, trace=True)
    try:
      launched = runtime.run(
        image,
        kept if fused else whole,
        names=which.results if fused else None,
        threads=threads,
        fault=fault,
        isa=isa,
        modes=modes,
        plan=routing,
      )
    except runtime.WaitError as error:
      raise candidates.CandidateError(
        f'{error.diagnosis}; replay: {how["replay"]}',
        error.diagnosis,
        how['replay'],
      ) from error
    yield launched, how


def _not_ascending(made: inputs_lib.LayerInputs) -> str | None:
  order = made.policy.accumulation_order
  return None if order == 'ascending' else order


def replay(
  plan: Plan,
  which: passes.Pass,
  dtype: str,
  options: granularity.Options,
  **how: object,
) -> str:
  """Returns the command that checks one launch.

  Args:
    plan: the layer and its data.
    which: the pass.
    dtype: storage.
    options: granularity and layout.
    **how: further flags; None for one that is not given.
  """
  values: dict[str, object] = dict(
    preset=plan.preset,
    ranks=plan.ranks,
    tokens=plan.tokens,
    routing=plan.routing,
    seed=plan.seed,
    placement=plan.placement,
    expert_placement=plan.expert_placement or None,
    dtype=dtype,
    direction=which.name,
    weights=plan.quantised or None,
    rows=plan.rows or None,
    **_cut(plan, which, options),
    **how,
  )
  if plan.fault in faults.specs(which.direction):
    values['fault'] = plan.fault
  given = [
    f'--{n}' if v is True else f'--{n}={v}'
    for n, v in values.items()
    if v is not None
  ]
  return shlex.join(['hpmoe', 'check', *given, *plan.schedule_arguments])


def _cut(
  plan: Plan, which: passes.Pass, options: granularity.Options
) -> dict[str, object]:
  """Returns the arguments of hpmoe check that cut a layer so.

  Where a schedule does, `Plan.schedule_arguments` are beside them.
  """
  cores: dict[str, object] = dict(aic=options.num_aic, aiv=options.num_aiv)
  if plan.scheduled is not None:
    return cores
  backward = which.name == passes.BACKWARD.name
  return cores | dict(
    event_grain=options.event_grain,
    row_block=options.row_block,
    col_block=options.col_block,
    vector_rows=options.vector_rows,
    relay=options.relay or None,
    chain_rows=options.chain_rows if backward else None,
  )


def fault_of(
  plan: Plan, which: passes.Pass, image, routing: _native.Routing
) -> faults.Fault | None:
  """Returns the fault that a plan's launches of a pass commit, or None."""
  if plan.fault not in faults.specs(which.direction):
    return None
  task = faults.choose_target(image, routing, plan.fault)
  return faults.Fault(plan.fault, task)
