"""`hpmoe determinism`: same inputs and policy, same bits in any schedule.

Every launch is one seeded interleaving: the seed draws which ready worker runs
next.  In every second launch each put is delayed until nothing else can run,
which is late, though not as late as possible for each reader.  Images differ in
granularity and worker layout, launches also in threads.  All must return the
bits of a serial run, which neither waits nor signals.
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
from hpmoe.reference.contract import messages
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

# Fields of a granularity that set the tiles.
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
    accumulation_orders: of sums; each for the dtypes that have it.
    isa: instruction sets, which launches take in turn; (): the best.
    interleavings: seeds for each (threads, layout, granularity).
    threads: OS threads.
    layouts: (AIC, AIV) workers of one rank.
    granularities: tiles of the layer; `chain_rows` is for the backward pass.
    fault: a fault planted in every launch of a pass that has it, or None.
    scheduled: tiles and order of a schedule, in place of `granularities`; its
      cores are those of `layouts`.
    schedule_arguments: arguments of hpmoe check that name the schedule.
    relay: whether a token crosses to a rank once; a schedule has its own.
    expert_placement: as `expert_placement.read` takes it, for launches but not
      for the serial run whose bits they must return; '': experts stay.
    quantised, rows: fields of the policy, for the forward pass alone.
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
      layer_pass
      for name in self.directions
      for layer_pass in passes.from_direction(name)
    ]
    fault_names = {n: None for w in passes_ for n in faults.specs(w.direction)}
    if self.fault is not None and self.fault not in fault_names:
      beside = f' in directions {list(self.directions)}'
      expected = messages.refuse_choice(fault_names, self.fault, beside=beside)
      raise ValueError(f'fault: {expected}')

  def _refuse_unknown_sums(self) -> None:
    isas = _native.isas()
    unknown = [isa for isa in self.isa if isa not in isas]
    if unknown:
      raise ValueError(
        f'isa: expected some of {isas} on this CPU, got {unknown[0]!r}'
      )
    precision.sums(self.dtypes, self.accumulation_orders)

  @property
  def sums(self) -> tuple[tuple[str, str], ...]:
    """Pairs of a storage dtype and an order of accumulation."""
    return precision.sums(self.dtypes, self.accumulation_orders)

  @property
  def steps(self) -> int:
    """The number of times that `run` calls `progress`."""
    groups = len(self.directions) * len(self.sums) * len(self.threads)
    cuts = 1 if self.scheduled else len(self.granularities)
    return groups * len(self.layouts) * cuts

  def to_json(self) -> dict[str, object]:
    """Returns the fields as plain data, of a granularity only the tiles."""
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
    ValueError: the plan names something unknown, or a layer that needs more
      memory than there is.
    candidates.CandidateError: a launch ended early.
  """
  shape = presets.config(presets.get(plan.preset), plan.ranks, plan.tokens)
  policy = precision.PrecisionPolicy(plan.sums[0][0])
  memory.check(memory.bytes_needed(shape, policy, 'both'), 'launch')
  rows: list[interleavings_table.Row] = []
  schedules: list[interleavings_table.Schedules] = []
  for dtype, order in plan.sums:
    layer_inputs = make_inputs(plan, dtype, order)
    if not schedules:  # all dtypes have the same tasks
      for direction in plan.directions:
        (layer_pass,) = passes.from_direction(direction)
        for options in plan.options():
          image = compile_image(layer_pass, layer_inputs, options)
          num_bytes = coverage_lib.needed_bytes(image)
          memory.check(num_bytes, f'list of schedules of the {direction} pass')
    for direction in plan.directions:
      (layer_pass,) = (
        pass_.of_layer(layer_inputs.config)
        for pass_ in passes.from_direction(direction)
      )
      start = time.perf_counter()
      pass_rows, pass_schedules = _try(
        plan,
        layer_pass,
        add_forward_outputs(plan, layer_pass, layer_inputs),
        progress,
      )
      rows += pass_rows
      seconds = round(time.perf_counter() - start, 3)
      schedules.append(dataclasses.replace(pass_schedules, seconds=seconds))
  launches = sum(schedule.launches for schedule in schedules)
  return interleavings_table.Table(tuple(rows), tuple(schedules), launches)


def make_inputs(
  plan: Plan, dtype: str, order: str = 'ascending'
) -> inputs_lib.LayerInputs:
  """Returns a plan's data in a storage dtype and an accumulation order."""
  layer_inputs = inputs_lib.make_inputs(
    presets.get(plan.preset),
    plan.ranks,
    plan.tokens,
    dtype,
    plan.routing,
    plan.seed,
    placement=plan.placement,
    coded=bool(plan.rows),
  )
  return layer_inputs.with_policy(
    accumulation_order=order, rows=plan.rows
  ).with_codes(plan.quantised)


