"""One pass of a candidate in the four lanes, on given inputs."""

from collections.abc import Callable, Iterator, Sequence, Set
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import codes
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import misread
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import isolation
from hpmoe.parity_tests.judge import lanes
from hpmoe.parity_tests.judge import of_pass
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import processes
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import edges
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

ORACLE_RULE = 'equals the oracle'
EXACT_HINT = (
  "hint: lane exact sets policy.activation='absolute'; a kernel that does only "
  "swiglu should say so: function.activations = ('swiglu',)"
)
RECOMPUTES_HINT = (
  'hint: the backward pass was judged as if it had read the saved tensors that '
  'it was given, which the forward pass did not return; if it computes them '
  'again, say so: function.backward.recomputes = True'
)
# What has other values where the routing weight multiplies elsewhere.
_PLACED = ('activation', 'expert_out', 'returned', 'd_expert_out')
WIDE_RULE = 'equals the oracle on wide data'
_EXACT_RULES = dict(exact=ORACLE_RULE, wide=WIDE_RULE)
SERIAL_RULE = 'equals its kernels run serially'
USED_RULE = 'equals the launch that front ends make'
ORDERED_RULE = 'equals the oracle in its order'
# One product, or a sum in slot order: the contract leaves one order only.
_ORDERED = ('y', 'd_expert_out', 'dx')

Progress = Callable[[str], None]
Results = list[verdicts.Result]
Got = dict[str, np.ndarray]
Job = Callable[[], Results]


@dataclasses.dataclass(frozen=True)
class Asked:
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

  def ask(self, candidate: candidates.Candidate) -> 'Answered':
    """Runs a candidate, in a replay on what the oracle answers."""
    if not candidate.checking.replays:
      got = self.run(candidate.run)
      return Answered(got, got, candidate.serial)
    given = self.answer()
    run: Callable[..., Got] = candidate.run
    got = self.run(functools.partial(run, given=given))
    serial = candidate.serial and functools.partial(
      candidate.serial, given=given
    )
    return Answered(got, given if candidate.checking.isolate else got, serial)

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
    return of_pass.golden(self.which, self.tiling, policy, arrays, captured)

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
class Answered:
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
class Judged:
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


def count_steps(
  asked: Sequence[str], which: passes.Pass, has_serial: bool
) -> int:
  """Returns how often the lanes of a pass call `progress`."""
  steps = 6 * ('exact' in asked) + 2 + len(which.stages) + 1
  if 'bitwise' in asked and has_serial:
    steps += 1
  return steps


def exact_lane(
  asked: Asked, case: PassCase, candidate: candidates.Candidate
) -> Judged:
  """Integer data on the same routing: candidate and oracle must be equal."""
  which, data = case.which, case.made.data
  rule = _EXACT_RULES[data]
  asked.progress(f'{which.name}, {data}: candidate')
  try:
    answered = case.ask(candidate)
  except candidates.InputsSpoilt:
    raise
  except candidates.CandidateError as error:
    # Only a name of the user's has a colon.
    if ':' not in candidate.name:
      raise
    hint = f'; {EXACT_HINT}' if candidate.can.declares else ''
    raise candidates.CandidateError(
      f'{error} (on {data} data){hint}'
    ) from error
  except candidates.CannotJudge as error:
    return Judged([not_exact(which, data, str(error))], {})
  asked.progress(f'{which.name}, {data}: oracle')
  expected = case.answer()
  asked.progress(f'{which.name}, {data}: compare')
  got = answered.got
  results = [
    equality(name, 'exact', rule, got, expected, case.tiling)
    for name in (*which.plan, *case.stages)
  ]
  results += _as_dense(case, got)
  if ':' in candidate.name:
    results = [with_placement(case, got, result) for result in results]
  refuses = lambda name, right: lanes.differs('exact', got[name], right)
  results = explained(
    asked, case, answered, expected, results, refuses, exact=True
  )
  wrong = []
  if answered.sources is not got:
    differs = _unlike(got, expected, 'exact')
    wrong = guilty(case, candidate, 'exact', results, differs)
  return Judged(results, got, wrong)


