"""One case on the bench: its data, the oracle's answers, and who is examined.

Whoever checks several candidates on the same inputs keeps the answers; a single
check lets go of them, for the sake of memory.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import exact_limits
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import exact_lane
from hpmoe.parity_tests.judge import failure_details
from hpmoe.parity_tests.judge import isolation
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_case
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import real_lanes
from hpmoe.parity_tests.judge import repeat
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import sampling
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import tensors

Tensors = passes.Tensors


class NothingToJudge(ValueError):
  """The lanes asked for have nothing that they could judge."""


class Bench:
  """The inputs of a case, and the oracle's answers to them."""

  def __init__(
    self,
    case: case_lib.Case,
    keep: bool = False,
    share: tuple[int, ...] | None = None,
  ):
    """Makes the inputs.

    Args:
      case: what is asked.
      keep: whether the oracle's answers are kept.
      share: the ranks to be judged; None: all.

    Raises:
      ValueError: the case is wrong.
    """
    self._case, self._share = case, share
    self.made = case.make() if share is None else case.share(share)
    self._keep = keep
    self._answers: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    self._exact: dict[str, inputs_lib.LayerInputs] = {}

  def inputs(self, data: str) -> inputs_lib.LayerInputs:
    """Returns data of that name (`inputs.DATA`) on the same routing."""
    if data == 'real':
      return self.made
    if data in self._exact:
      return self._exact[data]
    if self._share is not None:
      return self._case.share(self._share, data)
    made = self._case.data(self.made, data)
    if self._keep:
      self._exact[data] = made
    return made

  @functools.cached_property
  def plan(self) -> dict[str, np.ndarray]:
    """The oracle's plan of the routing."""
    made = self.made
    return oracle_lib.Oracle(made.config, made.policy, made.arrays).plan

  def answer(
    self,
    made: inputs_lib.LayerInputs,
    which: passes.Pass = passes.FORWARD,
  ) -> dict[str, np.ndarray]:
    """Returns the oracle's tensors of a pass; the caller may drop some.

    Args:
      made: this bench's real or exact inputs; for the backward pass with what
        the oracle's forward pass saved.
      which: the pass.
    """
    name = (made.data, which.name)
    if name not in self._answers:
      answer = _ask(made, which)
      if not self._keep:
        return answer
      self._answers[name] = answer
    return dict(self._answers[name])

  def case(
    self,
    candidate: candidates.Candidate,
    which: passes.Pass,
    made: inputs_lib.LayerInputs,
    own: Tensors | None = None,
  ) -> pass_case.PassCase:
    """Returns a pass on this bench's inputs, ready to be judged.

    Args:
      candidate: its granularity.
      which: the pass.
      made: real or exact inputs.
      own: what the candidate's forward pass returned, if it ran.  The backward
        pass reads it; what it did not return, or what is not finite and would
        say nothing of a backward pass, is the oracle's.  None: it did not run.
    """
    arrays = dict(made.arrays)
    kept = {}
    if which is passes.BACKWARD:
      kept = _usable(
        own or {}, tensors.saved(made.config, made.policy.placement)
      )
      arrays |= self._saved(made, kept)
    read = which.reads(made.config, made.policy)
    given = dataclasses.replace(made, arrays={n: arrays[n] for n in read})
    answer = functools.partial(_ask if kept else self.answer, given, which)
    options = candidate.options
    relay = options.relay and candidate.can.relays
    tiling = dataclasses.replace(
      tiling_of(options, made, self.plan),
      ranks=candidate.ranks,
      share=self._share,
    )
    mine = which.of_layer(made.config)

    def hidden() -> tuple[str, ...]:
      its_own = candidate.recomputes
      if candidate.can.saves:
        its_own = own is not None
      if which is not passes.BACKWARD or not its_own:
        return ()
      saved = tensors.saved(made.config, made.policy.placement)
      return tuple(name for name in saved if name not in kept)

    return pass_case.PassCase(mine, given, tiling, answer, relay, hidden)

  def read_by(
    self, which: Sequence[passes.Pass], data: str
  ) -> inputs_lib.LayerInputs:
    """Returns data of a kind: what passes read, saved tensors the oracle's."""
    made = self.inputs(data)
    held = {**made.arrays}
    if passes.BACKWARD in which:
      held |= self._saved(made, {})
    of = made.config, made.policy
    names = dict.fromkeys(n for one in which for n in one.reads(*of))
    return dataclasses.replace(made, arrays={n: held[n] for n in names})

  def _saved(self, made: inputs_lib.LayerInputs, kept: Tensors) -> Tensors:
    """Returns what a forward pass saved, `kept` where that is there.

    A case that was written says what a kernel elsewhere read.
    """
    names = tensors.saved(made.config, made.policy.placement)
    held = {n: made.arrays[n] for n in names if n in made.arrays} | dict(kept)
    if not set(names) <= set(held):
      forward = self.answer(made)
      held = {name: forward[name] for name in names} | held
    return self.plan | held

  def judge(
    self,
    request: request_lib.Request,
    progress: pass_case.Progress = lambda step: None,
  ) -> list[verdicts.Result]:
    """As `examine`, the comparisons only; what fails is not explained."""
    return self.examine(request, progress, explain=False).results

  def examine(
    self,
    request: request_lib.Request,
    progress: pass_case.Progress = lambda step: None,
    explain: bool = True,
  ) -> pass_case.Findings:
    """Runs the lanes of a request on this bench's data.

    Args:
      request: its case differs from the bench's in the direction alone.
      progress: called with the name of each step as it begins.
      explain: whether the pattern of a failure says what it looks like, which
        takes longer than to find it.

    Raises:
      ValueError: the request asks for a pass that this bench was not made for.
      NothingToJudge: no lane could judge anything.
      candidates.CandidateError: the candidate gave no answer.
    """
    found = self.judged(request, progress, explain=explain)
    return settled(request, found)

  def judged(
    self,
    request: request_lib.Request,
    progress: pass_case.Progress = lambda step: None,
    only: str = '',
    roundings: Sequence[str] | None = None,
    explain: bool = True,
  ) -> pass_case.Findings:
    """Returns what the lanes say of this bench's ranks, see `settled`.

    Args:
      request: as in `examine`.
      progress: as there.
      only: the data to judge on; '': all.
      roundings: stages that are looked at for roundings; None: all.
      explain: as in `examine`.
    """
    self._refuse_other_passes(request.case)
    judgement = request.judgement
    records = (
      standards.get(n, self.made.policy.storage) for n in judgement.standards
    )
    asked = pass_case.LaneOptions(
      judgement.lanes, tuple(records), progress, roundings, explain
    )
    results: list[verdicts.Result] = []
    wrong: list[isolation.WrongTask] = []
    changes: list[verdicts.Change] = []
    runs: list[int] = []
    before: dict[str, Tensors] = {}
    for data, lane in _lanes(request):
      if data == 'wide' and self.made.config.sublayer:
        continue  # Sums over tokens of a whole mantissa are not exact.
      if only not in ('', data):
        continue
      try:
        made = self.inputs(data)
      except (folder_lib.NoData, exact_limits.ExactnessError) as error:
        results += [
          exact_lane.report_no_data(which, data, str(error))
          for which in request.case.passes
        ]
        continue
      judge = functools.partial(lane, asked)
      for found in self._in_turn(request, made, judge, before):
        results += found.results
        wrong += found.wrong
        changes += found.changes
        runs += [found.runs] * (data == 'real')
    fewest = min(runs, default=1)
    return pass_case.Findings(results, {}, wrong, changes, fewest)

  def _refuse_other_passes(self, case: case_lib.Case) -> None:
    mine = self._case.passes
    if not set(case.passes) <= set(mine):
      raise ValueError(
        f'direction: expected a pass of {[p.name for p in mine]}, got '
        f'{case.direction!r}'
      )

  def _in_turn(
    self, request, made, lane, before
  ) -> Iterator[pass_case.Findings]:
    """Judges the passes in order, the second on what the first one saved.

    In a replay on what the oracle saved: nothing spreads.  `before` holds by
    pass what a small layer's last call read and wrote.
    """
    candidate = request.candidate
    saved: Tensors | None = None
    for which in request.case.passes:
      case = self.case(candidate, which, made, saved)
      case = dataclasses.replace(case, before=before.get(which.name, {}))
      found = lane(case, candidate)
      if pass_case.is_small(case):
        before[which.name] = {**case.made.arrays, **found.got}
      # The rest is not held while the next pass runs.
      if not candidate.checking.replays:
        got, names = (
          found.got,
          tensors.saved(made.config, made.policy.placement),
        )
        saved = {n: got[n] for n in names if n in got}
        del got
      placed = failure_details.with_place(found.results, candidate, case.tiling)
      yield dataclasses.replace(found, results=placed, got={})
      del found


