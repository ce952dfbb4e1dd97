"""One pass of a layer on given inputs: the candidate, the oracle, the golden.

The lanes judge a `PassCase`; a candidate's `Answer` to it becomes `Findings`.
"""

from collections.abc import Callable, Sequence, Set
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import codes
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import isolation
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Progress = Callable[[str], None]
Results = list[verdicts.Result]
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class LaneOptions:
  """What was asked for.

  Attributes:
    lanes: some of `verdicts.LANES`.
    records: of lane standard.
    progress: called with the name of each step as it begins.
    roundings: stages that are looked at for roundings; None: all.
    explain: whether what fails is explained.
  """

  lanes: tuple[str, ...]
  records: tuple[standards.Standard, ...]
  progress: Progress
  roundings: Sequence[str] | None = None
  explain: bool = True


@dataclasses.dataclass(frozen=True)
class PassCase:
  """One pass on one set of inputs.

  Attributes:
    layer_pass: the pass.
    inputs: sizes and precision; its arrays are those that the pass reads.
    tiling: how tasks cut its tensors, for this routing.
    pass_answer: returns the oracle's tensors of the pass.
    relay: whether tokens cross to a rank once, which can be seen.
    hidden: returns `unseen_saved`, once the candidate has run.
    before: tensors of this pass on other data, read and written by the call
      before.
  """

  layer_pass: passes.Pass
  inputs: inputs_lib.LayerInputs
  tiling: tiles.Tiling
  pass_answer: Callable[[], Arrays]
  relay: bool = False
  hidden: Callable[[], tuple[str, ...]] = tuple
  before: Arrays = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def unseen_saved(self) -> tuple[str, ...]:
    """Of the backward pass's arrays, what the candidate kept to itself.

    It may be as far off as rounding allows.
    """
    return self.hidden()

  @property
  def relayed(self) -> tuple[str, ...]:
    """The tensor of relayed rows, if there is one."""
    return (self.layer_pass.relayed,) if self.relay else ()

  @property
  def stages(self) -> tuple[str, ...]:
    return (*self.relayed, *self.layer_pass.stages)

  def answer(self) -> Arrays:
    """Returns the oracle's tensors; the caller may drop some."""
    relayed = {name: self.recompute(name, {}) for name in self.relayed}
    return self.pass_answer() | relayed

  def ask(self, candidate: candidates.Candidate) -> 'Answer':
    """Runs a candidate, in a replay on what the oracle answers."""
    if not candidate.checking.replays:
      outputs = self.run(candidate.run)
      return Answer(outputs, outputs, candidate.serial)
    oracle_tensors = self.answer()
    run: Callable[..., Arrays] = candidate.run
    outputs = self.run(functools.partial(run, given=oracle_tensors))
    serial = candidate.serial and functools.partial(
      candidate.serial, given=oracle_tensors
    )
    return Answer(
      outputs, oracle_tensors if candidate.checking.isolate else outputs, serial
    )

  @functools.cached_property
  def oracle(self) -> oracle_lib.Oracle:
    inputs = self.inputs
    return oracle_lib.Oracle(inputs.config, inputs.policy, inputs.arrays)

  @property
  def sources(self) -> passes.Sources:
    return self.layer_pass.sources(self.inputs.config, self.inputs.policy)

  @property
  def movement(self) -> tuple[str, ...]:
    return (*self.relayed, *self.layer_pass.movement(self.inputs.policy))

  def run(self, function: Callable[..., Arrays]) -> Arrays:
    """Returns what a candidate's `run` or `serial` answers."""
    inputs = self.inputs
    arrays = codes.replace_values(inputs.policy, inputs.arrays)
    return function(inputs.config, inputs.policy, arrays, self.layer_pass)

  def golden(
    self,
    sources: passes.Tensors,
    policy: precision.PrecisionPolicy | None = None,
  ) -> golden_lib.Rows:
    """Returns golden rows, under the policy of the inputs or another."""
    inputs, policy = self.inputs, policy or self.inputs.policy
    arrays = {
      n: a for n, a in inputs.arrays.items() if n not in self.unseen_saved
    }
    return pass_reference.build_golden(
      self.layer_pass, self.tiling, policy, arrays, sources
    )

  def under(self, policy: precision.PrecisionPolicy) -> 'PassCase':
    """Returns the same inputs, to be computed under another policy."""
    inputs = dataclasses.replace(self.inputs, policy=policy)
    return dataclasses.replace(self, inputs=inputs)

  def usable(self, name: str, available: passes.Tensors) -> passes.Tensors:
    """Returns those of tensors that a stage may be recomputed from.

    Rows of tokens are made of rows of all ranks' experts, and these of those:
    where ranks are missing, of its own side alone.
    """
    if self.tiling.ranks is None:
      return available
    side = tiles.is_of_tokens(name)
    return {n: a for n, a in available.items() if tiles.is_of_tokens(n) == side}

  def recompute(self, name: str, available: passes.Tensors) -> np.ndarray:
    """Returns the oracle's stage, from the nearest tensors that were captured.

    What the stage reads and `available` lacks is recomputed in the same way.
    """
    available = self.usable(name, available)
    read = {
      source: available[source]
      if source in available
      else self.recompute(source, available)
      for source in self.sources[name]
    }
    return self.oracle.stage(name, read)

  def follows(self, name: str, available: passes.Tensors) -> bool:
    """Says whether all that a stage of this pass reads was captured."""
    is_available = set(self.sources[name]) <= set(self.usable(name, available))
    return is_available and not self._hidden(name)

  def _hidden(self, name: str) -> Set[str]:
    """Returns what a stage reads of `unseen_saved`."""
    reads = tensors.reads(self.inputs.config, self.inputs.policy.placement)[
      name
    ]
    return set(reads) & set(self.unseen_saved)

  def unseen(self, name: str, available: passes.Tensors) -> tuple[str, ...]:
    """Returns the sources of a stage that `available` lacks, in order."""
    missing = {*self._hidden(name)}
    available = self.usable(name, available)
    for source in self.sources[name]:
      if source not in available:
        missing |= {source, *self.unseen(source, available)}
    names = (*self.unseen_saved, *self.layer_pass.stages)
    return tuple(stage for stage in names if stage in missing)

  def reads_only(self, name: str, stages: Set[str]) -> bool:
    """Says whether a stage reads stages of this pass, and only those given."""
    read = set(self.sources[name])
    return bool(read) and read <= stages

  def descends(self, name: str, available: passes.Tensors) -> bool:
    """Says whether anything that a stage is computed from was captured."""
    available = self.usable(name, available)
    return any(
      source in available or self.descends(source, available)
      for source in self.sources[name]
    )


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a candidate returned.

  Attributes:
    outputs: its tensors by name.
    sources: those from which its stages were computed: its own, or in isolated
      replay the oracle's.
    serial: as `Candidate.serial`, on the same sources; or None.
  """

  outputs: Arrays
  sources: passes.Tensors
  serial: Callable[..., Arrays] | None


@dataclasses.dataclass(frozen=True)
class Findings:
  """What some lanes say of a pass, or of all.

  Attributes:
    results: the comparisons.
    outputs: what the candidate returned, of one pass.
    wrong: in isolated replay, the tasks that wrote what is wrong.
    changes: what later runs gave other bits.
    runs: of the candidate on these inputs, at least.
  """

  results: Results
  outputs: Arrays
  wrong: list[isolation.WrongTask] = dataclasses.field(default_factory=list)
  changes: Sequence[verdicts.Change] = ()
  runs: int = 1


# Products of a layer that is computed under a hundred policies.
_MOST_PRODUCTS = 1 << 30


def is_small(case: PassCase) -> bool:
  sizes = case.inputs.config.dims()
  rows = sizes['R'] * sizes['T'] * sizes['K']
  return 3 * rows * sizes['D'] * sizes['F'] <= _MOST_PRODUCTS


def is_dense(case: PassCase) -> bool:
  """Says whether a layer is a dense MLP that all ranks' tokens go through."""
  inputs, tiling = case.inputs, case.tiling
  whole = tiling.ranks is None and tiling.sample is None and is_small(case)
  return whole and dense.applies(inputs.config, inputs.policy, inputs.arrays)


def count_pass_steps(
  lanes: Sequence[str], layer_pass: passes.Pass, has_serial: bool
) -> int:
  """Returns how often the lanes of a pass call `progress`."""
  steps = 6 * ('exact' in lanes) + 2 + len(layer_pass.stages) + 1
  if 'bitwise' in lanes and has_serial:
    steps += 1
  return steps