def _is_dense(case: PassCase) -> bool:
  """Says whether a layer is a dense MLP that all ranks' tokens go through."""
  made, tiling = case.made, case.tiling
  whole = tiling.ranks is None and tiling.sample is None and is_small(case)
  return whole and dense.applies(made.config, made.policy, made.arrays)


def _as_dense(case: PassCase, got: Got) -> Results:
  """Compares with a dense MLP, where the layer is one."""
  if not _is_dense(case):
    return []
  made, backward = case.made, case.which.name != passes.FORWARD.name
  right = dense.rounded(made.policy, made.arrays, backward)
  return [
    equality(name, 'exact', dense.RULE, got, right, case.tiling)
    for name in right
  ]


def not_exact(which: passes.Pass, data: str, why: str) -> verdicts.Result:
  """Returns the row of lane exact where a pass has no answer."""
  return verdicts.Result(
    which.results[0],
    'exact',
    _EXACT_RULES[data],
    verdict=verdicts.NOT_JUDGED,
    why=why,
  )


def explained(
  asked: Asked,
  case: PassCase,
  answered: Answered,
  expected: passes.Tensors,
  results: Results,
  refuses: Callable[[str, np.ndarray], np.ndarray],
  exact: bool,
) -> Results:
  """Tells of stages that fail what they look like.

  Of the first one, or of each that is wrong in itself, see `explain`; of each
  where only roundings are, `roundings`.
  Not where some ranks are judged alone: it takes the tensors of all.

  Args:
    asked: where roundings are looked for.
    case: the pass.
    answered: what the candidate returned.
    expected: tensors of the oracle's.
    results: of one lane.
    refuses: returns `[R, ...]` bool, the elements that the lane refuses, of a
      stage's name and of what it should be.
    exact: whether right values are equal.
  """
  if not asked.explain or case.tiling.ranks is not None or case.tiling.sample:
    return results
  failures = {
    verdicts.tensor_of(r.stage): r.failure
    for r in reversed(results)
    if r.failure
  }
  words: dict[str, str] = {}
  # Relayed rows have bits only.
  for name in (n for n in case.which.stages if n in failures):
    failure = failures[name]
    # In lane exact what is wrong spreads, elsewhere each has its own reason.
    first = not words or not exact and failure.stage == name
    told, whole = '', False
    if first and failure.bad_rows:
      stage = _failed_stage(case, answered, expected, failure, refuses, exact)
      told, whole = explain.explain(stage, failure.pattern)
    looked = asked.roundings is None or name in asked.roundings
    # A hundred roundings need not be tried where one bug is enough.
    if looked and is_small(case) and not whole:
      rounded = _rounded(case, answered, name)
      with oracle_lib.in_passing():
        told = roundings.explain(rounded) or told
    words[name] = told or failure.pattern

  def tell(result: verdicts.Result) -> verdicts.Result:
    name = verdicts.tensor_of(result.stage)
    if result.failure is None or name not in words:
      return result
    change = functools.partial(dataclasses.replace, pattern=words[name])
    return result.part.but(change)

  return [tell(r) for r in results]


# Products of a layer that is computed under a hundred policies.
_MOST_PRODUCTS = 1 << 30


def is_small(case: PassCase) -> bool:
  sizes = case.made.config.dims()
  rows = sizes['R'] * sizes['T'] * sizes['K']
  return 3 * rows * sizes['D'] * sizes['F'] <= _MOST_PRODUCTS


def _rounded(case: PassCase, answered: Answered, name: str) -> roundings.Stage:
  chain = (*case.unseen(name, answered.sources), name)
  got = lazy_tensors.whole(answered.got[name])
  real = np.ones(got.shape, bool)
  for rank in range(len(got)):
    case.tiling.padding(name, real, rank)[:] = False

  computed = [one for one in chain if one in case.sources]
  held: dict[tuple, np.ndarray] = {}

  def under(policy: precision.PrecisionPolicy) -> np.ndarray:
    of_policy = case.under(policy)
    known = dict(answered.sources)
    key: tuple = ()
    for one in computed:
      order = precision.order_of(one, policy)
      where = policy.placement, policy.dtype(one), order
      key = (*key, precision.points_of(one, policy), *where)
      if key not in held:
        held[key] = lazy_tensors.whole(of_policy.recompute(one, known))
      known[one] = held[key]
    return known[name]

  policy = case.made.policy
  expected = under(policy)
  return roundings.Stage(name, policy, chain, got, expected, real, under)