def settled(
  request: request_lib.Request, found: pass_case.Findings
) -> pass_case.Findings:
  """Returns what a report says of what the lanes found on all ranks.

  Raises:
    NothingToJudge: no lane could judge anything.
  """
  results = found.results
  _refuse_nothing(request, results)
  verdicts.check_each_once(results)
  results = sorted(results, key=_pass_then_lane)
  # A stage in isolation gains nothing from what others would have returned.
  isolated = request.candidate.checking.isolate
  more = request.candidate.can.stages and not isolated
  hinted = failure_details.with_hint(results) if more else results

  def repeated(failure: verdicts.Failure) -> verdicts.Failure:
    return dataclasses.replace(failure, replay=request.replay(failure.lane))

  return dataclasses.replace(
    found,
    results=[
      dataclasses.replace(
        one, part=None, failure=one.failure and repeated(one.failure)
      )
      for one in hinted
    ],
    wrong=_guilty(request, found.wrong) if isolated else [],
  )


def tiling_of(
  options: granularity.Options, made: inputs_lib.LayerInputs, plan: Tensors
) -> tiles.Tiling:
  """Returns the tiles that options cut of a routing."""
  cut = options.resolve(made.config)
  return tiles.Tiling(
    made.config,
    plan['counts'],
    plan['row_of_slot'],
    made.arrays['topk_ids'],
    cut.row_block,
    cut.col_block,
    cut.token_block,
  )