def describe_sums(layer_inputs: inputs_lib.LayerInputs) -> str:
  """Returns the storage dtype, and the order if it is not ascending."""
  order = layer_inputs.policy.accumulation_order
  name = layer_inputs.policy.storage
  return name if order == 'ascending' else f'{name} {order}'


def select_pass_inputs(
  plan: Plan, layer_pass: passes.Pass, layer_inputs: inputs_lib.LayerInputs
) -> inputs_lib.LayerInputs:
  """Returns a pass's inputs; a serial forward run makes the backward's."""
  pass_inputs = add_forward_outputs(plan, layer_pass, layer_inputs)
  read = host.select_runtime_inputs(
    layer_pass, layer_inputs.policy, pass_inputs.arrays
  )
  return dataclasses.replace(layer_inputs, arrays=read)


def add_forward_outputs(
  plan: Plan, layer_pass: passes.Pass, layer_inputs: inputs_lib.LayerInputs
) -> inputs_lib.LayerInputs:
  """Returns the inputs, for a backward pass with a forward pass's outputs."""
  arrays = dict(layer_inputs.arrays)
  if layer_pass.name == passes.BACKWARD.name:
    image = compile_image(passes.FORWARD, layer_inputs, next(plan.options()))
    read = host.select_runtime_inputs(
      passes.FORWARD, layer_inputs.policy, arrays
    )
    arrays |= runtime.launch_serial(image, read)
  return dataclasses.replace(layer_inputs, arrays=arrays)


def view_layer(
  plan: Plan, inputs: inputs_lib.LayerInputs
) -> placement_lib.View:
  """Returns the plan's placement of experts."""
  ids = inputs.arrays['topk_ids']
  return placement_lib.view_layer(plan.expert_placement, inputs.config, ids)


def place_inputs(
  view: placement_lib.View, inputs: inputs_lib.LayerInputs
) -> inputs_lib.LayerInputs:
  """Returns a layer's data under a placement of experts."""
  arrays = view.place(dict(inputs.arrays))
  return dataclasses.replace(inputs, config=view.config, arrays=arrays)


def compile_image(
  layer_pass: passes.Pass,
  layer_inputs: inputs_lib.LayerInputs,
  options: granularity.Options,
) -> image_lib.Image:
  """Returns the image of a pass."""
  lower = compiler.COMPILE[layer_pass.direction]
  return lower(layer_inputs.config, layer_inputs.policy, options).image


def _try(
  plan: Plan,
  layer_pass: passes.Pass,
  layer_inputs: inputs_lib.LayerInputs,
  progress: Progress,
) -> tuple[list[interleavings_table.Row], interleavings_table.Schedules]:
  tallies: list[interleavings_table.Tally] = []
  counts = collections.Counter[str]()
  view = view_layer(plan, layer_inputs)
  image_inputs = place_inputs(view, layer_inputs)
  for options in plan.options():
    image = compile_image(layer_pass, image_inputs, options)
    if not tallies:
      expected = _launch_serial(
        layer_pass, view, layer_inputs, image_inputs, options
      )
      tallies = [
        interleavings_table.Tally(n, expected[n]) for n in layer_pass.results
      ]
    routing = runtime.route(image, image_inputs.arrays['topk_ids'])
    _, signals = runtime.inspect(image, routing)
    coverage = coverage_lib.Coverage(image, signals)
    for threads in plan.threads:
      progress(
        f'{layer_pass.name} {describe_sums(layer_inputs)} '
        f'{options.event_grain} {options.row_block} '
        f'{options.num_aic}x{options.num_aiv} {threads} threads'
      )
      for result, launch_fields in _launches(
        plan, layer_pass, image, routing, image_inputs, options, threads
      ):
        coverage.add(result.order)
        outputs = {n: result.outputs[n] for n in layer_pass.results}
        outputs = view.restore(outputs)
        for tally in tallies:
          tally.add(outputs[tally.name], **launch_fields)
    counts.update(
      {name: getattr(coverage, figure) for name, figure in _COUNTS.items()}
    )
  dtype = describe_sums(layer_inputs)
  rows = [t.row(layer_pass.name, dtype, t.name) for t in tallies]
  launches = tallies[0].launches
  pass_schedules = interleavings_table.Schedules(
    layer_pass.name, dtype, launches, **counts, seconds=0.0
  )
  return rows, pass_schedules