def _weights_of(stage: str) -> tuple[str, ...]:
  gemms = (tensors.GEMMS, tensors.TRANSPOSED_GEMMS, tensors.WEIGHT_GRADS)
  spec = tensors.SPECS[stage]
  unweighted = spec.role != 'compute' or spec.part == 'shared'
  is_gemm = any(stage in some for some in gemms)
  return () if is_gemm or unweighted else ('topk_weights',)


def _failed_stage(
  case, answered, expected, failure, refuses, exact
) -> explain.Stage:
  name, sources = verdicts.tensor_of(failure.stage), answered.sources
  held = {**case.made.arrays, **expected, **sources, **case.oracle.plan}
  held = {n: lazy_tensors.whole(a) for n, a in held.items()}
  before = case.unseen(name, sources)
  # What its forward pass kept to itself is the oracle's, in `made`.
  chain = (*(one for one in before if one in case.sources), name)
  for one in chain[:-1]:
    held[one] = case.recompute(one, sources)
  right = case.recompute(name, sources)
  bad = refuses(name, right)
  for rank in range(len(bad)):
    case.tiling.padding(name, bad, rank)[:] = False

  def recompute(bugs: explain.Bugs) -> np.ndarray:
    made = dict(held)
    begun = False
    for one in chain:
      begun = begun or one in bugs
      if not begun:
        continue
      read = {n: bug(made[n]) for n, bug in bugs.get(one, {}).items()}
      read = {
        n: np.ascontiguousarray(a) for n, a in read.items() if a is not None
      }
      made[one] = case.oracle.stage(one, {**made, **read})
    return made[name]

  reads = tensors.reads(case.made.config, case.made.policy.placement)
  return explain.Stage(
    name,
    failure.rank,
    lazy_tensors.whole(answered.got[name]),
    lazy_tensors.whole(right),
    bad,
    {
      one: {n: held[n] for n in (*_weights_of(one), *reads[one])}
      for one in reversed(chain)
    },
    recompute,
    case.tiling,
    exact,
    misread.of(case.made.policy.quantised, case.made.arrays),
    {n: lazy_tensors.whole(a) for n, a in case.before.items()},
  )


def with_placement(
  case: PassCase, got: Got, result: verdicts.Result
) -> verdicts.Result:
  """Tells who has a tensor as another `policy.placement` would make it."""
  if result.failure is None or result.stage not in _PLACED:
    return result
  policy, rank = case.made.policy, result.failure.rank

  def made_by(placement: str) -> bool:
    policy = dataclasses.replace(case.made.policy, placement=placement)
    one = case.under(policy)
    if not {*one.unseen(result.stage, got)} <= {
      *case.unseen(result.stage, got)
    }:
      return False
    mine = got[result.stage][rank]
    stage = one.recompute(result.stage, got)[rank]
    return not lanes.differs('exact', mine, stage).any()

  # What merely follows a stage that is wrong is as asked for in itself.
  if made_by(policy.placement):
    return result
  for other in precision.PLACEMENTS:
    if other != policy.placement and made_by(other):
      hint = f'as with placement {other}: is policy.placement read?'
      tell = functools.partial(dataclasses.replace, hint=hint)
      return result.part.but(tell)
  return result


