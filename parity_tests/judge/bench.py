"""The inputs of one case and the oracle's answers, to judge candidates on.

A caller that checks several candidates on the same inputs keeps the answers; a
single check drops them to save memory.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.judge import failure_details
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import exact_lane
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import real_lanes
from hpmoe.parity_tests.judge.lanes import repeat
from hpmoe.parity_tests.judge.lanes import sampling
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import tensors

Tensors = passes.Tensors


class NothingToJudge(ValueError):
  """None of the requested lanes could judge anything."""


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
      case: the case.
      keep: whether to store the oracle's answers for further candidates.
      share: the ranks to judge; None: all.

    Raises:
      ValueError: the case is wrong.
    """
    self._case, self._share = case, share
    self.real_inputs = case.make() if share is None else case.share(share)
    self._keep = keep
    self._answers: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    self._exact: dict[str, inputs_lib.LayerInputs] = {}

  def inputs(self, data: str) -> inputs_lib.LayerInputs:
    """Returns data of that name (`inputs.DATA`) on the same routing."""
    if data == 'real':
      return self.real_inputs
    if data in self._exact:
      return self._exact[data]
    if self._share is not None:
      return self._case.share(self._share, data)
    inputs = self._case.data(self.real_inputs, data)
    if self._keep:
      self._exact[data] = inputs
    return inputs

  @functools.cached_property
  def plan(self) -> dict[str, np.ndarray]:
    """The oracle's plan of the routing."""
    inputs = self.real_inputs
    # Weights are drawn later.
    ids = dict(topk_ids=inputs.arrays['topk_ids'])
    return oracle_lib.Oracle(inputs.config, inputs.policy, ids).plan

  def answer(
    self,
    inputs: inputs_lib.LayerInputs,
    layer_pass: passes.Pass = passes.FORWARD,
  ) -> dict[str, np.ndarray]:
    """Returns the oracle's tensors of a pass; the caller may drop some.

    Args:
      inputs: this bench's real or exact inputs; for the backward pass with what
        the oracle's forward pass saved.
      layer_pass: the pass.
    """
    name = (inputs.data, layer_pass.name)
    if name not in self._answers:
      answer = _ask(inputs, layer_pass)
      if not self._keep:
        return answer
      self._answers[name] = answer
    return dict(self._answers[name])

  def case(
    self,
    candidate: candidates.Candidate,
    layer_pass: passes.Pass,
    inputs: inputs_lib.LayerInputs,
    own: Tensors | None = None,
  ) -> pass_case.PassCase:
    """Returns a pass on this bench's inputs, ready to be judged.

    Args:
      candidate: its granularity.
      layer_pass: the pass.
      inputs: real or exact inputs.
      own: the outputs of the candidate's forward pass; None: it did not run.
        The backward pass reads them; tensors that it did not return, or that
        are not finite, are the oracle's.
    """
    arrays = dict(inputs.arrays)
    usable_saved = {}
    if layer_pass is passes.BACKWARD:
      usable_saved = _usable(
        own or {}, tensors.saved_stages(inputs.config, inputs.policy.placement)
      )
      arrays |= self._collect_saved(inputs, usable_saved)
    read = layer_pass.reads(inputs.config, inputs.policy)
    pass_inputs = dataclasses.replace(
      inputs, arrays={n: arrays[n] for n in read}
    )
    answer = functools.partial(
      _ask if usable_saved else self.answer, pass_inputs, layer_pass
    )
    options = candidate.options
    relay = options.relay and candidate.capabilities.relays
    tiling = dataclasses.replace(
      cut_tiles(options, inputs, self.plan),
      ranks=candidate.ranks,
      share=self._share,
    )
    own_pass = layer_pass.of_layer(inputs.config)

    def hidden() -> tuple[str, ...]:
      its_own = candidate.recomputes
      if its_own is None and candidate.capabilities.saves:
        its_own = own is not None
      if layer_pass is not passes.BACKWARD or not its_own:
        return ()
      saved_names = tensors.saved_stages(inputs.config, inputs.policy.placement)
      return tuple(name for name in saved_names if name not in usable_saved)

    return pass_case.PassCase(
      own_pass, pass_inputs, tiling, answer, relay, hidden
    )

  def read_by(
    self, layer_passes: Sequence[passes.Pass], data: str
  ) -> inputs_lib.LayerInputs:
    """Returns the inputs of passes; saved tensors are the oracle's."""
    inputs = self.inputs(data)
    arrays = {**inputs.arrays}
    if passes.BACKWARD in layer_passes:
      arrays |= self._collect_saved(inputs, {})
    layer = inputs.config, inputs.policy
    names = dict.fromkeys(
      n for layer_pass in layer_passes for n in layer_pass.reads(*layer)
    )
    return dataclasses.replace(inputs, arrays={n: arrays[n] for n in names})

  def _collect_saved(
    self, inputs: inputs_lib.LayerInputs, own_saved: Tensors
  ) -> Tensors:
    """Returns the saved tensors of a forward pass, from `own_saved` if there.

    A folder of a case holds the tensors that a kernel elsewhere read.
    """
    names = tensors.saved_stages(inputs.config, inputs.policy.placement)
    saved_tensors = {
      n: inputs.arrays[n] for n in names if n in inputs.arrays
    } | dict(own_saved)
    if not set(names) <= set(saved_tensors):
      forward = self.answer(inputs)
      saved_tensors = {name: forward[name] for name in names} | saved_tensors
    return self.plan | saved_tensors

  def judge(
    self,
    request: request_lib.Request,
    progress: pass_case.Progress = lambda step: None,
  ) -> list[verdicts.Result]:
    """Returns the comparisons of `examine`; failures are not explained."""
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
      explain: whether to search for the pattern of a failure, which takes
        longer than the judgement.

    Raises:
      ValueError: the request has a pass that this bench does not.
      NothingToJudge: no lane could judge anything.
      candidates.CandidateError: the candidate failed to run.
    """
    findings = self.judge_ranks(request, progress, explain=explain)
    return finish_findings(request, findings)

  def judge_ranks(
    self,
    request: request_lib.Request,
    progress: pass_case.Progress = lambda step: None,
    data_kind: str = '',
    roundings: Sequence[str] | None = None,
    explain: bool = True,
  ) -> pass_case.Findings:
    """Returns the findings on this bench's ranks, for `finish_findings`.

    Args:
      request: as in `examine`.
      progress: as there.
      data_kind: the data to judge on; '': all.
      roundings: stages that are searched for roundings; None: all.
      explain: as in `examine`.
    """
    self._refuse_other_passes(request.case)
    judgement = request.judgement
    if not judgement.search_roundings:
      roundings = ()
    records = (
      standards.get(n, self.real_inputs.policy.storage)
      for n in judgement.standards
    )
    options = pass_case.LaneOptions(
      judgement.lanes,
      tuple(records),
      progress,
      roundings,
      explain,
      request.beside,
      request.other_inputs,
      request.list_others,
    )
    results: list[verdicts.Result] = []
    wrong: list[isolated_replay.WrongTask] = []
    changes: list[verdicts.Change] = []
    runs: list[int] = []
    before: dict[str, Tensors] = {}
    for data, lane in _lanes(request):
      if data == 'wide' and self.real_inputs.config.sublayer:
        continue  # Sums over tokens of a whole mantissa are not exact.
      if data_kind not in ('', data):
        continue
      try:
        inputs = self.inputs(data)
      except (folder_lib.NoData, exact_limits.ExactnessError) as error:
        results += [
          exact_lane.report_no_data(layer_pass, data, str(error))
          for layer_pass in request.case.passes
        ]
        continue
      judge = functools.partial(lane, options)
      for findings in self._in_turn(request, inputs, judge, before):
        results += findings.results
        wrong += findings.wrong
        changes += findings.changes
        runs += [findings.runs] * (data == 'real')
      # Data of one kind are freed before those of the next are drawn.
      del inputs, judge
    fewest = min(runs, default=1)
    return pass_case.Findings(results, {}, wrong, changes, fewest)

  def _refuse_other_passes(self, case: case_lib.Case) -> None:
    own_passes = self._case.passes
    if not set(case.passes) <= set(own_passes):
      raise ValueError(
        f'direction: expected a pass of {[p.name for p in own_passes]}, got '
        f'{case.direction!r}'
      )

  def _in_turn(
    self, request, inputs, lane, before
  ) -> Iterator[pass_case.Findings]:
    """Judges the passes in order, the second on tensors the first one saved.

    A replay reads the oracle's saved tensors instead, so errors do not spread.
    `before` holds, by pass, what the last call of a small layer read and wrote.
    """
    candidate = request.candidate
    saved_tensors: Tensors | None = None
    for layer_pass in request.case.passes:
      case = self.case(candidate, layer_pass, inputs, saved_tensors)
      case = dataclasses.replace(case, before=before.get(layer_pass.name, {}))
      if request.through_router and layer_pass is passes.BACKWARD:
        case = case.with_router(*request.through_router)
      findings = lane(case, candidate)
      if pass_case.is_small(case):
        before[layer_pass.name] = {**case.inputs.arrays, **findings.outputs}
      # Only saved tensors stay in memory while the next pass runs.
      if not candidate.checking.replays:
        outputs, names = (
          findings.outputs,
          tensors.saved_stages(inputs.config, inputs.policy.placement),
        )
        saved_tensors = {n: outputs[n] for n in names if n in outputs}
        del outputs
      placed_results = failure_details.add_places(
        findings.results, candidate, case.tiling
      )
      yield dataclasses.replace(findings, results=placed_results, outputs={})
      del findings


def finish_findings(
  request: request_lib.Request, findings: pass_case.Findings
) -> pass_case.Findings:
  """Returns the findings of all ranks as a report shows them.

  Raises:
    NothingToJudge: no lane could judge anything.
  """
  results = findings.results
  _refuse_nothing(request, results)
  verdicts.check_each_once(results)
  results = sorted(results, key=_pass_then_lane)
  # In isolation a stage is located without the tensors of other stages.
  isolated = request.candidate.checking.isolate
  can_return_more = request.candidate.capabilities.stages and not isolated
  hinted = results
  if can_return_more:
    hinted = failure_details.add_hints(results, request.case.rows)

  def add_replay(failure: verdicts.Failure) -> verdicts.Failure:
    return dataclasses.replace(failure, replay=request.replay(failure.lane))

  return dataclasses.replace(
    findings,
    results=[
      dataclasses.replace(
        result, part=None, failure=result.failure and add_replay(result.failure)
      )
      for result in hinted
    ],
    wrong=_find_guilty(request, findings.wrong) if isolated else [],
  )


def cut_tiles(
  options: granularity.Options, inputs: inputs_lib.LayerInputs, plan: Tensors
) -> tiles.Tiling:
  """Returns the tiles into which options cut the tensors of a routing."""
  cut = options.resolve(inputs.config)
  return tiles.Tiling(
    inputs.config,
    plan['counts'],
    plan['row_of_slot'],
    inputs.arrays['topk_ids'],
    cut.row_block,
    cut.col_block,
    cut.token_block,
  )


def _lanes(request: request_lib.Request) -> Iterator[tuple]:
  """Yields each kind of data and the function that judges on it.

  The layer is always judged on real data.
  """
  judgement = request.judgement
  if 'exact' in judgement.lanes:
    yield 'exact', exact_lane.judge_exact
    yield 'wide', exact_lane.judge_exact
  judge: repeat.Lane = real_lanes.judge_real
  if judgement.tiles is not None:
    sample = tiles.Sample(judgement.tiles, request.case.seed)
    judge = functools.partial(sampling.lanes_of_sample, sample=sample)
  judge_runs = functools.partial(
    repeat.judge_repeatedly, judge=judge, judgement=judgement
  )
  yield 'real', judge_runs


def _refuse_nothing(
  request: request_lib.Request, results: Sequence[verdicts.Result]
) -> None:
  """Refuses results that judge nothing but the plan, or lack a planted fault.

  Raises:
    NothingToJudge: no lane judged, or no launch committed the fault.
  """
  stages = [r for r in results if r.stage not in tensors.PLAN]
  unseen = [r.reason for r in stages if r.verdict == verdicts.NOT_JUDGED]
  name, fault = request.candidate.name, request.candidate.fault
  if len(unseen) == len(stages):
    reason = verdicts.NO_LIMIT if verdicts.NO_LIMIT in unseen else unseen[0]
    raise NothingToJudge(
      f'lane: expected one that can judge what {name} returned, got '
      f'{list(request.judgement.lanes)}: {reason}'
    )
  if fault is not None and not request.candidate.committed:
    raise NothingToJudge(
      f'fault: expected one that changes a bit of this layer in some lane, got '
      f'{fault!r}: {unseen[0]}'
    )


def _find_guilty(
  request: request_lib.Request, wrong: Sequence[isolated_replay.WrongTask]
) -> list[isolated_replay.WrongTask]:
  guilty = []
  for layer_pass in request.case.passes:
    races = [
      race
      for launch in request.candidate.launches
      if launch.layer_pass.name == layer_pass.name
      for race in launch.races
    ]
    own_wrong = [task for task in wrong if task.direction == layer_pass.name]
    guilty += isolated_replay.find_guilty_tasks(
      own_wrong, races, layer_pass.name
    )
  return guilty


def _ask(
  inputs: inputs_lib.LayerInputs, layer_pass: passes.Pass
) -> dict[str, np.ndarray]:
  oracle = oracle_lib.Oracle(inputs.config, inputs.policy, inputs.arrays)
  return pass_reference.run_oracle(oracle, layer_pass)


def _usable(own: Tensors, names: Sequence[str]) -> dict[str, np.ndarray]:
  return {n: own[n] for n in names if n in own and np.isfinite(own[n]).all()}


def _pass_then_lane(result: verdicts.Result) -> tuple[int, int]:
  backward = verdicts.pass_of(result.stage) is passes.BACKWARD
  return int(backward), verdicts.LANES.index(result.lane)