def _lanes(request: request_lib.Request) -> Iterator[tuple]:
  """Yields data and what judges on them.

  Whatever is asked for, the layer is judged on real data.
  """
  judgement = request.judgement
  if 'exact' in judgement.lanes:
    yield 'exact', exact_lane.judge_exact
    yield 'wide', exact_lane.judge_exact
  judge: repeat.Lane = real_lanes.judge_real
  if judgement.tiles is not None:
    sample = tiles.Sample(judgement.tiles, request.case.seed)
    judge = functools.partial(sampling.lanes_of_sample, sample=sample)
  again = functools.partial(repeat.lane, judge=judge, judgement=judgement)
  yield 'real', again


def _refuse_nothing(
  request: request_lib.Request, results: Sequence[verdicts.Result]
) -> None:
  """Refuses to call a layer right of which nothing but the plan was judged.

  Nor is it right because the fault asked for is not in it.

  Raises:
    NothingToJudge: no lane judged, or no launch committed the fault.
  """
  stages = [r for r in results if r.stage not in tensors.PLAN]
  unseen = [r.why for r in stages if r.verdict == verdicts.NOT_JUDGED]
  name, fault = request.candidate.name, request.candidate.fault
  if len(unseen) == len(stages):
    why = verdicts.NO_LIMIT if verdicts.NO_LIMIT in unseen else unseen[0]
    raise NothingToJudge(
      f'lane: expected one that can judge what {name} returned, got '
      f'{list(request.judgement.lanes)}: {why}'
    )
  if fault is not None and not request.candidate.committed:
    raise NothingToJudge(
      f'fault: expected one that changes a bit of this layer in some lane, got '
      f'{fault!r}: {unseen[0]}'
    )


def _guilty(
  request: request_lib.Request, wrong: Sequence[isolation.WrongTask]
) -> list[isolation.WrongTask]:
  found = []
  for which in request.case.passes:
    races = [
      race
      for launch in request.candidate.launches
      if launch.which.name == which.name
      for race in launch.races
    ]
    mine = [one for one in wrong if one.direction == which.name]
    found += isolation.find_guilty_tasks(mine, races, which.name)
  return found


def _ask(
  made: inputs_lib.LayerInputs, which: passes.Pass
) -> dict[str, np.ndarray]:
  oracle = oracle_lib.Oracle(made.config, made.policy, made.arrays)
  return pass_reference.answer(oracle, which)


def _usable(own: Tensors, names: Sequence[str]) -> dict[str, np.ndarray]:
  return {n: own[n] for n in names if n in own and np.isfinite(own[n]).all()}


def _pass_then_lane(result: verdicts.Result) -> tuple[int, int]:
  backward = verdicts.pass_of(result.stage) is passes.BACKWARD
  return int(backward), verdicts.LANES.index(result.lane)
