"""One pass of a layer on given inputs: the candidate, the oracle, the golden.

The lanes judge a `PassCase`; a candidate's `Answer` to it becomes `Findings`.
"""

from collections.abc import Callable, Iterator, Sequence, Set
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import routing_mistakes
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import router as router_lib
from hpmoe.reference.contract import tensors

Progress = Callable[[str], None]
Results = list[verdicts.Result]
Arrays = dict[str, np.ndarray]
Variant = tuple[str, str, Callable[[], np.ndarray]]


@dataclasses.dataclass(frozen=True)
class LaneOptions:
  """Options of the lanes of a pass.

  Attributes:
    lanes: some of `verdicts.LANES`.
    records: the records that lane standard judges by.
    progress: called with the name of each step as it begins.
    roundings: stages whose failures are searched for roundings; None: all.
    explain: whether failures are explained.
    beside: judges outputs of a pass that are no stages; None: there are none.
    other_inputs: the routings of kernels with known mistakes.
    list_others: (case, stage, sources, chain) -> that stage of kernels with
      other known mistakes: words, where to look, and what computes it.
  """

  lanes: tuple[str, ...]
  records: tuple[standards.Standard, ...]
  progress: Progress
  roundings: Sequence[str] | None = None
  explain: bool = True
  beside: 'Callable[[LaneOptions, PassCase, Answer], Results] | None' = None
  other_inputs: tuple[routing_mistakes.OtherInputs, ...] = ()
  list_others: 'Callable[..., Iterator[Variant]]' = lambda *_: iter(())


