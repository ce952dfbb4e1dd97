"""Our backend on the host: one launch of a compiled flow."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import ClassVar, Self

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import code_values
from hpmoe.backend_ascend.host.load import expert_placement as placement_lib
from hpmoe.parity_tests.ascend import checking_modes
from hpmoe.parity_tests.ascend import failures
from hpmoe.parity_tests.ascend import image_launch
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking as checking_lib
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import option_fields
from hpmoe.reference.contract import poison as poison_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Tensors = Mapping[str, np.ndarray]

# Tasks in which a fault is tried: on some data it changes no output.
_TRIES = 8

_FAULTS = ', '.join(dict.fromkeys(s.name for s in faults.TABLE))


# A check of one layer launches the same images again and again.
@functools.lru_cache(maxsize=16)
def _compiled(direction: layout.Direction, *layer) -> image_lib.Image:
  return compiler.COMPILE[direction](*layer).image


@dataclasses.dataclass(frozen=True)
class Megakernel(candidates.Candidate):
  """Our own backend: one launch of a compiled flow on the host.

  Attributes:
    options: granularity and cores.
    threads: OS threads; None is one per core.
    deadline_s: seconds without progress that end a launch.
    fault: name of a fault to plant in each pass that has it, or None.
    checking: the modes of each launch.
    isa: instruction sets: the first for launches, the last for serial runs; ():
      the best of this CPU.
    fused: return the pass's results only, from tensors that front ends save.
    expert_placement: as `expert_placement.read` takes it; '': experts stay.
    committed: for each run with a fault, the task (layout.TASK) that it was
      planted in.
    launches: every launch so far, without its tensors.
    images: compiled so far, by pass, config, policy and options.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    modes=checking_lib.NAMES,
    relays=True,
    sublayers=True,
    forms=layout.QUANTISED[1:],
  )
  options: granularity.Options = granularity.Options()
  threads: int | None = option_fields.option(
    None,
    'OS threads of the megakernel. Default: one per core.',
    minimum=1,
    maximum=4096,
  )
  deadline_s: float = option_fields.option(
    60.0,
    'Seconds without progress after which a launch ends with an error.',
    flag='deadline',
    kind=option_fields.parse_seconds,
  )
  fault: str | None = option_fields.option(
    None,
    f'Bug to plant in the launch of the megakernel, one of {_FAULTS}.',
  )
  checking: checking_lib.Checking = checking_lib.Checking()
  name: str = 'backend_ascend'
  isa: tuple[str, ...] = option_fields.option(
    (),
    'Instruction sets that this CPU has. The launch uses the first; the '
    'serial run that it must equal in lane bitwise uses the last. Default: '
    'the best. A list.',
  )
  fused: bool = option_fields.option(
    False,
    'The launch returns only the results of the pass, as front ends '
    'request them; intermediate tensors are fused away. Without it, a '
    'check judges such a launch in addition to the one that returns every '
    'tensor.',
  )
  expert_placement: str = option_fields.option(
    '',
    'Which rank holds each expert: a file of hpmoe tune --out_placement; '
    'loads:FILE, a JSON array [E] or [batches, E] of loads by which '
    'experts are spread over ranks; or copies:FILE, which also copies the '
    'hottest experts (forward, or f32). Tensors stay in the order of the '
    'layer.',
  )
  committed: list[np.void] = candidates.noted(list)
  launches: list[image_launch.ImageLaunch] = candidates.noted(list)
  images: dict[tuple, image_lib.Image] = candidates.noted(dict)

  def __post_init__(self):
    isas = _native.isas()
    unknown = [isa for isa in self.isa if isa not in isas]
    if unknown:
      raise ValueError(
        f'isa: expected some of {isas} on this CPU, got {unknown[0]!r}'
      )

  def ready(self, case: case_lib.Case, beside: str = '') -> Self:
    """See `Candidate`; returns a copy without launches."""
    super().ready(case, beside)
    fault_names = {
      n: None for p in case.passes for n in faults.specs(p.direction)
    }
    if self.fault is not None and self.fault not in fault_names:
      beside = f' in direction {case.direction}'
      expected = messages.refuse_choice(fault_names, self.fault, beside=beside)
      raise ValueError(f'fault: {expected}')
    if case.rows and self.checking.replays:
      raise ValueError(
        f'rows: expected none with isolate, start_at and stop_after, which '
        f"replay the oracle's tensors and not its codes, got {case.rows}"
      )
    if self.fused and self.checking.replays:
      raise ValueError(
        'fused: expected none with isolate, which replays the fused launch, '
        'too, nor with start_at or stop_after'
      )
    require_placeable(case, self.options, self.expert_placement)
    return dataclasses.replace(self)

  def _view(self, config, inputs) -> placement_lib.View:
    return placement_lib.view_layer(
      self.expert_placement, config, inputs['topk_ids']
    )

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`."""
    view = self._view(config, inputs)
    with failures.report_failures(self.name, view):
      image = self._compiled(layer_pass, view.config, policy, self.options)
      healing = oracle_tensors and view.place(oracle_tensors)
      modes = checking_modes.build_modes(self.checking, image, healing)
      inputs = view.place(inputs)
      return view.restore(
        self._run(layer_pass, image, inputs, modes, self.fused, view)
      )

  def _run(
    self, layer_pass, image, inputs, modes, fused, view
  ) -> dict[str, np.ndarray]:
    """Plants the fault, if any, in the first task whose output it changes."""
    policy, output_names = image.policy, None
    if fused:
      inputs = build_front_end_inputs(layer_pass, image.config, policy, inputs)
      output_names = layer_pass.results
    else:
      inputs = select_runtime_inputs(layer_pass, policy, inputs)
    plan = runtime.route(image, inputs['topk_ids'])
    launch = functools.partial(
      self._launch,
      layer_pass,
      image,
      plan,
      inputs,
      modes=modes,
      output_names=output_names,
      view=view,
    )
    if self.fault not in faults.specs(layer_pass.direction):
      return launch(None)
    try:
      tasks = faults.candidates(image, plan, self.fault)
    except faults.NoEffect as error:
      raise candidates.FaultDoesNothing(str(error)) from error
    for task in tasks[:_TRIES]:
      self.committed.append(image.tables['tasks'][task])
      try:
        return launch(faults.Fault(self.fault, int(task)))
      except faults.NoEffect:
        self.committed.pop()
    raise candidates.FaultDoesNothing(
      f'fault {self.fault}: expected a task whose output it changes, got '
      f'none in {len(tasks[:_TRIES])} tries'
    )

  def _launch(
    self, layer_pass, image, plan, inputs, fault, *, modes, output_names, view
  ) -> dict[str, np.ndarray]:
    result = runtime.run(
      image,
      inputs,
      names=output_names,
      threads=self.threads,
      deadline_s=self.deadline_s,
      fault=fault,
      isa=self.isa[0] if self.isa else None,
      modes=modes,
      plan=plan,
    )
    left_out = None
    if modes.actions is not None:
      left_out = (modes.actions & modes_lib.Action.RUN) == 0
    self.launches.append(
      image_launch.ImageLaunch(
        layer_pass,
        result.races,
        result.num_races,
        left_out,
        image=image,
        plan=plan,
        view=view,
      )
    )
    return decode_sums(image, plan, inputs, _own_outputs(plan, result))

  def _compiled(self, layer_pass, *layer) -> image_lib.Image:
    """Returns the layer's image, compiled once: a check launches it often."""
    if (layer_pass, *layer) not in self.images:
      self.images[layer_pass, *layer] = _compiled(layer_pass.direction, *layer)
    return self.images[layer_pass, *layer]

  @property
  def serial(self) -> Callable[..., dict[str, np.ndarray]] | None:
    """Runs the same tile kernels serially, in other tiles; see `Candidate`.

    Under `isolate` the serial tasks read the oracle's tensors too.  None where
    only a part of the tasks runs: other tiles have no such part.
    """
    return None if self.checking.is_part else self._run_serially

  def _run_serially(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    view = self._view(config, inputs)
    with failures.report_failures(self.name, view):
      options = self._serial_options(view.config, layer_pass)
      image = self._compiled(layer_pass, view.config, policy, options)
      inputs = select_runtime_inputs(layer_pass, policy, view.place(inputs))
      plan = runtime.route(image, inputs['topk_ids'])
      healing = oracle_tensors and view.place(oracle_tensors)
      modes = checking_lib.Checking(isolate=self.checking.isolate)
      result = self._launch_serial(
        image, inputs, plan, checking_modes.build_modes(modes, image, healing)
      )
      return view.restore(
        decode_sums(image, plan, inputs, _own_outputs(plan, result))
      )

  @property
  def as_used(self) -> Callable[..., dict[str, np.ndarray]] | None:
    """Runs the launch of a front end, which returns only the pass's results.

    None if `run` is that launch already, or if tasks read the oracle's tensors
    or a fault is planted: a user's launch has neither.
    """
    plain = not (self.fused or self.checking.replays or self.fault)
    return self._run_as_used if plain else None

  def _run_as_used(
    self, config, policy, inputs, layer_pass=passes.FORWARD
  ) -> dict[str, np.ndarray]:
    view = self._view(config, inputs)
    config = view.config
    pass_inputs = build_front_end_inputs(
      layer_pass, config, policy, view.place(inputs)
    )
    routing = {n: pass_inputs[n][:, ::-1] for n in ('topk_ids', 'topk_weights')}
    layer = layer_pass, config, policy
    with failures.report_failures(self.name, view):
      # The check's blocks are smaller than those of a front end.
      cut = self._load_front_end_launch(*layer, self.options)
      whole = self._load_front_end_launch(
        *layer, granularity.host_options(config)
      )
      cut_outputs = self._run_with_modes(cut, pass_inputs)
      # A launch reuses memory: tensors of another routing must not show.
      no_actions = np.zeros(len(whole.image.tables['tasks']), np.uint8)
      other = pass_inputs | routing
      self._run_with_modes(whole, other, guards=False, actions=no_actions)
      outputs = whole.run(pass_inputs).outputs
    for name, array in outputs.items():
      bytes_ = (a.view(np.uint8) for a in (array, cut_outputs[name]))
      if not np.array_equal(*bytes_):
        raise candidates.CandidateError(
          f'{self.name}: the launch that front ends make: {name}: expected the '
          'same bits with other tiles and after another routing, got others'
        )
    return view.restore(outputs)

  def alone_as_used(
    self, config, policy, inputs, layer_pass=passes.FORWARD
  ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Replays each task of a front end's launch by itself.

    A launch that returns all tensors runs first.  Each replayed task reads that
    launch's tensors, so it must write the same bits, and no fault spreads.

    Returns:
      The tensors that the replayed tasks wrote, without those that are fused
      away; and the tensors of the first launch.

    Raises:
      candidates.FaultDoesNothing: the fault changes no output.
      candidates.CandidateError: a launch ended early.
    """
    view = self._view(config, inputs)
    inputs = view.place(inputs)
    with failures.report_failures(self.name, view):
      image = self._compiled(layer_pass, view.config, policy, self.options)
      whole = dataclasses.replace(self, fault=None)._run(
        layer_pass, image, inputs, modes_lib.Modes(), False, view
      )
      alone = dataclasses.replace(self.checking, isolate=True)
      isolated_outputs = self._run(
        layer_pass,
        image,
        inputs,
        checking_modes.build_modes(alone, image, whole),
        True,
        view,
      )
      return view.restore(isolated_outputs), view.restore(whole)

  def _load_front_end_launch(
    self, layer_pass, config, policy, options
  ) -> runtime.Launch:
    return runtime.Launch(
      self._compiled(layer_pass, config, policy, options),
      threads=self.threads,
      deadline_s=self.deadline_s,
      isa=self.isa[0] if self.isa else None,
    )

  def _run_with_modes(self, launch: runtime.Launch, inputs, **but) -> Tensors:
    modes = checking_modes.build_modes(self.checking, launch.image)
    result = launch.run(inputs, modes=dataclasses.replace(modes, **but))
    if result.num_races:
      raise candidates.CandidateError(
        f'{self.name}: the launch that front ends make: {result.races[0]}'
      )
    return result.outputs

  def _serial_options(self, config, layer_pass) -> granularity.Options:
    return choose_other_tiling(self.options, config, layer_pass)

  def _launch_serial(
    self, image, inputs, plan, modes
  ) -> modes_lib.LaunchResult:
    isa = self.isa[-1] if self.isa else None
    return runtime.run_serial(image, inputs, isa=isa, plan=plan, modes=modes)


_OPTIONS = option_fields.list_options(Megakernel)
PLACEMENT = tuple(option_fields.select(_OPTIONS, 'expert_placement'))
FLAGS = tuple(row for row in _OPTIONS if row not in PLACEMENT)


def require_placeable(
  case: case_lib.Case, options: granularity.Options, placement: str
) -> None:
  """Checks that a case can be judged under a placement of experts.

  Raises:
    ValueError: the options relay rows, which the oracle has by the layer's own
      ranks; the case is a sub-layer; an expert with copies has gradients in
      another dtype than float32; or the placement cannot be parsed.
    OSError: the placement's file cannot be read.
  """
  if not placement:
    return
  if options.relay:
    raise ValueError(
      'relay: expected none with --expert_placement, under which rows cross '
      'to other ranks than those of the layer, got relay'
    )
  tensors.require_layer(case, 'with --expert_placement')
  has_copies = placement_lib.read(placement, case.ranks).has_copies
  sums = has_copies and case.direction != 'forward'
  if sums and case.dtype != 'float32':
    raise ValueError(
      'expert_placement: expected dtype f32 or direction forward with copies '
      f'of experts, whose gradients are summed, got {case.dtype}'
    )


def _own_outputs(plan, result) -> dict[str, np.ndarray]:
  """Returns what the tasks wrote, before the oracle's tensors replaced it."""
  if result.captures is None:
    return result.outputs
  relayed = {spec.name for spec in tensors.RELAYED}
  outputs = dict(result.outputs)
  for name, own in result.captures.items():
    fused_away = name not in outputs and poison_lib.is_poison(own).all()
    if name not in tensors.SPECS or fused_away:
      continue
    counts = plan.relayed_counts if name in relayed else plan.counts
    rows = counts.sum(axis=0).reshape(len(plan.counts), -1).sum(axis=1)
    if 'N' in tensors.SPECS[name].shape.split():
      # No task writes the rows past the last valid one.
      for rank, valid in enumerate(rows):
        past = outputs[name][rank, valid:] if name in outputs else 0
        own[rank, valid:] = past
    outputs[name] = own
  return outputs


def decode_sums(
  image: image_lib.Image,
  plan: _native.Routing,
  inputs: Tensors,
  outputs: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns a launch's tensors, with values in place of sums of codes."""
  sums = [name for name in outputs if name.endswith('_sums')]
  if not sums:
    return outputs
  values = code_values.compute_values(image, plan, inputs, outputs)
  return {n: a for n, a in outputs.items() if n not in sums} | values


def select_runtime_inputs(
  layer_pass: passes.Pass, policy: precision.PrecisionPolicy, inputs: Tensors
) -> dict[str, np.ndarray]:
  """Returns the inputs of a pass that our runtime reads."""
  backward = layer_pass.name == passes.BACKWARD.name
  unread = {'x', *tensors.PLAN} if backward else ()
  layer = passes.SUBLAYER if 'w_norm' in inputs else tensors.Parts()
  read = layer_pass.reads(layer, policy)
  return {n: inputs[n] for n in read if n not in (*unread, *policy.coded)}


def build_front_end_inputs(
  layer_pass: passes.Pass,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  inputs: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns the inputs of a pass as our front ends save them."""
  if config.sublayer:
    return select_runtime_inputs(layer_pass, policy, inputs)
  if layer_pass is passes.FORWARD:
    return select_runtime_inputs(layer_pass, policy, inputs)
  names = ('dy', *tensors.INPUTS, 'gate_up', 'activation')
  pass_inputs = {name: inputs[name] for name in names}
  if policy.placement == 'combine':
    returned_rows = inputs['returned']
    shape = (config.num_ranks, config.num_rows, config.d_model)
    rows = np.zeros_like(returned_rows, shape=shape)
    owners = inputs['topk_ids'] // config.experts_per_rank
    rows[owners, inputs['row_of_slot']] = returned_rows
    pass_inputs['expert_out'] = rows
  return pass_inputs


def choose_other_tiling(
  options: granularity.Options,
  config: config_lib.MoEConfig,
  layer_pass: passes.Pass,
) -> granularity.Options:
  """Returns options whose tiles all differ from those of `options`.

  Tiles of a single column or token, and of experts with fewer rows than the
  average, may stay as they are.
  """
  widths = [config.d_model, config.d_ff, 2 * config.d_ff]
  average = config.num_ranks * config.num_tokens * config.top_k
  average //= config.num_experts
  rows = _half(min(options.row_block, average))
  whole = options.chain_rows is None or options.chain_rows >= average
  chained = layer_pass.name == passes.BACKWARD.name and whole
  return granularity.Options(
    event_grain='expert' if options.event_grain == 'row_block' else 'row_block',
    row_block=2 if options.row_block == 1 else rows,
    col_block=_choose_other_block(options.col_block, widths),
    token_block=_choose_other_block(
      options.token_block or options.row_block, [config.num_tokens]
    ),
    # One sum becomes a chain of two; more links would only take longer.
    chain_rows=_half(average) if chained else None,
    num_aic=1,
    num_aiv=1,
  )


def _half(size: int) -> int:
  return max(1, -(-size // 2))


def _choose_other_block(block: int, extents: list[int]) -> int:
  """Returns a block that splits each extent above 1 elsewhere than `block`."""
  shortest = min((e for e in extents if e > 1), default=1)
  return _half(shortest) if block >= shortest else max(extents)