def guilty(
  case: PassCase,
  candidate: candidates.Candidate,
  lane: str,
  results: Results,
  bad: Callable[[str], np.ndarray],
) -> list[isolation.WrongTask]:
  """Returns the tasks of an isolated launch that wrote what a lane refuses.

  A candidate that launched nothing has no tasks: its stages say all there is.
  """
  failed = {r.stage for r in results if r.verdict == verdicts.FAIL}
  stages = [name for name in case.stages if name in failed]
  launch = _last_launch(case, candidate)
  if launch is None:
    return []
  return launch.find_wrong_tasks(lane, {name: bad(name) for name in stages})


def equality(
  name: str,
  lane: str,
  rule: str,
  got: passes.Tensors,
  expected: passes.Tensors,
  tiling: tiles.Tiling,
) -> verdicts.Result:
  if name not in got:
    return verdicts.not_captured(name, lane, rule, name)
  return lanes.compare(name, lane, rule, got[name], expected[name], tiling)


def real_lanes(
  asked: Asked, case: PassCase, candidate: candidates.Candidate
) -> Judged:
  """Lanes bitwise, bounded and standard, on one run of the candidate.

  Where none of them is asked for, what moves and the layer are judged still.
  """
  which = case.which
  asked.progress(f'{which.name}, real data: candidate')
  answered = case.ask(candidate)
  if candidate.checking.is_part:
    answered = _continued(case, candidate, answered)
  got, sources = answered.got, answered.sources
  isolated = sources is not got
  results: Results = []
  wrong: list[isolation.WrongTask] = []
  golden = case.golden(sources)

  def blame(lane: str, found: Results, bad: Callable[[str], np.ndarray]):
    if isolated:
      wrong.extend(guilty(case, candidate, lane, found, bad))

  if 'bitwise' in asked.lanes and answered.serial is not None:
    asked.progress(f'{which.name}, bitwise: own kernels, serially')
    serial = case.run(answered.serial)
    results += [
      equality(name, 'bitwise', SERIAL_RULE, got, serial, case.tiling)
      for name in which.stages
      if name in got
    ]
    blame('bitwise', results, _unlike(got, serial))
    del serial
    results += ordered_rows(case, answered)
  if 'bitwise' in asked.lanes and candidate.as_used is not None:
    used = case.run(candidate.as_used)
    results += [
      equality(name, 'bitwise', USED_RULE, used, got, case.tiling)
      for name in which.results
    ]
  alone = isolated and candidate.alone_as_used and not candidate.fault
  if alone and 'bitwise' in asked.lanes:
    found, tasks = alone_as_used(case, candidate)
    results += found
    wrong += tasks
  asked.progress(f'{which.name}, real data: oracle')
  expected = case.answer()
  # The oracle's own stages stand in only where the candidate kept to itself
  # all that a stage descends from.
  first = {name for name in case.stages if not case.descends(name, sources)}
  second = {name for name in case.stages if case.reads_only(name, first)}
  needed = {*which.plan, *which.results, *first, *second}
  if case.tiling.ranks is not None:
    needed |= {*case.stages}
  expected = {name: expected[name] for name in needed}
  found, homes = moved(case, answered, expected)
  results += found
  blame('bitwise', found, _unlike(got, homes))
  found = judged(asked, case, answered, expected)
  results = explained(
    asked,
    case,
    answered,
    expected,
    results + found,
    lambda name, right: (
      lanes.differs('bitwise', got[name], right)
      if name in case.movement
      else lanes.out_of_bound(name, got[name], golden)
    ),
    exact=False,
  )
  blame(
    'bounded',
    [r for r in found if r.lane == 'bounded'],
    lambda name: lanes.out_of_bound(name, got[name], golden),
  )
  return Judged(results, got, wrong)


def _unlike(
  got: passes.Tensors, expected: passes.Tensors, lane: str = 'bitwise'
) -> Callable[[str], np.ndarray]:
  """Returns what tells, of a name, which elements a lane refuses."""
  return lambda name: lanes.differs(lane, got[name], expected[name])


