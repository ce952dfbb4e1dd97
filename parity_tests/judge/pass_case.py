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
Got = dict[str, np.ndarray]


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
    which: the pass.
    made: sizes and precision; its arrays are those that the pass reads.
    tiling: how tasks cut its tensors, for this routing.
    pass_answer: returns the oracle's tensors of the pass.
    relay: whether tokens cross to a rank once, which can be seen.
    hidden: returns `unseen_saved`, once the candidate has run.
    before: tensors of this pass on other data, read and written by the call
      before.
  """

  which: passes.Pass
  made: inputs_lib.LayerInputs
  tiling: tiles.Tiling
  pass_answer: Callable[[], Got]
  relay: bool = False
  hidden: Callable[[], tuple[str, ...]] = tuple
  before: Got = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def unseen_saved(self) -> tuple[str, ...]:
    """Of the backward pass's arrays, what the candidate kept to itself.

    It may be as far off as rounding allows.
    """
    return self.hidden()

  @property
  def relayed(self) -> tuple[str, ...]:
    """The tensor of relayed rows, if there is one."""
    return (self.which.relayed,) if self.relay else ()

  @property
  def stages(self) -> tuple[str, ...]:
    return (*self.relayed, *self.which.stages)

  def answer(self) -> Got:
    """Returns the oracle's tensors; the caller may drop some."""
    relayed = {name: self.recompute(name, {}) for name in self.relayed}
    return self.pass_answer() | relayed

  def ask(self, candidate: candidates.Candidate) -> 'Answer':
    """Runs a candidate, in a replay on what the oracle answers."""
    if not candidate.checking.replays:
      got = self.run(candidate.run)
      return Answer(got, got, candidate.serial)
    given = self.answer()
    run: Callable[..., Got] = candidate.run
    got = self.run(functools.partial(run, given=given))
    serial = candidate.serial and functools.partial(
      candidate.serial, given=given
    )
    return Answer(got, given if candidate.checking.isolate else got, serial)

  @functools.cached_property
  def oracle(self) -> oracle_lib.Oracle:
    made = self.made
    return oracle_lib.Oracle(made.config, made.policy, made.arrays)

  @property
  def sources(self) -> passes.Sources:
    return self.which.sources(self.made.config, self.made.policy)

  @property
  def movement(self) -> tuple[str, ...]:
    return (*self.relayed, *self.which.movement(self.made.policy))

  def run(self, function: Callable[..., Got]) -> Got:
    """Returns what a candidate's `run` or `serial` answers."""
    made = self.made
    given = codes.given(made.policy, made.arrays)
    return function(made.config, made.policy, given, self.which)

  def golden(
    self,
    captured: passes.Tensors,
    policy: precision.PrecisionPolicy | None = None,
  ) -> golden_lib.Rows:
    """Returns golden rows, under the policy of the inputs or another."""
    made, policy = self.made, policy or self.made.policy
    arrays = {
      n: a for n, a in made.arrays.items() if n not in self.unseen_saved
    }
    return pass_reference.golden(
      self.which, self.tiling, policy, arrays, captured
    )

  def under(self, policy: precision.PrecisionPolicy) -> 'PassCase':
    """Returns the same inputs, to be computed under another policy."""
    made = dataclasses.replace(self.made, policy=policy)
    return dataclasses.replace(self, made=made)

  def usable(self, name: str, got: passes.Tensors) -> passes.Tensors:
    """Returns those of tensors that a stage may be recomputed from.

    Rows of tokens are made of rows of all ranks' experts, and these of those:
    where ranks are missing, of its own side alone.
    """
    if self.tiling.ranks is None:
      return got
    side = tiles.is_of_tokens(name)
    return {n: a for n, a in got.items() if tiles.is_of_tokens(n) == side}

  def recompute(self, name: str, got: passes.Tensors) -> np.ndarray:
    """Returns the oracle's stage, from the nearest tensors that were captured.

    What the stage reads and `got` lacks is recomputed in the same way.
    """
    got = self.usable(name, got)
    read = {
      source: got[source] if source in got else self.recompute(source, got)
      for source in self.sources[name]
    }
    return self.oracle.stage(name, read)

  def follows(self, name: str, got: passes.Tensors) -> bool:
    """Says whether all that a stage of this pass reads was captured."""
    seen = set(self.sources[name]) <= set(self.usable(name, got))
    return seen and not self._hidden(name)

  def _hidden(self, name: str) -> Set[str]:
    """Returns what a stage reads of `unseen_saved`."""
    reads = tensors.reads(self.made.config, self.made.policy.placement)[name]
    return set(reads) & set(self.unseen_saved)

  def unseen(self, name: str, got: passes.Tensors) -> tuple[str, ...]:
    """Returns what a stage was computed from and `got` lacks, in order."""
    before = {*self._hidden(name)}
    got = self.usable(name, got)
    for source in self.sources[name]:
      if source not in got:
        before |= {source, *self.unseen(source, got)}
    every = (*self.unseen_saved, *self.which.stages)
    return tuple(one for one in every if one in before)

  def reads_only(self, name: str, some: Set[str]) -> bool:
    """Says whether a stage reads stages of this pass, all of them in `some`."""
    read = set(self.sources[name])
    return bool(read) and read <= some

  def descends(self, name: str, got: passes.Tensors) -> bool:
    """Says whether anything that a stage is computed from was captured."""
    got = self.usable(name, got)
    return any(
      source in got or self.descends(source, got)
      for source in self.sources[name]
    )


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a candidate returned.

  Attributes:
    got: its tensors by name.
    sources: those from which its stages were computed: its own, or in isolated
      replay the oracle's.
    serial: as `Candidate.serial`, on the same sources; or None.
  """

  got: Got
  sources: passes.Tensors
  serial: Callable[..., Got] | None


@dataclasses.dataclass(frozen=True)
class Findings:
  """What some lanes say of a pass, or of all.

  Attributes:
    results: the comparisons.
    got: what the candidate returned, of one pass.
    wrong: in isolated replay, the tasks that wrote what is wrong.
    changes: what later runs gave other bits.
    runs: of the candidate on these inputs, at least.
  """

  results: Results
  got: Got
  wrong: list[isolation.WrongTask] = dataclasses.field(default_factory=list)
  changes: Sequence[verdicts.Change] = ()
  runs: int = 1


# Products of a layer that is computed under a hundred policies.
_MOST_PRODUCTS = 1 << 30


def is_small(case: PassCase) -> bool:
  sizes = case.made.config.dims()
  rows = sizes['R'] * sizes['T'] * sizes['K']
  return 3 * rows * sizes['D'] * sizes['F'] <= _MOST_PRODUCTS


def is_dense(case: PassCase) -> bool:
  """Says whether a layer is a dense MLP that all ranks' tokens go through."""
  made, tiling = case.made, case.tiling
  whole = tiling.ranks is None and tiling.sample is None and is_small(case)
  return whole and dense.applies(made.config, made.policy, made.arrays)


def count_pass_steps(
  asked: Sequence[str], which: passes.Pass, has_serial: bool
) -> int:
  """Returns how often the lanes of a pass call `progress`."""
  steps = 6 * ('exact' in asked) + 2 + len(which.stages) + 1
  if 'bitwise' in asked and has_serial:
    steps += 1
  return steps