def _launch_serial(layer_pass, view, inputs, image_inputs, options) -> Tensors:
  """Returns the results of a serial run with experts in their own places.

  Gradients of experts with copies come from a serial run under the placement,
  because their sums have another order.
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
  layer_pass: passes.Pass,
  image: image_lib.Image,
  routing: _native.Routing,
  layer_inputs: inputs_lib.LayerInputs,
  options: granularity.Options,
  threads: int,
) -> Iterator[tuple[modes_lib.LaunchResult, dict]]:
  fault = choose_fault(plan, layer_pass, image, routing)
  policy, arrays = layer_inputs.policy, layer_inputs.arrays
  whole = host.select_runtime_inputs(layer_pass, policy, arrays)
  front_end_inputs = host.build_front_end_inputs(
    layer_pass, layer_inputs.config, policy, arrays
  )
  for interleaving in range(plan.interleavings):
    late = interleaving % 2 == 1
    # Fused and other launches alternate, each with early and late puts and with
    # every number of threads.  `hpmoe faults` judges faults in fused launches.
    fused = not fault and (interleaving // 2 + threads) % 2 == 1
    isa = None
    if plan.isa:  # each with early and late puts
      isa = plan.isa[interleaving // 2 % len(plan.isa)]
    launch_fields = dict(
      options=options,
      threads=threads,
      interleaving=interleaving,
      late_puts=late,
    )
    launch_fields['replay'] = replay(
      plan,
      layer_pass,
      policy.storage,
      options,
      fused=fused or None,
      accumulation_order=_not_ascending(layer_inputs),
      isa=isa,
      threads=threads,
      permute=interleaving,
      late_puts=late or None,
    )
    modes = modes_lib.Modes(permute=interleaving, late_puts=late, trace=True)
    try:
      result = runtime.run(
        image,
        front_end_inputs if fused else whole,
        names=layer_pass.results if fused else None,
        threads=threads,
        fault=fault,
        isa=isa,
        modes=modes,
        plan=routing,
      )
    except runtime.WaitError as error:
      raise candidates.CandidateError(
        f'{error.diagnosis}; replay: {launch_fields["replay"]}',
        error.diagnosis,
        launch_fields['replay'],
      ) from error
    yield result, launch_fields


def _not_ascending(layer_inputs: inputs_lib.LayerInputs) -> str | None:
  order = layer_inputs.policy.accumulation_order
  return None if order == 'ascending' else order


def replay(
  plan: Plan,
  layer_pass: passes.Pass,
  dtype: str,
  options: granularity.Options,
  **further_flags: object,
) -> str:
  """Returns the command that checks one launch.

  Args:
    plan: the layer and its data.
    layer_pass: the pass.
    dtype: storage dtype.
    options: granularity and layout.
    **further_flags: other flags; None leaves one out.
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
    direction=layer_pass.name,
    weights=plan.quantised or None,
    rows=plan.rows or None,
    **_cut(plan, layer_pass, options),
    **further_flags,
  )
  if plan.fault in faults.specs(layer_pass.direction):
    values['fault'] = plan.fault
  flags = [
    f'--{n}' if v is True else f'--{n}={v}'
    for n, v in values.items()
    if v is not None
  ]
  return shlex.join(['hpmoe', 'check', *flags, *plan.schedule_arguments])


def _cut(
  plan: Plan, layer_pass: passes.Pass, options: granularity.Options
) -> dict[str, object]:
  """Returns the arguments of hpmoe check that set tiles and cores.

  With a schedule these are the cores; `Plan.schedule_arguments` name the rest.
  """
  cores: dict[str, object] = dict(aic=options.num_aic, aiv=options.num_aiv)
  if plan.scheduled is not None:
    return cores
  backward = layer_pass.name == passes.BACKWARD.name
  return cores | dict(
    event_grain=options.event_grain,
    row_block=options.row_block,
    col_block=options.col_block,
    vector_rows=options.vector_rows,
    relay=options.relay or None,
    chain_rows=options.chain_rows if backward else None,
  )


def choose_fault(
  plan: Plan, layer_pass: passes.Pass, image, routing: _native.Routing
) -> faults.Fault | None:
  """Returns the fault that is planted in the pass's launches, or None."""
  if plan.fault not in faults.specs(layer_pass.direction):
    return None
  task = faults.choose_target(image, routing, plan.fault)
  return faults.Fault(plan.fault, task)