def alone_as_used(
  case: PassCase, candidate: candidates.Candidate
) -> tuple[Results, list[isolation.WrongTask]]:
  """Judges each task, by itself, of the launch that front ends make.

  Returns:
    A row for each tensor that it makes, and the tasks that are wrong.
  """
  assert candidate.alone_as_used is not None
  got, whole = case.run(candidate.alone_as_used)
  results = [
    equality(name, 'bitwise', USED_RULE, got, whole, case.tiling)
    for name in case.stages
    if name in got
  ]
  differs = _unlike(got, whole)
  return results, guilty(case, candidate, 'bitwise', results, differs)


def _continued(
  case: PassCase, candidate: candidates.Candidate, answered: Answered
) -> Answered:
  """Returns what a part of the tasks gave, continued by the oracle.

  What stood in for a task that did not run was the oracle's answer to the
  oracle's own tensors: no bound of rounding ties it to the tasks that ran.
  """
  launch = _last_launch(case, candidate)
  assert launch is not None  # Only our own launches leave tasks out.
  left_out = launch.find_left_out(answered.got)
  got = dict(answered.got)
  for name in case.which.stages:
    if case.sources[name] and left_out[name].any():
      stage = case.recompute(name, got)
      got[name] = np.where(left_out[name], stage, got[name])
  return Answered(got, got, answered.serial)


def _last_launch(
  case: PassCase, candidate: candidates.Candidate
) -> candidates.Launch | None:
  launches = reversed(candidate.launches)
  return next((one for one in launches if one.which is case.which), None)


def ordered_rows(case: PassCase, answered: Answered) -> Results:
  """What has one legal order of additions, against the oracle in that order.

  Only our own kernels are held to it: those of others may add as they like.
  """
  return [
    lanes.compare(
      name,
      'bitwise',
      ORDERED_RULE,
      answered.got[name],
      case.recompute(name, answered.sources),
      case.tiling,
    )
    for name in case.which.stages
    if name in _ORDERED and name not in case.movement
    if name in answered.got and case.follows(name, answered.sources)
  ]


def moved(
  case: PassCase, answered: Answered, expected: passes.Tensors
) -> tuple[Results, Got]:
  """What only moves or counts, bit for bit, and what it must equal.

  A candidate that returned what moved, but not from where, is judged on that by
  `judged`.
  """
  got, sources = answered.got, answered.sources
  results: Results = []
  homes: Got = {}
  for name in (*case.which.plan, *case.movement):
    rule = ORACLE_RULE
    before = case.sources[name]
    if before:
      rule = f'equals its own {before[0]}, returned'
    if name in got and not case.follows(name, sources):
      continue
    if name in got:
      homes[name] = case.recompute(name, sources) if before else expected[name]
    results.append(equality(name, 'bitwise', rule, got, homes, case.tiling))
  return results, homes


def judged(
  asked: Asked, case: PassCase, answered: Answered, expected: passes.Tensors
) -> Results:
  """Lanes bounded and standard: every stage, then the fused layer.

  Whatever was asked for, the layer must lie within its bound: few records have
  a rule for it, and stages may agree among themselves and be wrong.  Where each
  stage ran alone, nothing passed through the layer; then every stage must.
  """
  which, got = case.which, answered.got
  records = asked.records if 'standard' in asked.lanes else ()
  whole = answered.sources is got
  layer = case.golden({})
  goldens = layer, case.golden(answered.sources)
  fused = layer
  if _is_dense(case):
    fused = dense.Rows.of(layer, which.name != passes.FORWARD.name)
  jobs: list[tuple[str, Job]] = []
  for name in which.stages:
    found = _stage_jobs(asked, case, answered, expected, goldens, name)
    jobs += [(name, job) for job in found]
  mine = tuple(r for r in records if r.layer)
  for name in which.results if whole else ():
    row, home = verdicts.ROWS[name], expected[name]
    if name in got:
      judge = functools.partial(lanes.tolerances, row, got[name], fused, home)
      job: Job = functools.partial(judge, mine, same=home)
    else:
      job = functools.partial(_not_captured, row, mine, True, name)
    jobs.append(('layer', job))
  return _by_all(asked, which, jobs)