@dataclasses.dataclass(frozen=True)
class PassCase:
  """One pass on one set of inputs.

  Attributes:
    layer_pass: the pass.
    inputs: sizes and precision; its arrays are those that the pass reads.
    tiling: how tasks cut its tensors, for this routing.
    pass_answer: returns the oracle's tensors of the pass.
    relay: whether each token is sent to a rank once, so that relayed rows are
      a tensor of the pass.
    hidden: returns `unseen_saved`; called after the candidate has run.
    before: tensors that the previous call of this pass read and wrote, on other
      data.
    router: the rule of a layer with its router's GEMM; None: there is none.
    own_policy: that of the case, where it is computed under another; else None.
  """

  layer_pass: passes.Pass
  inputs: inputs_lib.LayerInputs
  tiling: tiles.Tiling
  pass_answer: Callable[[], Arrays]
  relay: bool = False
  hidden: Callable[[], tuple[str, ...]] = tuple
  before: Arrays = dataclasses.field(default_factory=dict)
  router: router_lib.Router | None = None
  own_policy: precision.PrecisionPolicy | None = None

  def with_router(
    self, router: router_lib.Router, arrays: Arrays
  ) -> 'PassCase':
    """Returns the backward pass through a router's GEMM as well.

    Args:
      router: its rule.
      arrays: router_w `[D, E]`, the stored router_logits `[R, T, E]`, and
        router_bias `[E]` if the rule has one.
    """
    inputs = dataclasses.replace(
      self.inputs, arrays={**self.inputs.arrays, **arrays}
    )
    layer_pass = self.layer_pass.with_router()
    return dataclasses.replace(
      self, layer_pass=layer_pass, inputs=inputs, router=router
    )

  @functools.cached_property
  def unseen_saved(self) -> tuple[str, ...]:
    """Saved tensors that the backward pass reads and the candidate lacks.

    Each may differ from the oracle's by as much as rounding allows.
    """
    return self.hidden()

  @property
  def relayed(self) -> tuple[str, ...]:
    """The tensor of relayed rows, if there is one."""
    return (self.layer_pass.relayed,) if self.relay else ()

  @property
  def stages(self) -> tuple[str, ...]:
    """The relayed rows, if any, and the stages of the pass."""
    return (*self.relayed, *self.layer_pass.stages)

  def answer(self) -> Arrays:
    """Returns the oracle's tensors; the caller may drop some."""
    answer = self.pass_answer()
    for name in (*passes.ROUTER_ROWS, 'dx') if self.router else ():
      answer.pop(name, None)
      answer[name] = self.recompute(name, answer)
    return answer | {name: self.recompute(name, {}) for name in self.relayed}

  def ask(self, candidate: candidates.Candidate) -> 'Answer':
    """Runs a candidate; a replay gets the oracle's tensors as its inputs."""
    if not candidate.checking.replays:
      outputs = self.run(candidate.run)
      return Answer(outputs, self._read_codes(outputs), candidate.serial)
    oracle_tensors = self.answer()
    run: Callable[..., Arrays] = candidate.run
    outputs = self.run(functools.partial(run, oracle_tensors=oracle_tensors))
    serial = candidate.serial and functools.partial(
      candidate.serial, oracle_tensors=oracle_tensors
    )
    isolated = candidate.checking.isolate
    sources = oracle_tensors if isolated else outputs
    return Answer(outputs, sources, serial, isolated)

  def _read_codes(self, outputs: Arrays) -> Arrays:
    """Returns the tensors that stages read.

    Rows that were returned as codes are replaced by the values of these codes,
    which is what stages read.
    """
    policy, arrays = self.inputs.policy, self.inputs.arrays
    names = {*quantised_inputs.list_row_names(policy)} & {*outputs}
    if not names:
      return outputs
    whole = {n: lazy_tensors.load_whole(outputs[n]) for n in names}
    # Rows of expert_in are copies of tokens that were quantised before.
    whole = self.send_codes(whole) | whole
    outputs = {**outputs, **whole}
    scales = {n: self._scale_rows(arrays[n]) for n in policy.static_scales}
    rows = quantised_inputs.read_rows(policy, whole, scales)
    for name, values in rows.items():
      for rank in range(len(values)):
        self.tiling.padding(name, values, rank)[:] = 0
    return {**outputs, **rows}

  def send_codes(self, outputs: Arrays) -> Arrays:
    """Returns codes and scales of expert_in, `[R, N, ...]`, copies of x's.

    Args:
      outputs: may have those of x, `[R, T, ...]`.
    """
    config, sent_parts = self.inputs.config, {}
    names = quantised_inputs.list_row_names(self.inputs.policy)
    for spec in tensors.TOKEN_CODES:
      if not {spec.name} <= {*outputs} & {*names}:
        continue
      if self.tiling.ranks is not None:  # others' tokens are not here
        continue
      of_tokens = outputs[spec.name]
      flat = of_tokens.reshape(-1, of_tokens.shape[-1])
      shape = config.num_ranks, config.num_rows, flat.shape[1]
      rows = np.zeros(shape, flat.dtype)
      for rank, slots in enumerate(self.tiling.slot_of_row):
        rows[rank, : len(slots)] = flat[slots // config.top_k]
      sent_parts[f'{quantised.ROWS[0]}_{spec.kind}'] = rows
    return sent_parts

  def _scale_rows(self, scale: np.ndarray) -> np.ndarray:
    """Returns `[R, N]`, the scale `[R, L]` of each row's expert, else 0."""
    config = self.inputs.config
    scales = np.zeros((config.num_ranks, config.num_rows), np.float32)
    for rank, of_experts in enumerate(scale):
      of_rows = self.tiling.repeat_experts(rank, of_experts)
      scales[rank, : len(of_rows)] = of_rows
    return scales

  @functools.cached_property
  def oracle(self) -> oracle_lib.Oracle:
    inputs = self.inputs
    return oracle_lib.Oracle(
      inputs.config, inputs.policy, inputs.arrays, self.router
    )

  @property
  def sources(self) -> passes.Sources:
    """The stages of this pass that each stage reads, by name."""
    return self.layer_pass.sources(self.inputs.config, self.inputs.policy)

  @property
  def reads(self) -> dict[str, tuple[str, ...]]:
    """The tensors that each stage reads, routing and its weights apart."""
    inputs = self.inputs
    return self.layer_pass.reads_of(inputs.config, inputs.policy.placement)

  @property
  def movement(self) -> tuple[str, ...]:
    """The stages that only move rows."""
    return (*self.relayed, *self.layer_pass.movement(self.inputs.policy))

  def run(self, function: Callable[..., Arrays]) -> Arrays:
    """Returns the outputs of a candidate's `run` or `serial`."""
    inputs = self.inputs
    arrays = quantised_inputs.replace_values(inputs.policy, inputs.arrays)
    return function(inputs.config, inputs.policy, arrays, self.layer_pass)

  def golden(
    self,
    sources: passes.Tensors,
    policy: precision.PrecisionPolicy | None = None,
  ) -> golden_lib.Rows:
    """Returns golden rows, under the policy of the inputs or `policy`."""
    inputs, policy = self.inputs, policy or self.inputs.policy
    arrays = {
      n: a for n, a in inputs.arrays.items() if n not in self.unseen_saved
    }
    return pass_reference.build_golden(
      self.layer_pass, self.tiling, policy, arrays, sources, router=self.router
    )

  def with_policy(self, policy: precision.PrecisionPolicy) -> 'PassCase':
    """Returns the same case under another policy."""
    inputs = dataclasses.replace(self.inputs, policy=policy)
    own_policy = self.own_policy or self.inputs.policy
    return dataclasses.replace(self, inputs=inputs, own_policy=own_policy)

  def select_usable(
    self, name: str, available: passes.Tensors
  ) -> passes.Tensors:
    """Returns the tensors from which a stage can be recomputed.

    Rows of tokens depend on expert rows of all ranks, and expert rows on tokens
    of all ranks.  If ranks are missing, only tensors of the stage's own side,
    tokens or experts, are usable.
    """
    if self.tiling.ranks is None:
      return available
    side = tiles.is_of_tokens(name)
    return {n: a for n, a in available.items() if tiles.is_of_tokens(n) == side}

  def recompute(self, name: str, available: passes.Tensors) -> np.ndarray:
    """Returns the oracle's stage, computed from the nearest available tensors.

    Sources that `available` lacks are recomputed in the same way.
    """
    available = self.select_usable(name, available)
    read = {
      source: available[source]
      if source in available
      else self.recompute(source, available)
      for source in self.sources[name]
    }
    policy = self.read_policy(name, available)
    read |= self.read_token_codes(name, available)
    return self.oracle.stage(name, read, policy)

  def read_policy(
    self, name: str, available: passes.Tensors
  ) -> precision.PrecisionPolicy:
    """Returns the policy of a stage that reads available codes of rows.

    Shared experts read the codes of tokens, and no others.
    """
    policy = self.inputs.policy
    if tensors.SPECS[name].part != 'shared':
      return policy.reading(available)
    if self.read_token_codes(name, available):
      return policy.reading(['expert_in_codes'])
    return policy

  def read_token_codes(self, name: str, available: passes.Tensors) -> Arrays:
    """Returns x as available codes of tokens mean it, if a stage reads those.

    Shared experts do; rows of expert_in have copies of them.
    """
    if name != 'shared_gate_up':
      return {}
    policy = self.own_policy or self.inputs.policy
    names = {*quantised_inputs.list_row_names(policy)} & {*available}
    forms = quantised_inputs.select_forms(
      quantised.output_forms(policy.rows), names
    )
    of_x = {name: form for name, form in forms.items() if name == 'x'}
    return quantised_inputs.compute_values(of_x, available)

  def has_all_sources(self, name: str, available: passes.Tensors) -> bool:
    """Says whether every source of a stage is available."""
    is_available = set(self.sources[name]) <= set(
      self.select_usable(name, available)
    )
    return is_available and not self._hidden(name)

  def _hidden(self, name: str) -> Set[str]:
    """Returns the tensors of `unseen_saved` that a stage reads."""
    return {*self.reads[name]} & {*self.unseen_saved}

  def list_unseen(
    self, name: str, available: passes.Tensors
  ) -> tuple[str, ...]:
    """Returns the sources of a stage that `available` lacks, in order."""
    missing = {*self._hidden(name)}
    available = self.select_usable(name, available)
    for source in self.sources[name]:
      if source not in available:
        missing |= {source, *self.list_unseen(source, available)}
    names = (*self.unseen_saved, *self.layer_pass.stages)
    return tuple(stage for stage in names if stage in missing)

  def reads_only(self, name: str, stages: Set[str]) -> bool:
    """Says whether a stage reads some of these stages of the pass, no other."""
    read = set(self.sources[name])
    return bool(read) and read <= stages

  def has_any_source(self, name: str, available: passes.Tensors) -> bool:
    """Says whether any tensor that a stage depends on is available."""
    available = self.select_usable(name, available)
    return any(
      source in available or self.has_any_source(source, available)
      for source in self.sources[name]
    )


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a candidate returned.

  Attributes:
    outputs: its tensors by name.
    sources: the tensors from which its stages were computed: its own outputs,
      or in isolated replay the oracle's tensors.  Rows that it returned as
      codes are their values, in float32.
    serial: the outputs of `Candidate.serial` on the same sources, or None.
    is_isolated: whether the sources are the oracle's.
  """

  outputs: Arrays
  sources: passes.Tensors
  serial: Callable[..., Arrays] | None
  is_isolated: bool = False


@dataclasses.dataclass(frozen=True)
class Findings:
  """The findings of lanes in one pass, or in all passes.

  Attributes:
    results: the comparisons.
    outputs: the candidate's tensors, for one pass.
    wrong: in isolated replay, the tasks that wrote wrong elements.
    changes: tensors whose bits differ in a later run.
    runs: the smallest number of runs on the same inputs.
  """

  results: Results
  outputs: Arrays
  wrong: list[isolated_replay.WrongTask] = dataclasses.field(
    default_factory=list
  )
  changes: Sequence[verdicts.Change] = ()
  runs: int = 1


# Products of the largest layer that is computed under a hundred policies.
_MOST_PRODUCTS = 1 << 30


def is_small(case: PassCase) -> bool:
  """Says whether a layer is small enough to compute it a hundred times."""
  sizes = case.inputs.config.dims()
  rows = sizes['R'] * sizes['T'] * sizes['K']
  return 3 * rows * sizes['D'] * sizes['F'] <= _MOST_PRODUCTS


def is_dense(case: PassCase) -> bool:
  """Says whether the layer is a dense MLP on the tokens of all ranks."""
  inputs, tiling = case.inputs, case.tiling
  whole = tiling.ranks is None and tiling.sample is None and is_small(case)
  whole = whole and case.router is None
  return whole and dense.applies(inputs.config, inputs.policy, inputs.arrays)


def count_pass_steps(
  lanes: Sequence[str], layer_pass: passes.Pass, has_serial: bool
) -> int:
  """Returns how often the lanes of a pass call `progress`."""
  steps = 6 * ('exact' in lanes) + 2 + len(layer_pass.stages) + 1
  if 'bitwise' in lanes and has_serial:
    steps += 1
  return steps
