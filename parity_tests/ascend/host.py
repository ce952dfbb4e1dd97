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
from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import poison as poison_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Tensors = Mapping[str, np.ndarray]

# A fault may change nothing where it is put, the data being what they are.
_TRIES = 8

_FAULTS = ', '.join(dict.fromkeys(s.name for s in faults.TABLE))
PLACEMENT = flag_tables.read_flags('expert_placement')
FLAGS = flag_tables.read_flags('host', dict(faults=_FAULTS))


# Those of one layer, which faults, too, are launched with one after the other.
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
    fault: name of a fault to commit in each pass that knows it, or None.
    checking: the modes of each launch.
    isa: instruction sets: a launch is by the first, a serial run by the last;
      none: the best.
    fused: what it makes is the pass's results only, of what front ends keep.
    expert_placement: as of `expert_placement.read`; '': experts stay.
    committed: for each run with a fault, the task (layout.TASK) that did it.
    images: compiled so far, by pass, config, policy and options.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    modes=checking_lib.NAMES,
    relays=True,
    sublayers=True,
    forms=layout.QUANTISED[1:],
  )
  options: granularity.Options = granularity.Options()
  threads: int | None = None
  deadline_s: float = 60.0
  fault: str | None = None
  checking: checking_lib.Checking = checking_lib.Checking()
  name: str = 'backend_ascend'
  isa: tuple[str, ...] = ()
  fused: bool = False
  expert_placement: str = ''
  committed: list[np.void] = candidates.noted(list)
  launches: list[image_launch.ImageLaunch] = candidates.noted(list)
  images: dict[tuple, image_lib.Image] = candidates.noted(dict)

  def __post_init__(self):
    known = _native.isas()
    unknown = [isa for isa in self.isa if isa not in known]
    if unknown:
      raise ValueError(
        f'isa: expected some of {known} on this CPU, got {unknown[0]!r}'
      )

  def ready(self, case: case_lib.Case, beside: str = '') -> Self:
    """See `Candidate`; what is returned has launched nothing."""
    super().ready(case, beside)
    known = {n: None for p in case.passes for n in faults.specs(p.direction)}
    if self.fault is not None and self.fault not in known:
      raise ValueError(
        f'fault: expected one of {list(known)} in direction '
        f'{case.direction}, got {self.fault!r}'
      )
    if case.rows and self.checking.replays:
      raise ValueError(
        f'rows: expected none beside isolate, start_at and stop_after, which '
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
    """Commits the fault, if there is one, in the first task that it changes."""
    policy, asked = image.policy, None
    if fused:
      inputs = given_by_front_ends(layer_pass, image.config, policy, inputs)
      asked = layer_pass.results
    else:
      inputs = read_by_runtime(layer_pass, policy, inputs)
    plan = runtime.route(image, inputs['topk_ids'])
    launch = functools.partial(
      self._launch,
      layer_pass,
      image,
      plan,
      inputs,
      modes=modes,
      asked=asked,
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
    self, which, image, plan, inputs, fault, *, modes, asked, view
  ) -> dict[str, np.ndarray]:
    launched = runtime.run(
      image,
      inputs,
      names=asked,
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
    found = launched.races, launched.num_races
    self.launches.append(
      image_launch.ImageLaunch(
        which, *found, left_out, image=image, plan=plan, view=view
      )
    )
    return as_stages(image, plan, inputs, _own_outputs(plan, launched))

  def _compiled(self, which, *layer) -> image_lib.Image:
    """Returns an image: a check launches it on data of several kinds."""
    if (which, *layer) not in self.images:
      self.images[which, *layer] = _compiled(which.direction, *layer)
    return self.images[which, *layer]

  @property
  def serial(self) -> Callable[..., dict[str, np.ndarray]] | None:
    """What the same tile kernels give serially, cut in another way.

    Under `isolate` those too read the oracle's tensors; where only a part of
    the tasks run, nothing cut in another way is that part.
    """
    return None if self.checking.is_part else self._run_serially

  def _run_serially(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    view = self._view(config, inputs)
    with failures.report_failures(self.name, view):
      options = self._serial_options(view.config, layer_pass)
      image = self._compiled(layer_pass, view.config, policy, options)
      inputs = read_by_runtime(layer_pass, policy, view.place(inputs))
      plan = runtime.route(image, inputs['topk_ids'])
      healing = oracle_tensors and view.place(oracle_tensors)
      modes = checking_lib.Checking(isolate=self.checking.isolate)
      launched = self._launch_serial(
        image, inputs, plan, checking_modes.build_modes(modes, image, healing)
      )
      return view.restore(
        as_stages(image, plan, inputs, _own_outputs(plan, launched))
      )

  @property
  def as_used(self) -> Callable[..., dict[str, np.ndarray]] | None:
    """What the launch that front ends make gives: only the pass's results.

    None where it is `run`, or where tasks read the oracle's tensors or commit a
    fault: users' do not.
    """
    plain = not (self.fused or self.checking.replays or self.fault)
    return self._run_as_used if plain else None

  def _run_as_used(
    self, config, policy, inputs, layer_pass=passes.FORWARD
  ) -> dict[str, np.ndarray]:
    view = self._view(config, inputs)
    config = view.config
    given = given_by_front_ends(layer_pass, config, policy, view.place(inputs))
    routing = {n: given[n][:, ::-1] for n in ('topk_ids', 'topk_weights')}
    layer = layer_pass, config, policy
    with failures.report_failures(self.name, view):
      # Blocks of this check cut what those of a front end hold whole.
      cut = self._asked_of_users(*layer, self.options)
      whole = self._asked_of_users(*layer, granularity.host_options(config))
      launched = self._run_with_modes(cut, given)
      # It keeps memory: that of another routing must not show.
      none = np.zeros(len(whole.image.tables['tasks']), np.uint8)
      other = given | routing
      self._run_with_modes(whole, other, guards=False, actions=none)
      outputs = whole.run(given).outputs
    for name, array in outputs.items():
      bytes_ = (a.view(np.uint8) for a in (array, launched[name]))
      if not np.array_equal(*bytes_):
        raise candidates.CandidateError(
          f'{self.name}: the launch that front ends make: {name}: expected the '
          'same bits however tasks are cut and whatever ran before, got others'
        )
    return view.restore(outputs)

  def alone_as_used(
    self, config, policy, inputs, layer_pass=passes.FORWARD
  ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Replays the launch that front ends make: each task of it by itself.

    It reads what a launch of all tensors made, so what it writes must be bits
    of that; no fault spreads.

    Returns:
      What tasks wrote, but for what is fused away; and that launch's tensors.

    Raises:
      candidates.FaultDoesNothing: the fault has no place in it.
      candidates.CandidateError: it ended early.
    """
    view = self._view(config, inputs)
    inputs = view.place(inputs)
    with failures.report_failures(self.name, view):
      image = self._compiled(layer_pass, view.config, policy, self.options)
      whole = dataclasses.replace(self, fault=None)._run(
        layer_pass, image, inputs, modes_lib.Modes(), False, view
      )
      alone = dataclasses.replace(self.checking, isolate=True)
      got = self._run(
        layer_pass,
        image,
        inputs,
        checking_modes.build_modes(alone, image, whole),
        True,
        view,
      )
      return view.restore(got), view.restore(whole)

  def _asked_of_users(self, which, config, policy, options) -> runtime.Launch:
    return runtime.Launch(
      self._compiled(which, config, policy, options),
      threads=self.threads,
      deadline_s=self.deadline_s,
      isa=self.isa[0] if self.isa else None,
    )

  def _run_with_modes(self, loaded: runtime.Launch, given, **but) -> Tensors:
    modes = checking_modes.build_modes(self.checking, loaded.image)
    launched = loaded.run(given, modes=dataclasses.replace(modes, **but))
    if launched.num_races:
      raise candidates.CandidateError(
        f'{self.name}: the launch that front ends make: {launched.races[0]}'
      )
    return launched.outputs

  def _serial_options(self, config, which) -> granularity.Options:
    return cut_otherwise(self.options, config, which)

  def _launch_serial(
    self, image, inputs, plan, modes
  ) -> modes_lib.LaunchResult:
    isa = self.isa[-1] if self.isa else None
    return runtime.run_serial(image, inputs, isa=isa, plan=plan, modes=modes)


def require_placeable(
  case: case_lib.Case, options: granularity.Options, placement: str
) -> None:
  """Refuses what a launch under a placement is not judged in.

  Raises:
    ValueError: relayed rows, which the oracle has by the layer's own ranks; a
      sub-layer; gradients of experts that have copies in another dtype than
      float32; a placement that cannot
      be read.
    OSError: likewise.
  """
  if not placement:
    return
  if options.relay:
    raise ValueError(
      'relay: expected none beside --expert_placement, under which rows cross '
      'to other ranks than those of the layer, got relay'
    )
  tensors.require_layer(case, 'beside --expert_placement')
  has_copies = placement_lib.read(placement, case.ranks).has_copies
  sums = has_copies and case.direction != 'forward'
  if sums and case.dtype != 'float32':
    raise ValueError(
      'expert_placement: expected dtype f32 or direction forward beside copies '
      f'of experts, whose gradients are summed, got {case.dtype}'
    )


def _own_outputs(plan, launched) -> dict[str, np.ndarray]:
  """Returns what the tasks wrote, before anything took its place."""
  if launched.captures is None:
    return launched.outputs
  relayed = {spec.name for spec in tensors.RELAYED}
  outputs = dict(launched.outputs)
  for name, own in launched.captures.items():
    fused_away = name not in outputs and poison_lib.is_poison(own).all()
    if name not in tensors.SPECS or fused_away:
      continue
    counts = plan.relayed_counts if name in relayed else plan.counts
    rows = counts.sum(axis=0).reshape(len(plan.counts), -1).sum(axis=1)
    if 'N' in tensors.SPECS[name].shape.split():
      # No task has the rows past the last valid one.
      for rank, valid in enumerate(rows):
        past = outputs[name][rank, valid:] if name in outputs else 0
        own[rank, valid:] = past
    outputs[name] = own
  return outputs


def as_stages(
  image: image_lib.Image,
  plan: _native.Routing,
  inputs: Tensors,
  outputs: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns a launch's tensors; in place of sums of codes what they mean."""
  sums = [name for name in outputs if name.endswith('_sums')]
  if not sums:
    return outputs
  values = code_values.compute_values(image, plan, inputs, outputs)
  return {n: a for n, a in outputs.items() if n not in sums} | values


def read_by_runtime(
  which: passes.Pass, policy: precision.PrecisionPolicy, inputs: Tensors
) -> dict[str, np.ndarray]:
  """Returns a pass's inputs but those that our runtime makes or never reads."""
  backward = which.name == passes.BACKWARD.name
  unread = {'x', *tensors.PLAN} if backward else ()
  layer = passes.SUBLAYER if 'w_norm' in inputs else tensors.Parts()
  read = which.reads(layer, policy)
  return {n: inputs[n] for n in read if n not in (*unread, *policy.coded)}


def given_by_front_ends(
  which: passes.Pass,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  inputs: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns a pass's inputs as our layers keep them: x and expert_out."""
  if config.sublayer:
    return read_by_runtime(which, policy, inputs)
  if which is passes.FORWARD:
    return read_by_runtime(which, policy, inputs)
  names = ('dy', *tensors.INPUTS, 'gate_up', 'activation')
  given = {name: inputs[name] for name in names}
  if policy.placement == 'combine':
    returned = inputs['returned']
    shape = (config.num_ranks, config.num_rows, config.d_model)
    rows = np.zeros_like(returned, shape=shape)
    owners = inputs['topk_ids'] // config.experts_per_rank
    rows[owners, inputs['row_of_slot']] = returned
    given['expert_out'] = rows
  return given


def cut_otherwise(
  options: granularity.Options, config: config_lib.MoEConfig, which: passes.Pass
) -> granularity.Options:
  """Returns options under which no tile is cut as it was.

  Where there is something to cut: columns and tokens of which there are more
  than one, rows of experts that have as many as the average expert.
  """
  widths = [config.d_model, config.d_ff, 2 * config.d_ff]
  average = config.num_ranks * config.num_tokens * config.top_k
  average //= config.num_experts
  rows = _half(min(options.row_block, average))
  whole = options.chain_rows is None or options.chain_rows >= average
  chained = which.name == passes.BACKWARD.name and whole
  return granularity.Options(
    event_grain='expert' if options.event_grain == 'row_block' else 'row_block',
    row_block=2 if options.row_block == 1 else rows,
    col_block=_cut_otherwise(options.col_block, widths),
    token_block=_cut_otherwise(
      options.token_block or options.row_block, [config.num_tokens]
    ),
    # What was one sum becomes a chain; more links would only take longer.
    chain_rows=_half(average) if chained else None,
    num_aic=1,
    num_aiv=1,
  )


def _half(size: int) -> int:
  return max(1, -(-size // 2))


def _cut_otherwise(block: int, extents: list[int]) -> int:
  """Returns a block that cuts each extent above one where `block` does not."""
  shortest = min((e for e in extents if e > 1), default=1)
  return _half(shortest) if block >= shortest else max(extents)