def _stage_jobs(
  asked: Asked,
  case: PassCase,
  answered: Answered,
  expected: passes.Tensors,
  goldens: tuple[golden_lib.Rows, golden_lib.Rows],
  name: str,
) -> Iterator[Job]:
  """Yields what judges one stage; `goldens` are the layer's and the stages'."""
  got, sources = answered.got, case.usable(name, answered.sources)
  records = asked.records if 'standard' in asked.lanes else ()
  records = () if name in case.movement else records
  follows = case.follows(name, sources)
  # Bits cannot say where the rows came from.
  lost = name in case.movement and not follows
  whole = answered.sources is got or answered.serial
  bound = 'bounded' in asked.lanes or lost or not whole
  if name not in got:
    yield functools.partial(_not_captured, name, records, bound)
    return
  # What was made of tensors that stayed away went through several operators.
  fit = tuple(r for r in records if r.layer or follows)
  known = case.descends(name, sources)
  # A golden that is not rounded as the stage is says little of edges.
  inside = precision.points_of(name, case.made.policy)
  apart = bound and not (follows and not inside)
  beside = None
  if fit or apart:
    beside = _beside(case, name, sources, expected) if known else expected[name]
  # A stage that reads inputs only is no fused operator.
  golden = goldens[known or not case.sources[name]]
  same = beside if apart else None
  yield functools.partial(
    lanes.tolerances, name, got[name], golden, beside, fit, bound, same
  )
  if follows:
    return
  unfit = tuple(r for r in records if not r.layer)
  before = case.unseen(name, sources)[-1]
  yield functools.partial(_not_captured, name, unfit, False, before)
  # Edges are told from what the oracle stored, stage by stage, and a chain has
  # the golden of one pass: what the forward pass kept would be float64, not
  # what was stored.
  if case.unseen_saved:
    return
  is_result = name in case.which.results
  if bounds.is_narrow(case.made.policy) and (bound or is_result):
    right = chain(case, name, sources, expected)
    yield lambda: [lanes.within_edges(name, got[name], right)]


def _beside(
  case: PassCase, name: str, sources: passes.Tensors, expected: passes.Tensors
) -> np.ndarray:
  """Returns the oracle's stage on a candidate's tensors.

  It is in `expected` where the candidate's are bit for bit the oracle's.
  """
  for read in case.sources[name]:
    alike = read in sources and name in expected and read in expected
    if (
      not alike or lanes.differs('bitwise', sources[read], expected[read]).any()
    ):
      return case.recompute(name, sources)
  return expected[name]


def chain(
  case: PassCase, name: str, sources: passes.Tensors, expected: passes.Tensors
) -> edges.Chain:
  """Returns the stages from the nearest that were captured to `name`."""
  unseen = case.unseen(name, sources)
  own: Got = {}
  for one in (*unseen, name):
    if case.descends(one, sources):
      own[one] = case.recompute(one, {**sources, **own})
    else:
      own[one] = expected[one]
  policy = dataclasses.replace(case.made.policy, storage='float32')
  golden = case.golden({**sources, **own}, policy)
  golden = dataclasses.replace(golden, within=case.made.policy.dtype(name))
  comparisons = verdicts.comparisons(case.made.config)
  return edges.Chain(golden, own, unseen, comparisons)


def _by_all(
  asked: Asked,
  which: passes.Pass,
  jobs: Sequence[tuple[str, Job]],
) -> Results:
  """Returns what jobs say, and tells each step before the first of its jobs."""
  results: Results = []
  told = ''
  found = processes.results([job for _, job in jobs])
  for step, _ in jobs:
    if step != told:
      asked.progress(f'{which.name}, bounded, standard: {step}')
      told = step
    results += next(found)
  if told != 'layer':
    asked.progress(f'{which.name}, bounded, standard: layer')
  return results


def _not_captured(
  name: str,
  records: Sequence[standards.Standard],
  bounded: bool,
  missing: str = '',
) -> Results:
  rules = [('bounded', verdicts.BOUND_RULE)] if bounded else []
  rules += [('standard', record.name) for record in records]
  return [verdicts.not_captured(name, *rule, missing or name) for rule in rules]
